//! `/proc/PID/status`, typed. Reading it waits for no lock of the process's memory.

use lancet_abi::units::{Pid, Tid};

use crate::{ProcError, sys};

/// State of a process (its leading thread) or of one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Name of the thread (`comm`), at most 15 bytes, control characters escaped as the kernel shows them.
    pub name: String,
    /// `R` running, `S` sleeping, `D` uninterruptible, `T` stopped, `t` traced, `Z` zombie, `X` dead, `I` idle.
    pub state: char,
    /// The process the thread belongs to.
    pub tgid: i32,
    /// Parent process; 0 if it is outside of this pid namespace.
    pub ppid: i32,
    /// Who traces the thread; 0 for nobody.
    pub tracer_pid: i32,
    /// User ids: real, effective, saved, file system.
    pub uids: [u32; 4],
    /// Group ids: real, effective, saved, file system.
    pub gids: [u32; 4],
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// The thread's id in each pid namespace from this one inwards; the last is the one it sees itself.
    pub nspid: Vec<i32>,
    /// Number of threads of the process.
    pub threads: u32,
    /// Blocked signals; bit n-1 is signal n, as in all four masks.
    pub sig_blocked: u64,
    /// Signals with a handler.
    pub sig_caught: u64,
    /// Ignored signals.
    pub sig_ignored: u64,
    /// Signals pending for the thread.
    pub sig_pending: u64,
    /// Signals pending for the process as a whole.
    pub sig_shared_pending: u64,
    /// Permitted capabilities.
    pub capabilities: u64,
    /// Resident memory in KiB, exactly counted; 0 without memory, as all of these.
    pub resident_kib: u64,
    /// Locked memory in KiB.
    pub locked_kib: u64,
    /// Data in KiB.
    pub data_kib: u64,
    /// Stack in KiB.
    pub stack_kib: u64,
    /// 0 none, 1 strict, 2 filter.
    pub seccomp: u32,
    /// Number of seccomp filters.
    pub seccomp_filters: u32,
    /// The process can't gain rights by `exec`.
    pub no_new_privs: bool,
    /// The thread runs with a user shadow stack.
    pub shadow_stack: bool,
    /// The process is being written to a core dump.
    pub core_dumping: bool,
}

/// State of a process; what differs by thread is that of its leading thread.
///
/// # Errors
/// [`ProcError::Gone`] when it has ended.
pub fn status(pid: Pid) -> Result<Status, ProcError> {
    read(pid, &format!("/proc/{pid}/status"))
}

/// State of one thread.
///
/// # Errors
/// [`ProcError::Gone`] when the thread has ended.
pub fn thread_status(pid: Pid, tid: Tid) -> Result<Status, ProcError> {
    read(pid, &format!("/proc/{pid}/task/{tid}/status"))
}

fn read(pid: Pid, path: &str) -> Result<Status, ProcError> {
    let bytes = sys::read(path).map_err(|e| ProcError::of(pid, "status", e))?;
    of(pid, &bytes)
}

/// The lines as they were read.
pub(crate) fn of(pid: Pid, bytes: &[u8]) -> Result<Status, ProcError> {
    if bytes.is_empty() {
        return Err(ProcError::Gone { pid });
    }
    parse(&String::from_utf8_lossy(bytes)).ok_or_else(|| ProcError::Io {
        pid,
        what: "status",
        source: std::io::ErrorKind::InvalidData.into(),
    })
}

/// `None` when a field that every kernel has is missing or malformed. Fields that only newer kernels have stay at their
/// default.
fn parse(text: &str) -> Option<Status> {
    let mut status = Status::default();
    let mut seen_tgid = false;
    for line in text.lines() {
        let Some((key, value)) = line.split_once(':') else {
            continue;
        };
        let value = value.trim_matches(['\t', ' ']);
        match key {
            // Blanks belong to the name, only the tab before it does not.
            "Name" => status.name = line["Name:".len()..].trim_start_matches('\t').to_owned(),
            "State" => status.state = value.chars().next()?,
            "Tgid" => {
                status.tgid = value.parse().ok()?;
                seen_tgid = true;
            }
            "PPid" => status.ppid = value.parse().ok()?,
            "TracerPid" => status.tracer_pid = value.parse().ok()?,
            "Uid" => status.uids = numbers(value)?.try_into().ok()?,
            "Gid" => status.gids = numbers(value)?.try_into().ok()?,
            "Groups" => status.groups = numbers(value)?,
            "NSpid" => status.nspid = numbers(value)?,
            "Threads" => status.threads = value.parse().ok()?,
            "SigBlk" => status.sig_blocked = mask(value)?,
            "SigCgt" => status.sig_caught = mask(value)?,
            "SigIgn" => status.sig_ignored = mask(value)?,
            "SigPnd" => status.sig_pending = mask(value)?,
            "ShdPnd" => status.sig_shared_pending = mask(value)?,
            "CapPrm" => status.capabilities = mask(value)?,
            "VmRSS" => status.resident_kib = kib(value)?,
            "VmLck" => status.locked_kib = kib(value)?,
            "VmData" => status.data_kib = kib(value)?,
            "VmStk" => status.stack_kib = kib(value)?,
            "Seccomp" => status.seccomp = value.parse().ok()?,
            "Seccomp_filters" => status.seccomp_filters = value.parse().ok()?,
            "NoNewPrivs" => status.no_new_privs = value == "1",
            "CoreDumping" => status.core_dumping = value == "1",
            "x86_Thread_features" => {
                status.shadow_stack = value.split(' ').any(|word| word == "shstk")
            }
            _ => {}
        }
    }
    seen_tgid.then_some(status)
}

fn numbers<T: std::str::FromStr>(value: &str) -> Option<Vec<T>> {
    value
        .split_ascii_whitespace()
        .map(|word| word.parse().ok())
        .collect()
}

fn kib(value: &str) -> Option<u64> {
    value.strip_suffix(" kB")?.parse().ok()
}

fn mask(value: &str) -> Option<u64> {
    u64::from_str_radix(value, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found() {
        let text = "Name:\t a b:c\nState:\tt (tracing stop)\nTgid:\t10\nPid:\t11\nPPid:\t1\nTracerPid:\t9\nUid:\t1\t2\t3\t4\n\
                    Gid:\t5\t6\t7\t8\nGroups:\t20 21 \nNSpid:\t11\t2\nThreads:\t3\nSigPnd:\t0000000000000001\n\
                    ShdPnd:\t0000000000000002\nSigBlk:\t8000000000000000\nSigIgn:\t0000000000001000\nSigCgt:\t0000000180000000\n\
                    CoreDumping:\t1\nNoNewPrivs:\t1\nSeccomp:\t2\nSeccomp_filters:\t4\nx86_Thread_features:\tshstk wrss \n\
                    x86_Thread_features_locked:\t\n";
        let s = parse(text).unwrap();
        assert_eq!(s.name, " a b:c");
        assert_eq!(
            (s.state, s.tgid, s.ppid, s.tracer_pid, s.threads),
            ('t', 10, 1, 9, 3)
        );
        assert_eq!(
            (s.uids, s.gids, s.groups),
            ([1, 2, 3, 4], [5, 6, 7, 8], vec![20, 21])
        );
        assert_eq!(s.nspid, [11, 2]);
        assert_eq!(
            (s.sig_blocked, s.sig_pending, s.sig_shared_pending),
            (1 << 63, 1, 2)
        );
        assert_eq!((s.sig_ignored, s.sig_caught), (0x1000, 0x1_8000_0000));
        assert_eq!((s.seccomp, s.seccomp_filters), (2, 4));
        assert!(s.no_new_privs && s.shadow_stack && s.core_dumping);
    }

    #[test]
    fn locked_features_are_not_taken_for_active_ones() {
        let s =
            parse("Tgid:\t1\nx86_Thread_features:\t\nx86_Thread_features_locked:\tshstk wrss \n")
                .unwrap();
        assert!(!s.shadow_stack);
    }

    #[test]
    fn malformed_text_is_refused() {
        assert!(parse("Name:\tx\n").is_none());
        assert!(parse("Tgid:\tone\n").is_none());
        assert!(parse("Tgid:\t1\nUid:\t1\t2\n").is_none());
    }
}
