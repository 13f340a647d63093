//! The counting program, assembled by hand: one locked add to this CPU's counter.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use lancet_abi::units::Pid;

use super::Method;
use super::sys::{self, AttachType, Instruction};
use crate::Error;

/// A loaded program and the counters that it adds to.
#[derive(Debug)]
pub(super) struct Counter {
    pid: Pid,
    map: OwnedFd,
    program: OwnedFd,
    cpus: usize,
}

impl Counter {
    /// Loads a fresh program with counters at zero, to be attached to `pid` by `method`.
    pub(super) fn load(pid: Pid, method: Method) -> Result<Self, Error> {
        let map = sys::create_counter_map(pid)?;
        let attach = match method {
            Method::Perf => AttachType::Perf,
            Method::Multi => AttachType::Multi,
        };
        let program = sys::load_program(pid, &counting_program(map.as_raw_fd()), attach)?;
        Ok(Self {
            pid,
            map,
            program,
            cpus: possible_cpus()?,
        })
    }

    pub(super) fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    /// The sum over all CPUs.
    pub(super) fn total(&self) -> Result<u64, Error> {
        let mut values = vec![0; self.cpus];
        sys::read_counters(self.pid, self.map.as_fd(), &mut values)?;
        Ok(values.iter().sum())
    }
}

/// ```text
///   *(u32 *)(r10 - 4) = 0
///   r2 = r10
///   r2 += -4
///   r1 = map
///   r0 = bpf_map_lookup_elem(r1, r2)
///   if r0 == 0 goto out
///   r1 = 1
///   lock *(u64 *)(r0 + 0) += r1
/// out:
///   r0 = 0
///   exit
/// ```
///
/// The add is locked because a thread may be preempted between load and store by another that is
/// probed on the same CPU; it costs the kernel's column about five nanoseconds of some hundred.
/// Result 0 keeps perf from writing a sample.
fn counting_program(map: i32) -> [Instruction; 11] {
    let (r0, r1, r2, r10) = (0, 1, 2, 10);
    [
        instruction(0x62, r10, 0, -4, 0),
        instruction(0xbf, r2, r10, 0, 0),
        instruction(0x07, r2, 0, 0, -4),
        // Source register 1 marks the immediate as a map's descriptor; the second half is empty.
        instruction(0x18, r1, 1, 0, map),
        instruction(0x00, 0, 0, 0, 0),
        instruction(0x85, 0, 0, 0, 1),
        instruction(0x15, r0, 0, 2, 0),
        instruction(0xb7, r1, 0, 0, 1),
        instruction(0xdb, r0, r1, 0, 0),
        instruction(0xb7, r0, 0, 0, 0),
        instruction(0x95, 0, 0, 0, 0),
    ]
}

/// Bytes in memory order: opcode, registers (source in the high half), offset, immediate.
fn instruction(opcode: u8, target: u8, source: u8, offset: i16, immediate: i32) -> Instruction {
    let [o0, o1] = offset.to_ne_bytes();
    let [i0, i1, i2, i3] = immediate.to_ne_bytes();
    u64::from_ne_bytes([opcode, source << 4 | target, o0, o1, i0, i1, i2, i3])
}

/// CPUs that the kernel keeps a per-CPU slot for, present or not.
fn possible_cpus() -> Result<usize, Error> {
    const LIST: &str = "/sys/devices/system/cpu/possible";
    let unusable = |reason: String| Error::File {
        path: LIST.into(),
        reason: format!("{reason}; is /sys mounted?"),
    };
    let text = fs::read_to_string(LIST).map_err(|error| unusable(error.to_string()))?;
    count_cpus(text.trim()).ok_or_else(|| unusable(format!("{text:?} is no list of CPUs")))
}

/// How many CPUs a list such as `0-3,8` names.
fn count_cpus(list: &str) -> Option<usize> {
    list.split(',')
        .map(|part| match part.split_once('-') {
            Some((first, last)) => {
                let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
                Some(last.checked_sub(first)? + 1)
            }
            None => part.parse::<usize>().ok().map(|_| 1),
        })
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_counted() {
        assert_eq!(count_cpus("0"), Some(1));
        assert_eq!(count_cpus("0-1"), Some(2));
        assert_eq!(count_cpus("0-3,8,10-11"), Some(7));
        assert_eq!(count_cpus(""), None);
        assert_eq!(count_cpus("3-1"), None);
    }

    #[test]
    fn instructions_are_laid_out_as_the_kernel_reads_them() {
        // r1 = 1: opcode, registers, two bytes of offset, four of immediate.
        assert_eq!(
            instruction(0xb7, 1, 0, 0, 1).to_ne_bytes(),
            [0xb7, 0x01, 0, 0, 1, 0, 0, 0]
        );
        assert_eq!(
            instruction(0x62, 10, 0, -4, 0).to_ne_bytes(),
            [0x62, 0x0a, 0xfc, 0xff, 0, 0, 0, 0]
        );
    }
}
