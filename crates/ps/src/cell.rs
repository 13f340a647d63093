//! What stands in a column of a row.

use std::io::Write;

use lancet_procs::{Reading, Row};

use crate::{
    Forest, Id, Machine, Request,
    choice::{id_of, is_user},
    names::Names,
    spec::What,
    sys::Characters,
    terminal::Terminals,
    texts::{
        BUSY, arguments, clean, container, control_groups, joined, long_state, policy, signals,
        sleeps_in,
    },
    time::{self, Calendar},
};

/// Everything that columns need beside the row.
pub(crate) struct Cells<'a> {
    pub(crate) machine: Machine,
    request: &'a Request,
    names: &'a mut Names,
    terminals: Terminals,
    calendar: Calendar,
    characters: Characters,
    /// Room for a text before it is cut and cleaned.
    scratch: Vec<u8>,
}

/// How much room there is for a text, and what stands before it.
#[derive(Clone, Copy)]
pub(crate) struct Room<'a> {
    /// Characters on the screen.
    pub(crate) columns: usize,
    /// There is room for sixteen digits of signals.
    pub(crate) wide_signals: bool,
    /// The lines of a forest.
    pub(crate) branch: &'a [u8],
}

impl<'a> Cells<'a> {
    pub(crate) fn new(request: &'a Request, names: &'a mut Names, machine: Machine) -> Self {
        Self {
            machine,
            request,
            names,
            terminals: Terminals::default(),
            calendar: Calendar::default(),
            characters: Characters::of_environment(),
            scratch: Vec::new(),
        }
    }

    pub(crate) fn terminal(&mut self, device: i32) -> &str {
        self.terminals.name(device)
    }

    pub(crate) fn id_name(&mut self, id: u32, user: bool) -> Option<Vec<u8>> {
        let name = if user {
            self.names.user(id)
        } else {
            self.names.group(id)
        };
        name.map(<[u8]>::to_vec)
    }

    /// CPU time in clock ticks.
    pub(crate) fn ticks(&self, row: &Row) -> u64 {
        let stat = &row.stat;
        let own = stat.user_time + stat.system_time;
        if self.request.with_children {
            own + stat.children_user_time + stat.children_system_time
        } else {
            own
        }
    }

    fn age(&self, row: &Row) -> u64 {
        self.machine.uptime.saturating_sub(row.stat.start_time)
    }

    /// CPU time a time since the start, in per mill.
    pub(crate) fn share_mill(&self, row: &Row) -> u64 {
        match self.age(row) {
            0 => 0,
            age => self.ticks(row) * 1000 / age,
        }
    }

    fn started(&self, row: &Row) -> i64 {
        self.machine.booted + (row.stat.start_time / self.machine.hertz).cast_signed()
    }

    /// Writes the text of a column; gives the characters that it takes on the screen.
    pub(crate) fn write(
        &mut self,
        what: What,
        row: &Row,
        room: Room<'_>,
        out: &mut Vec<u8>,
    ) -> usize {
        let before = out.len();
        match what {
            What::Arguments | What::Name | What::ShortName => {
                return self.command(what, row, room, out);
            }
            What::Environment => {
                let columns = self.environment(row, room.columns, out);
                return columns;
            }
            What::Executable if row.exe.is_empty() => out.push(b'-'),
            What::Executable => return self.clean(&row.exe, room.columns, out),
            What::ControlGroups => {
                let groups = control_groups(&row.cgroup);
                return self.clean(&groups, room.columns, out);
            }
            What::Container => {
                let container = container(&row.cgroup);
                return self.clean(&container, room.columns, out);
            }
            What::IdName(id) => return self.id_named(id, row, room.columns, out),
            What::Groups | What::GroupNames => {
                let groups = self.groups(row, what == What::GroupNames);
                return self.clean(&groups, room.columns, out);
            }
            What::Terminal => out.extend_from_slice(self.terminals.name(row.stat.tty).as_bytes()),
            What::SleepsIn => {
                let name = sleeps_in(&row.wchan);
                out.extend_from_slice(&name[..name.len().min(room.columns)]);
            }
            What::Signals(set) => signals(set, row, room.wide_signals, out),
            What::Start | What::StartLong | What::StartShort | What::StartFull => {
                self.start(what, row, out);
            }
            _ => self.plain(what, row, out),
        }
        out.len() - before
    }

    fn start(&mut self, what: What, row: &Row, out: &mut Vec<u8>) {
        let (time, machine) = (self.started(row), self.machine);
        match what {
            What::Start => self.calendar.short(time, &machine, out),
            What::StartLong => self.calendar.long(time, &machine, out),
            What::StartShort => self.calendar.six(time, &machine, out),
            _ => self.calendar.full(time, out),
        }
    }

    /// Columns of ASCII alone that are not cut.
    fn plain(&self, what: What, row: &Row, out: &mut Vec<u8>) {
        let (stat, machine) = (&row.stat, &self.machine);
        let status = row.status.as_deref();
        let seconds = self.ticks(row) / machine.hertz;
        let has_memory = stat.virtual_size != 0;
        let text = stat.end_code.saturating_sub(stat.start_code);
        // Writing to memory can't fail.
        let _ = match what {
            What::Pid => write!(out, "{}", row.pid),
            What::Tid => write!(out, "{}", row.tid),
            What::Parent => write!(out, "{}", stat.parent),
            What::Group => write!(out, "{}", stat.group),
            What::Session => write!(out, "{}", stat.session),
            What::TerminalGroup => write!(out, "{}", stat.tty_group),
            What::Threads => write!(out, "{}", stat.threads),
            What::Id(id) => write!(out, "{}", id_of(row, id)),
            What::State => out.write_all(&[stat.state]),
            What::LongState => {
                long_state(row, out);
                Ok(())
            }
            What::Flags => write!(out, "{:o}", (stat.flags >> 6) & 7),
            What::Share => write!(out, "{:2}", (self.share_mill(row) / 10).min(99)),
            What::ShareDecimal => match self.share_mill(row) {
                mill @ 0..1000 => write!(out, "{}.{}", mill / 10, mill % 10),
                mill => write!(out, "{}", mill / 10),
            },
            What::ShareMill => write!(out, "{:3}", self.share_mill(row).min(999)),
            What::MemoryShare => {
                let kib = status.map_or(0, |s| s.resident_kib);
                let mill = (kib * 1000 / machine.memory_kib.max(1)).min(999);
                write!(out, "{:2}.{}", mill / 10, mill % 10)
            }
            What::Time => {
                time::duration(seconds, true, out);
                Ok(())
            }
            What::TimeSeconds => write!(out, "{seconds}"),
            What::TimeShort => write!(out, "{:3}:{:02}", seconds / 60, seconds % 60),
            What::Elapsed => {
                time::duration(self.age(row) / machine.hertz, false, out);
                Ok(())
            }
            What::ElapsedSeconds => write!(out, "{}", self.age(row) / machine.hertz),
            What::Priority(plus, times) => write!(out, "{}", (stat.priority + plus) * times),
            What::Nice if matches!(stat.policy, 0 | 3) => write!(out, "{}", stat.nice),
            What::PolicyName => out.write_all(policy(stat.policy).as_bytes()),
            What::Policy => write!(out, "{}", stat.policy),
            What::RealtimePriority if stat.policy != 0 => write!(out, "{}", stat.realtime_priority),
            What::Processor => write!(out, "{}", stat.processor),
            What::RunningProcessor if stat.state == b'R' => write!(out, "{}", stat.processor),
            What::RunningProcessor => out.write_all(b"*"),
            What::Resident => write!(out, "{}", status.map_or(0, |s| s.resident_kib)),
            What::ResidentLimit if stat.resident_limit == u64::MAX => out.write_all(b"xx"),
            What::ResidentLimit => write!(out, "{:5}", stat.resident_limit >> 10),
            What::Virtual => write!(out, "{}", stat.virtual_size >> 10),
            What::VirtualPages => write!(out, "{}", (stat.virtual_size >> 10) / machine.page_kib),
            What::VirtualBytes => write!(out, "{}", stat.virtual_size),
            What::Data if has_memory => {
                write!(out, "{}", stat.virtual_size.saturating_sub(text) >> 10)
            }
            What::Text if has_memory => write!(out, "{}", text >> 10),
            What::Data | What::Text => out.write_all(b"0"),
            What::Writable => write!(out, "{}", status.map_or(0, |s| s.data_kib + s.stack_kib)),
            What::MajorFaults if self.request.with_children => {
                write!(out, "{}", stat.major_faults + stat.children_major_faults)
            }
            What::MajorFaults => write!(out, "{}", stat.major_faults),
            What::MinorFaults if self.request.with_children => {
                write!(out, "{}", stat.minor_faults + stat.children_minor_faults)
            }
            What::MinorFaults => write!(out, "{}", stat.minor_faults),
            What::StackStart => write!(out, "{:016x}", stat.start_stack),
            What::Capabilities => write!(out, "{:016x}", status.map_or(0, |s| s.capabilities)),
            _ => out.write_all(b"-"),
        };
    }

    /// Arguments, or the name in one of its forms.
    fn command(&mut self, what: What, row: &Row, room: Room<'_>, out: &mut Vec<u8>) -> usize {
        let branch = self.branch(room, out);
        let mut left = room.columns - branch;
        if what == What::ShortName {
            left = left.min(8);
        }
        let long = match what {
            What::Arguments => !self.request.names_only,
            What::Name => self.request.format.full,
            _ => false,
        };
        let mut text = std::mem::take(&mut self.scratch);
        text.clear();
        if long {
            arguments(row, &mut text);
        } else {
            text.extend_from_slice(row.stat.name.as_bytes());
            if what != What::ShortName && row.stat.state == b'Z' {
                text.extend_from_slice(b" <defunct>");
            }
        }
        let mut used = self.clean(&text, left, out);
        self.scratch = text;
        if self.request.format.environment && what != What::ShortName && left - used > 1 {
            let Reading::Read(bytes) = &row.environment else {
                return branch + used;
            };
            if !bytes.is_empty() {
                out.push(b' ');
                used += 1 + self.environment(row, left - used - 1, out);
            }
        }
        branch + used
    }

    fn environment(&mut self, row: &Row, columns: usize, out: &mut Vec<u8>) -> usize {
        let mut text = Vec::new();
        match &row.environment {
            Reading::Read(bytes) => joined(bytes, &mut text),
            Reading::Late => text.extend_from_slice(BUSY.trim_ascii_start()),
            Reading::Nothing => {}
        }
        self.clean(&text, columns, out)
    }

    /// The lines of a forest; each step is four columns wide, indented ones two.
    fn branch(&self, room: Room<'_>, out: &mut Vec<u8>) -> usize {
        let mut used = 0;
        for &step in room.branch {
            let text: &[u8] = match (self.request.forest, step) {
                (Some(Forest::Indented), _) => b"  ",
                (_, b'+' | b'L') => b" \\_ ",
                (_, b'|') => b" |  ",
                _ => b"    ",
            };
            if room.columns - used < text.len() {
                break;
            }
            out.extend_from_slice(text);
            used += text.len();
        }
        used
    }

    fn id_named(&mut self, id: Id, row: &Row, columns: usize, out: &mut Vec<u8>) -> usize {
        let number = id_of(row, id);
        let start = out.len();
        if !self.request.numeric {
            let name = if is_user(id) {
                self.names.user(number)
            } else {
                self.names.group(number)
            };
            if let Some(name) = name {
                let used = clean(self.characters, name, usize::MAX, out);
                if used <= columns {
                    return used;
                }
                // Cut and marked, unless that would cut a character in two.
                if columns >= 1 && out[start + columns - 1] < 127 {
                    out.truncate(start + columns - 1);
                    out.push(b'+');
                    return columns;
                }
                out.truncate(start);
            }
        }
        let _ = write!(out, "{number}");
        out.len() - start
    }

    fn groups(&mut self, row: &Row, named: bool) -> Vec<u8> {
        let mut text = Vec::new();
        for &group in row.status.iter().flat_map(|status| &status.groups) {
            if !text.is_empty() {
                text.push(b',');
            }
            match self.names.group(group).filter(|_| named) {
                Some(name) => text.extend_from_slice(name),
                None => {
                    let _ = write!(text, "{group}");
                }
            }
        }
        if text.is_empty() {
            text.push(b'-');
        }
        text
    }

    fn clean(&self, text: &[u8], columns: usize, out: &mut Vec<u8>) -> usize {
        clean(self.characters, text, columns, out)
    }
}
