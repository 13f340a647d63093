//! How columns are set beside each other.

use crate::{
    Align, Column, Format, Machine,
    cell::{Cells, Room},
};

use lancet_procs::Row;

/// Lines are never longer.
pub(crate) const LONGEST: usize = 128 * 1024;

/// The columns with their widths, and where lines end.
pub(crate) struct Layout<'a> {
    columns: Vec<(&'a Column, usize)>,
    /// Columns of a line, a multiple of the screen's that has room for all.
    end: usize,
    wide_signals: bool,
}

impl<'a> Layout<'a> {
    pub(crate) fn new(format: &'a Format, machine: &Machine, screen: usize) -> Self {
        let columns: Vec<_> = format
            .columns
            .iter()
            .map(|column| (column, width(column, machine)))
            .collect();
        let last = columns.len().saturating_sub(1);
        let mut total = last;
        let mut signals = 0;
        for (at, &(column, width)) in columns.iter().enumerate() {
            signals += usize::from(column.spec.align == Align::Signal);
            // The last one is only worth what a reader could make use of.
            total += if at == last && column.spec.align == Align::Open {
                3
            } else {
                width
            };
        }
        let mut end = screen.max(1);
        while end < total && end < LONGEST / 2 {
            end += screen.max(1);
        }
        Self {
            columns,
            wide_signals: total + signals * 7 <= end,
            end: end.min(LONGEST),
        }
    }

    pub(crate) fn header(&self, out: &mut Vec<u8>) {
        if self
            .columns
            .iter()
            .all(|(column, _)| column.header.is_empty())
        {
            return;
        }
        self.line(out, |column, _, out| {
            out.extend_from_slice(column.header.as_bytes());
            column.header.chars().count()
        });
    }

    pub(crate) fn row(&self, row: &Row, branch: &[u8], cells: &mut Cells<'_>, out: &mut Vec<u8>) {
        self.line(out, |column, columns, out| {
            let room = Room {
                columns,
                wide_signals: self.wide_signals,
                branch,
            };
            cells.write(column.spec.what, row, room, out)
        });
    }

    /// Each text begins where its column does, or one blank behind a text before it that was too long.
    fn line(&self, out: &mut Vec<u8>, mut text: impl FnMut(&Column, usize, &mut Vec<u8>) -> usize) {
        let (mut planned, mut reached, mut gap) = (0_usize, 0_usize, 0_usize);
        let mut cell = Vec::with_capacity(64);
        for (at, &(column, width)) in self.columns.iter().enumerate() {
            let last = at + 1 == self.columns.len();
            let align = column.spec.align;
            let start = if planned > reached {
                planned
            } else {
                reached + gap
            };
            let room = if last {
                self.end.saturating_sub(start)
            } else {
                width
            };
            cell.clear();
            let amount = text(column, room.min(LONGEST - 1), &mut cell);
            let (left, taken) = match align {
                Align::Right | Align::Pid => (width.saturating_sub(amount), 0),
                Align::Signal if self.wide_signals => (16_usize.saturating_sub(amount), 7),
                Align::Signal => (9_usize.saturating_sub(amount), 0),
                Align::Left | Align::Open | Align::Sleep => (0, 0),
            };
            let space = match (planned + left).checked_sub(reached) {
                Some(space) if space > 0 => space,
                _ => gap,
            };
            out.resize(out.len() + space, b' ');
            out.extend_from_slice(&cell);
            reached += space + amount;
            planned += width + taken + 1;
            gap = 1;
        }
        out.push(b'\n');
    }
}

fn width(column: &Column, machine: &Machine) -> usize {
    let spec = column.spec;
    if let Some(width) = column.width {
        return width;
    }
    let own = match spec.align {
        Align::Pid => machine.pid_width.max(spec.header.len()),
        _ => spec.width,
    };
    if column.header == spec.header {
        own
    } else {
        own.max(column.header.chars().count())
    }
}
