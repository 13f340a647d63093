//! Unwind entries: where functions start and end, whatever was stripped.

use std::collections::HashMap;

use gimli::{BaseAddresses, CieOrFde, EhFrame, LittleEndian, Pointer, UnwindSection};

use crate::elf::Elf;

/// The part of a frame description entry that probes need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) start: u64,
    pub(crate) size: u64,
    /// The address of its exception table entry.
    pub(crate) lsda: Option<u64>,
}

impl Frame {
    /// One past its last byte.
    pub(crate) fn end(&self) -> u64 {
        self.start.saturating_add(self.size)
    }
}

/// All entries that describe code, by address.
pub(crate) fn frames(elf: &Elf, file: &[u8]) -> Vec<Frame> {
    let Some((address, bytes)) = eh_frame(elf, file) else {
        return Vec::new();
    };
    let text = elf.section(file, ".text").map_or(0, |s| s.link);
    let got = elf.section(file, ".got").map_or(0, |s| s.link);
    let bases = BaseAddresses::default()
        .set_eh_frame(address)
        .set_text(text)
        .set_got(got);
    let section = EhFrame::new(bytes, LittleEndian);
    let mut entries = section.entries(&bases);
    // Most entries share a few headers; a hostile header can be long.
    let mut headers = HashMap::new();
    let mut found = Vec::new();
    while let Ok(Some(entry)) = entries.next() {
        let CieOrFde::Fde(partial) = entry else {
            continue;
        };
        let parsed = partial.parse(|section, bases, offset| {
            if let Some(known) = headers.get(&offset.0) {
                return Clone::clone(known);
            }
            let header = section.cie_from_offset(bases, offset);
            headers.insert(offset.0, header.clone());
            header
        });
        let Ok(parsed) = parsed else { continue };
        let lsda = match parsed.lsda() {
            Some(Pointer::Direct(at)) => Some(at),
            Some(Pointer::Indirect(at)) => elf.word_at(file, at),
            None => None,
        };
        let frame = Frame {
            start: parsed.initial_address(),
            size: parsed.len(),
            lsda,
        };
        if frame.size > 0 && elf.is_code(frame.start) {
            found.push(frame);
        }
    }
    found.sort_unstable_by_key(|frame| (frame.start, frame.size));
    found
}

/// The address and bytes of `.eh_frame`.
fn eh_frame<'a>(elf: &Elf, file: &'a [u8]) -> Option<(u64, &'a [u8])> {
    if let Some(section) = elf.section(file, ".eh_frame") {
        let bytes = section.bytes(file);
        if !bytes.is_empty() {
            return Some((section.link, bytes));
        }
    }
    // Without sections: the lookup header's second field, as every linker writes it,
    // is the distance from itself (encoding pcrel, sdata4).
    let header = elf.frame_header?;
    let bytes = elf.bytes_at(file, header)?;
    if bytes.get(1) != Some(&0x1b) {
        return None;
    }
    let distance = i32::from_le_bytes(*bytes.get(4..)?.first_chunk()?);
    let address = header.checked_add(4)?.checked_add_signed(distance.into())?;
    Some((address, elf.bytes_at(file, address)?))
}
