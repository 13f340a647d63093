//! The separate file that holds the symbols of a stripped one.
//!
//! Searched by build id below `/usr/lib/debug/.build-id`, then by the name in
//! `.gnu_debuglink`: beside the file, in `.debug` beside it, and below `/usr/lib/debug`. A
//! candidate counts only if its build id, or else its checksum, is the expected one.

use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use object::LittleEndian as LE;
use object::elf;

use crate::bytes::{self, Bytes};
use crate::elf::{Elf, Section};
use crate::notes;
use crate::open;
use crate::symtab::Symtab;

/// The section of the build id.
const BUILD_ID: &str = ".note.gnu.build-id";
/// Where distributions put debug files.
const ROOT: &str = "/usr/lib/debug";
/// Embedded symbols don't unpack to more than this many times their size, nor beyond the
/// next constant's bytes; real ones come to about 8.
const MAX_RATIO: u64 = 64;
const MAX_UNPACKED: u64 = 256 << 20;
/// The largest preset of xz needs 64 MiB.
const MAX_DICTIONARY_KIB: u32 = 80 << 10;

/// A symbol table and its strings, read from elsewhere.
#[derive(Default)]
pub(crate) struct OwnedTable {
    symbols: Vec<u8>,
    strings: Vec<u8>,
}

impl OwnedTable {
    /// As a table to walk.
    pub(crate) fn view(&self) -> Symtab<'_> {
        Symtab::new(&self.symbols, &self.strings)
    }

    /// The full table of an ELF file in memory.
    fn of(elf: &Elf, file: &[u8]) -> Option<Self> {
        let table = elf.sections.iter().find(|s| s.kind == elf::SHT_SYMTAB)?;
        let strings = elf.sections.get(table.linked)?;
        Some(Self {
            symbols: table.bytes(file).into(),
            strings: strings.bytes(file).into(),
        })
    }
}

/// The symbols that `.gnu_debugdata` (MiniDebugInfo, an ELF file in xz) adds to `.dynsym`.
pub(crate) fn embedded(elf: &Elf, file: &[u8], path: &Path) -> Option<OwnedTable> {
    let packed = elf.section(file, ".gnu_debugdata")?.bytes(file);
    let limit = (packed.len() as u64)
        .saturating_mul(MAX_RATIO)
        .min(MAX_UNPACKED);
    let mut unpacked = Vec::new();
    lzma_rust2::XzReader::new_mem_limit(packed, false, MAX_DICTIONARY_KIB)
        .take(limit)
        .read_to_end(&mut unpacked)
        .ok()?;
    OwnedTable::of(&Elf::parse_sections(&unpacked, path).ok()?, &unpacked)
}

/// The symbols of the debug file that belongs to a module, when there is one.
pub(crate) fn find(
    path: &Path,
    build_id: Option<&[u8]>,
    elf: &Elf,
    file: &[u8],
) -> Option<OwnedTable> {
    if let Some(id) = build_id.filter(|id| id.len() > 1) {
        let hex: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
        let by_id = Path::new(ROOT)
            .join(".build-id")
            .join(&hex[..2])
            .join(format!("{}.debug", &hex[2..]));
        if let Some(table) = read(&by_id, &Wanted::Id(id)) {
            return Some(table);
        }
    }
    let (name, checksum) = link(elf.section(file, ".gnu_debuglink")?.bytes(file))?;
    let wanted = build_id.map_or(Wanted::Checksum(checksum), Wanted::Id);
    candidates(path, &name)
        .iter()
        .find_map(|candidate| read(candidate, &wanted))
}

/// What proves that a debug file is the right one.
enum Wanted<'a> {
    Id(&'a [u8]),
    Checksum(u32),
}

/// The file name and checksum of a `.gnu_debuglink` section.
fn link(section: &[u8]) -> Option<(String, u32)> {
    let end = memchr::memchr(0, section)?;
    let name = std::str::from_utf8(&section[..end]).ok()?;
    if name.is_empty() || name.contains('/') || name == "." || name == ".." {
        return None;
    }
    let checksum = section.get((end + 4) & !3..)?.first_chunk()?;
    Some((name.to_owned(), u32::from_le_bytes(*checksum)))
}

fn candidates(path: &Path, name: &str) -> Vec<PathBuf> {
    let real = std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let folder = real.parent().unwrap_or(Path::new("/"));
    let below = folder.strip_prefix("/").unwrap_or(folder);
    let mut all = vec![
        folder.join(name),
        folder.join(".debug").join(name),
        Path::new(ROOT).join(below).join(name),
    ];
    all.retain(|candidate| *candidate != real);
    all
}

/// The tables of one candidate, if it is the right file.
fn read(path: &Path, wanted: &Wanted<'_>) -> Option<OwnedTable> {
    let file = open::open(path).ok()?;
    let bytes = match wanted {
        Wanted::Id(_) => sparse(&file, path)?,
        Wanted::Checksum(_) => open::read(&file, path).ok()?.0,
    };
    let elf = Elf::parse_sections(&bytes, path).ok()?;
    let matches = match wanted {
        Wanted::Id(wanted) => elf
            .section(&bytes, BUILD_ID)
            .is_some_and(|note| notes::build_id(note.bytes(&bytes)) == Some(*wanted)),
        Wanted::Checksum(wanted) => checksum(&bytes) == *wanted,
    };
    if matches {
        OwnedTable::of(&elf, &bytes)
    } else {
        None
    }
}

/// A debug file of which only headers, build id and symbols are read, zeros elsewhere: most
/// of it is lines and types. Large files are mapped, as all are.
fn sparse(file: &File, path: &Path) -> Option<Bytes> {
    let meta = file.metadata().ok().filter(|meta| meta.is_file())?;
    if meta.len() >= bytes::MAP_FROM {
        return open::read(file, path).ok().map(|(bytes, _)| bytes);
    }
    let mut image = vec![0; usize::try_from(meta.len()).ok()?];
    let load = |image: &mut Vec<u8>, range: Range<usize>| {
        let start = range.start as u64;
        image
            .get_mut(range)
            .is_some_and(|part| file.read_exact_at(part, start).is_ok())
    };
    let header = size_of::<elf::FileHeader64<LE>>();
    load(&mut image, 0..header).then_some(())?;
    let table = Elf::section_table(&image)?;
    load(&mut image, table).then_some(())?;
    // Names are needed for the build id alone; their table is found through the entries.
    let names = Elf::name_table(&image)?;
    load(&mut image, names).then_some(())?;
    let elf = Elf::parse_sections(&image, path).ok()?;
    let table = elf.sections.iter().find(|s| s.kind == elf::SHT_SYMTAB)?;
    let strings = elf.sections.get(table.linked)?;
    let wanted = [Some(table), Some(strings), elf.section(&image, BUILD_ID)];
    for range in wanted.into_iter().flatten().map(Section::range) {
        load(&mut image, range).then_some(())?;
    }
    Some(Bytes::Owned(image))
}

/// The CRC-32 (polynomial 0xedb88320, as zlib) that `.gnu_debuglink` holds.
fn checksum(bytes: &[u8]) -> u32 {
    let table: [u32; 256] = std::array::from_fn(|index| {
        (0..8).fold(index as u32, |crc, _| {
            if crc & 1 == 1 {
                crc >> 1 ^ 0xedb8_8320
            } else {
                crc >> 1
            }
        })
    });
    let crc = bytes.iter().fold(u32::MAX, |crc, &byte| {
        crc >> 8 ^ table[usize::from(crc as u8 ^ byte)]
    });
    !crc
}
