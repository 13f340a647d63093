//! Symbol tables as they are in files.

use object::LittleEndian as LE;
use object::elf;
use object::pod;

use crate::dynamic::Dynamic;
use crate::elf::Elf;

/// Names longer than this are not read.
const MAX_NAME: usize = 64 << 10;

/// One symbol table with its names.
#[derive(Clone, Copy, Default)]
pub(crate) struct Symtab<'a> {
    pub(crate) symbols: &'a [elf::Sym64<LE>],
    pub(crate) strings: &'a [u8],
}

/// A symbol, its name still in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) value: u64,
    pub(crate) size: u64,
    pub(crate) kind: u8,
    pub(crate) index: usize,
    pub(crate) defined: bool,
}

impl<'a> Symtab<'a> {
    /// The full table (`.symtab`) of the file itself.
    pub(crate) fn full(elf: &Elf, file: &'a [u8]) -> Self {
        Self::section(elf, file, elf::SHT_SYMTAB)
    }

    /// The loader's table (`.dynsym`), also when the section table was removed.
    pub(crate) fn dynamic(elf: &Elf, file: &'a [u8]) -> Self {
        let table = Self::section(elf, file, elf::SHT_DYNSYM);
        if !table.symbols.is_empty() {
            return table;
        }
        let dynamic = Dynamic::of(elf, file);
        Self {
            symbols: dynamic.symbols(),
            strings: dynamic.strings(),
        }
    }

    fn section(elf: &Elf, file: &'a [u8], kind: u32) -> Self {
        let Some(section) = elf.sections.iter().find(|s| s.kind == kind) else {
            return Self::default();
        };
        let strings = elf
            .sections
            .get(section.linked)
            .map_or(&[][..], |s| s.bytes(file));
        Self::new(section.bytes(file), strings)
    }

    /// From the bytes of the table and of its strings.
    pub(crate) fn new(table: &'a [u8], strings: &'a [u8]) -> Self {
        let count = table.len() / size_of::<elf::Sym64<LE>>();
        let symbols = pod::slice_from_bytes(table, count).map_or(&[][..], |(s, _)| s);
        Self { symbols, strings }
    }

    /// The named symbols, versions cut off their names.
    ///
    /// Hostile tables make many names share one long string; the walk ends when more
    /// name bytes were read than a real table could have.
    pub(crate) fn iter(self) -> impl Iterator<Item = Symbol<'a>> {
        let mut budget = self.strings.len().saturating_mul(4).saturating_add(1 << 20);
        self.symbols
            .iter()
            .enumerate()
            .map_while(move |(index, symbol)| {
                let name = self.name(symbol.st_name.get(LE));
                budget = budget.checked_sub(name.len())?;
                Some(Symbol {
                    name: unversioned(name),
                    value: symbol.st_value.get(LE),
                    size: symbol.st_size.get(LE),
                    kind: symbol.st_info & 0xf,
                    index,
                    defined: !matches!(
                        symbol.st_shndx.get(LE),
                        elf::SHN_UNDEF | elf::SHN_ABS | elf::SHN_COMMON
                    ),
                })
            })
            .filter(|symbol| !symbol.name.is_empty())
    }

    fn name(self, at: u32) -> &'a [u8] {
        let Some(bytes) = self.strings.get(at as usize..) else {
            return &[];
        };
        let bytes = &bytes[..bytes.len().min(MAX_NAME)];
        memchr::memchr(0, bytes).map_or(&[], |end| &bytes[..end])
    }
}

/// A name without its `@VERSION` or `@@VERSION`.
fn unversioned(name: &[u8]) -> &[u8] {
    match memchr::memchr(b'@', name) {
        Some(at) if at > 0 => &name[..at],
        _ => name,
    }
}
