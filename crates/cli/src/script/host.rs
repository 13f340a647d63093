//! What blocks in the tracer act on: the maps, the report, the machine.

use std::collections::HashMap;
use std::io::Read;

use anyhow::{Context, Result};
use lancet_engine::Session;
use lancet_engine::scripts::Count;
use lancet_output::{ProbeLoss, Report, quoted};
use lancet_script::eval::{self, Host};
use lancet_script::ir::{
    Action, Agg, Clock, Fact, Format, FormatId, MapId, PointId, Program, StrSource, Warning,
};

use super::cells::{self, shown};
use super::maps::{State, aggregate, bytes, with_table, words};
use super::records::Drain;
use super::show::{self, Names};
use super::sys;

/// A script at work.
pub(super) struct Runner<'a> {
    pub(super) program: &'a Program,
    pub(super) session: Session,
    pub(super) report: Box<dyn Report>,
    pub(super) maps: Vec<State>,
    pub(super) functions: Vec<String>,
    /// Attach points by their ids; behind those of the program, what wildcards stand for.
    pub(super) probes: Vec<String>,
    /// Records of hits.
    pub(super) drain: Drain,
    /// Boot time at the start.
    pub(super) start: i64,
    /// The point whose block runs.
    pub(super) point: PointId,
    /// The status that the script ends with, once it ends.
    pub(super) exit: Option<i64>,
    /// The first thing that went wrong in a block.
    pub(super) failed: Option<anyhow::Error>,
    pub(super) warned: HashMap<Warning, u64>,
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
        self.failed.take().map_or(Ok(()), Err)?;
        self.report.flush().context(UNWRITTEN)
    }

    /// The first failure is kept; what follows it is no news.
    fn noted<T: Default>(&mut self, result: Result<T>) -> T {
        result.unwrap_or_else(|error| {
            self.failed.get_or_insert(error);
            T::default()
        })
    }

    fn cell(&mut self, map: MapId, key: &[u8]) -> Option<Vec<u64>> {
        let whole = !self.program.maps[map.index()].value.is_word();
        let cell = self.maps[map.index()].cell(&self.session, map, key, whole);
        self.noted(cell)
    }

    /// A change of a table that may have found no room.
    fn stored(&mut self, done: Option<bool>) {
        if done != Some(true) {
            self.warn(Warning::MapFull);
        }
    }

    fn print_map(&mut self, map: MapId, top: u32, div: u32) -> Result<()> {
        let of = &self.program.maps[map.index()];
        let whole = !of.value.is_word();
        let cells = self.maps[map.index()].cells(&self.session, map, whole)?;
        let names = Names {
            program: self.program,
            functions: &self.functions,
            probes: &self.probes,
        };
        let map = shown(of, &cells, &names, top, div);
        self.report.map(&map).context(UNWRITTEN)
    }

    /// Does what the records of hits ask for, in the order of their times. `last`: no further ones
    /// come.
    pub(super) fn take_records(&mut self, last: bool) -> Result<()> {
        for (format, record) in self.drain.take(&self.session, last) {
            if self.exit.is_some() && !last {
                break;
            }
            let program = self.program;
            if let Some(format) = program.formats.get(format as usize)
                && record.len() >= format.size() as usize
            {
                self.maps.iter_mut().for_each(State::look_again);
                self.act(format, &record)?;
            }
        }
        self.report.flush().context(UNWRITTEN)
    }

    /// All maps that hold something, in the order of their names, then what they lost.
    pub(super) fn print_all(&mut self) -> Result<()> {
        self.maps.iter_mut().for_each(State::look_again);
        self.report.detached().context(UNWRITTEN)?;
        let mut order: Vec<u32> = (0..self.maps.len() as u32).collect();
        order.sort_by_key(|&map| &self.program.maps[map as usize].name);
        for &map in order
            .iter()
            .filter(|_| self.program.config.print_maps_on_exit)
        {
            self.print_map(MapId(map), 0, 0)?;
        }
        for &map in &order {
            self.say_lost(MapId(map))?;
        }
        self.say_lost_records()?;
        self.report.finish().context(UNWRITTEN)
    }

    fn say_lost(&mut self, map: MapId) -> Result<()> {
        let of = &self.program.maps[map.index()];
        let (full, locked) =
            with_table(&self.session, map, |table| table.dropped()).unwrap_or_default();
        let state = &mut self.maps[map.index()];
        let full = state.lost + full;
        if full + locked == 0 {
            return Ok(());
        }
        let cells = state.cells(&self.session, map, false)?;
        let recorded: u64 = cells
            .values()
            .map(|words| cells::hits(&of.value, words))
            .sum();
        for (lost, why) in [
            (full, "map full; see max_map_keys"),
            (locked, "its lock was held by a thread that did not run"),
        ] {
            if lost > 0 {
                self.report.lost(&ProbeLoss {
                    probe: format!("{} ({why})", of.name),
                    hits: recorded + lost,
                    recorded,
                    lost,
                    skipped: 0,
                })?;
            }
        }
        Ok(())
    }

    /// What the actions of uprobes could not do.
    fn say_lost_records(&mut self) -> Result<()> {
        let begun = self.drain.given_up();
        if begun > 0 {
            self.report.lost(&ProbeLoss {
                probe: "records that their thread never finished".into(),
                hits: begun,
                lost: begun,
                ..ProbeLoss::default()
            })?;
        }
        for (number, action) in self.program.actions.iter().enumerate() {
            let count = |of| self.drain.count(&self.session, number, of);
            let (lost, skipped) = (count(Count::Lost), count(Count::Skipped));
            for warning in [
                Warning::Unreadable,
                Warning::DivisionByZero,
                Warning::MapFull,
                Warning::Fuel,
            ] {
                *self.warned.entry(warning).or_default() += count(Count::Warning(warning));
            }
            if lost + skipped > 0 {
                let point = action.points.first();
                let probe = point.map(|point| self.program.points[point.index()].spelling());
                self.report.lost(&ProbeLoss {
                    probe: probe.unwrap_or_default().to_owned(),
                    hits: self.drain.taken(number) + lost + skipped,
                    recorded: self.drain.taken(number),
                    lost,
                    skipped,
                })?;
            }
        }
        Ok(())
    }

    fn act(&mut self, format: &Format, record: &[u8]) -> Result<()> {
        let names = Names {
            program: self.program,
            functions: &self.functions,
            probes: &self.probes,
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
            Format::PrintMap { map, top, div } => self.print_map(*map, *top, *div)?,
            Format::Clear { map } => self.maps[map.index()].remove(&self.session, *map, None)?,
            Format::Zero { map } => self.maps[map.index()].zero(&self.session, *map)?,
            Format::Time { format } => {
                let format = &self.program.strings[format.index()];
                let text = show::at(format, sys::clock(libc::CLOCK_REALTIME));
                self.report
                    .record("time", &text, &quoted(&text))
                    .context(UNWRITTEN)?;
            }
            Format::Join { separator, fields } => {
                let text = names.join(&self.program.strings[separator.index()], fields, record);
                let line = format!("{text}\n");
                self.report
                    .record("join", &line, &quoted(&text))
                    .context(UNWRITTEN)?;
            }
            Format::Exit { .. } => self.exit = Some(show::word(record)),
        }
        Ok(())
    }
}

const UNWRITTEN: &str = "cannot write the report";

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
        let of = &self.program.maps[map.index()].value;
        self.cell(map, key)
            .map_or(0, |words| cells::amounts_to(of, &words))
    }

    fn map_bytes(&mut self, map: MapId, key: &[u8]) -> Option<Vec<u8>> {
        Some(bytes(&self.cell(map, key)?))
    }

    fn map_set(&mut self, map: MapId, key: &[u8], value: &[u8]) {
        let (key, value) = (words(key), words(value));
        let done = with_table(&self.session, map, |table| match &value[..] {
            [word] => table.set(&key, *word),
            words => table.set_whole(&key, words),
        });
        self.stored(done);
    }

    fn map_update(&mut self, map: MapId, key: &[u8], change: &dyn Fn(i64) -> i64) -> (i64, i64) {
        let key = words(key);
        let changed = with_table(&self.session, map, |table| {
            table.update(&key, |old| change(old as i64) as u64)
        });
        let changed = changed.flatten();
        self.stored(Some(changed.is_some()));
        let (old, new) = changed.unwrap_or_default();
        (old as i64, new as i64)
    }

    fn aggregate(&mut self, map: MapId, key: &[u8], agg: Agg, value: i64) {
        let of = &self.program.maps[map.index()].value;
        // Only the part that the table has: what hits counted apart is added when it is read.
        let done = aggregate(&self.session, map, key, (agg, of), value);
        self.stored(Some(done));
    }

    fn map_delete(&mut self, map: MapId, key: &[u8]) -> bool {
        let was = self.cell(map, key).is_some();
        let removed = self.maps[map.index()].remove(&self.session, map, Some(key));
        self.noted(removed);
        was
    }

    fn map_has(&mut self, map: MapId, key: &[u8]) -> bool {
        self.cell(map, key).is_some()
    }

    fn map_len(&mut self, map: MapId) -> u64 {
        let cells = self.maps[map.index()].cells(&self.session, map, false);
        self.noted(cells).len() as u64
    }

    fn map_next(&mut self, map: MapId, cursor: u64) -> Option<(u64, Vec<u8>)> {
        let cells = self.maps[map.index()].cells(&self.session, map, false);
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
        *self.warned.entry(warning).or_default() += 1;
    }
}
