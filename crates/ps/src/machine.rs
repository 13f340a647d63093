//! What is the same for all rows of a list: clocks, memory, the width of a pid.

use rustix::time::{ClockId, clock_gettime};

use crate::sys;

/// The machine at the time of a list.
#[derive(Clone, Copy, Debug)]
pub struct Machine {
    /// Clock ticks a second.
    pub hertz: u64,
    /// When it was started, in seconds since 1970.
    pub booted: i64,
    /// Seconds since 1970.
    pub now: i64,
    /// Clock ticks since the start.
    pub uptime: u64,
    /// Memory in KiB.
    pub memory_kib: u64,
    /// A page in KiB.
    pub page_kib: u64,
    /// Digits of the largest pid.
    pub pid_width: usize,
}

impl Machine {
    /// Now.
    #[must_use]
    pub fn look() -> Self {
        let hertz = sys::hertz();
        let since = clock_gettime(ClockId::Boottime);
        let info = rustix::system::sysinfo();
        Self {
            hertz,
            booted: booted(),
            now: clock_gettime(ClockId::Realtime).tv_sec,
            uptime: since.tv_sec.unsigned_abs() * hertz
                + since.tv_nsec.unsigned_abs() * hertz / 1_000_000_000,
            memory_kib: (info.totalram as u64).saturating_mul(u64::from(info.mem_unit)) / 1024,
            page_kib: rustix::param::page_size() as u64 / 1024,
            pid_width: pid_width(),
        }
    }
}

/// The second of the start as `btime` of `/proc/stat` has it, without reading that long file. The two clocks can't be read
/// at the same instant; where that could matter, it is done again.
fn booted() -> i64 {
    const SECOND: i128 = 1_000_000_000;
    let nanoseconds = |id| {
        let time = clock_gettime(id);
        i128::from(time.tv_sec) * SECOND + i128::from(time.tv_nsec)
    };
    let mut second = 0;
    for _ in 0..16 {
        let before = nanoseconds(ClockId::Boottime);
        let now = nanoseconds(ClockId::Realtime);
        let after = nanoseconds(ClockId::Boottime);
        second = (now - before).div_euclid(SECOND) as i64;
        if second == (now - after).div_euclid(SECOND) as i64 {
            break;
        }
    }
    second
}

fn pid_width() -> usize {
    let text = std::fs::read_to_string("/proc/sys/kernel/pid_max").unwrap_or_default();
    match text.trim().parse::<u64>() {
        Ok(most) if most > 1 => (most - 1).to_string().len(),
        _ => 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_is_that_of_the_kernel() {
        let stat = std::fs::read_to_string("/proc/stat").unwrap();
        let line = stat.lines().find(|l| l.starts_with("btime ")).unwrap();
        assert_eq!(line[6..].parse::<i64>().unwrap(), Machine::look().booted);
    }
}
