//! What a scan of a module's branches has to start from.

use std::ops::Range;

use lancet_abi::units::LinkAddr;
use object::elf;

use crate::dynamic::Dynamic;
use crate::elf::Elf;
use crate::frames::Frame;
use crate::function::Function;
use crate::{lsda, relocs, rseq};

/// Where code certainly starts, where it may be entered, and where probes must not go.
#[derive(Clone, Debug, Default)]
pub struct Roots<'a> {
    /// Starts of functions: symbols and unwind entries; sorted, each once.
    pub starts: Vec<LinkAddr>,
    /// The bytes of functions that are known to be code: typed symbols with a size, and unwind
    /// entries; in no order.
    pub functions: Vec<Range<LinkAddr>>,
    /// Addresses that are reached without a direct branch: landing pads, relocated
    /// code pointers, the entry point, initialisers; sorted, each once.
    pub entries: Vec<LinkAddr>,
    /// Read-only data that may hold jump tables.
    pub data: Vec<(LinkAddr, &'a [u8])>,
    /// Restartable sequences with their preparation and abort signatures; sorted.
    pub forbidden: Vec<Range<LinkAddr>>,
}

/// All of it, for one file.
pub(crate) fn roots<'a>(
    elf: &Elf,
    file: &'a [u8],
    functions: &[Function],
    frames: &[Frame],
    starts: &[u64],
) -> Roots<'a> {
    let stored = relocs::stored(elf, file);
    let mut entries = lsda::landing_pads(elf, file, frames);
    entries.extend(stored.iter().map(|stored| stored.target));
    entries.push(elf.entry);
    entries.extend(initialisers(elf, file));
    if elf.kind == elf::ET_EXEC {
        entries.extend(fixed_pointers(elf, file));
    }
    entries.retain(|&entry| elf.is_code(entry));
    entries.sort_unstable();
    entries.dedup();
    let start_of = |link| range_around(functions, frames, link).map(|range| range.start);
    let forbidden = rseq::forbidden(elf, file, &stored, start_of);
    Roots {
        starts: starts.iter().copied().map(LinkAddr).collect(),
        functions: ranges(functions, frames),
        entries: entries.into_iter().map(LinkAddr).collect(),
        data: data(elf, file),
        forbidden: forbidden
            .into_iter()
            .map(|r| LinkAddr(r.start)..LinkAddr(r.end))
            .collect(),
    }
}

/// What symbols and unwind entries say to be code.
fn ranges(functions: &[Function], frames: &[Frame]) -> Vec<Range<LinkAddr>> {
    let named = functions
        .iter()
        .filter(|f| !f.is_untyped)
        .map(|f| f.link..f.end());
    let unwound = frames.iter().map(|f| LinkAddr(f.start)..LinkAddr(f.end()));
    named.chain(unwound).collect()
}

/// The innermost function or unwind entry that holds an address.
pub(crate) fn range_around(
    functions: &[Function],
    frames: &[Frame],
    link: u64,
) -> Option<Range<u64>> {
    // Starts are sorted but ranges may nest (cold parts, assembly); a few steps back find
    // the one around, and hostile tables can't make this slow.
    const STEPS: usize = 64;
    let end = functions.partition_point(|f| f.link.0 <= link);
    let function = functions[..end]
        .iter()
        .rev()
        .take(STEPS)
        .find(|f| link < f.end().0);
    let end = frames.partition_point(|f| f.start <= link);
    let frame = || {
        frames[..end]
            .iter()
            .rev()
            .take(STEPS)
            .find(|f| link < f.end())
    };
    function
        .map(|f| f.link.0..f.end().0)
        .or_else(|| frame().map(|f| f.start..f.end()))
}

/// The functions that the loader calls before and after the program.
fn initialisers(elf: &Elf, file: &[u8]) -> Vec<u64> {
    let dynamic = Dynamic::of(elf, file);
    let single = [elf::DT_INIT, elf::DT_FINI]
        .into_iter()
        .filter_map(|tag| dynamic.first(tag));
    let arrays = [
        (elf::DT_INIT_ARRAY, elf::DT_INIT_ARRAYSZ),
        (elf::DT_FINI_ARRAY, elf::DT_FINI_ARRAYSZ),
        (elf::DT_PREINIT_ARRAY, elf::DT_PREINIT_ARRAYSZ),
    ];
    let listed = arrays
        .into_iter()
        .flat_map(|(address, size)| words(dynamic.table(address, size)));
    single.chain(listed).collect()
}

/// Words of data that could be code addresses: in a file for fixed addresses the linker has
/// stored them without leaving a relocation.
fn fixed_pointers(elf: &Elf, file: &[u8]) -> Vec<u64> {
    let data = elf.segments.iter().filter(|s| !s.executable);
    data.filter_map(|segment| {
        let bytes = elf.bytes_at(file, segment.link.0)?;
        let skip = (segment.link.0.wrapping_neg() & 7) as usize;
        bytes.get(skip..)
    })
    .flat_map(words)
    .filter(|&word| elf.is_code(word))
    .collect()
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word))
}

/// Read-only data, by sections where there are any, without tables of other kinds.
fn data<'a>(elf: &Elf, file: &'a [u8]) -> Vec<(LinkAddr, &'a [u8])> {
    if elf.sections.is_empty() {
        let segments = elf.segments.iter().filter(|s| !s.executable && !s.writable);
        return segments
            .filter_map(|s| Some((s.link, elf.bytes_at(file, s.link.0)?)))
            .collect();
    }
    const OTHER: [&[u8]; 3] = [b".eh_frame", b".eh_frame_hdr", b".gcc_except_table"];
    let plain = elf.sections.iter().filter(|section| {
        let name = file.get(section.name.clone()).unwrap_or(&[]);
        let flags = section.flags & u64::from(elf::SHF_ALLOC | elf::SHF_EXECINSTR | elf::SHF_WRITE);
        let read_only = flags == u64::from(elf::SHF_ALLOC);
        let relocated =
            name.starts_with(b".data.rel.ro") && section.flags & u64::from(elf::SHF_EXECINSTR) == 0;
        section.kind == elf::SHT_PROGBITS && (read_only || relocated) && !OTHER.contains(&name)
    });
    plain
        .map(|section| (LinkAddr(section.link), section.bytes(file)))
        .filter(|(_, b)| !b.is_empty())
        .collect()
}
