//! Restartable sequences of the program itself: where no probe may go.
//!
//! Librseq and glibc describe each sequence by 32 bytes in the section `__rseq_cs`: version
//! and flags (u32 each), then start, length and abort handler (u64 each). The word before
//! the abort handler is a signature that the kernel compares.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, OpKind};

use crate::elf::Elf;
use crate::relocs::Stored;

/// How far before a sequence its preparation is looked for.
const MAX_BACK: u64 = 4096;

/// The sequences with their preparation, and the abort signatures.
///
/// `start_of` gives the start of the function around an address.
pub(crate) fn forbidden(
    elf: &Elf,
    file: &[u8],
    stored: &[Stored],
    start_of: impl Fn(u64) -> Option<u64>,
) -> Vec<Range<u64>> {
    let Some(section) = elf.section(file, "__rseq_cs") else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (index, entry) in section.bytes(file).as_chunks::<32>().0.iter().enumerate() {
        let address = section.link.wrapping_add(index as u64 * 32);
        let word = |at: usize| {
            let place = address.wrapping_add(at as u64);
            // In a position-independent file the loader fills the addresses in.
            match stored.binary_search_by_key(&place, |s| s.place) {
                Ok(known) => stored[known].target,
                Err(_) => entry[at..]
                    .first_chunk()
                    .map_or(0, |b| u64::from_le_bytes(*b)),
            }
        };
        let (start, length, abort) = (word(8), word(16), word(24));
        if !elf.is_code(start) {
            continue;
        }
        let function = start_of(start)
            .unwrap_or(start)
            .max(start.saturating_sub(MAX_BACK));
        let from = preparation(elf, file, function, start, address).unwrap_or(function);
        found.push(from..start.saturating_add(length));
        if elf.is_code(abort) {
            found.push(abort.saturating_sub(4)..abort);
        }
    }
    found.sort_unstable_by_key(|range| (range.start, range.end));
    found
}

/// The last instruction before `start` that names the descriptor: the store of its address
/// into the thread's area comes right after it.
fn preparation(elf: &Elf, file: &[u8], function: u64, start: u64, descriptor: u64) -> Option<u64> {
    let bytes = elf.bytes_at(file, function)?;
    let length = usize::try_from(start.checked_sub(function)?)
        .ok()?
        .min(bytes.len());
    let mut decoder = Decoder::with_ip(64, &bytes[..length], function, DecoderOptions::NONE);
    let mut last = None;
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return None;
        }
        let by_memory = instruction.is_ip_rel_memory_operand()
            && instruction.ip_rel_memory_address() == descriptor;
        let by_value = (0..instruction.op_count()).any(|operand| {
            matches!(
                instruction.op_kind(operand),
                OpKind::Immediate32 | OpKind::Immediate64 | OpKind::Immediate32to64
            ) && instruction.immediate(operand) == descriptor
        });
        if by_memory || by_value {
            last = Some(instruction.ip());
        }
    }
    last
}
