//! Scans again and again, with files that stay open.

use std::{collections::HashMap, sync::Arc};

use lancet_abi::units::Pid;
use rustix::{
    fd::OwnedFd,
    process::{Resource, Rlimit, getrlimit, setrlimit},
};

use crate::{
    Bound, Calm, Proc, ProcError, Reading, Row, Table, Wanted, root, stat, sys::entry, table,
};

/// Descriptors that are left for everything else.
const SPARE: u64 = 256;

/// A process whose files are open. They belong to the process, not to its pid: a read after its end fails.
struct Kept {
    folder: u64,
    stat: OwnedFd,
    cmdline: Arc<OwnedFd>,
    scan: u64,
}

/// All processes, at the cost of two reads each.
pub struct Keeper {
    root: Proc,
    kept: HashMap<i32, Kept>,
    /// How many may be kept.
    room: usize,
    scans: u64,
    bytes: Vec<u8>,
}

impl Keeper {
    /// Raises the limit of open files as far as this user may.
    ///
    /// # Errors
    /// [`ProcError::List`].
    pub fn new() -> Result<Self, ProcError> {
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(
            Resource::Nofile,
            Rlimit {
                current: limit.maximum,
                maximum: limit.maximum,
            },
        );
        let files = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
        Ok(Self {
            root: Proc::open()?,
            kept: HashMap::new(),
            room: (files.saturating_sub(SPARE) / 2) as usize,
            scans: 0,
            bytes: Vec::new(),
        })
    }

    /// Lists every process, as [`table`](crate::table()) does.
    ///
    /// # Errors
    /// [`ProcError::List`].
    pub fn scan(&mut self, wanted: Wanted) -> Result<Table, ProcError> {
        self.scans += 1;
        let pids = self.root.list()?;
        let mut table = Table {
            hidden: pids.first().is_none_or(|first| first.0 != Pid(1)),
            rows: Vec::with_capacity(pids.len()),
            ..Table::default()
        };
        for &(pid, folder) in &pids {
            match self.row(pid, folder, wanted) {
                Ok(row) => table.rows.push(row),
                Err(ProcError::Denied { .. }) => table.denied += 1,
                Err(_) => {}
            }
        }
        let scans = self.scans;
        self.kept.retain(|_, kept| kept.scan == scans);
        if wanted.arguments {
            table.late = self.add_arguments(&mut table.rows);
        }
        Ok(table)
    }

    fn row(&mut self, pid: Pid, folder: u64, wanted: Wanted) -> Result<Row, ProcError> {
        let line = self.stat(pid, folder)?;
        let mut row = Row::new(pid, folder, line);
        if wanted.owner && !wanted.status {
            row.owner = self.root.owner(pid)?;
        }
        table::add_calm(&self.root, &mut row, None, wanted, &mut self.bytes)?;
        Ok(row)
    }

    fn stat(&mut self, pid: Pid, folder: u64) -> Result<stat::Stat, ProcError> {
        let scan = self.scans;
        if let Some(kept) = self
            .kept
            .get_mut(&pid.0)
            .filter(|kept| kept.folder == folder)
            && entry::read_all(&kept.stat, root::USUAL, &mut self.bytes).is_ok()
            && let Ok(stat) = stat::of(pid, &self.bytes)
        {
            kept.scan = scan;
            return Ok(stat);
        }
        let failed = |e: rustix::io::Errno| ProcError::of(pid, "stat", e.into());
        let file = self.root.open_file(pid, None, Calm::Stat).map_err(failed)?;
        entry::read_all(&file, root::USUAL, &mut self.bytes).map_err(failed)?;
        let stat = stat::of(pid, &self.bytes)?;
        if (self.kept.len() < self.room || self.kept.contains_key(&pid.0))
            && let Ok(cmdline) = self.root.open_bound(pid, None, Bound::Cmdline)
        {
            let kept = Kept {
                folder,
                stat: file,
                cmdline: Arc::new(cmdline),
                scan,
            };
            self.kept.insert(pid.0, kept);
        }
        Ok(stat)
    }

    /// Gives the number of processes that were late.
    fn add_arguments(&self, rows: &mut [Row]) -> usize {
        let mut asked: Vec<&mut Row> = rows
            .iter_mut()
            .filter(|row| !row.stat.is_kernel_thread() && !row.stat.is_dead())
            .collect();
        let of = asked
            .iter()
            .map(|row| match self.kept.get(&row.pid.0) {
                Some(kept) => root::Source::Open(Arc::clone(&kept.cmdline)),
                None => root::Source::Of(row.pid, None),
            })
            .collect();
        let mut late = 0;
        let reads = self.root.read_sources(Bound::Cmdline, of);
        for (row, reading) in asked.iter_mut().zip(reads.finish()) {
            late += usize::from(reading == Reading::Late);
            row.arguments = reading;
        }
        late
    }
}
