//! The process that the user starts watches over the one that traces.
//!
//! [`launch`] turns its caller into the guardian. It clones the tracer with a shared descriptor
//! table, so that each descriptor the tracer opens on a target is the guardian's too, and with
//! the journal in shared memory. When the tracer dies, the guardian switches the counters off
//! and takes every probe out; when the guardian dies, the tracer is told and detaches. Each
//! watches the other through a pidfd.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lancet_abi::units::Pid;
use lancet_procs as procs;
use lancet_remote::journal::Journal;
use lancet_remote::sys as remote_sys;

use crate::domain;
use crate::error::EngineError;
use crate::many::STUCK;
use crate::rescue;
use crate::sentinel::Libraries;
use crate::sys;

/// A command that the session starts, stopped before its first instruction.
#[derive(Clone, Debug)]
pub struct Command {
    /// Program and arguments. A program without a slash is looked up in PATH.
    pub words: Vec<OsString>,
}

/// What the guardian and the tracer tell each other.
#[repr(C)]
struct Mailbox {
    /// writer: guardian / reader: tracer / Release-Acquire. wait(2) status of the command.
    status: AtomicI32,
    ended: AtomicU32,
}

/// The tracer's side: proof that a guardian watches, and the events it waits for.
pub struct Tracer {
    journal: Arc<Journal>,
    mailbox: &'static Mailbox,
    guardian: (i32, u64),
    guardian_fd: OwnedFd,
    signals: OwnedFd,
    command: Option<CommandHandle>,
    libraries: Libraries,
}

/// What a wait is about, beside signals, guardian and command.
#[derive(Default)]
pub(crate) struct Watched<'a> {
    /// The attached processes.
    pub(crate) pidfds: Vec<&'a OwnedFd>,
    /// Whatever else there is to wake up for.
    pub(crate) wakers: Vec<BorrowedFd<'a>>,
    /// More processes may come when all of these have ended.
    pub(crate) endless: bool,
}

/// The command, waiting for its start.
pub(crate) struct CommandHandle {
    pub(crate) pid: Pid,
    pidfd: OwnedFd,
    /// A byte written here lets it go on to exec; closed: it ends without.
    pub(crate) start: OwnedFd,
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// SIGINT, SIGTERM, SIGHUP or SIGQUIT came.
    Signal(i32),
    /// The command has ended.
    CommandEnded,
    /// All attached processes have ended.
    TargetsEnded,
    /// The time is up.
    Time,
    /// The guardian has died: detach and end.
    GuardianDied,
}

impl Tracer {
    pub(crate) fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    pub(crate) fn guardian(&self) -> (i32, u64) {
        self.guardian
    }

    pub(crate) fn libraries(&self) -> &Libraries {
        &self.libraries
    }

    pub(crate) fn command(&self) -> Option<&CommandHandle> {
        self.command.as_ref()
    }

    /// From now on SIGINT and its like end the tracer at once, for work that never waits for
    /// an [`Event`]; the guardian then takes the probes out.
    pub fn end_by_signals(&self) {
        sys::unblock_signals();
    }

    /// The command's pid.
    #[must_use]
    pub fn command_pid(&self) -> Option<Pid> {
        self.command.as_ref().map(|c| c.pid)
    }

    /// How the command ended, once it has.
    #[must_use]
    pub fn command_status(&self) -> Option<ExitStatus> {
        (self.mailbox.ended.load(Ordering::Acquire) != 0)
            .then(|| ExitStatus::from_raw(self.mailbox.status.load(Ordering::Relaxed)))
    }

    /// Sends a signal to the command.
    pub fn signal_command(&self, signal: i32) {
        if let Some(command) = &self.command {
            let _ = sys::send(command.pidfd.as_fd(), signal);
        }
    }

    /// Waits for the next event, at most until `deadline`.
    pub(crate) fn wait(&self, deadline: Option<Instant>, watched: &Watched<'_>) -> Event {
        let pidfds = &watched.pidfds;
        loop {
            let mut polled = vec![
                sys::readable(self.signals.as_raw_fd()),
                sys::readable(self.guardian_fd.as_raw_fd()),
                sys::readable(self.command.as_ref().map_or(-1, |c| c.pidfd.as_raw_fd())),
            ];
            polled.extend(pidfds.iter().map(|fd| sys::readable(fd.as_raw_fd())));
            polled.extend(watched.wakers.iter().map(|w| sys::readable(w.as_raw_fd())));
            let left = deadline.map(|d| d.saturating_duration_since(Instant::now()));
            sys::poll(&mut polled, left);
            if polled[0].revents != 0
                && let Some(signal) = sys::next_signal(self.signals.as_fd())
            {
                return Event::Signal(signal);
            }
            if polled[1].revents != 0 {
                return Event::GuardianDied;
            }
            if polled[2].revents != 0 {
                self.await_status();
                return Event::CommandEnded;
            }
            if watched.endless {
                if polled[3..].iter().any(|p| p.revents != 0) {
                    return Event::Time;
                }
            } else if !pidfds.is_empty() && self.command.is_none() {
                let ended = pidfds.iter().all(|fd| remote_sys::has_ended(fd.as_fd()));
                if ended {
                    return Event::TargetsEnded;
                }
                if polled[3..].iter().any(|p| p.revents != 0) {
                    // Some ended, others live: the caller leaves the ended ones out next time.
                    return Event::Time;
                }
            }
            if deadline.is_some_and(|d| Instant::now() >= d) {
                return Event::Time;
            }
        }
    }

    /// The guardian reaps the command a moment after it has ended.
    fn await_status(&self) {
        let patience = Instant::now() + Duration::from_secs(2);
        while self.command_status().is_none() && Instant::now() < patience {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

/// How long processes are waited for that the tracer has not been able to restore.
const ONCE_MORE: Duration = Duration::from_secs(2);

fn system(what: &'static str) -> impl Fn(io::Error) -> EngineError {
    move |source| EngineError::System { what, source }
}

/// Makes the calling process the guardian and runs `trace` in a cloned tracer. Returns what the
/// process should exit with.
///
/// Call it at the start of `main`, before other threads exist: a cloned process has only the
/// thread that cloned it, and locks that others held would stay locked.
pub fn launch(
    command: Option<&Command>,
    trace: impl FnOnce(Arc<Tracer>) -> u8 + Send + 'static,
) -> Result<u8, EngineError> {
    let journal = Journal::create().map_err(system("no memory for the journal"))?;
    let session = [domain::random(), domain::random()];
    let [Ok(high), Ok(low)] = session else {
        return Err(EngineError::Usage("no random numbers"));
    };
    journal.set_session([high, low]);
    let mailbox: &'static Mailbox =
        sys::shared_page().map_err(system("no memory for the mailbox"))?;
    let (signals, mask) = sys::block_signals().map_err(system("signals cannot be blocked"))?;
    let own = Pid(std::process::id() as i32);
    let started = procs::identity(own)?.start_time;
    let guardian_fd = remote_sys::pidfd(own).map_err(system("pidfd_open"))?;
    let command = match command {
        Some(command) => Some(prepare(command, mask)?),
        None => None,
    };
    let journal = Arc::new(journal);
    match sys::clone_sharing_files().map_err(system("cannot clone the tracer"))? {
        None => {
            let tracer = Arc::new(Tracer {
                journal,
                mailbox,
                guardian: (own.0, started),
                guardian_fd,
                signals,
                command,
                libraries: Libraries::default(),
            });
            // A raw clone leaves the libc's idea of this thread's id stale; a new thread's is not.
            let ended = std::thread::Builder::new()
                .name("lancet-tracer".into())
                .spawn(move || {
                    sys::sleep_exactly();
                    // The command was forked before, and keeps its own limit.
                    sys::allow_descriptors();
                    trace(tracer)
                })
                .map(std::thread::JoinHandle::join);
            let code = match ended {
                Ok(Ok(code)) => code,
                _ => 101,
            };
            std::process::exit(i32::from(code));
        }
        Some(tracer) => {
            // Its descriptors are in the tracer's hands; closing them here would close them there.
            let watched = command.as_ref().map(|c| c.pid);
            std::mem::forget(command);
            std::mem::forget(guardian_fd);
            let code = watch(&journal, mailbox, &signals, tracer, watched);
            std::mem::forget(signals);
            Ok(code)
        }
    }
}

/// The guardian's loop: reaps, forwards signals, and cleans up when the tracer is killed.
fn watch(
    journal: &Arc<Journal>,
    mailbox: &Mailbox,
    signals: &OwnedFd,
    tracer: Pid,
    command: Option<Pid>,
) -> u8 {
    let tracer_fd = remote_sys::pidfd(tracer);
    let command_fd = command.and_then(|pid| remote_sys::pidfd(pid).ok());
    loop {
        let waiting = command_fd
            .as_ref()
            .filter(|_| mailbox.ended.load(Ordering::Relaxed) == 0);
        let mut polled = [
            sys::readable(signals.as_raw_fd()),
            sys::readable(tracer_fd.as_ref().map_or(-1, AsRawFd::as_raw_fd)),
            sys::readable(waiting.map_or(-1, AsRawFd::as_raw_fd)),
        ];
        sys::poll(
            &mut polled,
            tracer_fd.is_err().then_some(Duration::from_millis(100)),
        );
        if let Some(pid) = command
            && mailbox.ended.load(Ordering::Relaxed) == 0
            && let Some(status) = sys::reap(pid)
        {
            mailbox.status.store(status, Ordering::Relaxed);
            mailbox.ended.store(1, Ordering::Release);
        }
        if polled[0].revents != 0
            && let Some(signal) = sys::next_signal(signals.as_fd())
            && let Ok(fd) = &tracer_fd
        {
            let _ = sys::send(fd.as_fd(), signal);
        }
        if let Some(status) = sys::reap(tracer) {
            let status = ExitStatus::from_raw(status);
            if let Some(code) = status.code() {
                // A thread that was in the middle of an attach ends with the tracer.
                if code == 101 {
                    rescue::after_death(journal, STUCK);
                } else if journal.is_unfinished() {
                    let restored = rescue::after_death(journal, ONCE_MORE);
                    if restored > 0 {
                        eprintln!(
                            "lancet: the probes of {restored} processes were taken out after the session"
                        );
                    }
                }
                return code as u8;
            }
            let signal = status.signal().unwrap_or(0);
            let restored = rescue::after_death(journal, STUCK);
            eprintln!(
                "lancet: the tracer was killed by signal {signal}; its probes were taken out of {restored} processes and its counts are lost"
            );
            return 1;
        }
    }
}

/// Looks the program up, then forks a child that waits for its start.
fn prepare(command: &Command, mask: sys::Mask) -> Result<CommandHandle, EngineError> {
    let shown = || {
        command
            .words
            .first()
            .map(|w| w.to_string_lossy().into_owned())
            .unwrap_or_default()
    };
    let failed = |source| EngineError::Command {
        command: shown(),
        source,
    };
    let program = command
        .words
        .first()
        .ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
    let path = look_up(program).map_err(failed)?;
    let text = |word: &OsStr| {
        CString::new(word.as_bytes()).map_err(|_| failed(io::ErrorKind::InvalidInput.into()))
    };
    let path = text(path.as_os_str())?;
    let words = command
        .words
        .iter()
        .map(|w| text(w))
        .collect::<Result<Vec<_>, _>>()?;
    let (wait, start) = io::pipe().map_err(failed)?;
    let pid =
        sys::fork_waiting(&path, &words, mask, wait.as_fd(), start.as_fd()).map_err(failed)?;
    let pidfd = remote_sys::pidfd(pid).map_err(failed)?;
    Ok(CommandHandle {
        pid,
        pidfd,
        start: start.into(),
    })
}

/// The program's path: as it is with a slash in it, else the first executable in PATH.
fn look_up(program: &OsStr) -> io::Result<std::path::PathBuf> {
    use std::path::{Path, PathBuf};
    let check = |path: &Path| -> io::Result<PathBuf> {
        let data = std::fs::metadata(path)?;
        if !data.is_file() || std::os::unix::fs::MetadataExt::mode(&data) & 0o111 == 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(path.to_owned())
    };
    if program.as_bytes().contains(&b'/') {
        return check(Path::new(program));
    }
    let paths = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    std::env::split_paths(&paths)
        .find_map(|folder| check(&folder.join(program)).ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such program in PATH"))
}

/// Closes a descriptor number that the dead tracer left in the shared table.
pub(crate) fn adopt_file(fd: i32) -> Option<std::fs::File> {
    sys::is_open(fd).then(|| {
        // SAFETY: the table is this process's alone now; the number came from the journal and is
        // open, and nobody else in this process owns it.
        unsafe { std::fs::File::from_raw_fd(fd) }
    })
}
