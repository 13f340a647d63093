//! What the guardian does when the tracer has died without saying so.
//!
//! First the counters are switched off in all regions, which needs no right and reaches every
//! process at once; then text is restored, process by process, as soon as each can be stopped.

use std::collections::HashSet;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

use lancet_abi::layout::MAX_REGION;
use lancet_abi::units::{Pid, RuntimeAddr};
use lancet_abi::{Layout, Shared};
use lancet_procs as procs;
use lancet_remote::journal::{Journal, ProcessRecord};
use lancet_remote::{Memory, RemoteError, file_name};

use crate::children;
use crate::detach::{Detached, note};
use crate::guardian::adopt_file;
use crate::many;
use crate::sys;
use crate::undo;

/// Undoes everything in the journal; a process that keeps us waiting for all of `patience` is given
/// up. Returns the number of processes that were restored.
pub(crate) fn after_death(journal: &Arc<Journal>, patience: Duration) -> usize {
    sys::sleep_exactly();
    for region in journal.regions() {
        if let Some(fd) = region.file()
            && let Some(file) = adopt_file(fd)
        {
            switch_off(&file);
            // The number stays in the journal; the file must stay open under it.
            std::mem::forget(file);
        }
    }
    let session = journal.session();
    let mut report = Detached::default();
    let mut entries = Vec::new();
    let mut pids = Vec::new();
    let mut known = HashSet::new();
    let mut places: Vec<RuntimeAddr> = Vec::new();
    for (index, record) in journal.processes().enumerate() {
        if let Some((pid, pidfd, _)) = record.process() {
            places.extend(record.arenas().iter().map(|a| a.0));
            entries.push(index);
            pids.push(pid);
            if !record.has_inherited() {
                known.extend(identity(pid, pidfd));
            }
        }
    }
    let of_threads = Arc::clone(journal);
    let restored = many::each(entries, patience, move |index| {
        restore(of_threads.entry(index), session)
    });
    for (pid, restored) in pids.into_iter().zip(restored) {
        report.add(restored.unwrap_or_else(|| Detached::stuck(pid)));
    }
    places.sort_unstable();
    places.dedup();
    children::restore_all(journal, &places, &known, &mut report);
    for region in journal.regions() {
        if let Some((folder, name)) = region.named()
            && let Some(folder) = adopt_file(folder)
        {
            let _ = rustix::fs::unlinkat(&folder, file_name(name), rustix::fs::AtFlags::empty());
        }
    }
    for pid in &report.locked {
        eprintln!(
            "lancet: process {pid} may keep probes: its memory map is locked; run `lancet clean` later"
        );
    }
    for (pid, error) in &report.failed {
        eprintln!("lancet: process {pid} keeps probes: {error}; run `lancet clean` later");
    }
    report.processes
}

fn restore(record: &ProcessRecord, session: [u64; 2]) -> Detached {
    let mut report = Detached::default();
    let Some((pid, _, memory)) = record.process() else {
        return report;
    };
    let Some(file) = adopt_file(memory) else {
        return report;
    };
    let memory = Memory::from_file(pid, file);
    let places = record.arenas();
    let restored = children::patiently(|| {
        undo::restore(pid, &memory, &places, Some(session), Some(&record.stub))
    });
    match &restored {
        Err(RemoteError::Gone { .. }) => {}
        _ => {
            let restored = restored.map_err(Into::into);
            note(&mut report, pid, &memory, &places, session, restored);
        }
    }
    record.finish();
    report
}

/// A process's pid and start time, while it lives.
fn identity(pid: Pid, pidfd: i32) -> Option<(Pid, u64)> {
    let start_time = procs::identity(pid).ok()?.start_time;
    let mut polled = [sys::readable(pidfd)];
    sys::poll(&mut polled, Some(Duration::ZERO));
    // A descriptor that is not open says so here too.
    (polled[0].revents == 0).then_some((pid, start_time))
}

/// Writes the off switch of a region's file.
fn switch_off(file: &std::fs::File) {
    let length = file.metadata().map_or(0, |m| m.len().min(MAX_REGION));
    let mut bytes = vec![0u8; length as usize];
    if file.read_exact_at(&mut bytes, 0).is_err() {
        return;
    }
    // SAFETY: the vector outlives the view.
    let view = unsafe { Shared::new(bytes.as_ptr(), bytes.len()) };
    if let Ok(layout) = Layout::decode(&view) {
        let (at, length) = layout.off_switch();
        let _ = file.write_at(&vec![0; length], at.0);
    }
}
