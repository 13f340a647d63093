//! The order of a list.

use std::cmp::Ordering;

use lancet_procs::Row;

use crate::{
    PsError,
    cell::Cells,
    choice::{id_of, is_user},
    spec::{self, What},
    texts::arguments_of,
};

/// One key of an order.
#[derive(Clone, Copy, Debug)]
pub struct SortKey {
    /// What is compared.
    pub what: What,
    /// Largest first.
    pub descending: bool,
}

impl SortKey {
    /// `[+|-]NAME`.
    pub(crate) fn new(text: &str) -> Result<Self, PsError> {
        let name = text.trim_start_matches(['+', '-']);
        let spec = spec::find(name).ok_or(PsError::Column {
            name: name.to_owned(),
        })?;
        Ok(Self {
            what: spec.what,
            descending: text.starts_with('-'),
        })
    }
}

/// Sorts rows; those that compare equal keep their order.
pub(crate) fn sort(rows: &mut [Row], keys: &[SortKey], cells: &mut Cells<'_>) {
    if keys.is_empty() {
        return;
    }
    rows.sort_by(|a, b| {
        keys.iter()
            .map(|key| {
                let order = compare(key.what, a, b, cells);
                if key.descending {
                    order.reverse()
                } else {
                    order
                }
            })
            .find(|order| order.is_ne())
            .unwrap_or(Ordering::Equal)
    });
}

fn compare(what: What, a: &Row, b: &Row, cells: &mut Cells<'_>) -> Ordering {
    match what {
        What::Name | What::ShortName => a.stat.name.as_bytes().cmp(b.stat.name.as_bytes()),
        What::Arguments => arguments_of(a).cmp(&arguments_of(b)),
        What::Executable => a.exe.cmp(&b.exe),
        What::SleepsIn => a.wchan.cmp(&b.wchan),
        What::ControlGroups | What::Container => a.cgroup.cmp(&b.cgroup),
        What::Terminal => {
            let name = |row: &Row, cells: &mut Cells<'_>| cells.terminal(row.stat.tty).to_owned();
            name(a, cells).cmp(&name(b, cells))
        }
        What::IdName(id) => {
            let name = |row: &Row, cells: &mut Cells<'_>| {
                let number = id_of(row, id);
                cells.id_name(number, is_user(id))
            };
            name(a, cells).cmp(&name(b, cells))
        }
        _ => number(what, a, cells).cmp(&number(what, b, cells)),
    }
}

fn number(what: What, row: &Row, cells: &Cells<'_>) -> i128 {
    let stat = &row.stat;
    let status = row.status.as_deref();
    match what {
        What::Pid => row.pid.0.into(),
        What::Tid => row.tid.0.into(),
        What::Parent => stat.parent.0.into(),
        What::Group => stat.group.into(),
        What::Session => stat.session.into(),
        What::TerminalGroup => stat.tty_group.into(),
        What::Threads => stat.threads.into(),
        What::State | What::LongState => stat.state.into(),
        What::Flags => stat.flags.into(),
        What::Id(id) => id_of(row, id).into(),
        What::Share | What::ShareDecimal | What::ShareMill => cells.share_mill(row).into(),
        What::Time | What::TimeSeconds | What::TimeShort => cells.ticks(row).into(),
        What::Elapsed | What::ElapsedSeconds => -i128::from(stat.start_time),
        What::Start | What::StartLong | What::StartShort | What::StartFull => {
            stat.start_time.into()
        }
        What::Priority(..) => stat.priority.into(),
        What::Nice => stat.nice.into(),
        What::Policy | What::PolicyName => stat.policy.into(),
        What::RealtimePriority => stat.realtime_priority.into(),
        What::Processor | What::RunningProcessor => stat.processor.into(),
        What::Resident | What::MemoryShare => status.map_or(0, |s| s.resident_kib).into(),
        What::ResidentLimit => stat.resident_limit.into(),
        What::Virtual
        | What::VirtualPages
        | What::VirtualBytes
        | What::Data
        | What::Text
        | What::Writable => stat.virtual_size.into(),
        What::MajorFaults => stat.major_faults.into(),
        What::MinorFaults => stat.minor_faults.into(),
        What::StackStart => stat.start_stack.into(),
        _ => 0,
    }
}
