//! Processes that come to map a probed file while the session lasts.
//!
//! The kernel's events tell of each as it maps the file, and of forks. Between the mapping and the
//! attach there is a window, in which hits are not counted; how long it was is told at the end. A
//! child that is forked in its parent's window has no probes and is taken like its parent.
//! Where events are forbidden, all processes are looked through every so often instead, as they are
//! after events were lost.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lancet_abi::units::Pid;
use lancet_procs::{self as procs, CodeEvent, CodeEvents, FileId};

use crate::crew::State;
use crate::sentinel;
use crate::session::Session;
use crate::sys;

/// How often all processes are looked through where there are no events.
const EVERY: Duration = Duration::from_millis(250);
/// How soon a look that is going on is asked for its result.
const SOON: Duration = Duration::from_millis(10);

/// What became of following.
#[derive(Clone, Debug, Default)]
pub struct Followed {
    /// Processes that were attached after the start.
    pub attached: usize,
    /// The longest time from a mapping (or a fork, of a child) to its probes.
    pub slowest: Option<Duration>,
    /// Events that found no room; all processes were looked through instead.
    pub lost: u64,
    /// How often all processes were looked through, where there were no events.
    pub every: Option<Duration>,
}

/// What is followed.
pub(crate) struct Follow {
    /// `None`: they are forbidden.
    events: Option<CodeEvents>,
    files: Vec<FileId>,
    left_out: HashSet<Pid>,
    /// Processes that are being attached, and since when they map a file, where that is known.
    open: HashMap<Pid, Option<Duration>>,
    /// Those of them that have mapped more meanwhile.
    again: HashSet<Pid>,
    /// Events that are too young to be understood.
    unread: Vec<(Duration, CodeEvent)>,
    look: Option<JoinHandle<Vec<(Pid, u64)>>>,
    next_look: Option<Instant>,
    /// Those that can't be attached, by pid and start time: looks pass them by.
    settled: HashSet<(Pid, u64)>,
    told: Followed,
}

impl Follow {
    fn new(files: &[(FileId, bool)], left_out: HashSet<Pid>) -> Self {
        let events = CodeEvents::open(files).ok();
        let every = events.is_none().then_some(EVERY);
        Self {
            next_look: every.map(|every| Instant::now() + every),
            events,
            files: files.iter().map(|(id, _)| *id).collect(),
            left_out,
            open: HashMap::new(),
            again: HashSet::new(),
            unread: Vec::new(),
            look: None,
            settled: HashSet::new(),
            told: Followed {
                every,
                ..Followed::default()
            },
        }
    }

    /// What gets readable when there is something to follow up.
    pub(crate) fn wakers(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.events.iter().flat_map(CodeEvents::wakers)
    }

    /// When it is to be followed up at the latest.
    pub(crate) fn due(&self) -> Option<Instant> {
        match &self.look {
            _ if !self.unread.is_empty() => Some(Instant::now()),
            Some(_) => Some(Instant::now() + SOON),
            None => self.next_look,
        }
    }

    /// Work on these begins.
    pub(crate) fn begin(&mut self, pids: impl IntoIterator<Item = Pid>) {
        self.open.extend(pids.into_iter().map(|pid| (pid, None)));
    }

    /// Work on a process has ended at this time of the monotonic clock; whether it is to be looked at
    /// once more.
    pub(crate) fn end(&mut self, pid: Pid, state: &State, now: Duration, late: bool) -> bool {
        let came = self.open.remove(&pid).flatten();
        match state {
            State::Attached(one) if late && one.sites > 0 => {
                self.told.attached += 1;
                let took = came.map(|came| now.saturating_sub(came));
                self.told.slowest = self.told.slowest.max(took);
            }
            State::Failed(_) => {
                let start = procs::identity(pid).map(|identity| identity.start_time);
                self.settled.extend(start.map(|start| (pid, start)));
            }
            _ => {}
        }
        self.again.remove(&pid)
    }

    /// What is to be attached now: since the last time mapped, forked, or found by a look, which may
    /// find attached ones too.
    fn take(&mut self, is_attached: impl Fn(Pid) -> bool) -> Vec<Pid> {
        let mut new = Vec::new();
        // The rings are read one after the other. What happens meanwhile may have followed from something
        // in a ring that was read already, and waits for the next time.
        let now = sys::monotonic();
        let changes = self
            .events
            .as_ref()
            .map(CodeEvents::take)
            .unwrap_or_default();
        let mut events = std::mem::take(&mut self.unread);
        events.extend(changes.events);
        events.sort_by_key(|&(at, _)| at);
        self.unread = events.split_off(events.partition_point(|&(at, _)| at <= now));
        for (at, event) in &events {
            let pid = match *event {
                CodeEvent::Mapped(pid) => pid,
                // One that shares its parent's memory has what that has.
                CodeEvent::Forked { parent, child }
                    if self.open.contains_key(&parent)
                        && !lancet_remote::sys::same_memory(parent, child).unwrap_or(false) =>
                {
                    child
                }
                CodeEvent::Forked { .. } => continue,
            };
            if self.left_out.contains(&pid) {
                continue;
            }
            match self.open.entry(pid) {
                Entry::Vacant(place) => {
                    place.insert(Some(*at));
                    new.push(pid);
                }
                Entry::Occupied(_) => {
                    self.again.insert(pid);
                }
            }
        }
        let lost = changes.lost;
        self.told.lost += lost;
        if lost > 0 {
            // A look that goes on may have passed by already.
            self.next_look = Some(Instant::now());
        }
        for (pid, start) in self.looked() {
            let is_known = self.left_out.contains(&pid)
                || self.open.contains_key(&pid)
                || self.settled.contains(&(pid, start))
                || is_attached(pid);
            if !is_known {
                self.open.insert(pid, None);
                new.push(pid);
            }
        }
        new
    }

    /// The result of a look that is done; begins the next one when it is due.
    fn looked(&mut self) -> Vec<(Pid, u64)> {
        let mut found = Vec::new();
        if let Some(look) = self.look.take_if(|look| look.is_finished()) {
            found = look.join().unwrap_or_default();
        }
        if self.look.is_none() && self.next_look.is_some_and(|due| due <= Instant::now()) {
            let files = self.files.clone();
            let thread = std::thread::Builder::new().name("lancet-look".into());
            self.look = thread.spawn(move || look_through(&files)).ok();
            self.next_look = self.told.every.map(|every| Instant::now() + every);
        }
        found
    }
}

/// All processes that map one of the files, by pid and start time.
fn look_through(files: &[FileId]) -> Vec<(Pid, u64)> {
    let scans = files.iter().filter_map(|file| {
        let scan = procs::who_maps(file.dev, file.inode);
        scan.ok().map(|scan| scan.mappers)
    });
    let mut all: Vec<(Pid, u64)> = scans
        .flatten()
        .map(|mapper| (mapper.identity.pid, mapper.identity.start_time))
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

impl Session {
    /// From now on processes that come to map one of the files are attached too, except these; their
    /// states are among the [`news`](Self::news), which is to be asked for after each wait. Before the first look for processes, so that none is missed.
    pub fn follow(&mut self, left_out: impl IntoIterator<Item = Pid>) {
        let files = self.binaries.iter().map(|b| (b.id, b.on_overlay));
        let files: Vec<_> = files.collect();
        // It takes as long as short programs live.
        sentinel::prepare(&self.tracer, &self.binaries);
        self.follow = Some(Follow::new(&files, left_out.into_iter().collect()));
    }

    /// What became of it.
    #[must_use]
    pub fn followed(&self) -> Option<Followed> {
        self.follow.as_ref().map(|follow| follow.told.clone())
    }

    /// Forgets processes that have ended, and begins with those that have come.
    pub(crate) fn follow_up(&mut self) -> Vec<(Pid, State)> {
        let Some(follow) = &mut self.follow else {
            return Vec::new();
        };
        let processes = &self.processes;
        let new = follow.take(|pid| {
            let known = processes.iter().find(|process| process.pid == pid);
            known.is_some_and(|process| !process.is_replaced_now())
        });
        self.bury_ended();
        new.into_iter()
            .filter_map(|pid| self.attach_late(pid))
            .collect()
    }

    /// Begins to attach to one of them; its state, where that is known at once.
    pub(crate) fn attach_late(&mut self, pid: Pid) -> Option<(Pid, State)> {
        let index = self.processes.iter().position(|p| p.pid == pid);
        let mut process = None;
        if let Some(index) = index {
            match self.processes[index].is_replaced_now() {
                true => self.bury(index),
                false => process = Some(self.processes.swap_remove(index)),
            }
        }
        let begun = self.begin_late(pid, process);
        let state = match begun {
            Ok(None) => return None,
            Ok(Some((pid, result))) => (pid, State::of(pid, result)),
            Err(error) => (pid, State::Failed(error)),
        };
        self.settle_late(&state);
        Some(state)
    }

    fn settle_late(&mut self, (pid, state): &(Pid, State)) {
        if let Some(follow) = &mut self.follow {
            follow.end(*pid, state, sys::monotonic(), true);
        }
    }

    /// Forgets those that have ended; asks for all in one call.
    fn bury_ended(&mut self) {
        let fds = self.processes.iter().map(|p| p.pidfd().as_raw_fd());
        let mut polled: Vec<_> = fds.map(sys::readable).collect();
        sys::poll(&mut polled, Some(Duration::ZERO));
        for (index, of) in polled.iter().enumerate().rev() {
            if of.revents != 0 {
                self.bury(index);
            }
        }
    }

    /// Forgets a process that has ended or become another program. Children that it has forked may
    /// have probes; the journal remembers that.
    fn bury(&mut self, index: usize) {
        let process = self.processes.swap_remove(index);
        self.tracer.journal().bury();
        process.record().finish();
        self.ended += 1;
    }
}
