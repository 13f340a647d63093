//! The few fields of `/proc/PID/stat` that no other file has. Reading it waits for no lock of the process's memory.

use lancet_abi::units::Pid;

use crate::{ProcError, sys};

/// Flag of a kernel thread (`PF_KTHREAD`).
const KERNEL_THREAD: u64 = 0x0020_0000;
/// Flag of a thread on its way out (`PF_EXITING`).
const EXITING: u64 = 0x0000_0004;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Stat {
    pub(crate) state: u8,
    pub(crate) parent: Pid,
    pub(crate) flags: u64,
    pub(crate) start_time: u64,
    /// Where the program's text begins; 0 until `exec` has filled the memory, 1 when this user may not know.
    pub(crate) start_code: u64,
}

impl Stat {
    pub(crate) fn is_kernel_thread(&self) -> bool {
        self.flags & KERNEL_THREAD != 0
    }

    pub(crate) fn is_exiting(&self) -> bool {
        self.flags & EXITING != 0 || self.is_dead()
    }

    pub(crate) fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

pub(crate) fn read(pid: Pid) -> Result<Stat, ProcError> {
    read_path(pid, &format!("/proc/{pid}/stat"))
}

pub(crate) fn read_path(pid: Pid, path: &str) -> Result<Stat, ProcError> {
    let bytes = sys::read(path).map_err(|e| ProcError::of(pid, "stat", e))?;
    // An empty file: the process ended between open and read.
    if bytes.is_empty() {
        return Err(ProcError::Gone { pid });
    }
    parse(&bytes).ok_or_else(|| ProcError::Io {
        pid,
        what: "stat",
        source: std::io::ErrorKind::InvalidData.into(),
    })
}

/// Fields are counted from the last `)`: a name may hold blanks and parentheses of its own.
fn parse(bytes: &[u8]) -> Option<Stat> {
    let after_name = bytes.iter().rposition(|&b| b == b')')? + 1;
    let text = std::str::from_utf8(&bytes[after_name..]).ok()?;
    let fields: Vec<&str> = text.split_ascii_whitespace().collect();
    // The manual counts from 1 and has the state as field 3.
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Stat {
        state: *field(3)?.as_bytes().first()?,
        parent: Pid(field(4)?.parse().ok()?),
        flags: field(9)?.parse().ok()?,
        start_time: field(22)?.parse().ok()?,
        start_code: field(26)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_look_like_fields() {
        let line = b"7 (a) Z 1 (b) S 42 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 555 1000 10 18446744073709551615 4096 8192 0\n";
        let stat = parse(line).unwrap();
        assert_eq!(
            (stat.state, stat.parent, stat.start_time, stat.start_code),
            (b'S', Pid(42), 555, 4096)
        );
        assert!(!stat.is_kernel_thread() && !stat.is_exiting());
    }

    #[test]
    fn a_short_line_is_refused() {
        assert!(parse(b"7 (a) S 1 2").is_none());
        assert!(parse(b"").is_none());
    }
}
