//! Times as columns show them.

use std::{collections::HashMap, io::Write};

use crate::{Machine, sys};

/// A time as this machine's clock shows it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Local {
    pub(crate) year: i64,
    pub(crate) month: usize,
    pub(crate) day: i32,
    pub(crate) day_of_year: i32,
    pub(crate) day_of_week: usize,
    pub(crate) hour: i32,
    pub(crate) minute: i32,
    pub(crate) second: i32,
}

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];
const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const DAY: i64 = 24 * 60 * 60;

/// The calendar. Times of one minute are worked out once.
#[derive(Debug, Default)]
pub(crate) struct Calendar {
    minutes: HashMap<i64, Local>,
}

impl Calendar {
    fn local(&mut self, seconds: i64) -> Local {
        let (minute, second) = (seconds.div_euclid(60), seconds.rem_euclid(60));
        let start = *self
            .minutes
            .entry(minute)
            .or_insert_with(|| sys::local_time(minute * 60));
        // A zone that is off by seconds has none since 1972.
        Local {
            second: start.second + second as i32,
            ..start
        }
    }

    /// Today the time, this year the day, else the year.
    pub(crate) fn short(&mut self, time: i64, machine: &Machine, out: &mut Vec<u8>) {
        let (now, then) = (self.local(machine.now), self.local(time));
        let _ = if then.year != now.year {
            write!(out, "{}", then.year)
        } else if then.day_of_year != now.day_of_year {
            write!(out, "{}{:02}", MONTHS[then.month], then.day)
        } else {
            write!(out, "{:02}:{:02}", then.hour, then.minute)
        };
    }

    /// Within a day the time to the second, else the date.
    pub(crate) fn long(&mut self, time: i64, machine: &Machine, out: &mut Vec<u8>) {
        let then = self.local(time);
        let _ = if time + DAY > machine.now {
            write!(
                out,
                "{:02}:{:02}:{:02}",
                then.hour, then.minute, then.second
            )
        } else {
            write!(out, "  {} {:02}", MONTHS[then.month], then.day)
        };
    }

    /// Within a day the time, else the date, in six characters.
    pub(crate) fn six(&mut self, time: i64, machine: &Machine, out: &mut Vec<u8>) {
        let then = self.local(time);
        let _ = if machine.now - time > DAY {
            write!(out, "{} {:>2}", MONTHS[then.month], then.day)
        } else {
            write!(out, " {:02}:{:02}", then.hour, then.minute)
        };
    }

    /// Date and time.
    pub(crate) fn full(&mut self, time: i64, out: &mut Vec<u8>) {
        let t = self.local(time);
        let _ = write!(
            out,
            "{} {} {:>2} {:02}:{:02}:{:02} {}",
            DAYS[t.day_of_week], MONTHS[t.month], t.day, t.hour, t.minute, t.second, t.year
        );
    }
}

/// `[dd-]hh:mm:ss`, without the hours where there are none and they are not `always` wanted.
pub(crate) fn duration(seconds: u64, always_hours: bool, out: &mut Vec<u8>) {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    if days > 0 {
        let _ = write!(out, "{days}-");
    }
    if days > 0 || hours > 0 || always_hours {
        let _ = write!(out, "{:02}:", hours % 24);
    }
    let _ = write!(out, "{:02}:{:02}", minutes % 60, seconds % 60);
}
