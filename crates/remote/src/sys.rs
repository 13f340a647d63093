//! One function a system call: the raw face of ptrace and its neighbours.
//!
//! Nothing here decides anything. Requests that the libc crate does not name are spelt out with
//! the numbers of `include/uapi/linux/ptrace.h`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use lancet_abi::units::{Pid, Tid};

/// General registers as `PTRACE_GETREGS` lays them out.
pub type Registers = libc::user_regs_struct;

/// What a thread registered with rseq(2); `PTRACE_GET_RSEQ_CONFIGURATION`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RseqConfiguration {
    /// Address of the thread's `struct rseq`; 0 when it registered none.
    pub area: u64,
    /// Size that was registered, in bytes.
    pub size: u32,
    /// The four bytes that stand before each abort handler.
    pub signature: u32,
    /// Flags of the registration.
    pub flags: u32,
    pad: u32,
}

const PTRACE_GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;

fn check(result: libc::c_long) -> io::Result<libc::c_long> {
    if result == -1 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

fn request(number: libc::c_uint, tid: Tid, address: u64, data: u64) -> io::Result<libc::c_long> {
    // SAFETY: the caller passes no pointers into this process, or ones that outlive the call
    // (the wrappers below); ptrace touches no other memory of ours.
    check(unsafe { libc::ptrace(number, tid.0, address, data) })
}

/// `PTRACE_SEIZE`: the calling thread becomes the tracer; nothing stops yet.
pub fn seize(tid: Tid, options: i32) -> io::Result<()> {
    request(libc::PTRACE_SEIZE, tid, 0, options as u64).map(drop)
}

/// `PTRACE_INTERRUPT`: asks a seized thread to stop.
pub fn interrupt(tid: Tid) -> io::Result<()> {
    request(libc::PTRACE_INTERRUPT, tid, 0, 0).map(drop)
}

/// `PTRACE_CONT` with the signal to deliver, or 0.
pub fn resume(tid: Tid, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_CONT, tid, 0, signal as u64).map(drop)
}

/// `PTRACE_SYSCALL` with the signal to deliver, or 0.
pub fn resume_to_syscall(tid: Tid, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_SYSCALL, tid, 0, signal as u64).map(drop)
}

/// At a system-call stop: whether it is the one at the call's end (kernel 5.3).
///
/// Counting stops does not tell, since a thread that was made to run other calls between two
/// stops has left the call that it stood in.
pub fn at_call_exit(tid: Tid) -> io::Result<bool> {
    const EXIT: u64 = 2;
    let mut message = 0u64;
    request(libc::PTRACE_GETEVENTMSG, tid, 0, (&raw mut message) as u64)?;
    Ok(message == EXIT)
}

/// `PTRACE_DETACH` with the signal to deliver, or 0.
pub fn detach(tid: Tid, signal: i32) -> io::Result<()> {
    request(libc::PTRACE_DETACH, tid, 0, signal as u64).map(drop)
}

/// `PTRACE_SETOPTIONS`.
pub fn set_options(tid: Tid, options: i32) -> io::Result<()> {
    request(libc::PTRACE_SETOPTIONS, tid, 0, options as u64).map(drop)
}

/// `PTRACE_GETREGS`.
pub fn registers(tid: Tid) -> io::Result<Registers> {
    // SAFETY: all-zero is a valid value of a struct of integers.
    let mut registers: Registers = unsafe { std::mem::zeroed() };
    request(libc::PTRACE_GETREGS, tid, 0, (&raw mut registers) as u64)?;
    Ok(registers)
}

/// `PTRACE_SETREGS`.
pub fn set_registers(tid: Tid, registers: &Registers) -> io::Result<()> {
    request(libc::PTRACE_SETREGS, tid, 0, (&raw const *registers) as u64).map(drop)
}

/// `PTRACE_GETSIGMASK`: the signals that the thread blocks.
pub fn signal_mask(tid: Tid) -> io::Result<u64> {
    let mut mask = 0u64;
    request(libc::PTRACE_GETSIGMASK, tid, 8, (&raw mut mask) as u64)?;
    Ok(mask)
}

/// `PTRACE_SETSIGMASK`.
pub fn set_signal_mask(tid: Tid, mask: u64) -> io::Result<()> {
    request(libc::PTRACE_SETSIGMASK, tid, 8, (&raw const mask) as u64).map(drop)
}

/// `PTRACE_GET_RSEQ_CONFIGURATION` (kernel 5.13).
pub fn rseq_configuration(tid: Tid) -> io::Result<RseqConfiguration> {
    let mut configuration = RseqConfiguration::default();
    let size = size_of::<RseqConfiguration>() as u64;
    request(
        PTRACE_GET_RSEQ_CONFIGURATION,
        tid,
        size,
        (&raw mut configuration) as u64,
    )?;
    Ok(configuration)
}

/// `PTRACE_POKETEXT`: writes one word even where `/proc/PID/mem` may not.
pub fn poke(tid: Tid, address: u64, word: u64) -> io::Result<()> {
    request(libc::PTRACE_POKETEXT, tid, address, word).map(drop)
}

/// `PTRACE_POKEUSER`: writes a word of the thread's `struct user`, such as a debug register.
pub fn poke_user(tid: Tid, offset: u64, word: u64) -> io::Result<()> {
    request(libc::PTRACE_POKEUSER, tid, offset, word).map(drop)
}

/// `PTRACE_PEEKUSER`.
pub fn peek_user(tid: Tid, offset: u64) -> io::Result<u64> {
    let mut word = 0u64;
    // SAFETY: the raw system call stores the word at the pointer in `data`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_ptrace,
            u64::from(libc::PTRACE_PEEKUSER),
            i64::from(tid.0),
            offset,
            &raw mut word,
        )
    };
    check(result)?;
    Ok(word)
}

/// What wait4(2) said of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A signal is about to be delivered (`event` 0), or a ptrace event or group stop.
    Stopped {
        /// The signal of the stop.
        signal: i32,
        /// `PTRACE_EVENT_*`, or 0.
        event: i32,
    },
    /// Exited with a status.
    Exited(i32),
    /// Killed by a signal.
    Killed(i32),
}

fn decode(status: i32) -> Wait {
    if libc::WIFEXITED(status) {
        Wait::Exited(libc::WEXITSTATUS(status))
    } else if libc::WIFSIGNALED(status) {
        Wait::Killed(libc::WTERMSIG(status))
    } else {
        Wait::Stopped {
            signal: libc::WSTOPSIG(status),
            event: status >> 16,
        }
    }
}

/// wait4(2) on one tracee or child. `None`: nothing to tell yet (only when not blocking).
pub fn wait(tid: Tid, block: bool) -> io::Result<Option<Wait>> {
    let mut status = 0;
    let flags = libc::__WALL | if block { 0 } else { libc::WNOHANG };
    loop {
        // SAFETY: `status` outlives the call.
        let got = unsafe { libc::waitpid(tid.0, &raw mut status, flags) };
        if got == -1 {
            let error = io::Error::last_os_error();
            if error.kind() == io::ErrorKind::Interrupted {
                continue;
            }
            return Err(error);
        }
        return Ok((got != 0).then(|| decode(status)));
    }
}

/// Reaps one tracee if it has ended; leaves stops for their owner.
///
/// waitid(2) takes a tracee's stops whatever it is asked for, so it looks first and leaves
/// everything where it is.
pub fn reap_ended(tid: Tid) -> bool {
    let ask = |flags: i32| {
        // SAFETY: all-zero is a valid siginfo_t, and it outlives the call; waitid fills the child
        // fields, or leaves them zero.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let flags = libc::WEXITED | libc::WNOHANG | libc::__WALL | flags;
            let result = libc::waitid(libc::P_PID, tid.0 as libc::id_t, &raw mut info, flags);
            (result == 0 && info.si_pid() == tid.0).then_some(info.si_code)
        }
    };
    let ended = |code| {
        matches!(
            code,
            Some(libc::CLD_EXITED | libc::CLD_KILLED | libc::CLD_DUMPED)
        )
    };
    ended(ask(libc::WNOWAIT)) && ended(ask(0))
}

/// pidfd_open(2).
pub fn pidfd(pid: Pid) -> io::Result<OwnedFd> {
    // SAFETY: takes integers only.
    let fd = check(unsafe { libc::syscall(libc::SYS_pidfd_open, pid.0, 0) })?;
    // SAFETY: the kernel has just given us this descriptor; nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

/// Whether the process behind a pidfd has ended.
pub fn has_ended(pidfd: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd {
        fd: pidfd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd, which outlives the call.
    unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
}

/// kcmp(2) `KCMP_VM`: whether two processes share their address space.
pub fn same_memory(a: Pid, b: Pid) -> io::Result<bool> {
    const KCMP_VM: i32 = 1;
    // SAFETY: takes integers only.
    let order = check(unsafe { libc::syscall(libc::SYS_kcmp, a.0, b.0, KCMP_VM, 0, 0) })?;
    Ok(order == 0)
}

/// Lets this thread run before others, where that is permitted, for as long as the value lives.
pub struct Hurry {
    /// Nice value before; none where nothing was changed.
    before: Option<i32>,
}

impl Hurry {
    /// From now on.
    #[must_use]
    pub fn begin() -> Self {
        const FIRST: i32 = -20;
        // SAFETY: both take integers only, and on Linux affect the calling thread alone.
        let before = unsafe {
            let before = libc::getpriority(libc::PRIO_PROCESS, 0);
            (before != FIRST && libc::setpriority(libc::PRIO_PROCESS, 0, FIRST) == 0)
                .then_some(before)
        };
        Self { before }
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: as above.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, before) };
        }
    }
}

/// sched_yield(2).
pub fn yield_now() {
    std::thread::yield_now();
}

/// Runs `f` with the file system user and group of somebody else, as file servers do.
///
/// Only this thread changes, and it changes back when `f` returns or unwinds.
pub fn as_owner<T>(uid: u32, gid: u32, f: impl FnOnce() -> T) -> T {
    struct Back(i32, i32);
    impl Drop for Back {
        fn drop(&mut self) {
            // SAFETY: takes integers only; affects this thread alone.
            unsafe {
                libc::setfsuid(self.0 as u32);
                libc::setfsgid(self.1 as u32);
            }
        }
    }
    // SAFETY: takes integers only; affects this thread alone. The group goes first, while the
    // right to change it is still there.
    let back = unsafe {
        let group = libc::setfsgid(gid);
        Back(libc::setfsuid(uid), group)
    };
    let result = f();
    drop(back);
    result
}
