//! Finds executable bytes that belong to nobody: room for the first stub.
//!
//! The last page of an executable segment is mapped whole, but the file's segment ends before
//! the page does; behind it nothing is ever executed or read. The vdso's last page is the same
//! when no segment has room.

use lancet_abi::units::RuntimeAddr;
use lancet_procs::Mapping;

use crate::memory::Memory;

/// Bytes that a first stub may need.
pub const ROOM: u64 = 256;

const PAGE: u64 = 4096;

/// Room for a stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slack {
    /// Where the room starts.
    pub address: RuntimeAddr,
    /// Whether the page can be given back to its file with MADV_DONTNEED.
    pub of_file: bool,
}

/// Finds room of [`ROOM`] zero bytes, in a file's segment if there is one.
#[must_use]
pub fn find(memory: &Memory, mappings: &[Mapping]) -> Option<Slack> {
    let of_files = mappings
        .iter()
        .filter(|m| m.execute && !m.write && !m.shared && m.inode != 0)
        .filter_map(|m| behind_segment(memory, mappings, m))
        .map(|address| Slack {
            address,
            of_file: true,
        });
    let of_vdso = mappings
        .iter()
        .filter(|m| m.execute && m.path == b"[vdso]")
        .filter_map(|m| zero_tail(memory, m.end, RuntimeAddr(m.end.0 - PAGE)))
        .map(|address| Slack {
            address,
            of_file: false,
        });
    of_files.chain(of_vdso).next()
}

/// The end of the file's bytes in an executable mapping, by the program headers in memory.
fn behind_segment(memory: &Memory, mappings: &[Mapping], text: &Mapping) -> Option<RuntimeAddr> {
    let head = mappings
        .iter()
        .find(|m| m.dev == text.dev && m.inode == text.inode && m.offset.0 == 0)?;
    let mut header = [0u8; 64];
    memory.read(head.start, &mut header).ok()?;
    if header[..4] != *b"\x7fELF" || header[4] != 2 {
        return None;
    }
    let u16_at = |b: &[u8], at: usize| u16::from_le_bytes([b[at], b[at + 1]]);
    let u64_at = |b: &[u8], at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&b[at..at + 8]);
        u64::from_le_bytes(word)
    };
    let table = u64_at(&header, 32);
    let count = u16_at(&header, 56);
    if u16_at(&header, 54) != 56 || table > PAGE || count > 64 {
        return None;
    }
    for index in 0..u64::from(count) {
        let mut entry = [0u8; 56];
        memory
            .read(head.start.plus(table + index * 56), &mut entry)
            .ok()?;
        let load_executable = entry[..4] == 1u32.to_le_bytes() && entry[4] & 1 != 0;
        let (offset, file_size) = (u64_at(&entry, 8), u64_at(&entry, 32));
        if !load_executable || offset & !(PAGE - 1) != text.offset.0 {
            continue;
        }
        let end = text
            .start
            .plus((offset & (PAGE - 1)).checked_add(file_size)?);
        return zero_tail(memory, text.end, end);
    }
    None
}

/// Room of zero bytes between `from` and the end of a mapping's last page.
fn zero_tail(memory: &Memory, end: RuntimeAddr, from: RuntimeAddr) -> Option<RuntimeAddr> {
    if from >= end || end.offset_from(from) > PAGE {
        return None;
    }
    let bytes = memory.bytes(from, end.offset_from(from) as usize).ok()?;
    let used = bytes.iter().rposition(|&b| b != 0).map_or(0, |at| at + 1);
    let start = RuntimeAddr((from.0 + used as u64).next_multiple_of(16)).plus(16);
    (start.plus(ROOM) <= end).then_some(start)
}
