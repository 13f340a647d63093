//! Many processes at once, with exactly the files that are asked for: what `ps` lists and the index publishes.

use lancet_abi::units::{Pid, Tid};

use crate::{Bound, Calm, Owner, Proc, ProcError, Reading, Stat, Status, stat, status};

/// What is wanted of each process besides its `stat` line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Effective ids.
    pub owner: bool,
    /// `status`.
    pub status: bool,
    /// Arguments.
    pub arguments: bool,
    /// Environment.
    pub environment: bool,
    /// Where it sleeps in the kernel.
    pub wchan: bool,
    /// Its control groups.
    pub cgroup: bool,
    /// Path of its executable.
    pub exe: bool,
    /// Where text and stack lie, which `stat` says only to those who may trace.
    pub addresses: bool,
    /// A row for each thread.
    pub threads: bool,
}

impl Wanted {
    /// What either wants.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            owner: self.owner || other.owner,
            status: self.status || other.status,
            arguments: self.arguments || other.arguments,
            environment: self.environment || other.environment,
            wchan: self.wchan || other.wchan,
            cgroup: self.cgroup || other.cgroup,
            exe: self.exe || other.exe,
            addresses: self.addresses || other.addresses,
            threads: self.threads || other.threads,
        }
    }

    /// Whether everything that the other wants is wanted. `status` has the owner too.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        let known = Self {
            owner: self.owner || self.status,
            ..self
        };
        known.and(other) == known
    }
}

/// One process, or one thread of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Row {
    /// The process.
    pub pid: Pid,
    /// The thread; the leading one in a row that stands for the whole process.
    pub tid: Tid,
    /// Inode of the process's folder, as the listing has it.
    pub folder: u64,
    /// Its `stat` line. In a row of a thread other than the leading one, times are the thread's own.
    pub stat: Stat,
    /// Effective ids, where wanted.
    pub owner: Owner,
    /// Where wanted.
    pub status: Option<Box<Status>>,
    /// Arguments, each closed by a zero byte. Kernel threads and zombies have none and are not asked.
    pub arguments: Reading,
    /// Environment, in the same form.
    pub environment: Reading,
    /// Name of a kernel function; empty or `0` when it runs or this user may not know.
    pub wchan: Box<[u8]>,
    /// Lines of `cgroup`.
    pub cgroup: Box<[u8]>,
    /// Path of the executable; empty when unknown.
    pub exe: Box<[u8]>,
}

/// What a listing found.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Ascending by pid, then in the order of threads.
    pub rows: Vec<Row>,
    /// Processes whose arguments or environment were not to be had in time.
    pub late: usize,
    /// Processes that this user may not look at, though the listing has them.
    pub denied: usize,
    /// Processes of other users are not even in the listing: the first one is not.
    pub hidden: bool,
}

impl Row {
    /// A row with nothing but the line.
    #[must_use]
    pub fn new(pid: Pid, folder: u64, stat: Stat) -> Self {
        Self {
            pid,
            tid: Tid(pid.0),
            folder,
            stat,
            owner: Owner::default(),
            status: None,
            arguments: Reading::Nothing,
            environment: Reading::Nothing,
            wchan: Box::default(),
            cgroup: Box::default(),
            exe: Box::default(),
        }
    }
}

impl Row {
    /// Arguments or environment were not to be had in time.
    #[must_use]
    pub fn is_late(&self) -> bool {
        self.arguments == Reading::Late || self.environment == Reading::Late
    }
}

/// Lists every process that this user may see. One that ends meanwhile is left out.
///
/// # Errors
/// [`ProcError::List`].
pub fn table(root: &Proc, wanted: Wanted) -> Result<Table, ProcError> {
    let pids = root.list()?;
    let mut table = of_pids(root, &pids, wanted);
    table.hidden = pids.first().is_none_or(|first| first.0 != Pid(1));
    Ok(table)
}

/// As [`table`], of these processes only.
#[must_use]
pub fn of_pids(root: &Proc, pids: &[(Pid, u64)], wanted: Wanted) -> Table {
    let mut rows = Vec::with_capacity(pids.len());
    let mut bytes = Vec::new();
    let mut denied = 0;
    for &(pid, folder) in pids {
        match row(root, pid, folder, wanted, &mut bytes) {
            Ok(row) => rows.push(row),
            Err(ProcError::Denied { .. }) => denied += 1,
            // Who has ended is no row.
            Err(_) => {}
        }
    }
    let late = add_bound(root, rows.iter_mut(), wanted);
    if wanted.threads {
        rows = with_threads(root, &rows, wanted, &mut bytes);
    }
    Table {
        rows,
        late,
        denied,
        hidden: false,
    }
}

fn row(
    root: &Proc,
    pid: Pid,
    folder: u64,
    wanted: Wanted,
    bytes: &mut Vec<u8>,
) -> Result<Row, ProcError> {
    root.read(pid, None, Calm::Stat, bytes)?;
    let mut row = Row::new(pid, folder, stat::of(pid, bytes)?);
    if wanted.owner && !wanted.status {
        row.owner = root.owner(pid)?;
    }
    add_calm(root, &mut row, None, wanted, bytes)?;
    if wanted.exe && !row.stat.is_kernel_thread() {
        row.exe = root.exe_path(pid).unwrap_or_default().into();
    }
    Ok(row)
}

pub(crate) fn add_calm(
    root: &Proc,
    row: &mut Row,
    tid: Option<Tid>,
    wanted: Wanted,
    bytes: &mut Vec<u8>,
) -> Result<(), ProcError> {
    if wanted.status {
        root.read(row.pid, tid, Calm::Status, bytes)?;
        let status = status::of(row.pid, bytes)?;
        row.owner.uid = status.uids[1];
        row.owner.gid = status.gids[1];
        row.status = Some(Box::new(status));
    }
    // Neither is worth a row: a process that ends now is still listed.
    if wanted.wchan {
        row.wchan = match root.read(row.pid, tid, Calm::Wchan, bytes) {
            Ok(()) => bytes.as_slice().into(),
            Err(_) => Box::default(),
        };
    }
    if wanted.cgroup {
        row.cgroup = match root.read(row.pid, tid, Calm::Cgroup, bytes) {
            Ok(()) => bytes.as_slice().into(),
            Err(_) => Box::default(),
        };
    }
    Ok(())
}

/// Reads what may wait. Kernel threads and zombies have none of it. Gives the number of rows that were late.
fn add_bound<'a>(root: &Proc, rows: impl Iterator<Item = &'a mut Row>, wanted: Wanted) -> usize {
    let mut rows: Vec<&mut Row> = rows
        .filter(|row| !row.stat.is_kernel_thread() && !row.stat.is_dead())
        .collect();
    let asked = rows.len();
    for (file, on) in [
        (Bound::Cmdline, wanted.arguments),
        (Bound::Environ, wanted.environment),
    ] {
        if !on {
            continue;
        }
        let through = |row: &&mut Row| {
            let other_thread = row.tid.0 != row.pid.0;
            (row.pid, other_thread.then_some(row.tid))
        };
        let reads = root.read_bound(file, rows.iter().map(through).collect());
        for (row, reading) in rows.iter_mut().zip(reads.finish()) {
            match file {
                Bound::Cmdline => row.arguments = reading,
                Bound::Environ => row.environment = reading,
            }
        }
        // Who was late once is not waited for again.
        rows.retain(|row| !row.is_late());
    }
    asked - rows.len()
}

fn with_threads(root: &Proc, rows: &[Row], wanted: Wanted, bytes: &mut Vec<u8>) -> Vec<Row> {
    let mut all = Vec::with_capacity(2 * rows.len());
    for process in rows {
        for tid in root.tids(process.pid).unwrap_or_default() {
            // The leading thread stands for the process, as in ps: with the times of all.
            if tid.0 == process.pid.0 {
                all.push(process.clone());
                continue;
            }
            let Ok(()) = root.read(process.pid, Some(tid), Calm::Stat, bytes) else {
                continue;
            };
            let Ok(stat) = stat::of(process.pid, bytes) else {
                continue;
            };
            let mut row = process.clone();
            row.tid = tid;
            row.stat = stat;
            if add_calm(root, &mut row, Some(tid), wanted, bytes).is_ok() {
                all.push(row);
            }
        }
    }
    // A leading thread that has ended shows nothing; the others still do.
    let unread = |row: &&mut Row| row.tid.0 != row.pid.0 && row.arguments == Reading::Nothing;
    add_bound(root, all.iter_mut().filter(unread), wanted);
    all
}
