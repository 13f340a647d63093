//! Finds executable bytes that belong to nobody: room for the first stub.
//!
//! The last page of an executable segment is mapped whole, but the file's segment ends before
//! the page does; behind it nothing is ever executed or read. The vdso's last page is the same
//! when no segment has room.

use lancet_abi::units::RuntimeAddr;
use lancet_procs::Mapping;

use crate::bytes::{u16_at, u64_at};
use crate::memory::Memory;
use crate::trailer::Trailer;

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

/// A stub that lies in such room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftStub {
    /// Where it starts.
    pub start: RuntimeAddr,
    /// Its bytes, the trailer among them. They were zero before.
    pub length: u64,
    /// Whether the page can be given back to its file.
    pub of_file: bool,
    /// What it says of itself.
    pub trailer: Trailer,
}

/// Bytes behind the end of a segment, up to the end of its last page.
struct Tail {
    start: RuntimeAddr,
    bytes: Vec<u8>,
    of_file: bool,
}

impl Tail {
    fn read(memory: &Memory, start: RuntimeAddr, end: RuntimeAddr, of_file: bool) -> Option<Self> {
        if start >= end || end.offset_from(start) > PAGE {
            return None;
        }
        Some(Self {
            start,
            bytes: memory.bytes(start, end.offset_from(start) as usize).ok()?,
            of_file,
        })
    }

    /// [`ROOM`] zero bytes, with some more before them.
    fn room(&self) -> Option<Slack> {
        let used = self.bytes.iter().rposition(|&b| b != 0);
        let used = used.map_or(0, |at| at as u64 + 1);
        let address = RuntimeAddr((self.start.0 + used).next_multiple_of(16)).plus(16);
        let end = self.start.plus(self.bytes.len() as u64);
        (address.plus(ROOM) <= end).then_some(Slack {
            address,
            of_file: self.of_file,
        })
    }

    fn left_stub(&self) -> Option<LeftStub> {
        let (range, trailer) = Trailer::find(&self.bytes)?;
        Some(LeftStub {
            start: self.start.plus(range.start as u64),
            length: range.len() as u64,
            of_file: self.of_file,
            trailer,
        })
    }
}

fn tails_of_files(memory: &Memory, mappings: &[Mapping]) -> impl Iterator<Item = Tail> {
    mappings
        .iter()
        .filter(|m| m.execute && !m.write && !m.shared && m.inode != 0)
        .filter_map(|m| Tail::read(memory, end_of_segment(memory, mappings, m)?, m.end, true))
}

fn tail_of_vdso(memory: &Memory, mappings: &[Mapping]) -> Option<Tail> {
    let vdso = mappings.iter().find(|m| m.execute && m.path == b"[vdso]")?;
    Tail::read(memory, RuntimeAddr(vdso.end.0 - PAGE), vdso.end, false)
}

/// Finds room of [`ROOM`] zero bytes, in a file's segment if there is one, and the stubs that
/// were left where it was looked for: they lie in what was the first room then.
#[must_use]
pub fn find(memory: &Memory, mappings: &[Mapping]) -> (Option<Slack>, Vec<LeftStub>) {
    let mut stubs = Vec::new();
    for tail in tails_of_files(memory, mappings) {
        stubs.extend(tail.left_stub());
        if let Some(room) = tail.room() {
            return (Some(room), stubs);
        }
    }
    let vdso = tail_of_vdso(memory, mappings);
    stubs.extend(vdso.as_ref().and_then(Tail::left_stub));
    (vdso.and_then(|tail| tail.room()), stubs)
}

/// Finds room in the vdso: for what must not touch the page of a file.
#[must_use]
pub fn find_in_vdso(memory: &Memory, mappings: &[Mapping]) -> Option<Slack> {
    tail_of_vdso(memory, mappings)?.room()
}

/// Finds stubs that were left in such room.
#[must_use]
pub fn left_stubs(memory: &Memory, mappings: &[Mapping]) -> Vec<LeftStub> {
    tails_of_files(memory, mappings)
        .chain(tail_of_vdso(memory, mappings))
        .filter_map(|tail| tail.left_stub())
        .collect()
}

/// The end of the file's bytes in an executable mapping, by the program headers in memory.
fn end_of_segment(memory: &Memory, mappings: &[Mapping], text: &Mapping) -> Option<RuntimeAddr> {
    let head = mappings
        .iter()
        .find(|m| m.dev == text.dev && m.inode == text.inode && m.offset.0 == 0)?;
    let mut header = [0u8; 64];
    memory.read(head.start, &mut header).ok()?;
    if header[..4] != *b"\x7fELF" || header[4] != 2 {
        return None;
    }
    let table = u64_at(&header, 32);
    let count = u16_at(&header, 56);
    if u16_at(&header, 54) != 56 || table > PAGE || count > 64 {
        return None;
    }
    let mut entries = vec![0; usize::from(count) * 56];
    memory.read(head.start.plus(table), &mut entries).ok()?;
    for entry in entries.chunks_exact(56) {
        let load_executable = entry[..4] == 1u32.to_le_bytes() && entry[4] & 1 != 0;
        let (offset, file_size) = (u64_at(entry, 8), u64_at(entry, 32));
        if !load_executable || offset & !(PAGE - 1) != text.offset.0 {
            continue;
        }
        return Some(
            text.start
                .plus((offset & (PAGE - 1)).checked_add(file_size)?),
        );
    }
    None
}
