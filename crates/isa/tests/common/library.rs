//! The libc that this process runs on, as the planner sees a module.

use lancet_abi::units::LinkAddr;
use lancet_isa::{Function, Roots, Text};
use object::read::elf::ElfFile64;
use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionKind, SymbolKind};

/// Path of the libc that is mapped here; none where the test is linked statically.
pub(crate) fn path() -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mut paths = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5));
    paths
        .find(|p| p.contains("/libc.so") || p.contains("/ld-musl"))
        .map(str::to_owned)
}

/// What a symbol reader would hand over.
#[allow(dead_code)] // not every test plans sites
pub(crate) struct Library<'a> {
    pub(crate) text: Vec<Text<'a>>,
    pub(crate) roots: Roots<'a>,
    pub(crate) functions: Vec<Function>,
}

pub(crate) fn read(file: &[u8]) -> Library<'_> {
    let elf: ElfFile64<'_> = ElfFile64::parse(file).expect("an ELF file");
    let sections = || {
        elf.sections()
            .filter_map(|s| Some((s.kind(), LinkAddr(s.address()), s.data().ok()?)))
    };
    let text: Vec<Text<'_>> = sections()
        .filter(|(kind, ..)| *kind == SectionKind::Text)
        .map(|(_, start, bytes)| Text { start, bytes })
        .collect();
    let data = sections()
        .filter(|(kind, ..)| {
            matches!(
                kind,
                SectionKind::ReadOnlyData | SectionKind::ReadOnlyString
            )
        })
        .map(|(_, start, bytes)| (start, bytes))
        .collect();
    let symbols: Vec<(u64, u64)> = elf
        .dynamic_symbols()
        .chain(elf.symbols())
        .filter(|s| s.kind() == SymbolKind::Text && s.is_definition())
        .map(|s| (s.address(), s.size()))
        .collect();
    let frames = frames(&elf);
    let named = symbols.iter().map(|s| s.0);
    let mut starts: Vec<u64> = named.chain(frames.iter().map(|f| f.0)).collect();
    starts.sort_unstable();
    starts.dedup();
    let entries = elf
        .dynamic_relocations()
        .into_iter()
        .flatten()
        .filter(|(_, r)| matches!(r.target(), RelocationTarget::Absolute))
        .map(|(_, r)| LinkAddr(r.addend().cast_unsigned()))
        .collect();

    let mut functions: Vec<Function> = symbols
        .iter()
        .filter_map(|(start, size)| {
            let section = text
                .iter()
                .find(|t| *start >= t.start.0 && *start < t.end().0)?;
            let next = starts
                .get(starts.partition_point(|s| *s <= *start))
                .map_or(section.end().0, |s| *s);
            let end = (start + size).min(section.end().0);
            Some(Function {
                start: LinkAddr(*start),
                end: LinkAddr(end),
                next: LinkAddr(next.max(end).min(section.end().0)),
            })
        })
        .collect();
    functions.sort_by_key(|f| (f.start, f.end));
    functions.dedup_by_key(|f| f.start);
    let starts = starts.into_iter().map(LinkAddr).collect();
    let ranges = symbols
        .iter()
        .chain(&frames)
        .map(|(start, size)| LinkAddr(*start)..LinkAddr(start + size))
        .collect();
    Library {
        text,
        roots: Roots {
            starts,
            functions: ranges,
            entries,
            data,
            forbidden: Vec::new(),
        },
        functions,
    }
}

/// Starts and sizes of the frame descriptions, from the search table that linkers write.
fn frames(elf: &ElfFile64<'_>) -> Vec<(u64, u64)> {
    let Some(header) = elf.section_by_name(".eh_frame_hdr") else {
        return Vec::new();
    };
    let bytes = header.data().unwrap_or(&[]);
    if bytes.get(..4) != Some(&[1, 0x1b, 3, 0x3b]) {
        return Vec::new();
    }
    let pairs = bytes[12..].as_chunks::<8>().0;
    let Some(described) = elf.section_by_name(".eh_frame") else {
        return Vec::new();
    };
    let descriptions = described.data().unwrap_or(&[]);
    let near = |four: &[u8]| {
        let distance = i32::from_le_bytes([four[0], four[1], four[2], four[3]]);
        header.address().wrapping_add_signed(distance.into())
    };
    // A description: length, distance to its head, start, size; four bytes each.
    let size = |at: u64| {
        let from = at.wrapping_sub(described.address()) as usize + 12;
        let four = descriptions.get(from..from + 4)?;
        Some(u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
    };
    pairs
        .iter()
        .map(|p| (near(&p[..4]), size(near(&p[4..])).unwrap_or(0).into()))
        .collect()
}
