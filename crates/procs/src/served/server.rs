//! The service: scans when somebody asks, publishes, answers.

use std::{
    io,
    mem::MaybeUninit,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fd::{AsFd, OwnedFd},
    net::{
        AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
        SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, recv, sendmsg,
        socket_with, sockopt::socket_peercred,
    },
    time::Timespec,
};

use super::{
    client::pid_namespace,
    keeper::Keeper,
    protocol::{QUERY_BYTES, Query, SLOTS},
};
use crate::{ProcError, Wanted, sys, wire};

/// A client that has connected and not asked yet is given up after this time.
const SILENT: Duration = Duration::from_secs(1);
/// At most so many wait for an answer at once; more wait to be accepted.
const MOST: usize = 1024;

/// A service; its socket is removed when it is dropped.
pub struct Server {
    path: PathBuf,
    listener: OwnedFd,
    ending: OwnedFd,
    keeper: Keeper,
    shared: sys::Written,
    /// `/proc` shows other users' processes to nobody but root.
    hides: bool,
    latest: Option<Latest>,
    generation: u64,
}

/// What was published last.
struct Latest {
    began: Instant,
    wanted: Wanted,
}

/// Somebody who has connected.
struct Client {
    socket: OwnedFd,
    since: Instant,
    query: Option<Query>,
}

impl Server {
    /// Listens at `path`, which its owner may use, and `group` where one is given. A socket that a service which was killed
    /// has left is replaced.
    ///
    /// # Errors
    /// When the socket can't be made, as where a service listens already or its folder is
    /// missing: whoever has made a folder for it may remove it, and finds it gone.
    pub fn open(path: &Path, group: Option<u32>) -> io::Result<Self> {
        let address = SocketAddrUnix::new(path)?;
        let new = || {
            socket_with(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
                None,
            )
        };
        // Before there is a socket: whoever sees it may already ask for the end.
        let ending = sys::ending()?;
        let keeper = Keeper::new().map_err(io::Error::other)?;
        let shared = sys::Written::new(SLOTS.size())?;
        SLOTS.prepare(&shared.memory(), pid_namespace());
        if path.exists() {
            if connect(&new()?, &address) != Err(rustix::io::Errno::CONNREFUSED) {
                return Err(io::ErrorKind::AddrInUse.into());
            }
            std::fs::remove_file(path)?;
        }
        let listener = new()?;
        // Nobody gets in before the mode is set: connections are refused until it listens.
        bind(&listener, &address)?;
        let mode = if group.is_some() { 0o660 } else { 0o600 };
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
        if let Some(group) = group {
            std::os::unix::fs::chown(path, None, Some(group))?;
        }
        listen(&listener, 1024)?;
        Ok(Self {
            path: path.to_owned(),
            listener,
            ending,
            keeper,
            shared,
            hides: hides_processes(),
            latest: None,
            generation: 0,
        })
    }

    /// Serves until SIGTERM or SIGINT.
    ///
    /// # Errors
    /// When it can't wait for clients, or `/proc` can't be listed any more.
    pub fn run(&mut self) -> io::Result<()> {
        let mut clients: Vec<Client> = Vec::new();
        loop {
            if self.wait(&clients)? {
                return Ok(());
            }
            self.accept(&mut clients);
            clients.retain_mut(Client::listen);
            let now = Instant::now();
            let asked: Vec<Client> = clients.extract_if(.., |c| c.query.is_some()).collect();
            let strict = asked.iter().any(|client| !self.is_fresh(client, now));
            if strict {
                self.publish(&asked).map_err(io::Error::other)?;
            }
            for client in &asked {
                self.answer(client);
            }
        }
    }

    /// True when it is to end.
    fn wait(&self, clients: &[Client]) -> io::Result<bool> {
        let mut fds = vec![PollFd::new(&self.ending, PollFlags::IN)];
        if clients.len() < MOST {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        fds.extend(
            clients
                .iter()
                .map(|c| PollFd::new(&c.socket, PollFlags::IN)),
        );
        // Without clients there is nothing to wake up for.
        let timeout = (!clients.is_empty()).then(|| Timespec {
            tv_sec: SILENT.as_secs() as i64,
            tv_nsec: 0,
        });
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!fds[0].revents().is_empty()),
            Err(error) => Err(error.into()),
        }
    }

    fn accept(&self, clients: &mut Vec<Client>) {
        while clients.len() < MOST {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let Ok(socket) = accept_with(&self.listener, flags) else {
                return;
            };
            if self.may_ask(&socket) {
                clients.push(Client {
                    socket,
                    since: Instant::now(),
                    query: None,
                });
            }
        }
    }

    fn may_ask(&self, socket: &OwnedFd) -> bool {
        let own = rustix::process::geteuid();
        let asks = socket_peercred(socket).map(|credentials| credentials.uid);
        asks.is_ok_and(|uid| !self.hides || uid.is_root() || uid == own)
    }

    /// Whether what was published last is good enough.
    fn is_fresh(&self, client: &Client, now: Instant) -> bool {
        let (Some(latest), Some(query)) = (&self.latest, client.query) else {
            return false;
        };
        query.max_age > Duration::ZERO
            && now.duration_since(latest.began) <= query.max_age
            && latest.wanted.covers(query.wanted)
    }

    /// One scan for all of them.
    fn publish(&mut self, asked: &[Client]) -> Result<(), ProcError> {
        let wanted = asked
            .iter()
            .filter_map(|client| client.query)
            .fold(Wanted::default(), |all, query| all.and(query.wanted));
        let began = Instant::now();
        let data = wire::encode(&self.keeper.scan(wanted)?);
        let next = self.generation + 1;
        // Without room nobody is answered, and each scans for itself.
        self.latest = None;
        if SLOTS.publish(&self.shared.memory(), next, &data) {
            self.generation = next;
            self.latest = Some(Latest { began, wanted });
        }
        Ok(())
    }

    fn answer(&self, client: &Client) {
        let mut bytes = [0; 16];
        bytes[0] = u8::from(self.latest.is_none());
        bytes[8..].copy_from_slice(&self.generation.to_ne_bytes());
        let files = [self.shared.file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&files));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        // Who has gone meanwhile needs no answer.
        let _ = sendmsg(
            &client.socket,
            &[io::IoSlice::new(&bytes)],
            &mut control,
            flags,
        );
    }
}

impl Client {
    /// False when it is to be dropped.
    fn listen(&mut self) -> bool {
        let mut bytes = [0; QUERY_BYTES + 1];
        match recv(&self.socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((got, _)) => {
                self.query = Query::from_bytes(&bytes[..got]);
                self.query.is_some_and(|query| query.can_be_served())
            }
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {
                self.since.elapsed() < SILENT
            }
            Err(_) => false,
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Whether `/proc` is mounted so that users do not see each other's processes.
fn hides_processes() -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let mut of_proc = mounts
        .lines()
        .filter(|line| line.split(' ').nth(4) == Some("/proc"));
    of_proc.next_back().is_none_or(|line| {
        let options = line.rsplit(' ').next().unwrap_or_default();
        let hides = |option: &str| {
            let value = option.strip_prefix("hidepid=");
            value.is_some_and(|value| value != "0" && value != "off")
        };
        options.split(',').any(hides)
    })
}
