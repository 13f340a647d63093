//! The five bytes that go to a site.

use lancet_abi::units::RuntimeAddr;

use crate::Refusal;

/// Length of `jmp rel32`: exactly so many bytes are written at a site.
pub const JUMP_LEN: u8 = 5;

/// `jmp rel32` at `from` to `to`.
///
/// # Errors
/// [`Refusal::OutOfReach`] when `to` is more than 2 GiB away.
pub fn jump(from: RuntimeAddr, to: RuntimeAddr) -> Result<[u8; 5], Refusal> {
    let [a, b, c, d] = displacement(from, JUMP_LEN.into(), to)?;
    Ok([0xe9, a, b, c, d])
}

/// The 32-bit displacement that an instruction of `len` bytes at `from` needs to reach `to`.
pub(super) fn displacement(
    from: RuntimeAddr,
    len: u64,
    to: RuntimeAddr,
) -> Result<[u8; 4], Refusal> {
    let distance = to.offset_from(from.plus(len)).cast_signed();
    i32::try_from(distance)
        .map(i32::to_le_bytes)
        .map_err(|_| Refusal::OutOfReach { from, to })
}
