//! What blocks in the tracer act on: the maps, the report, the machine.

use std::io::Read;

use anyhow::{Context, Result};
use lancet_engine::Session;
use lancet_output::{ProbeLoss, Report, quoted};
use lancet_script::eval::{self, Host};
use lancet_script::ir::{
    Action, Agg, Clock, Fact, Format, FormatId, MapId, MapValue, PointId, Program, StrSource,
    Warning,
};

use super::maps::{Cell, State, shown};
use super::show::{self, Names};
use super::sys;

/// A script at work.
pub(super) struct Runner<'a> {
    pub(super) program: &'a Program,
    pub(super) session: Session,
    pub(super) report: Box<dyn Report>,
    pub(super) maps: Vec<State>,
    pub(super) functions: Vec<String>,
    /// Boot time at the start.
    pub(super) start: i64,
    /// The point whose block runs.
    pub(super) point: PointId,
    /// The status that the script ends with, once it ends.
    pub(super) exit: Option<i64>,
    /// The first thing that went wrong in a block.
    pub(super) failed: Option<anyhow::Error>,
    pub(super) warned: Vec<Warning>,
}

impl Runner<'_> {
    /// Runs the blocks of points that are meant, in their order, until one ends the script.
    pub(super) fn run(&mut self, meant: impl Fn(PointId) -> bool) -> Result<()> {
        let program = self.program;
        for action in &program.actions {
            for &point in action.points.iter().filter(|point| meant(**point)) {
                self.run_one(action, point)?;
            }
        }
        Ok(())
    }

    fn run_one(&mut self, action: &Action, point: PointId) -> Result<()> {
        self.point = point;
        self.maps.iter_mut().for_each(State::look_again);
        eval::run(self.program, action, self);
        self.failed.take().map_or(Ok(()), Err)
    }

    /// The first failure is kept; what follows it is no news.
    fn noted<T: Default>(&mut self, result: Result<T>) -> T {
        result.unwrap_or_else(|error| {
            self.failed.get_or_insert(error);
            T::default()
        })
    }

    fn cell(&mut self, map: MapId, key: &[u8]) -> Option<Cell> {
        let cells = self.maps[map.index()].cells(&self.session);
        self.noted(cells).remove(key)
    }

    /// Stores an entry unless that were one more than there is room for.
    fn store(&mut self, map: MapId, key: &[u8], cell: Cell) {
        let state = &mut self.maps[map.index()];
        let full = state.local.len() >= self.program.maps[map.index()].capacity as usize;
        if full && !state.local.contains_key(key) {
            self.warn(Warning::MapFull);
        } else {
            state.local.insert(key.to_vec(), cell);
        }
    }

    fn print_map(&mut self, map: usize, top: u32, div: u32) -> Result<()> {
        let cells = self.maps[map].cells(&self.session)?;
        let names = Names {
            program: self.program,
            functions: &self.functions,
        };
        let map = shown(&self.program.maps[map], &cells, &names, top, div);
        self.report.map(&map).context(UNWRITTEN)
    }

    /// All maps that hold something, in the order of their names, then what they lost.
    pub(super) fn print_all(&mut self) -> Result<()> {
        self.maps.iter_mut().for_each(State::look_again);
        self.report.detached().context(UNWRITTEN)?;
        let mut order: Vec<usize> = (0..self.maps.len()).collect();
        order.sort_by_key(|&map| &self.program.maps[map].name);
        for &map in order
            .iter()
            .filter(|_| self.program.config.print_maps_on_exit)
        {
            self.print_map(map, 0, 0)?;
        }
        for &map in &order {
            let name = &self.program.maps[map].name;
            let lost = self.maps[map].lost;
            if lost > 0 {
                let recorded = self.maps[map]
                    .cells(&self.session)?
                    .values()
                    .map(hits)
                    .sum();
                self.report.lost(&ProbeLoss {
                    probe: format!("{name} (map full; see max_map_keys)"),
                    hits: recorded + lost,
                    recorded,
                    lost,
                    skipped: 0,
                })?;
            }
        }
        self.report.finish().context(UNWRITTEN)
    }

    fn act(&mut self, format: &Format, record: &[u8]) -> Result<()> {
        let names = Names {
            program: self.program,
            functions: &self.functions,
        };
        match format {
            Format::Printf { pieces, fields } => {
                let text = names.printf(pieces, fields, record);
                self.report.printf(&text).context(UNWRITTEN)?;
            }
            Format::Print { fields } => {
                let Some(field) = fields.first() else {
                    return Ok(());
                };
                let text = names.text(&field.ty, record) + "\n";
                let json = names.json(&field.ty, record);
                self.report
                    .record("value", &text, &json)
                    .context(UNWRITTEN)?;
            }
            Format::PrintMap { map, top, div } => self.print_map(map.index(), *top, *div)?,
            Format::Clear { map } => self.maps[map.index()].remove(&self.session, None)?,
            Format::Zero { map } => self.maps[map.index()].zero(&self.session)?,
            Format::Time { format } => {
                let format = &self.program.strings[format.index()];
                let text = show::at(format, sys::clock(libc::CLOCK_REALTIME));
                self.report
                    .record("time", &text, &quoted(&text))
                    .context(UNWRITTEN)?;
            }
            // Its texts are the target's: the checker lets no block of the tracer do it.
            Format::Join { .. } => {}
            Format::Exit { .. } => self.exit = Some(show::word(record)),
        }
        Ok(())
    }
}

const UNWRITTEN: &str = "cannot write the report";

fn hits(cell: &Cell) -> u64 {
    match cell {
        Cell::Count(count) => *count,
        Cell::Hist(buckets) => buckets.iter().sum(),
        _ => 0,
    }
}

impl Host for Runner<'_> {
    fn fact(&mut self, fact: Fact) -> i64 {
        match fact {
            Fact::Pid | Fact::Tid => i64::from(std::process::id()),
            Fact::Uid => i64::from(rustix::process::getuid().as_raw()),
            Fact::Gid => i64::from(rustix::process::getgid().as_raw()),
            Fact::Cpu => sys::cpu(),
            Fact::Ncpus => std::thread::available_parallelism().map_or(1, |n| n.get() as i64),
            Fact::Rand => {
                let mut bytes = [0; 4];
                let read =
                    std::fs::File::open("/dev/urandom").and_then(|mut f| f.read_exact(&mut bytes));
                let result = read.context("cannot read /dev/urandom");
                self.noted(result);
                i64::from(u32::from_ne_bytes(bytes))
            }
            Fact::Nsecs(Clock::Boot) => sys::clock(libc::CLOCK_BOOTTIME),
            Fact::Nsecs(Clock::Monotonic) => sys::clock(libc::CLOCK_MONOTONIC),
            Fact::Nsecs(Clock::Tai) => sys::clock(libc::CLOCK_TAI),
            Fact::Nsecs(Clock::Elapsed) => sys::clock(libc::CLOCK_BOOTTIME) - self.start,
            Fact::Probe => i64::from(self.point.0),
            // The checker lets them stand in uprobe blocks only.
            Fact::Arg(_) | Fact::Register(_) | Fact::Func => 0,
        }
    }

    fn text(&mut self, source: StrSource) -> Vec<u8> {
        match source {
            StrSource::Const(id) => self.program.strings[id.index()].clone().into_bytes(),
            StrSource::Comm => {
                let mut name = std::fs::read("/proc/thread-self/comm").unwrap_or_default();
                name.truncate(name.iter().position(|&b| b == b'\n').unwrap_or(name.len()));
                name
            }
            StrSource::Probe => self.program.points[self.point.index()].spelling().into(),
            StrSource::Func => Vec::new(),
        }
    }

    /// Blocks of the tracer have no target whose memory they could mean.
    fn read(&mut self, _: u64, _: &mut [u8]) -> usize {
        0
    }

    fn map_word(&mut self, map: MapId, key: &[u8]) -> i64 {
        self.cell(map, key).map_or(0, |cell| cell.word())
    }

    fn map_bytes(&mut self, map: MapId, key: &[u8]) -> Option<Vec<u8>> {
        match self.cell(map, key)? {
            Cell::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    fn map_set(&mut self, map: MapId, key: &[u8], value: &[u8]) {
        self.store(map, key, Cell::Bytes(value.to_vec()));
    }

    fn map_update(&mut self, map: MapId, key: &[u8], change: &dyn Fn(i64) -> i64) -> (i64, i64) {
        let old = self.map_word(map, key);
        let new = change(old);
        self.map_set(map, key, &new.to_ne_bytes());
        (old, new)
    }

    fn aggregate(&mut self, map: MapId, key: &[u8], agg: Agg, value: i64) {
        let signed = matches!(
            self.program.maps[map.index()].value,
            MapValue::Agg { signed: true, .. }
        );
        // Only the part that this side has: hits are added when it is read.
        let old = self.maps[map.index()].local.get(key).cloned();
        self.store(map, key, Cell::step(old, agg, signed, value));
    }

    fn map_delete(&mut self, map: MapId, key: &[u8]) -> bool {
        let was = self.cell(map, key).is_some();
        let removed = self.maps[map.index()].remove(&self.session, Some(key));
        self.noted(removed);
        was
    }

    fn map_has(&mut self, map: MapId, key: &[u8]) -> bool {
        self.cell(map, key).is_some()
    }

    fn map_len(&mut self, map: MapId) -> u64 {
        let cells = self.maps[map.index()].cells(&self.session);
        self.noted(cells).len() as u64
    }

    fn map_next(&mut self, map: MapId, cursor: u64) -> Option<(u64, Vec<u8>)> {
        let cells = self.maps[map.index()].cells(&self.session);
        let key = self.noted(cells).into_keys().nth(cursor as usize)?;
        Some((cursor + 1, key))
    }

    fn emit(&mut self, format: FormatId, record: &[u8]) {
        if self.failed.is_none() {
            let program = self.program;
            let result = self.act(&program.formats[format.index()], record);
            self.noted(result);
        }
    }

    fn warn(&mut self, warning: Warning) {
        self.warned.push(warning);
    }
}
