//! The loader's cache of libraries (`/etc/ld.so.cache`), format `glibc-ld.so.cache1.1`.
//!
//! A header of 48 bytes: magic (20), entries (u32), bytes of strings (u32), then flags and
//! reserved words. Then 24 bytes an entry: flags (u32), places of name and path (u32 each,
//! from the header's start), a reserved word, and hardware capabilities (u64). An older
//! table with 12-byte entries may come first.

use std::path::PathBuf;

/// Where the loader keeps it.
pub(crate) const PATH: &str = "/etc/ld.so.cache";

const OLD: &[u8] = b"ld.so-1.7.0";
const NEW: &[u8] = b"glibc-ld.so.cache1.1";
/// A library of the GNU C library's kind (3) for 64-bit x86-64 (0x300).
const X86_64: u32 = 0x303;

/// The path of the first library whose name satisfies `wanted`; one that needs no special
/// hardware is preferred.
pub(crate) fn find(cache: &[u8], wanted: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let cache = new_part(cache)?;
    let count = word(cache, 20)? as usize;
    let mut special = None;
    for entry in cache.get(48..)?.as_chunks::<24>().0.iter().take(count) {
        if word(entry, 0) != Some(X86_64) || !text(cache, word(entry, 4)?).is_some_and(&wanted) {
            continue;
        }
        let Some(path) = text(cache, word(entry, 8)?) else {
            continue;
        };
        if entry[16..24] == [0; 8] {
            return Some(path.into());
        }
        special.get_or_insert_with(|| path.into());
    }
    special
}

/// The table in the new format, behind the old one when both are there.
fn new_part(cache: &[u8]) -> Option<&[u8]> {
    if cache.starts_with(NEW) {
        return Some(cache);
    }
    if !cache.starts_with(OLD) {
        return None;
    }
    let count = word(cache, 12)? as usize;
    let end = count
        .checked_mul(12)?
        .checked_add(16)?
        .checked_next_multiple_of(8)?;
    cache.get(end..).filter(|rest| rest.starts_with(NEW))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn text(cache: &[u8], at: u32) -> Option<&str> {
    let bytes = cache.get(at as usize..)?;
    let bytes = &bytes[..bytes.len().min(4096)];
    std::str::from_utf8(&bytes[..memchr::memchr(0, bytes)?]).ok()
}
