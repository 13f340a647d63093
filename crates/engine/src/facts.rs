//! What the threads of a process have in common, found out while they stand still.

use lancet_abi::units::RuntimeAddr;
use lancet_procs as procs;
use lancet_remote::{Stopped, rseq};

use crate::attach::Hold;
use crate::process::{Facts, Process};

/// What all threads have in common. Called while they stand still.
pub(crate) fn facts(process: &Process, stopped: &Stopped, hold: Hold) -> Facts {
    if let Hold::Held(_, rseq) = hold {
        // The loader has not set the thread up yet; the libc's own files say where it will.
        return Facts { rseq, tid: None };
    }
    if let (Some(early), [thread]) = (process.early, stopped.threads())
        && thread.registers.fs_base == 0
    {
        // Its loader is at work, as above.
        let rseq = early.rseq;
        return Facts { rseq, tid: None };
    }
    let mut offset = None;
    let mut certain = true;
    for thread in stopped.threads() {
        if let rseq::Registration::At(found) = rseq::registration(&process.memory, thread, None) {
            certain &= offset.is_none_or(|o| o == found);
            offset = Some(found);
        }
    }
    certain &= stopped.threads().iter().all(|thread| {
        rseq::registration(&process.memory, thread, offset) != rseq::Registration::Uncertain
    });
    Facts {
        rseq: offset.filter(|_| certain),
        tid: tid_offset(process, stopped),
    }
}

/// The offset of the thread id in the libc's thread block, if it holds on every thread.
fn tid_offset(process: &Process, stopped: &Stopped) -> Option<i32> {
    const GLIBC: i32 = 0x2d0;
    const MUSL: i32 = 0x30;
    [GLIBC, MUSL].into_iter().find(|&offset| {
        stopped.threads().iter().all(|thread| {
            let innermost = if process.nested_pids {
                procs::thread_status(thread.pid, thread.tid)
                    .ok()
                    .and_then(|s| s.nspid.last().copied())
            } else {
                Some(thread.tid.0)
            };
            let at = thread
                .registers
                .fs_base
                .wrapping_add_signed(i64::from(offset));
            thread.registers.fs_base != 0
                && innermost.is_some_and(|tid| {
                    process
                        .memory
                        .word32(RuntimeAddr(at))
                        .is_ok_and(|w| w == tid as u32)
                })
        })
    })
}
