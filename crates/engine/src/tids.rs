//! Thread ids of other pid namespaces, as this one has them.
//!
//! A hit takes its thread's id from the libc's thread block, which has it as the thread's own
//! namespace counts. Here each is paired with the id that users of this session know. That can only
//! be learned while the thread lives; what was never learned stays as it is, and is told apart.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lancet_abi::units::Pid;
use lancet_procs as procs;

/// A pid namespace and a thread id in it.
type Inner = (u64, u64);

/// The pairs that are known. The first answer about an id stays: rows are told apart by it.
#[derive(Default)]
pub(crate) struct Tids(Mutex<HashMap<Inner, Option<u64>>>);

impl Tids {
    fn known(&self) -> MutexGuard<'_, HashMap<Inner, Option<u64>>> {
        // Only inserts happen under the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Learns the ids of a process's threads, which live in this namespace.
    pub(crate) fn learn(&self, namespace: u64, pid: Pid) {
        for tid in procs::tids(pid).unwrap_or_default() {
            let inner = procs::thread_status(pid, tid)
                .ok()
                .and_then(|status| status.nspid.last().copied());
            if let Some(inner) = inner.and_then(|inner| u64::try_from(inner).ok()) {
                self.known()
                    .entry((namespace, inner))
                    .or_insert(u64::try_from(tid.0).ok());
            }
        }
    }

    /// Learns the ids of all threads in this namespace: forked children are among them.
    pub(crate) fn learn_all(&self, namespace: u64) {
        for pid in procs::pids().unwrap_or_default() {
            if procs::namespaces(pid).is_ok_and(|n| n.pid == namespace) {
                self.learn(namespace, pid);
            }
        }
    }

    /// Whether there is no answer about an id yet.
    pub(crate) fn is_new(&self, namespace: u64, inner: u64) -> bool {
        !self.known().contains_key(&(namespace, inner))
    }

    /// The id in this namespace; none for a thread that had ended before it was learned.
    pub(crate) fn translate(&self, namespace: u64, inner: u64) -> Option<u64> {
        *self.known().entry((namespace, inner)).or_insert(None)
    }
}
