//! Addresses that wait in signal frames.
//!
//! A thread that runs a handler has the place where it was interrupted saved on a stack, out of
//! reach of its registers. If that place lies inside a window that is about to be replaced, the
//! thread would return into the middle of a jump.

use lancet_abi::units::RuntimeAddr;
use lancet_procs::Mapping;

use crate::bytes::u64_at;
use crate::memory::Memory;
use crate::stop::Thread;

/// `mov rax, 15; syscall`: what every libc's signal restorer consists of on x86-64.
const RESTORER: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
/// `mov eax, 15; syscall`, musl's spelling.
const SHORT_RESTORER: [u8; 7] = [0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05];

/// From the frame's first word, the return address, to saved registers.
const SAVED_SP: usize = 8 + 40 + 8 * 15;
const SAVED_IP: usize = 8 + 40 + 8 * 16;
const FRAME: usize = SAVED_IP + 8;

/// How much of a stack is searched for one frame.
const REACH: u64 = 1 << 20;

/// The interrupted addresses saved in the signal frames of a stopped thread, innermost first.
///
/// Stacks are searched from the stack pointer up to the end of their mapping; from each frame
/// the search goes on at the stack pointer that it saved, so alternate stacks are followed.
#[must_use]
pub fn interrupted_addresses(
    memory: &Memory,
    mappings: &[Mapping],
    thread: &Thread,
) -> Vec<RuntimeAddr> {
    let mut found = Vec::new();
    let mut from = thread.registers.rsp & !7;
    let mut visited = 0;
    while let Some((ip, sp, at)) = next_frame(memory, mappings, RuntimeAddr(from)) {
        found.push(ip);
        visited += 1;
        let inside = mappings
            .iter()
            .find(|m| m.start <= RuntimeAddr(from) && RuntimeAddr(from) < m.end);
        let same_stack = inside.is_some_and(|m| m.start.0 <= sp && sp < m.end.0);
        from = if same_stack {
            (at.0 + 8).max(from + 8)
        } else {
            sp & !7
        };
        if visited > 64 {
            break;
        }
    }
    found
}

fn next_frame(
    memory: &Memory,
    mappings: &[Mapping],
    from: RuntimeAddr,
) -> Option<(RuntimeAddr, u64, RuntimeAddr)> {
    let stack = mappings
        .iter()
        .find(|m| m.read && m.write && m.start <= from && from < m.end)?;
    let length = stack.end.offset_from(from).min(REACH) as usize;
    let mut bytes = vec![0; length];
    let length = memory.read_some(from, &mut bytes);
    (0..length.saturating_sub(FRAME))
        .step_by(8)
        .find(|&at| is_restorer(memory, mappings, RuntimeAddr(u64_at(&bytes, at))))
        .map(|at| {
            (
                RuntimeAddr(u64_at(&bytes, at + SAVED_IP)),
                u64_at(&bytes, at + SAVED_SP),
                from.plus(at as u64),
            )
        })
}

fn is_restorer(memory: &Memory, mappings: &[Mapping], address: RuntimeAddr) -> bool {
    let position = mappings.partition_point(|m| m.end <= address);
    let executable = mappings
        .get(position)
        .is_some_and(|m| m.execute && m.start <= address);
    if !executable {
        return false;
    }
    let mut code = [0u8; RESTORER.len()];
    memory.read_some(address, &mut code);
    code == RESTORER || code.starts_with(&SHORT_RESTORER)
}
