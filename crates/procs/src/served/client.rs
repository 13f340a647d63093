//! Asking the service.

use std::{io, mem::MaybeUninit};

use rustix::{
    fd::OwnedFd,
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags,
        SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, send, socket_with,
        sockopt::{Timeout, set_socket_timeout, socket_peercred},
    },
};

use super::protocol::{ANSWER_BYTES, Query, SLOTS, socket_paths};
use crate::{Missed, Table, sys::Readable, wire};

/// How often a snapshot that was replaced while it was read is asked for again.
const TRIES: usize = 3;

/// A service that takes longer is given up; its own scans are bounded.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(2);

/// Why there is no answer; then the client scans by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unserved {
    /// The query is about what a snapshot does not have.
    #[error("a snapshot has not all that is asked for")]
    NotHeld,
    /// No service, or not for this user.
    #[error("no index is served: {0}")]
    Io(#[from] io::Error),
    /// It answered with something else, or is another user's.
    #[error("what is served is no index of this machine and user")]
    Foreign,
    /// Each of a few snapshots was replaced while it was read.
    #[error(transparent)]
    Missed(#[from] Missed),
}

impl From<rustix::io::Errno> for Unserved {
    fn from(error: rustix::io::Errno) -> Self {
        Self::Io(error.into())
    }
}

/// Asks the service for a table. Takes no lock; tries again a few times when a snapshot was replaced while it was read.
///
/// # Errors
/// [`Unserved`]: the caller then scans by itself.
pub fn ask(query: &Query) -> Result<Table, Unserved> {
    if !query.can_be_served() {
        return Err(Unserved::NotHeld);
    }
    let mut missed = Unserved::Missed(Missed::Replaced);
    for _ in 0..TRIES {
        match once(query) {
            Err(Unserved::Missed(Missed::Replaced)) => {
                missed = Unserved::Missed(Missed::Replaced);
            }
            answer => return answer,
        }
    }
    Err(missed)
}

fn once(query: &Query) -> Result<Table, Unserved> {
    let socket = find()?;
    // A service of another user could say anything.
    let served_by = socket_peercred(&socket)?.uid;
    if !served_by.is_root() && served_by != rustix::process::geteuid() {
        return Err(Unserved::Foreign);
    }
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    send(&socket, &query.to_bytes(), SendFlags::NOSIGNAL)?;
    let (generation, file) = answer(&socket)?;
    let readable = Readable::new(&file)?;
    let memory = readable.memory();
    let (_, namespace) = SLOTS.latest(&memory)?;
    if namespace != pid_namespace() {
        return Err(Unserved::Foreign);
    }
    let data = SLOTS.read(&memory, generation)?;
    wire::decode(&data).ok_or(Unserved::Missed(Missed::Invalid))
}

fn find() -> Result<OwnedFd, Unserved> {
    let mut error = io::Error::from(io::ErrorKind::NotFound);
    for path in socket_paths() {
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )?;
        match connect(&socket, &SocketAddrUnix::new(&path)?) {
            Ok(()) => return Ok(socket),
            Err(e) => error = e.into(),
        }
    }
    Err(error.into())
}

fn answer(socket: &OwnedFd) -> Result<(u64, OwnedFd), Unserved> {
    let mut bytes = [0; ANSWER_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(
        socket,
        &mut [io::IoSliceMut::new(&mut bytes)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC,
    )?;
    let file = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    let number = |at: usize| bytes[at..].first_chunk().map(|b| u64::from_ne_bytes(*b));
    match (received.bytes, number(0), number(8), file) {
        (ANSWER_BYTES, Some(0), Some(generation), Some(file)) if generation > 0 => {
            Ok((generation, file))
        }
        _ => Err(Unserved::Foreign),
    }
}

/// Which processes `/proc` shows: 0 where that can't be told.
pub(super) fn pid_namespace() -> u64 {
    crate::sys::inode("/proc/self/ns/pid").unwrap_or(0)
}
