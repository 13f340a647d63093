//! Undoes stubs whose session was killed while a thread was about to run them, or just had.
//!
//! Of a first stub no registry tells: the stub's own trailer tells what it was about to map, and how the
//! thread that was sent through it had its signals blocked.

use lancet_abi::units::{Pid, RuntimeAddr};
use lancet_procs::{self as procs, Mapping};
use lancet_remote::journal::StubRecord;
use lancet_remote::slack::{self, LeftStub};
use lancet_remote::{
    AWAY_MASK, Borrowed, Call, Memory, RemoteError, StopBudget, Stopped, Trailer, arena, sys,
};

use crate::leftovers::own_identity;
use crate::pages::Originals;
use crate::undo::{FoundArena, is_bare, register_orphans};

const PAGE: u64 = 4096;

/// Stops a process of which no thread is in these bytes. [`RemoteError::Busy`]: one is; it leaves by
/// itself within a second or two.
fn stop_outside(pid: Pid, start: RuntimeAddr, length: u64) -> Result<Stopped, RemoteError> {
    let stopped = Stopped::all(pid, StopBudget::default())?;
    let inside = |ip: RuntimeAddr| ip.offset_from(start) < length;
    match stopped.threads().iter().find(|t| inside(t.ip())) {
        None => Ok(stopped),
        Some(thread) => Err(RemoteError::Busy {
            pid,
            tid: thread.tid,
            budget_us: 0,
        }),
    }
}

/// Undoes one, once no thread is in it.
pub(crate) fn undo(pid: Pid, memory: &Memory, stub: &LeftStub) -> Result<(), RemoteError> {
    let stopped = stop_outside(pid, stub.start, stub.length)?;
    unmask(&stopped, stub.trailer.mask)?;
    let zeroes = vec![0; stub.length as usize];
    memory.write_text(stopped.any(), stub.start, &zeroes)?;
    let mappings = procs::mappings(pid)?;
    let calls = calls(memory, &mappings, stub);
    let Some(room) = slack::find_in_vdso(memory, &mappings).filter(|_| !calls.is_empty()) else {
        return Ok(());
    };
    let record = StubRecord::default();
    let mut borrowed = Borrowed::from(&stopped, memory, &record)?;
    for call in &calls {
        borrowed.run_in_slack(room.address, call, own_identity(), |_| Ok(()))?;
    }
    borrowed.give_back()
}

/// Gives threads that are masked, but were never sent or are back already, the mask that a stub
/// tells of. A thread that is in a stub unmasks itself.
fn unmask(stopped: &Stopped, mask: u64) -> Result<(), RemoteError> {
    let pid = stopped.pid();
    for thread in stopped.threads() {
        let ptrace = |what| move |source| RemoteError::ptrace(pid, thread.tid, what, source);
        if sys::signal_mask(thread.tid).map_err(ptrace("PTRACE_GETSIGMASK"))? == AWAY_MASK {
            sys::set_signal_mask(thread.tid, mask).map_err(ptrace("PTRACE_SETSIGMASK"))?;
        }
    }
    Ok(())
}

/// As [`undo`], for the stub in an arena whose session has ended: it stays, and so does its page.
/// Looks before it stops anybody.
pub(crate) fn undo_in_arena(
    pid: Pid,
    memory: &Memory,
    found: &FoundArena,
) -> Result<(), RemoteError> {
    let page = arena::stub_page(found.start, found.header.capacity);
    let bytes = memory.bytes(page, PAGE as usize)?;
    let Some((range, trailer)) = Trailer::find(&bytes) else {
        return Ok(());
    };
    // Perhaps it was about to map the next arena.
    let mappings = procs::mappings(pid)?;
    register_orphans(memory, &mappings, &[trailer.mapping], found.header.session)?;
    let is_away = |tid| procs::thread_status(pid, tid).is_ok_and(|s| s.sig_blocked == AWAY_MASK);
    if !procs::tids(pid)?.into_iter().any(is_away) {
        return Ok(());
    }
    let stopped = stop_outside(pid, page, range.end as u64)?;
    unmask(&stopped, trailer.mask)
}

/// What is to be called in the process: the mapping that nobody has registered goes, and the page
/// that the stub lay in, where it equals its file again.
fn calls(memory: &Memory, mappings: &[Mapping], stub: &LeftStub) -> Vec<Call> {
    let mut calls = Vec::new();
    let (start, length) = stub.trailer.mapping;
    if is_bare(memory, mappings, (start, length)) {
        calls.push(Call::new("munmap", libc::SYS_munmap, &[start.0, length]));
    }
    let page = RuntimeAddr(stub.start.0 & !(PAGE - 1));
    let original = Originals::read(memory.pid(), mappings, [page.0].into_iter());
    if stub.of_file && original.all_equal(memory) {
        calls.push(Call::new(
            "madvise",
            libc::SYS_madvise,
            &[page.0, PAGE, libc::MADV_DONTNEED as u64],
        ));
    }
    calls
}
