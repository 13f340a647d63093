//! What a stopped thread registered with rseq, and whether it is inside a critical section.

use lancet_abi::units::RuntimeAddr;

use crate::bytes::u64_at;
use crate::memory::Memory;
use crate::stop::Thread;
use crate::sys;

/// The signature that glibc and the kernel's own tests use on x86-64.
pub const SIGNATURE: u32 = 0x5305_3053;

/// Offset of `cpu_id` in `struct rseq`.
const CPU_ID: u64 = 4;
/// Offset of the pointer to the active critical section.
const CRITICAL_SECTION: u64 = 8;

/// Whether per-CPU counting by rseq is safe for a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Registration {
    /// Registered: the area lies this far from the thread pointer.
    At(i32),
    /// Not registered, and its `cpu_id` field says so: it takes the lock form by itself.
    Marked,
    /// Neither is certain.
    Uncertain,
}

/// Looks at one stopped thread. `offset` is where its siblings have their area.
#[must_use]
pub fn registration(memory: &Memory, thread: &Thread, offset: Option<i32>) -> Registration {
    let Ok(configuration) = sys::rseq_configuration(thread.tid) else {
        return Registration::Uncertain;
    };
    let base = thread.registers.fs_base;
    if configuration.area != 0 {
        let distance = configuration.area.wrapping_sub(base) as i64;
        return match i32::try_from(distance) {
            Ok(distance) if configuration.signature == SIGNATURE && base != 0 => {
                Registration::At(distance)
            }
            _ => Registration::Uncertain,
        };
    }
    let marked = offset.is_some_and(|offset| {
        let area = RuntimeAddr(base.wrapping_add_signed(i64::from(offset)));
        memory
            .word32(area.plus(CPU_ID))
            .is_ok_and(|cpu| cpu as i32 <= -1 && cpu as i32 >= -2)
    });
    if marked {
        Registration::Marked
    } else {
        Registration::Uncertain
    }
}

/// Where the kernel would send a thread that is inside an active critical section, if it is.
///
/// To take a thread out of such a section by changing its registers would void the section's
/// promise; to send it to the abort handler is what any preemption does.
#[must_use]
pub fn abort_address(memory: &Memory, thread: &Thread) -> Option<RuntimeAddr> {
    let configuration = sys::rseq_configuration(thread.tid).ok()?;
    if configuration.area == 0 {
        return None;
    }
    let area = RuntimeAddr(configuration.area);
    let section = memory.word(area.plus(CRITICAL_SECTION)).ok()?;
    if section == 0 {
        return None;
    }
    let mut descriptor = [0u8; 32];
    memory.read(RuntimeAddr(section), &mut descriptor).ok()?;
    let [start, length, abort] = [8, 16, 24].map(|at| u64_at(&descriptor, at));
    (thread.registers.rip.wrapping_sub(start) < length).then_some(RuntimeAddr(abort))
}

/// Address of the active critical section's descriptor, 0 when there is none.
#[must_use]
pub fn active_descriptor(memory: &Memory, thread: &Thread) -> u64 {
    sys::rseq_configuration(thread.tid)
        .ok()
        .filter(|c| c.area != 0)
        .and_then(|c| memory.word(RuntimeAddr(c.area).plus(CRITICAL_SECTION)).ok())
        .unwrap_or(0)
}

/// Clears the pointer to the active critical section of a stopped thread that is outside of it.
/// Returns whether that was done.
#[must_use]
pub fn clear_descriptor(memory: &Memory, thread: &Thread) -> bool {
    abort_address(memory, thread).is_none()
        && sys::rseq_configuration(thread.tid).is_ok_and(|c| {
            c.area != 0
                && memory
                    .write(RuntimeAddr(c.area).plus(CRITICAL_SECTION), &[0; 8])
                    .is_ok()
        })
}
