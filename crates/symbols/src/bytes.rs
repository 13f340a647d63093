//! The bytes of an opened file: read into memory, or mapped when large.

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::unix::fs::FileExt;

/// Files below this many bytes are read, larger ones are mapped.
///
/// A mapped file that somebody truncates kills its reader with SIGBUS; a copy
/// can't. Only for files whose copy would cost more than 10 ms is that risk taken.
pub(crate) const MAP_FROM: u64 = 64 << 20;

/// What is read at least when the size is not known.
const MIN_READ: usize = 64 << 10;

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
        // By position, as the caller may have read from the file before. One byte more
        // than expected shows a file that grows, or whose size is not known.
        let mut bytes = vec![0; usize::try_from(size).map_or(MIN_READ, |size| size + 1)];
        let mut filled = 0;
        loop {
            match file.read_at(&mut bytes[filled..], filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            if filled as u64 >= MAP_FROM {
                break;
            }
            if filled == bytes.len() {
                bytes.resize(filled.saturating_mul(2).max(MIN_READ), 0);
            }
        }
        bytes.truncate(filled);
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
