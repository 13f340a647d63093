//! What stands behind each stub, for those who find it when tracer and guardian are dead.
//!
//! The first stub of a process lies in bytes that nobody uses, and no arena exists yet whose
//! registry would tell of it: these 40 bytes are all there is to find and undo it by. The stubs in
//! an arena are found through its header; there the trailer tells the mask of a thread that was
//! about to be sent away, or back.

use lancet_abi::units::RuntimeAddr;

use crate::bytes::{u32_at, u64_at};

/// The first word.
const MAGIC: [u8; 8] = *b"lancet\x02\0";
/// Bytes of a trailer.
const LENGTH: usize = 40;
/// Bytes before it: the signal mask that the code ends with.
const MASK: usize = 8;

/// What is known of a stub that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Guardian's pid and start time, as in an arena's header; zeroes in an arena.
    pub guardian: (i32, u64),
    /// The first two arguments of the first call: of a first stub, what it maps or unmaps.
    pub mapping: (RuntimeAddr, u64),
    /// Its thread's own signal mask.
    pub mask: u64,
}

impl Trailer {
    /// The bytes, to be put behind `code` bytes of stub.
    pub(crate) fn encode(&self, code: usize) -> [u8; LENGTH] {
        let mut bytes = [0; LENGTH];
        let mut put = |at: usize, field: &[u8]| bytes[at..at + field.len()].copy_from_slice(field);
        put(0, &MAGIC);
        put(8, &(code as u32).to_le_bytes());
        put(12, &self.guardian.0.to_le_bytes());
        put(16, &self.guardian.1.to_le_bytes());
        put(24, &self.mapping.0.0.to_le_bytes());
        put(32, &self.mapping.1.to_le_bytes());
        bytes
    }

    /// Looks for a stub with its trailer in `bytes`: where in them it lies, and what it says.
    #[must_use]
    pub fn find(bytes: &[u8]) -> Option<(std::ops::Range<usize>, Self)> {
        let at = bytes.windows(MAGIC.len()).position(|w| w == MAGIC)?;
        let trailer = bytes.get(at..at + LENGTH)?;
        let code = u32_at(trailer, 8) as usize;
        let start = at.checked_sub(code)?;
        let mask = at.checked_sub(MASK).filter(|mask| *mask >= start)?;
        Some((
            start..at + LENGTH,
            Self {
                guardian: (u32_at(trailer, 12).cast_signed(), u64_at(trailer, 16)),
                mapping: (RuntimeAddr(u64_at(trailer, 24)), u64_at(trailer, 32)),
                mask: u64_at(bytes, mask),
            },
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_found() {
        let trailer = Trailer {
            guardian: (77, 1 << 40),
            mapping: (RuntimeAddr(0x7f00_0000_1000), 0x3000),
            mask: 0x1234,
        };
        let mut code = vec![0x90; 100];
        code.extend_from_slice(&0x1234u64.to_le_bytes());
        let mut bytes = vec![0; 32];
        bytes.extend_from_slice(&code);
        bytes.extend_from_slice(&trailer.encode(code.len()));
        bytes.extend_from_slice(&[0; 50]);
        let end = 32 + code.len() + LENGTH;
        assert_eq!(Trailer::find(&bytes), Some((32..end, trailer)));
    }

    #[test]
    fn bytes_that_lie_are_nothing() {
        assert_eq!(Trailer::find(&[]), None);
        assert_eq!(Trailer::find(&MAGIC), None);
        for code in [0, 7, 41, u32::MAX] {
            let mut bytes = vec![0; 40];
            bytes.extend_from_slice(&MAGIC);
            bytes.extend_from_slice(&code.to_le_bytes());
            bytes.extend_from_slice(&[0; 40]);
            assert_eq!(Trailer::find(&bytes), None, "{code}");
        }
    }
}
