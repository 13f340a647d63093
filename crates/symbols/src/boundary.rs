//! Whether an address is the start of an instruction.

use iced_x86::{Decoder, DecoderOptions};
use lancet_abi::units::LinkAddr;

use crate::error::SymbolError;
use crate::module::Module;

/// Decodes from `start`, a known start of code, and succeeds when an instruction starts at `at`.
pub(crate) fn check(module: &Module, start: LinkAddr, at: LinkAddr) -> Result<(), SymbolError> {
    let path = || module.path().into();
    let not_code = || SymbolError::NotCode { path: path(), at };
    let bytes = module
        .elf()
        .bytes_at(module.bytes(), start.0)
        .ok_or_else(not_code)?;
    let mut decoder = Decoder::with_ip(64, bytes, start.0, DecoderOptions::NONE);
    while decoder.ip() < at.0 {
        let before = LinkAddr(decoder.ip());
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            return Err(SymbolError::Undecodable {
                path: path(),
                at,
                bad: before,
            });
        }
        let after = LinkAddr(decoder.ip());
        if after > at {
            return Err(SymbolError::MidInstruction {
                path: path(),
                at,
                before,
                after,
            });
        }
    }
    if !decoder.can_decode() || decoder.decode().is_invalid() {
        return Err(SymbolError::Undecodable {
            path: path(),
            at,
            bad: at,
        });
    }
    Ok(())
}
