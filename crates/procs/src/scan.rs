//! Which processes map a file.

use std::{sync::Arc, time::Duration};

use lancet_abi::units::Pid;

use crate::{
    FileId, Identity, Mapping, ProcError, Unsettled, file_mappings, identity, list, patient,
};

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

/// Looks at each process on a helper thread; one that is stuck there is unknown.
fn collect<F>(all: Vec<(Pid, u64)>, patience: Duration, look: F) -> Scan
where
    F: Fn(Pid, u64) -> Result<Option<Mapper>, ProcError> + Send + Sync + 'static,
{
    let mut scan = Scan {
        scanned: all.len(),
        ..Scan::default()
    };
    let all: Arc<[(Pid, u64)]> = all.into();
    let looks = {
        let all = Arc::clone(&all);
        patient::each(all.len(), patience, move |at| look(all[at].0, all[at].1))
    };
    for (&(pid, _), answer) in all.iter().zip(looks.finish()) {
        match answer {
            Some(answer) => scan.add(pid, answer),
            None => scan.unknown.push(pid),
        }
    }
    scan
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
    use std::sync::mpsc;

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
