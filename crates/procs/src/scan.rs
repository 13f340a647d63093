//! Which processes map a file.

use std::{
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};

use lancet_abi::units::Pid;

use crate::{FileId, Identity, Mapping, ProcError, Unsettled, file_mappings, identity, list};

/// How long the maps of one process may take. A read of them takes microseconds; only a process whose mmap lock is held
/// for long gets near this.
const PATIENCE: Duration = Duration::from_millis(50);

/// A process that maps the file.
#[derive(Clone, Debug)]
pub struct Mapper {
    /// The process.
    pub identity: Identity,
    /// Where it maps the file as code, ascending.
    pub mappings: Vec<Mapping>,
}

/// What a scan of all processes found.
#[derive(Clone, Debug, Default)]
pub struct Scan {
    /// The processes that map the file as code.
    pub mappers: Vec<Mapper>,
    /// How many processes were looked at, kernel threads and zombies too.
    pub scanned: usize,
    /// Processes that this user may not look into.
    pub denied: Vec<Pid>,
    /// Processes that could not say: exiting, in `exec`, or locked for too long. Look again at their next event.
    pub unknown: Vec<Pid>,
}

/// Finds every process that maps the file as code. `dev` and `inode` are those that mappings show (see
/// [`shown_id`](crate::shown_id)).
///
/// Takes microseconds a process. A process whose memory map is locked for longer than 50 ms counts as unknown and is left
/// behind; the rest of the scan goes on.
///
/// # Errors
/// [`ProcError::List`] when `/proc` can't be listed; what goes wrong with one process is in the result.
pub fn who_maps(dev: u64, inode: u64) -> Result<Scan, ProcError> {
    let all = list::numbered()?;
    Ok(collect(all, PATIENCE, move |pid, folder| {
        look(pid, folder, FileId { dev, inode })
    }))
}

/// `None` when the process does not map the file.
fn look(pid: Pid, folder: u64, file: FileId) -> Result<Option<Mapper>, ProcError> {
    let mut folder = folder;
    for _ in 0..3 {
        let mappings = file_mappings(pid, file.dev, file.inode, true)?;
        if mappings.is_empty() {
            return Ok(None);
        }
        let identity = identity(pid)?;
        if identity.folder == folder {
            return Ok(Some(Mapper { identity, mappings }));
        }
        // The pid passed to another process since the listing; whose mappings these are is not certain.
        folder = identity.folder;
    }
    Err(ProcError::Unknown {
        pid,
        why: Unsettled::Changing,
    })
}

type Answer = (usize, Result<Option<Mapper>, ProcError>);

/// Looks at each process on a helper thread. When one look takes longer than `patience`, its helper is left alone (it ends
/// by itself when the look returns) and a new one goes on with the next process.
fn collect<F>(all: Vec<(Pid, u64)>, patience: Duration, look: F) -> Scan
where
    F: Fn(Pid, u64) -> Result<Option<Mapper>, ProcError> + Send + Sync + 'static,
{
    let mut scan = Scan {
        scanned: all.len(),
        ..Scan::default()
    };
    let all: Arc<[(Pid, u64)]> = all.into();
    let look = Arc::new(look);
    let mut next = 0;
    while next < all.len() {
        let answers = start(&all, next, &look);
        loop {
            match answers.recv_timeout(patience) {
                Ok((at, answer)) => {
                    next = at + 1;
                    scan.add(all[at].0, answer);
                }
                Err(_) if next >= all.len() => break,
                // Too long, or the helper failed at this one.
                Err(_) => {
                    scan.unknown.push(all[next].0);
                    next += 1;
                    break;
                }
            }
        }
    }
    scan
}

fn start<F>(all: &Arc<[(Pid, u64)]>, from: usize, look: &Arc<F>) -> mpsc::Receiver<Answer>
where
    F: Fn(Pid, u64) -> Result<Option<Mapper>, ProcError> + Send + Sync + 'static,
{
    let (sender, receiver) = mpsc::channel();
    let helper = {
        let (all, look, sender) = (Arc::clone(all), Arc::clone(look), sender.clone());
        move || run(&all, from, &*look, &sender)
    };
    // At the limit of threads the scan still works, only without a bound on each look.
    if thread::Builder::new()
        .name("lancet-scan".into())
        .spawn(helper)
        .is_err()
    {
        run(all, from, &**look, &sender);
    }
    receiver
}

fn run<F>(all: &[(Pid, u64)], from: usize, look: &F, answers: &mpsc::Sender<Answer>)
where
    F: Fn(Pid, u64) -> Result<Option<Mapper>, ProcError>,
{
    for (at, &(pid, folder)) in all.iter().enumerate().skip(from) {
        // The receiver is dropped when this helper was given up.
        if answers.send((at, look(pid, folder))).is_err() {
            return;
        }
    }
}

impl Scan {
    fn add(&mut self, pid: Pid, answer: Result<Option<Mapper>, ProcError>) {
        match answer {
            Ok(Some(mapper)) => self.mappers.push(mapper),
            Ok(None) | Err(ProcError::Gone { .. }) => {}
            Err(ProcError::Denied { .. }) => self.denied.push(pid),
            Err(_) => self.unknown.push(pid),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stuck_process_delays_no_other() {
        let all: Vec<(Pid, u64)> = (1..=6).map(|n| (Pid(n), 0)).collect();
        let (release, held) = mpsc::channel::<()>();
        let held = std::sync::Mutex::new(held);
        let scan = collect(all, Duration::from_millis(20), move |pid, _| match pid.0 {
            // Stuck until the test has its answer.
            3 => {
                let _ = held.lock().map(|held| held.recv());
                Ok(None)
            }
            4 => Err(ProcError::Denied { pid, what: "maps" }),
            5 => Err(ProcError::Gone { pid }),
            n => Ok(Some(Mapper {
                identity: Identity {
                    pid,
                    folder: 0,
                    start_time: n as u64,
                },
                mappings: Vec::new(),
            })),
        });
        drop(release);
        assert_eq!(
            scan.mappers
                .iter()
                .map(|m| m.identity.pid.0)
                .collect::<Vec<_>>(),
            [1, 2, 6]
        );
        assert_eq!(
            (scan.scanned, scan.denied, scan.unknown),
            (6, vec![Pid(4)], vec![Pid(3)])
        );
    }
}
