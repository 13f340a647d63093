//! Decoding, one instruction at a time.

use iced_x86::{Decoder, DecoderOptions, Instruction};

use crate::Refusal;
use lancet_abi::units::LinkAddr;

/// The longest instruction.
pub(super) const LONGEST: usize = 15;

/// The first instruction of `bytes`, which lie at `ip`; `None` when it is unknown or cut off.
pub(super) fn one(bytes: &[u8], ip: u64) -> Option<Instruction> {
    let instruction = Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).decode();
    (!instruction.is_invalid()).then_some(instruction)
}

/// The refusal for bytes that [`one`] does not know.
pub(super) fn unknown(bytes: &[u8], at: u64) -> Refusal {
    Refusal::UnknownInstruction {
        at: LinkAddr(at),
        bytes: bytes[..bytes.len().min(LONGEST)].to_vec(),
    }
}

/// Where the displacement field of an instruction's memory operand lies in its bytes.
pub(super) fn displacement_at(bytes: &[u8], ip: u64) -> Option<usize> {
    let mut decoder = Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE);
    let instruction = decoder.decode();
    let offsets = decoder.get_constant_offsets(&instruction);
    (offsets.has_displacement() && offsets.displacement_size() == 4)
        .then(|| offsets.displacement_offset())
}

/// The bytes before the opcode that change how it is read (legacy prefixes and REX).
pub(super) fn prefixes(bytes: &[u8]) -> &[u8] {
    let is_prefix = |b: &u8| matches!(b, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3);
    &bytes[..bytes.iter().take_while(|b| is_prefix(b)).count()]
}
