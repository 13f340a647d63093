//! The bytes of an opened file: read into memory, or mapped when large.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Deref;

/// Files below this many bytes are read, larger ones are mapped.
///
/// A mapped file that somebody truncates kills its reader with SIGBUS; a copy
/// can't. Only for files whose copy would cost more than 10 ms is that risk taken.
pub(crate) const MAP_FROM: u64 = 64 << 20;

/// Bytes that stay valid and unchanged in length for as long as they live.
pub(crate) enum Bytes {
    /// A copy.
    Owned(Vec<u8>),
    /// A private mapping; truncating the file while it lives is fatal.
    Mapped(memmap2::Mmap),
}

impl Bytes {
    /// Reads or maps all of `file`, which has `size` bytes.
    pub(crate) fn of(file: &File, size: u64) -> io::Result<Self> {
        if size >= MAP_FROM {
            // SAFETY: the mapping is private and read-only. Other processes may change
            // the file under it: all parsing treats the bytes as hostile and reads each
            // number once before checking it; truncation is the documented risk above.
            return Ok(Self::Mapped(unsafe { memmap2::Mmap::map(file)? }));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(size).unwrap_or(0));
        file.take(MAP_FROM).read_to_end(&mut bytes)?;
        Ok(Self::Owned(bytes))
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Owned(bytes) => bytes,
            Self::Mapped(map) => map,
        }
    }
}
