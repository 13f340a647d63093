//! The calls of the C library that nothing else offers: local time, characters of the locale, names of users, patterns.

mod characters;
mod pattern;

use std::ffi::{CStr, CString};

use crate::Local;

pub(crate) use characters::{Character, Characters};
pub use pattern::Pattern;

/// A time as this machine's clock shows it.
pub(crate) fn local_time(seconds: i64) -> Local {
    // SAFETY: all zero is a valid `tm`.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both point to live values; the call writes only the second.
    if unsafe { libc::localtime_r(&seconds, &mut tm) }.is_null() {
        return Local::default();
    }
    Local {
        year: i64::from(tm.tm_year) + 1900,
        month: tm.tm_mon.clamp(0, 11) as usize,
        day: tm.tm_mday,
        day_of_year: tm.tm_yday,
        day_of_week: tm.tm_wday.clamp(0, 6) as usize,
        hour: tm.tm_hour,
        minute: tm.tm_min,
        second: tm.tm_sec,
    }
}

/// Clock ticks a second, in which /proc counts time.
pub(crate) fn hertz() -> u64 {
    // SAFETY: a plain question.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100)
}

/// The name of a user, wherever this machine's users come from.
pub(crate) fn user_name(uid: u32) -> Option<Vec<u8>> {
    // SAFETY: the answer lies in memory of the C library until the next such call; nobody else in this process makes one,
    // and the name is copied at once.
    unsafe {
        let found = libc::getpwuid(uid);
        (!found.is_null()).then(|| CStr::from_ptr((*found).pw_name).to_bytes().to_vec())
    }
}

/// The name of a group.
pub(crate) fn group_name(gid: u32) -> Option<Vec<u8>> {
    // SAFETY: as in `user_name`.
    unsafe {
        let found = libc::getgrgid(gid);
        (!found.is_null()).then(|| CStr::from_ptr((*found).gr_name).to_bytes().to_vec())
    }
}

/// The id of a user.
pub(crate) fn user_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: as in `user_name`; the name is a live string with its closing zero.
    unsafe {
        let found = libc::getpwnam(name.as_ptr());
        (!found.is_null()).then(|| (*found).pw_uid)
    }
}

/// The id of a group.
pub(crate) fn group_id(name: &str) -> Option<u32> {
    let name = CString::new(name).ok()?;
    // SAFETY: as in `user_id`.
    unsafe {
        let found = libc::getgrnam(name.as_ptr());
        (!found.is_null()).then(|| (*found).gr_gid)
    }
}
