//! What can go wrong with another process.

use std::io;

use lancet_abi::units::{Pid, RuntimeAddr, Tid};

/// Why something could not be done to a process. Nothing has been changed in it unless the
/// variant says so.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// It ended, or is ending.
    #[error("process {pid} has ended")]
    Gone {
        /// The process.
        pid: Pid,
    },
    /// The kernel's ptrace rules forbid it.
    #[error(
        "not permitted to trace process {pid}: {source}; run as its user or as root, and look at kernel.yama.ptrace_scope"
    )]
    Denied {
        /// The process.
        pid: Pid,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Another tracer is attached.
    #[error("process {pid} is already traced by process {tracer}; end that tracer first")]
    Traced {
        /// The process.
        pid: Pid,
        /// Who traces it.
        tracer: Pid,
    },
    /// Not all threads stopped within the budget. All were released.
    #[error(
        "process {pid}: thread {tid} did not stop within {budget_us} us, in any of many tries: the machine is busy, or the thread is in a long system call; nothing was changed, try again later"
    )]
    Busy {
        /// The process.
        pid: Pid,
        /// One thread that did not come.
        tid: Tid,
        /// The stop budget, in microseconds.
        budget_us: u64,
    },
    /// Memory could not be read or written.
    #[error("process {pid}: cannot {what} {length} bytes at {address}: {source}")]
    Memory {
        /// The process.
        pid: Pid,
        /// `read` or `write`.
        what: &'static str,
        /// Where.
        address: RuntimeAddr,
        /// How many bytes.
        length: usize,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A ptrace request failed.
    #[error("process {pid}, thread {tid}: {what} failed: {source}")]
    Ptrace {
        /// The process.
        pid: Pid,
        /// The thread.
        tid: Tid,
        /// The request.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A system call that was run inside the process failed.
    #[error("process {pid}: {what} inside it failed: {source}; nothing was left in it")]
    Call {
        /// The process.
        pid: Pid,
        /// The call.
        what: &'static str,
        /// Its errno.
        source: io::Error,
    },
    /// The stub did not finish.
    #[error("process {pid}: thread {tid} did not finish the mapping calls")]
    Stuck {
        /// The process.
        pid: Pid,
        /// The thread.
        tid: Tid,
    },
    /// No thread is fit for running the stub.
    #[error("process {pid}: no thread of it can make the mappings: {why}")]
    NoThread {
        /// The process.
        pid: Pid,
        /// Why.
        why: &'static str,
    },
    /// No place for something in the address space.
    #[error("process {pid}: {why}")]
    NoRoom {
        /// The process.
        pid: Pid,
        /// What found no place.
        why: String,
    },
    /// Reading what /proc says of the process failed.
    #[error(transparent)]
    Process(#[from] lancet_procs::ProcError),
    /// The region's file could not be made.
    #[error("cannot make the shared region in {place}: {source}")]
    Region {
        /// Where it was tried.
        place: String,
        /// The kernel's answer.
        source: io::Error,
    },
}

impl RemoteError {
    /// Turns an error of ptrace into the variant that tells the user most.
    /// A ptrace request that failed.
    #[must_use]
    pub fn ptrace(pid: Pid, tid: Tid, what: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ESRCH) => Self::Gone { pid },
            _ => Self::Ptrace {
                pid,
                tid,
                what,
                source,
            },
        }
    }
}
