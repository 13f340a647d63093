//! `/proc/PID/stat`: one line of numbers. Reading it waits for no lock of the process's memory.

use lancet_abi::units::Pid;

use crate::{ProcError, sys};

/// Flag of a kernel thread (`PF_KTHREAD`).
const KERNEL_THREAD: u64 = 0x0020_0000;
/// Flag of a thread on its way out (`PF_EXITING`).
const EXITING: u64 = 0x0000_0004;

/// Name of a thread: at most 15 bytes, for kernel workers up to 63.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name {
    length: u8,
    bytes: [u8; 63],
}

impl Name {
    /// Keeps the first 63 bytes.
    #[must_use]
    pub fn new(name: &[u8]) -> Self {
        let length = name.len().min(63);
        let mut bytes = [0; 63];
        bytes[..length].copy_from_slice(&name[..length]);
        Self {
            length: length as u8,
            bytes,
        }
    }

    /// As the kernel has it, without escapes; not always UTF-8.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl Default for Name {
    fn default() -> Self {
        Self::new(b"")
    }
}

/// The line, typed. Times are in clock ticks; what this user may not know is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names are those of proc_pid_stat(5)")]
pub struct Stat {
    pub name: Name,
    /// `R`, `S`, `D`, `T`, `t`, `Z`, `X`, `I` as in [`Status`](crate::Status).
    pub state: u8,
    pub parent: Pid,
    pub group: i32,
    pub session: i32,
    /// Device of the controlling terminal, 0 for none; in the kernel's packing.
    pub tty: i32,
    /// Foreground process group of the terminal; -1 for none.
    pub tty_group: i32,
    pub flags: u64,
    pub minor_faults: u64,
    pub children_minor_faults: u64,
    pub major_faults: u64,
    pub children_major_faults: u64,
    pub user_time: u64,
    pub system_time: u64,
    pub children_user_time: u64,
    pub children_system_time: u64,
    pub priority: i32,
    pub nice: i32,
    pub threads: i32,
    pub start_time: u64,
    /// Bytes.
    pub virtual_size: u64,
    /// Pages, to within what the kernel counts per CPU.
    pub resident: u64,
    /// Bytes.
    pub resident_limit: u64,
    /// Where the program's text begins; 0 until `exec` has filled the memory, 1 when this user may not know.
    pub start_code: u64,
    pub end_code: u64,
    pub start_stack: u64,
    pub processor: i32,
    pub realtime_priority: u32,
    pub policy: u32,
}

impl Stat {
    /// A thread of the kernel, which has no memory and no arguments.
    #[must_use]
    pub fn is_kernel_thread(&self) -> bool {
        self.flags & KERNEL_THREAD != 0
    }

    /// On its way out, or dead.
    #[must_use]
    pub fn is_exiting(&self) -> bool {
        self.flags & EXITING != 0 || self.is_dead()
    }

    /// A zombie, or one that is being removed.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }
}

pub(crate) fn read(pid: Pid) -> Result<Stat, ProcError> {
    read_path(pid, &format!("/proc/{pid}/stat"))
}

pub(crate) fn read_path(pid: Pid, path: &str) -> Result<Stat, ProcError> {
    let bytes = sys::read(path).map_err(|e| ProcError::of(pid, "stat", e))?;
    of(pid, &bytes)
}

/// The line as it was read.
pub(crate) fn of(pid: Pid, bytes: &[u8]) -> Result<Stat, ProcError> {
    // An empty file: the process ended between open and read.
    if bytes.is_empty() {
        return Err(ProcError::Gone { pid });
    }
    parse(bytes).ok_or_else(|| ProcError::Io {
        pid,
        what: "stat",
        source: std::io::ErrorKind::InvalidData.into(),
    })
}

/// Fields are counted from the last `)`: a name may hold blanks and parentheses of its own. `None` for a line that ends
/// before the fields that every kernel has.
pub(crate) fn parse(bytes: &[u8]) -> Option<Stat> {
    let open = bytes.iter().position(|&b| b == b'(')?;
    let close = bytes.iter().rposition(|&b| b == b')')?;
    let name = Name::new(bytes.get(open + 1..close)?);
    let rest = bytes.get(close + 2..)?;
    let state = *rest.first()?;
    let mut fields = Fields(rest.get(1..)?);
    let parent = Pid(fields.next()? as i32);
    let mut stat = Stat {
        name,
        state,
        parent,
        group: fields.next()? as i32,
        session: fields.next()? as i32,
        tty: fields.next()? as i32,
        tty_group: fields.next()? as i32,
        flags: fields.next()?,
        minor_faults: fields.next()?,
        children_minor_faults: fields.next()?,
        major_faults: fields.next()?,
        children_major_faults: fields.next()?,
        user_time: fields.next()?,
        system_time: fields.next()?,
        children_user_time: fields.next()?,
        children_system_time: fields.next()?,
        priority: fields.next()? as i32,
        nice: fields.next()? as i32,
        threads: fields.next()? as i32,
        ..Stat::default()
    };
    fields.next()?;
    stat.start_time = fields.next()?;
    stat.virtual_size = fields.next()?;
    stat.resident = fields.next()?;
    stat.resident_limit = fields.next()?;
    stat.start_code = fields.next()?;
    // The manual counts from 1 and has the start of the code as field 26.
    let mut behind = |skipped: usize| fields.nth(skipped).unwrap_or(0);
    stat.end_code = behind(0);
    stat.start_stack = behind(0);
    stat.processor = behind(10) as i32;
    stat.realtime_priority = behind(0) as u32;
    stat.policy = behind(0) as u32;
    Some(stat)
}

/// Decimal numbers behind blanks; negative ones in two's complement.
struct Fields<'a>(&'a [u8]);

impl Iterator for Fields<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let start = self.0.iter().position(|&b| b != b' ')?;
        let rest = &self.0[start..];
        let negative = rest[0] == b'-';
        let digits = &rest[usize::from(negative)..];
        let mut value = 0_u64;
        let mut length = 0;
        while let Some(digit) = digits.get(length).filter(|d| d.is_ascii_digit()) {
            value = value.wrapping_mul(10).wrapping_add(u64::from(digit - b'0'));
            length += 1;
        }
        if length == 0 {
            return None;
        }
        self.0 = &digits[length..];
        Some(if negative {
            value.wrapping_neg()
        } else {
            value
        })
    }
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
        assert_eq!(stat.name.as_bytes(), b"a) Z 1 (b");
        assert_eq!((stat.tty_group, stat.resident_limit), (-1, u64::MAX));
        assert!(!stat.is_kernel_thread() && !stat.is_exiting());
    }

    #[test]
    fn a_short_line_is_refused() {
        assert!(parse(b"7 (a) S 1 2").is_none());
        assert!(parse(b"7 (a)").is_none());
        assert!(parse(b"7 )a(").is_none());
        assert!(parse(b"").is_none());
    }

    #[test]
    fn every_field_agrees_with_the_oracle() {
        let of = procfs::process::Process::myself().unwrap().stat().unwrap();
        let stat = read(Pid(of.pid)).unwrap();
        assert_eq!(
            (
                stat.name.as_bytes(),
                stat.parent.0,
                stat.group,
                stat.session
            ),
            (of.comm.as_bytes(), of.ppid, of.pgrp, of.session)
        );
        assert_eq!(
            (stat.tty, stat.tty_group, stat.priority, stat.nice),
            (of.tty_nr, of.tpgid, of.priority as i32, of.nice as i32)
        );
        assert_eq!(
            (stat.start_time, stat.resident_limit, stat.start_code),
            (of.starttime, of.rsslim, of.startcode)
        );
        assert_eq!(
            (stat.end_code, stat.start_stack, stat.policy),
            (of.endcode, of.startstack, of.policy.unwrap())
        );
        assert_eq!(stat.realtime_priority, of.rt_priority.unwrap());
    }
}
