//! Clocks, CPU number and local time, one call each.

use std::ffi::{CStr, CString};

/// A clock in nanoseconds; 0 where the machine has no such clock.
pub(super) fn clock(id: libc::clockid_t) -> i64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the call writes the live value that it is given.
    match unsafe { libc::clock_gettime(id, &mut time) } {
        0 => time.tv_sec * 1_000_000_000 + time.tv_nsec,
        _ => 0,
    }
}

/// The time stamp counter.
pub(super) fn ticks() -> u64 {
    // SAFETY: every x86-64 processor has it, and Linux allows its use.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// The CPU that this thread runs on.
pub(super) fn cpu() -> i64 {
    // SAFETY: a plain question.
    i64::from(unsafe { libc::sched_getcpu() })
}

/// Seconds since the epoch in local time, by a format of strftime; empty where that is longer than 4095 bytes.
pub(super) fn local_time(format: &str, seconds: i64) -> String {
    let Ok(format) = CString::new(format) else {
        return String::new();
    };
    // SAFETY: all zero is a valid `tm`.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    let mut text = [0u8; 4096];
    // SAFETY: both point to live values; the call writes only the second.
    unsafe { libc::localtime_r(&seconds, &mut tm) };
    // SAFETY: the call writes at most the given length, with a zero at the end.
    let length =
        unsafe { libc::strftime(text.as_mut_ptr().cast(), text.len(), format.as_ptr(), &tm) };
    let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
    match length {
        0 => String::new(),
        _ => text.to_string_lossy().into_owned(),
    }
}
