//! The pages that a session adds to a process near some of its text, and the registry in them.
//!
//! One arena serves all text within reach of a 32-bit jump:
//!
//! | part | protection | holds |
//! |---|---|---|
//! | code | r-x, private, anonymous | registry, stub, pads |
//! | region | rw-, shared | counters and maps; the same file in every process of the domain |
//!
//! The registry is the undo journal for the process's text. It lies in the process so that a
//! forked child carries its own, and so that `clean` finds it when tracer and guardian are dead.
//! A site is recorded before its text is written. The process can forge it and so harm itself;
//! readers bound everything and only ever write bytes that stand in the file.

use lancet_abi::layout::MAX_REGION;
use lancet_abi::units::RuntimeAddr;
use lancet_procs::Mapping;

use crate::bytes::{u16_at, u64_at};
use crate::error::RemoteError;
use crate::memory::Memory;

/// First word of a registry.
const MAGIC: u64 = u64::from_le_bytes(*b"lancet\x01\0");
const HEADER: u64 = 128;
const RECORD: u64 = 40;
const PAGE: u64 = 4096;

/// Most sites that a registry is believed to have.
pub const MOST_SITES: u32 = 1 << 20;

/// Bytes that the text jump takes.
pub const PATCH: usize = 5;

/// What the registry says of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Random number of the session.
    pub session: [u64; 2],
    /// Bytes of the code part.
    pub code_length: u64,
    /// Where the region is mapped, and how many bytes of it.
    pub region: (RuntimeAddr, u64),
    /// The process's private page with the mode word.
    pub mode: RuntimeAddr,
    /// Bytes of private memory from there on: whole pages.
    pub private_length: u64,
    /// Guardian's pid and start time as the tracer sees them: whether the session lives.
    pub guardian: (i32, u64),
    /// Number in the region file's name; 0 when it has none.
    pub region_name: u64,
    /// Sites recorded.
    pub sites: u32,
    /// Room for sites.
    pub capacity: u32,
}

/// One patched place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteRecord {
    /// Its address.
    pub site: RuntimeAddr,
    /// Where the jump goes.
    pub pad: RuntimeAddr,
    /// Bytes of the file.
    pub old: [u8; PATCH],
    /// The jump.
    pub new: [u8; PATCH],
    /// Bytes of whole instructions that were moved to the pad.
    pub window: u8,
    /// Whether the text may hold the jump.
    pub live: bool,
    /// Bytes of the action before the pad's entry: descriptors and rare parts.
    pub before: u16,
    /// Bytes of the action from the pad's entry up to the out-of-line copy.
    pub action: u16,
    /// Bytes of the out-of-line copy.
    pub copy: u16,
}

impl SiteRecord {
    fn encode(&self) -> [u8; RECORD as usize] {
        let mut bytes = [0; RECORD as usize];
        bytes[..8].copy_from_slice(&self.site.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.pad.0.to_le_bytes());
        bytes[16..21].copy_from_slice(&self.old);
        bytes[21..26].copy_from_slice(&self.new);
        bytes[26] = self.window;
        bytes[27] = u8::from(self.live);
        bytes[28..30].copy_from_slice(&self.before.to_le_bytes());
        bytes[30..32].copy_from_slice(&self.action.to_le_bytes());
        bytes[32..34].copy_from_slice(&self.copy.to_le_bytes());
        bytes
    }

    /// Whether an address lies in the action: a thread there may still count.
    #[must_use]
    pub fn in_action(&self, ip: RuntimeAddr) -> bool {
        let start = self.pad.minus(u64::from(self.before));
        ip.offset_from(start) < u64::from(self.before) + u64::from(self.action)
    }

    fn decode(bytes: &[u8]) -> Self {
        let mut old = [0; PATCH];
        let mut new = [0; PATCH];
        old.copy_from_slice(&bytes[16..21]);
        new.copy_from_slice(&bytes[21..26]);
        Self {
            site: RuntimeAddr(u64_at(bytes, 0)),
            pad: RuntimeAddr(u64_at(bytes, 8)),
            old,
            new,
            window: bytes[26],
            live: bytes[27] != 0,
            before: u16_at(bytes, 28),
            action: u16_at(bytes, 30),
            copy: u16_at(bytes, 32),
        }
    }

    /// What restoring finds at the site: the file's bytes, any mix of them and ours, or neither.
    ///
    /// `others` are further jumps of ours that the site may hold.
    #[must_use]
    pub fn judge(&self, found: &[u8; PATCH], others: &[[u8; PATCH]]) -> Found {
        if *found == self.old {
            return Found::File;
        }
        let known = |at: usize| {
            let byte = found[at];
            byte == self.old[at] || byte == self.new[at] || others.iter().any(|o| o[at] == byte)
        };
        let mixed = (0..PATCH).all(known);
        // A kernel uprobe that was put over our jump: nobody else's trap can be here while we
        // may stop the process. At its end the kernel writes the file's first byte back.
        let under_trap = found[0] == 0xcc && (1..PATCH).all(known);
        match (mixed, under_trap) {
            (true, _) => Found::Ours,
            (_, true) => Found::UnderTrap,
            _ => Found::Foreign,
        }
    }
}

/// Result of [`SiteRecord::judge`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// As in the file.
    File,
    /// Our jump, whole or in part.
    Ours,
    /// A kernel uprobe's trap, with our jump's other bytes behind it.
    UnderTrap,
    /// Somebody else wrote here.
    Foreign,
}

/// Bytes that registry and stub take at the start of the code part, for so many sites.
#[must_use]
pub fn overhead(sites: u32) -> u64 {
    (HEADER + RECORD * u64::from(sites)).next_multiple_of(PAGE) + PAGE
}

/// Where the stub page of an arena lies.
#[must_use]
pub fn stub_page(start: RuntimeAddr, capacity: u32) -> RuntimeAddr {
    start.plus(overhead(capacity) - PAGE)
}

/// Writes a registry's header. Everything it says must already be true.
pub fn write_header(
    memory: &Memory,
    start: RuntimeAddr,
    header: &Header,
) -> Result<(), RemoteError> {
    let mut bytes = [0u8; HEADER as usize];
    let words = [
        MAGIC,
        header.session[0],
        header.session[1],
        header.code_length,
        header.region.0.0,
        header.region.1,
        header.mode.0,
        u64::from(header.sites) | u64::from(header.capacity) << 32,
        header.guardian.0 as u64,
        header.guardian.1,
        header.region_name,
        header.private_length,
    ];
    for (chunk, word) in bytes.chunks_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    memory.write(start, &bytes)
}

/// Reads the registry at `start`, if there is one.
#[must_use]
pub fn read_header(memory: &Memory, start: RuntimeAddr) -> Option<Header> {
    let mut bytes = [0u8; HEADER as usize];
    if memory.read_some(start, &mut bytes) != bytes.len() {
        return None;
    }
    decode_header(&bytes)
}

/// None for what no session writes: who adds lengths up relies on their limits.
fn decode_header(bytes: &[u8; HEADER as usize]) -> Option<Header> {
    let (code_length, region_length) = (u64_at(bytes, 24), u64_at(bytes, 40));
    if u64_at(bytes, 0) != MAGIC || code_length > MOST_CODE || region_length > MAX_REGION {
        return None;
    }
    let private_length = u64_at(bytes, 88);
    if private_length > MOST_PRIVATE || !private_length.is_multiple_of(PAGE) {
        return None;
    }
    let counts = u64_at(bytes, 56);
    let capacity = (counts >> 32) as u32;
    let sites = counts as u32;
    if capacity > MOST_SITES || sites > capacity {
        return None;
    }
    Some(Header {
        session: [u64_at(bytes, 8), u64_at(bytes, 16)],
        code_length,
        region: (RuntimeAddr(u64_at(bytes, 32)), region_length),
        mode: RuntimeAddr(u64_at(bytes, 48)),
        private_length,
        guardian: (u64_at(bytes, 64) as i32, u64_at(bytes, 72)),
        region_name: u64_at(bytes, 80),
        sites,
        capacity,
    })
}

/// Adds sites behind the `have` that are there; they count as recorded when this returns.
pub fn append_sites(
    memory: &Memory,
    start: RuntimeAddr,
    have: u32,
    capacity: u32,
    sites: &[SiteRecord],
) -> Result<(), RemoteError> {
    let bytes: Vec<u8> = sites.iter().flat_map(SiteRecord::encode).collect();
    memory.write(start.plus(HEADER + RECORD * u64::from(have)), &bytes)?;
    let counts = u64::from(have + sites.len() as u32) | u64::from(capacity) << 32;
    memory.write(start.plus(56), &counts.to_le_bytes())
}

/// Writes records anew, from the one with this index on: some of them have been restored.
pub fn write_sites(
    memory: &Memory,
    start: RuntimeAddr,
    first: u32,
    sites: &[SiteRecord],
) -> Result<(), RemoteError> {
    let bytes: Vec<u8> = sites.iter().flat_map(SiteRecord::encode).collect();
    memory.write(start.plus(HEADER + RECORD * u64::from(first)), &bytes)
}

/// The sites of the registry at `start`.
pub fn read_sites(
    memory: &Memory,
    start: RuntimeAddr,
    header: &Header,
) -> Result<Vec<SiteRecord>, RemoteError> {
    let length = RECORD * u64::from(header.sites);
    let bytes = memory.bytes(start.plus(HEADER), length as usize)?;
    Ok(bytes
        .chunks_exact(RECORD as usize)
        .map(SiteRecord::decode)
        .collect())
}

/// Arenas in a process, found by their signature: any session's.
#[must_use]
pub fn find(memory: &Memory, mappings: &[Mapping]) -> Vec<(RuntimeAddr, Header)> {
    mappings
        .iter()
        .filter(|m| m.execute && !m.write && !m.shared && m.inode == 0)
        .filter_map(|m| read_header(memory, m.start).map(|header| (m.start, header)))
        .collect()
}

/// More code than this no arena has: all of it lies within a jump's reach.
const MOST_CODE: u64 = 1 << 31;
/// More private memory than this no process gets.
const MOST_PRIVATE: u64 = 1 << 28;
/// How far a jump is trusted to reach: 2 GiB less room for the lengths of both sides.
const REACH: u64 = (1 << 31) - (64 << 20);
/// Distance kept from what is there, where there is room: neighbours may grow.
const DISTANCE: u64 = 16 << 20;
const LOWEST: u64 = 1 << 20;
const HIGHEST: u64 = (1 << 47) - PAGE;

/// Finds free addresses for `length` bytes within reach of all of `[low, high)`.
///
/// Below the text is preferred: above it the heap grows.
#[must_use]
pub fn find_gap(
    mappings: &[Mapping],
    low: RuntimeAddr,
    high: RuntimeAddr,
    length: u64,
) -> Option<RuntimeAddr> {
    let floor = high.0.saturating_sub(REACH).max(LOWEST);
    let ceiling = (low.0 + REACH).min(HIGHEST);
    let mut best: Option<(u64, u64)> = None;
    let mut previous_end = 0;
    let ends = mappings
        .iter()
        .map(|m| (m.start.0, m.end.0, m.path == b"[stack]"))
        .chain([(HIGHEST, HIGHEST, false)]);
    for (start, end, stack) in ends {
        let gap = (previous_end, start);
        previous_end = end;
        // The vsyscall page lies at the very top, where sums overflow.
        if gap.0 >= HIGHEST {
            continue;
        }
        // A stack grows down into the gap below it.
        let gap_end = if stack {
            start.saturating_sub(1 << 30)
        } else {
            gap.1
        };
        for distance in [DISTANCE, 0] {
            let from = (gap.0 + distance).max(floor);
            let to = gap_end.saturating_sub(distance).min(ceiling);
            let Some(latest) = to.checked_sub(length) else {
                continue;
            };
            let (from, latest) = (from.next_multiple_of(PAGE), latest & !(PAGE - 1));
            if from > latest {
                continue;
            }
            let below = latest + length <= low.0;
            let place = if below {
                latest
            } else {
                from.max(high.0 + DISTANCE).min(latest)
            };
            let away = if below {
                low.0 - latest
            } else {
                (place - low.0) + REACH
            };
            let cost = away + if distance == 0 { 4 * REACH } else { 0 };
            if best.is_none_or(|(least, _)| cost < least) {
                best = Some((cost, place));
            }
            break;
        }
    }
    best.map(|(_, place)| RuntimeAddr(place))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_with_lengths_that_no_session_writes_is_none() {
        let header = |code_length: u64, region_length: u64| {
            let mut bytes = [0; HEADER as usize];
            for (at, word) in [(0, MAGIC), (24, code_length), (40, region_length)] {
                bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            decode_header(&bytes)
        };
        let largest = header(MOST_CODE, MAX_REGION).expect("it is allowed");
        assert_eq!(largest.code_length, MOST_CODE);
        assert_eq!(largest.region.1, MAX_REGION);
        assert!(header(u64::MAX, 4096).is_none());
        assert!(header(4096, u64::MAX).is_none());
        assert!(header(MOST_CODE + 1, 0).is_none());
    }

    #[test]
    fn a_torn_restore_is_recognised_and_a_foreign_byte_too() {
        let site = SiteRecord {
            site: RuntimeAddr(1),
            pad: RuntimeAddr(2),
            old: [0x55, 0x48, 0x89, 0xe5, 0x53],
            new: [0xe9, 1, 2, 3, 4],
            window: 5,
            live: true,
            before: 64,
            action: 100,
            copy: 20,
        };
        assert_eq!(site.judge(&site.old, &[]), Found::File);
        assert_eq!(site.judge(&site.new, &[]), Found::Ours);
        assert_eq!(site.judge(&[0xe9, 0x48, 2, 0xe5, 4], &[]), Found::Ours);
        assert_eq!(site.judge(&[0xcc, 1, 2, 3, 4], &[]), Found::UnderTrap);
        assert_eq!(site.judge(&[0xcc, 9, 2, 3, 4], &[]), Found::Foreign);
        let before = [[0xe9, 9, 8, 7, 6]];
        assert_eq!(site.judge(&before[0], &[]), Found::Foreign);
        assert_eq!(site.judge(&before[0], &before), Found::Ours);
        assert_eq!(site.judge(&[0xcc, 9, 8, 3, 4], &before), Found::UnderTrap);
        assert_eq!(site.judge(&[0xe9, 9, 8, 7, 5], &before), Found::Foreign);
        assert_eq!(SiteRecord::decode(&site.encode()), site);
    }
}
