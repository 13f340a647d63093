//! Works on many processes at once, so that none waits for another.
//!
//! A bounded number of workers take processes from a list. Whatever a worker waits for (a thread
//! that does not stop, a memory lock that somebody holds, an answer of /proc), it waits alone: one
//! that has been at it for long counts no longer, and the next worker takes its place. A process
//! that was not to be stopped in time goes back to the list and is tried again later, with
//! growing pauses, for as long as the session lasts.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lancet_abi::units::Pid;
use lancet_procs::{self as procs, ProcError};
use lancet_remote::{RemoteError, StopBudget};

use crate::attach::{Attached, Hold, may_pass};
use crate::error::EngineError;
use crate::many::{LATE, MOST_WORKERS, bound};
use crate::patience;
use crate::process::{Early, Process};
use crate::recipe::Recipe;
use crate::session::{Session, leaves_nothing};
use crate::start;
use crate::undo;

/// The pauses before a process is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long a loader is waited for, and how often it is looked at.
const BEGINNING: Duration = Duration::from_millis(20);
const SHORTEST_PAUSE: Duration = Duration::from_micros(200);
/// How long somebody else may trace a process before it is given up.
const LOOK: Duration = Duration::from_millis(500);
/// How long a session that ends waits for workers that are late.
const PARTING: Duration = Duration::from_millis(200);
/// How long processes that could not be stopped at once are waited for when all others are done:
/// most were only on a busy machine.
const GRACE: Duration = Duration::from_secs(1);

/// What has become of a process that was to be attached.
#[derive(Debug)]
pub enum State {
    /// The probes are in it.
    Attached(Attached),
    /// It could not be stopped within the budget, or keeps something waiting. It runs on as it was
    /// and is tried again for as long as the session lasts; [`Session::news`] tells of it.
    Pending,
    /// It has ended.
    Gone,
    /// Nobody can tell what it maps: it is ending, or just becoming another program.
    Unknown,
    /// It maps none of the files.
    NotMapped,
    /// It can't be attached.
    Failed(EngineError),
}

impl State {
    pub(crate) fn of(pid: Pid, result: Result<Attached, EngineError>) -> Self {
        match result {
            Ok(attached) => Self::Attached(attached),
            Err(error) if is_gone(&error) => Self::Gone,
            // One without any mapping has no memory yet, or no more.
            Err(EngineError::NotMapped { .. }) => match procs::mappings(pid) {
                Ok(mappings) if !mappings.is_empty() => Self::NotMapped,
                _ => Self::Unknown,
            },
            Err(EngineError::Procs(ProcError::Unknown { .. })) => Self::Unknown,
            Err(error) => Self::Failed(error),
        }
    }
}

fn is_gone(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Remote(
            RemoteError::Gone { .. } | RemoteError::Process(ProcError::Gone { .. })
        ) | EngineError::Procs(ProcError::Gone { .. })
    )
}

/// A process on the list.
struct Job {
    pid: Pid,
    /// Where it has been opened already.
    process: Option<Process>,
    begun: Instant,
    due: Instant,
    pause: Duration,
    /// Whether it has not been tried yet.
    first: bool,
    /// Whether the process has just come to map a file.
    late: bool,
}

impl Job {
    fn new(pid: Pid, process: Option<Process>, late: bool) -> Self {
        let now = Instant::now();
        Self {
            pid,
            process,
            begun: now,
            due: now,
            pause: FIRST_PAUSE,
            first: true,
            late,
        }
    }

    /// Whether it, which may have been opened, has ended.
    fn has_ended(&self, process: Option<&Process>) -> bool {
        let is_over = |status: procs::Status| matches!(status.state, 'Z' | 'X');
        match process {
            Some(process) => process.has_ended(),
            // Whoever was named is told why it can't be opened.
            None => self.late && procs::status(self.pid).map_or(true, is_over),
        }
    }

    /// Whether somebody else traces it who does not only look, as another lancet does.
    fn is_held_for_long(&self, error: &EngineError) -> bool {
        let traced = matches!(error, EngineError::Remote(RemoteError::Traced { .. }));
        traced && self.begun.elapsed() > LOOK
    }
}

/// What a worker brings back.
struct Done {
    pid: Pid,
    process: Option<Process>,
    result: Result<Attached, EngineError>,
    /// Whether it had come late, and when this was done (monotonic clock).
    late: bool,
    at: Duration,
}

struct Work {
    pid: Pid,
    since: Instant,
    first: bool,
}

#[derive(Default)]
struct List {
    jobs: VecDeque<Job>,
    /// By worker.
    working: HashMap<usize, Work>,
    workers: usize,
    named: usize,
    done: Vec<Done>,
    closed: bool,
}

struct Shared {
    list: Mutex<List>,
    changed: Condvar,
    recipe: Mutex<Arc<Recipe>>,
    abandoned: Arc<AtomicBool>,
    bound: usize,
}

/// A process that was attached on the session's own thread.
type Before = (Pid, Result<Attached, EngineError>);

/// The workers of a session.
pub(crate) struct Crew(Arc<Shared>);

impl List {
    /// Takes a job that is due; first ones first.
    fn take(&mut self) -> Option<Job> {
        let now = Instant::now();
        let first = self.jobs.iter().position(|job| job.first);
        let index = first.or_else(|| self.jobs.iter().position(|job| job.due <= now))?;
        self.jobs.remove(index)
    }

    fn punctual(&self) -> usize {
        let late = self.working.values();
        self.workers - late.filter(|w| w.since.elapsed() > LATE).count()
    }

    fn all_tried(&self) -> bool {
        self.jobs.iter().all(|job| !job.first)
            && self
                .working
                .values()
                .all(|w| !w.first || w.since.elapsed() > LATE)
    }

    fn next_due(&self) -> Option<Duration> {
        let due = self.jobs.iter().map(|job| job.due).min()?;
        Some(due.saturating_duration_since(Instant::now()))
    }
}

impl Shared {
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn wait<'a>(&self, list: MutexGuard<'a, List>, most: Duration) -> MutexGuard<'a, List> {
        let woken = self.changed.wait_timeout(list, most);
        woken.unwrap_or_else(|e| e.into_inner()).0
    }

    fn recipe(&self) -> Arc<Recipe> {
        Arc::clone(&self.recipe.lock().unwrap_or_else(|e| e.into_inner()))
    }

    /// Sees to it that there are workers while there is work.
    fn supervise(self: &Arc<Self>) {
        let mut list = self.list();
        while !list.closed {
            let due = list.next_due();
            if due == Some(Duration::ZERO) {
                let lacking = self.bound.saturating_sub(list.punctual());
                for _ in 0..lacking.min(list.jobs.len()) {
                    if list.workers >= MOST_WORKERS || !self.hire(&mut list) {
                        break;
                    }
                }
                list = self.wait(list, Duration::from_millis(5));
            } else {
                list = self.wait(list, due.unwrap_or(Duration::MAX));
            }
        }
    }

    fn hire(self: &Arc<Self>, list: &mut List) -> bool {
        let number = list.named;
        let shared = Arc::clone(self);
        let hired = std::thread::Builder::new()
            .name("lancet-worker".into())
            .spawn(move || shared.work(number));
        if hired.is_ok() {
            list.named += 1;
            list.workers += 1;
        }
        hired.is_ok()
    }

    /// A worker's life: until nothing is due.
    fn work(&self, number: usize) {
        let mut list = self.list();
        while let Some(mut job) = if list.closed { None } else { list.take() } {
            let work = Work {
                pid: job.pid,
                since: Instant::now(),
                first: job.first,
            };
            list.working.insert(number, work);
            drop(list);
            let done = self.attach(&mut job);
            list = self.list();
            list.working.remove(&number);
            match done {
                Some(done) if list.closed => {
                    drop(list);
                    part(done);
                    list = self.list();
                }
                Some(done) => list.done.push(done),
                None => list.jobs.push_back(job),
            }
            self.changed.notify_all();
        }
        list.workers -= 1;
    }

    /// Attaches to a job's process; `None`: it is to be tried again.
    fn attach(&self, job: &mut Job) -> Option<Done> {
        if job.first {
            // It may have waited for its turn.
            job.begun = Instant::now();
        }
        let ready = job.late && start::has_begun(job.pid);
        if job.late && !ready && job.begun.elapsed() < BEGINNING {
            // Its loader is at work, and will soon have done more.
            job.first = false;
            job.due = Instant::now() + SHORTEST_PAUSE;
            return None;
        }
        let recipe = self.recipe();
        let opened = match job.process.take() {
            Some(process) => Ok(process),
            None => Process::open(job.pid, recipe.tracer.journal()),
        };
        let (process, result) = match opened {
            Ok(mut process) => {
                process.once = true;
                process.early = job.late.then(|| Early {
                    rseq: start::rseq_by_files(job.pid).filter(|_| ready),
                });
                process.abandoned = Arc::clone(&self.abandoned);
                patience::widen(job.begun.elapsed());
                let result = recipe.attach(&mut process, Hold::All);
                StopBudget::widen(1);
                process.once = false;
                process.early = None;
                (Some(process), result)
            }
            Err(error) => (None, Err(error)),
        };
        let passes = |error: &EngineError| may_pass(error) && !job.is_held_for_long(error);
        // Overtaken by an exec: what was found out is of the old program. While a thread that is not
        // the first one execs, the process is nowhere to be seen for a moment.
        let hidden = || {
            let is_alive = |status: procs::Status| !matches!(status.state, 'Z' | 'X');
            result.as_ref().is_err_and(is_gone)
                && job.begun.elapsed() < LOOK
                && procs::status(job.pid).is_ok_and(is_alive)
        };
        let replaced = result.is_err() && process.as_ref().is_some_and(Process::has_new_memory);
        // As has one whose memory is no more, though it has not ended yet, or that has no code yet.
        let is_code = |m: &procs::Mapping| m.execute && m.has_file();
        let between = result.is_err()
            && !job.has_ended(process.as_ref())
            && job.begun.elapsed() < LOOK
            && procs::mappings(job.pid).map_or(true, |mappings| !mappings.iter().any(is_code));
        let anew = replaced || between || hidden();
        let again = anew || result.as_ref().is_err_and(passes);
        if again && !self.abandoned.load(Ordering::Relaxed) {
            job.process = match process {
                Some(process) if replaced || anew && process.arenas.is_empty() => {
                    process.record().finish();
                    None
                }
                process => process,
            };
            job.first = false;
            job.due = Instant::now() + job.pause;
            job.pause = (job.pause * 2).min(LONGEST_PAUSE);
            return None;
        }
        // Whatever was seen of one that ends was seen on its way.
        let result = match result {
            Err(_) if job.has_ended(process.as_ref()) => {
                Err(RemoteError::Gone { pid: job.pid }.into())
            }
            other => other,
        };
        Some(Done {
            pid: job.pid,
            process,
            result,
            late: job.late,
            at: crate::sys::monotonic(),
        })
    }
}

/// A process that was attached after its session had ended: the probes are taken out at once.
fn part(done: Done) {
    let Some(process) = done.process else { return };
    if !process.arenas.is_empty() {
        let session = process.session();
        let places = process.places();
        // What fails here stays in the journal, for the guardian.
        let restored = crate::children::patiently(|| {
            undo::restore(
                process.pid,
                &process.memory,
                &places,
                Some(session),
                Some(&process.record().stub),
            )
        });
        if restored.is_err() {
            return;
        }
    }
    process.record().finish();
}

impl Crew {
    fn gather(recipe: Arc<Recipe>) -> Result<Self, EngineError> {
        let shared = Arc::new(Shared {
            list: Mutex::default(),
            changed: Condvar::new(),
            recipe: Mutex::new(recipe),
            abandoned: Arc::default(),
            bound: bound(),
        });
        let supervised = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("lancet-crew".into())
            .spawn(move || supervised.supervise())
            .map_err(|source| EngineError::System {
                what: "cannot start a thread",
                source,
            })?;
        Ok(Self(shared))
    }

    /// Nothing is begun any more; what was begun ends soon, or undoes itself later.
    fn close(&self) -> (Vec<Done>, VecDeque<Job>) {
        self.0.abandoned.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + PARTING;
        let mut list = self.0.list();
        let jobs = std::mem::take(&mut list.jobs);
        while !list.working.is_empty() && Instant::now() < deadline {
            list = self.0.wait(list, Duration::from_millis(5));
        }
        list.closed = true;
        self.0.changed.notify_all();
        (std::mem::take(&mut list.done), jobs)
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.0.list().closed = true;
        self.0.changed.notify_all();
    }
}

impl Session {
    /// Puts all registered probes into many processes, several at a time. One that fails or keeps
    /// the tracer waiting never delays another: it is [`State::Pending`] when all others are done.
    pub fn attach_all(&mut self, pids: &[Pid]) -> Result<Vec<(Pid, State)>, EngineError> {
        let (shared, before) = self.call_crew(pids)?;
        if let Some(follow) = &mut self.follow {
            follow.begin(pids.iter().copied());
        }
        let mut known: HashMap<Pid, Process> = HashMap::new();
        for index in (0..self.processes.len()).rev() {
            let process = &self.processes[index];
            if pids.contains(&process.pid) && !process.has_ended() {
                known.insert(process.pid, self.processes.swap_remove(index));
            }
        }
        // Those that are pending already, and given twice.
        let mut seen: HashSet<Pid> = self.pending().into_iter().collect();
        seen.extend(before.iter().map(|(pid, _)| *pid));
        let mut list = shared.list();
        for &pid in pids.iter().filter(|&&pid| seen.insert(pid)) {
            list.jobs
                .push_back(Job::new(pid, known.remove(&pid), false));
        }
        shared.changed.notify_all();
        while !list.all_tried() {
            list = shared.wait(list, LATE);
        }
        let patience = Instant::now() + GRACE;
        while !(list.jobs.is_empty() && list.working.is_empty()) && Instant::now() < patience {
            list = shared.wait(list, Duration::from_millis(10));
        }
        drop(list);
        let before = before.into_iter();
        let mut states: Vec<(Pid, State)> = before
            .map(|(pid, result)| (pid, State::of(pid, result)))
            .collect();
        if let Some(follow) = &mut self.follow {
            for (pid, state) in &states {
                follow.end(*pid, state, Duration::ZERO, false);
            }
        }
        states.extend(self.news());
        let pending = self.pending().into_iter();
        states.extend(pending.map(|pid| (pid, State::Pending)));
        Ok(states)
    }

    /// The crew, with what to put into processes from now on; and what became of the one that a script's
    /// memory was made in.
    fn call_crew(&mut self, pids: &[Pid]) -> Result<(Arc<Shared>, Option<Before>), EngineError> {
        let recipe = self.recipe()?;
        let before = self.share_script(&recipe, pids);
        let crew = match &self.crew {
            Some(crew) => crew,
            None => self.crew.insert(Crew::gather(Arc::clone(&recipe))?),
        };
        let shared = Arc::clone(&crew.0);
        *shared.recipe.lock().unwrap_or_else(|e| e.into_inner()) = recipe;
        Ok((shared, before))
    }

    /// Puts a process on the list that has come to map a file, unless it was attached on the way.
    pub(crate) fn begin_late(
        &mut self,
        pid: Pid,
        process: Option<Process>,
    ) -> Result<Option<Before>, EngineError> {
        let (shared, before) = self.call_crew(&[pid])?;
        if before.is_none() {
            let job = Job::new(pid, process, true);
            shared.list().jobs.push_back(job);
            shared.changed.notify_all();
        }
        Ok(before)
    }

    /// What has become of processes that were pending, or have come, since the last time.
    pub fn news(&mut self) -> Vec<(Pid, State)> {
        let crew = self.crew.as_ref();
        let done = crew.map(|crew| std::mem::take(&mut crew.0.list().done));
        // Before those are known to be done: who was forked meanwhile is known by that.
        let mut states = self.follow_up();
        states.extend(self.welcome(done.unwrap_or_default()));
        states
    }

    /// Whether there is something that [`news`](Self::news) would tell.
    pub(crate) fn has_news(&self) -> bool {
        let is_there = |crew: &Crew| !crew.0.list().done.is_empty();
        self.crew.as_ref().is_some_and(is_there)
    }

    /// Processes that are still tried.
    #[must_use]
    pub fn pending(&self) -> Vec<Pid> {
        let Some(crew) = &self.crew else {
            return Vec::new();
        };
        let list = crew.0.list();
        let jobs = list.jobs.iter().map(|job| job.pid);
        jobs.chain(list.working.values().map(|w| w.pid)).collect()
    }

    fn welcome(&mut self, done: Vec<Done>) -> Vec<(Pid, State)> {
        let mut states = Vec::with_capacity(done.len());
        let mut again = Vec::new();
        for one in done {
            if let Some(mut process) = one.process {
                process.abandoned = Arc::default();
                self.settle(&process);
                if leaves_nothing(&process, &one.result) {
                    process.record().finish();
                } else {
                    self.processes.push(process);
                }
            }
            let state = State::of(one.pid, one.result);
            let follow = self.follow.as_mut();
            if follow.is_some_and(|follow| follow.end(one.pid, &state, one.at, one.late)) {
                again.push(one.pid);
            }
            states.push((one.pid, state));
        }
        for pid in again {
            if let Some(follow) = &mut self.follow {
                follow.begin([pid]);
            }
            states.extend(self.attach_late(pid));
        }
        states
    }

    /// Ends the work on processes that are pending.
    pub(crate) fn dismiss_crew(&mut self) {
        let Some(crew) = self.crew.take() else { return };
        let (done, jobs) = crew.close();
        self.welcome(done);
        for mut process in jobs.into_iter().filter_map(|job| job.process) {
            process.abandoned = Arc::default();
            if process.arenas.is_empty() {
                process.record().finish();
            } else {
                self.processes.push(process);
            }
        }
    }
}
