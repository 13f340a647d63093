//! The headers of an ELF file: what is loaded, and which sections there are.

use std::ops::Range;
use std::path::Path;

use lancet_abi::units::{FileOffset, LinkAddr};
use object::LittleEndian as LE;
use object::elf;
use object::pod;

use crate::error::SymbolError;
use crate::module::Segment;

/// An entry of the section table; its file range is inside the file.
#[derive(Clone, Debug)]
pub(crate) struct Section {
    pub(crate) name: Range<usize>,
    pub(crate) kind: u32,
    pub(crate) flags: u64,
    pub(crate) link: u64,
    pub(crate) offset: usize,
    pub(crate) size: u64,
    pub(crate) linked: usize,
}

impl Section {
    /// It is loaded and may be run.
    pub(crate) fn is_code(&self) -> bool {
        let wanted = u64::from(elf::SHF_ALLOC | elf::SHF_EXECINSTR);
        self.flags & wanted == wanted && self.kind != elf::SHT_NOBITS
    }

    /// One past its last byte in memory.
    pub(crate) fn end(&self) -> u64 {
        self.link.saturating_add(self.size)
    }

    /// Its place in the file; empty for `.bss` and the like.
    pub(crate) fn range(&self) -> Range<usize> {
        let size = if self.kind == elf::SHT_NOBITS {
            0
        } else {
            self.size
        };
        self.offset
            ..self
                .offset
                .saturating_add(usize::try_from(size).unwrap_or(usize::MAX))
    }

    /// Its bytes in the file; empty for `.bss` and the like.
    pub(crate) fn bytes<'a>(&self, file: &'a [u8]) -> &'a [u8] {
        file.get(self.range()).unwrap_or(&[])
    }
}

/// What the headers say, checked against the file's length.
#[derive(Debug, Default)]
pub(crate) struct Elf {
    pub(crate) kind: u16,
    pub(crate) entry: u64,
    /// By address.
    pub(crate) segments: Vec<Segment>,
    pub(crate) sections: Vec<Section>,
    /// The address ranges of code sections, by address.
    pub(crate) code: Vec<Range<u64>>,
    pub(crate) interpreter: Option<Range<usize>>,
    pub(crate) dynamic: Option<Range<usize>>,
    pub(crate) notes: Vec<Range<usize>>,
    /// The address of `.eh_frame_hdr`.
    pub(crate) frame_header: Option<u64>,
}

/// The range of `size` bytes from `offset` on, when it is inside the file.
fn inside(file: &[u8], offset: u64, size: u64) -> Option<Range<usize>> {
    let end = offset.checked_add(size)?;
    (end <= file.len() as u64).then_some(offset as usize..end as usize)
}

/// The ELF header of a file that is long enough and for this machine.
fn header<'a>(file: &'a [u8], path: &Path) -> Result<&'a elf::FileHeader64<LE>, SymbolError> {
    if !file.starts_with(&elf::ELFMAG) {
        let hint = if file.starts_with(b"#!") {
            "; it is a script, name the interpreter of its first line"
        } else if file.starts_with(b"!<arch>") {
            "; it is a static library, name a program that was linked with it"
        } else if file.starts_with(b"MZ") {
            "; it is a Windows program"
        } else {
            "; name a program or shared library"
        };
        return Err(SymbolError::NotElf {
            path: path.into(),
            hint: hint.into(),
        });
    }
    let truncated = || SymbolError::Truncated {
        path: path.into(),
        what: "the ELF header",
        size: file.len() as u64,
    };
    let wrong = |machine: String| SymbolError::WrongMachine {
        path: path.into(),
        machine,
    };
    let (&class, &order) = file.get(4).zip(file.get(5)).ok_or_else(truncated)?;
    let field = |at: usize| {
        file.get(at..at + 2)
            .map(|b| [b[0], b[1]])
            .ok_or_else(truncated)
    };
    let number = if order == 2 {
        u16::from_be_bytes
    } else {
        u16::from_le_bytes
    };
    let machine = machine_name(number(field(18)?));
    match (class, order) {
        (2, 1) if machine == "x86-64" => {}
        (1, _) => return Err(wrong(format!("32-bit {machine}"))),
        (2, 1 | 2) => return Err(wrong(machine)),
        _ => {
            return Err(SymbolError::Malformed {
                path: path.into(),
                what: "its ELF class or byte order is unknown",
            });
        }
    }
    let (header, _) = pod::from_bytes::<elf::FileHeader64<LE>>(file).map_err(|()| truncated())?;
    let what = match header.e_type.get(LE) {
        elf::ET_EXEC | elf::ET_DYN => return Ok(header),
        elf::ET_REL => "an object file that is not linked yet".to_owned(),
        elf::ET_CORE => "a core dump".to_owned(),
        other => format!("an ELF file of unknown type {other}"),
    };
    Err(SymbolError::NotLinked {
        path: path.into(),
        what,
    })
}

/// A machine as people call it.
fn machine_name(machine: u16) -> String {
    match machine {
        elf::EM_X86_64 => "x86-64".into(),
        elf::EM_386 => "x86".into(),
        elf::EM_AARCH64 => "arm64".into(),
        elf::EM_ARM => "arm".into(),
        elf::EM_RISCV => "RISC-V".into(),
        elf::EM_PPC64 => "ppc64".into(),
        elf::EM_S390 => "s390".into(),
        elf::EM_MIPS => "MIPS".into(),
        elf::EM_BPF => "BPF".into(),
        other => format!("machine {other}"),
    }
}

impl Elf {
    /// Reads and checks the headers of a program or library.
    pub(crate) fn parse(file: &[u8], path: &Path) -> Result<Self, SymbolError> {
        let header = header(file, path)?;
        let truncated = |what| SymbolError::Truncated {
            path: path.into(),
            what,
            size: file.len() as u64,
        };
        let malformed = |what| SymbolError::Malformed {
            path: path.into(),
            what,
        };
        let mut elf = Self {
            kind: header.e_type.get(LE),
            entry: header.e_entry.get(LE),
            ..Self::default()
        };
        let count = header.e_phnum.get(LE);
        if count == 0 {
            return Err(malformed(
                "it has no program headers, so nothing of it can be loaded",
            ));
        }
        if usize::from(header.e_phentsize.get(LE)) != size_of::<elf::ProgramHeader64<LE>>() {
            return Err(malformed("its program headers have a wrong size"));
        }
        let table = usize::try_from(header.e_phoff.get(LE))
            .ok()
            .and_then(|at| file.get(at..));
        let (programs, _) = table
            .and_then(|t| pod::slice_from_bytes::<elf::ProgramHeader64<LE>>(t, count.into()).ok())
            .ok_or_else(|| truncated("the program header table"))?;
        for program in programs {
            let (offset, size) = (program.p_offset.get(LE), program.p_filesz.get(LE));
            let range = inside(file, offset, size);
            match program.p_type.get(LE) {
                elf::PT_LOAD => {
                    let segment = load(program);
                    if segment.file_size > segment.mem_size {
                        return Err(malformed("a segment is larger in the file than in memory"));
                    }
                    if segment.link.0.checked_add(segment.mem_size).is_none() {
                        return Err(malformed("a segment wraps around the address space"));
                    }
                    range.ok_or_else(|| truncated("a loaded segment"))?;
                    elf.segments.push(segment);
                }
                elf::PT_INTERP => elf.interpreter = range,
                elf::PT_DYNAMIC => elf.dynamic = range,
                elf::PT_NOTE => elf.notes.extend(range),
                elf::PT_GNU_EH_FRAME => elf.frame_header = Some(program.p_vaddr.get(LE)),
                _ => {}
            }
        }
        if elf.segments.is_empty() {
            return Err(malformed("it has no loaded segment"));
        }
        elf.segments
            .sort_by_key(|segment| (segment.link, segment.file_size));
        elf.sections = sections(file, header).map_err(truncated)?;
        let code = elf
            .sections
            .iter()
            .filter(|section| section.is_code() && section.size > 0);
        elf.code = code.map(|section| section.link..section.end()).collect();
        elf.code
            .sort_unstable_by_key(|range| (range.start, range.end));
        Ok(elf)
    }

    /// Reads only the section table, as debug files need: their segments have no bytes.
    pub(crate) fn parse_sections(file: &[u8], path: &Path) -> Result<Self, SymbolError> {
        let header = header(file, path)?;
        let sections = sections(file, header).map_err(|what| SymbolError::Truncated {
            path: path.into(),
            what,
            size: file.len() as u64,
        })?;
        Ok(Self {
            sections,
            ..Self::default()
        })
    }

    /// Where the section table is, from the file header alone.
    pub(crate) fn section_table(file: &[u8]) -> Option<Range<usize>> {
        let (header, _) = pod::from_bytes::<elf::FileHeader64<LE>>(file).ok()?;
        let entry = size_of::<elf::SectionHeader64<LE>>() as u64;
        inside(
            file,
            header.e_shoff.get(LE),
            entry * u64::from(header.e_shnum.get(LE)),
        )
    }

    /// Where the section names are, from the header and the section table.
    pub(crate) fn name_table(file: &[u8]) -> Option<Range<usize>> {
        let (header, _) = pod::from_bytes::<elf::FileHeader64<LE>>(file).ok()?;
        let (headers, _) = pod::slice_from_bytes::<elf::SectionHeader64<LE>>(
            file.get(Self::section_table(file)?)?,
            header.e_shnum.get(LE).into(),
        )
        .ok()?;
        let names = headers.get(usize::from(header.e_shstrndx.get(LE)))?;
        inside(file, names.sh_offset.get(LE), names.sh_size.get(LE))
    }

    /// The first section of that name.
    pub(crate) fn section<'a>(&'a self, file: &[u8], name: &str) -> Option<&'a Section> {
        self.sections
            .iter()
            .find(|s| file.get(s.name.clone()) == Some(name.as_bytes()))
    }

    /// The segment whose file part holds an address; of overlapping ones the later, which
    /// is mapped over the earlier.
    pub(crate) fn segment_of(&self, link: u64) -> Option<&Segment> {
        let end = self.segments.partition_point(|s| s.link.0 <= link);
        self.segments[..end]
            .last()
            .filter(|s| link - s.link.0 < s.file_size)
    }

    /// The section of code that holds an address.
    pub(crate) fn code_around(&self, link: u64) -> Option<Range<u64>> {
        let end = self.code.partition_point(|range| range.start <= link);
        self.code[..end]
            .last()
            .filter(|range| link < range.end)
            .cloned()
    }

    /// The address is code that comes from the file.
    pub(crate) fn is_code(&self, link: u64) -> bool {
        self.segment_of(link)
            .is_some_and(|segment| segment.executable)
    }

    /// The file's bytes from an address up to its segment's end.
    pub(crate) fn bytes_at<'a>(&self, file: &'a [u8], link: u64) -> Option<&'a [u8]> {
        let segment = self.segment_of(link)?;
        let skip = link - segment.link.0;
        let range = inside(file, segment.offset.0 + skip, segment.file_size - skip)?;
        file.get(range)
    }

    /// The eight bytes at an address.
    pub(crate) fn word_at(&self, file: &[u8], link: u64) -> Option<u64> {
        let bytes = self.bytes_at(file, link)?.first_chunk::<8>()?;
        Some(u64::from_le_bytes(*bytes))
    }
}

/// A `PT_LOAD` header.
fn load(program: &elf::ProgramHeader64<LE>) -> Segment {
    let flags = program.p_flags.get(LE);
    Segment {
        link: LinkAddr(program.p_vaddr.get(LE)),
        offset: FileOffset(program.p_offset.get(LE)),
        file_size: program.p_filesz.get(LE),
        mem_size: program.p_memsz.get(LE),
        executable: flags & elf::PF_X != 0,
        readable: flags & elf::PF_R != 0,
        writable: flags & elf::PF_W != 0,
        align: program.p_align.get(LE),
    }
}

/// The section table; none is fine, one that leaves the file is not.
fn sections(file: &[u8], header: &elf::FileHeader64<LE>) -> Result<Vec<Section>, &'static str> {
    const TABLE: &str = "the section header table";
    let start = header.e_shoff.get(LE);
    let entry = size_of::<elf::SectionHeader64<LE>>();
    if start == 0 || usize::from(header.e_shentsize.get(LE)) != entry {
        return Ok(Vec::new());
    }
    let table = usize::try_from(start)
        .ok()
        .and_then(|at| file.get(at..))
        .ok_or(TABLE)?;
    let read = |count| {
        pod::slice_from_bytes::<elf::SectionHeader64<LE>>(table, count)
            .map(|(headers, _)| headers)
            .map_err(|()| TABLE)
    };
    // With too many sections for the header's fields the first entry holds the numbers.
    let first = read(1)?;
    let count = match header.e_shnum.get(LE) {
        0 => usize::try_from(first[0].sh_size.get(LE)).map_err(|_| TABLE)?,
        count => count.into(),
    };
    let names = match header.e_shstrndx.get(LE) {
        elf::SHN_XINDEX => first[0].sh_link.get(LE) as usize,
        index => index.into(),
    };
    let headers = read(count)?;
    let names = headers
        .get(names)
        .and_then(|header| inside(file, header.sh_offset.get(LE), header.sh_size.get(LE)));
    headers
        .iter()
        .map(|header| section(file, header, names.clone()))
        .collect()
}

/// One entry, with its name's place.
fn section(
    file: &[u8],
    header: &elf::SectionHeader64<LE>,
    names: Option<Range<usize>>,
) -> Result<Section, &'static str> {
    let (offset, size) = (header.sh_offset.get(LE), header.sh_size.get(LE));
    let kind = header.sh_type.get(LE);
    let has_bytes = kind != elf::SHT_NOBITS && kind != elf::SHT_NULL;
    if has_bytes && inside(file, offset, size).is_none() {
        return Err("a section");
    }
    let name = names
        .and_then(|names| {
            let start = names.start.checked_add(header.sh_name.get(LE) as usize)?;
            // No section name that is asked for is longer than this.
            let end = names.end.min(start.checked_add(64)?);
            let length = memchr::memchr(0, file.get(start..end)?)?;
            Some(start..start + length)
        })
        .unwrap_or(0..0);
    Ok(Section {
        name,
        kind,
        flags: header.sh_flags.get(LE),
        link: header.sh_addr.get(LE),
        offset: if has_bytes { offset as usize } else { 0 },
        size: if kind == elf::SHT_NULL { 0 } else { size },
        linked: header.sh_link.get(LE) as usize,
    })
}
