//! Go's own function table, which stays in stripped programs.
//!
//! Header: magic (u32), two zeros, instruction quantum, pointer size; then words: number of
//! functions, number of files, from Go 1.18 on the text's start, then the places of function
//! names, compile units, files, line tables, and functions, all relative to the header. The
//! functions are pairs of start and place of a record, relative to the first pair, and one
//! last start, the end. Starts and places are words before Go 1.18, later 32 bits with starts
//! relative to the text. A record is the start again, then the place of the name (u32).

use object::elf;

use crate::elf::Elf;
use crate::symtab::Symbol;

/// The table as Go 1.16 and 1.17 write it.
const WORDS: u32 = 0xffff_fffa;
/// From Go 1.18 and from Go 1.20 on.
const OFFSETS: [u32; 2] = [0xffff_fff0, 0xffff_fff1];
/// Longer names are not read.
const MAX_NAME: usize = 64 << 10;

/// All functions of the table, or none when there is no table of a known kind.
pub(crate) fn functions<'a>(elf: &Elf, file: &'a [u8]) -> Vec<Symbol<'a>> {
    let names = [".gopclntab", ".data.rel.ro.gopclntab"];
    let section = names.into_iter().find_map(|name| elf.section(file, name));
    section
        .and_then(|section| Table::of(elf, file, section.bytes(file)))
        .map_or(Vec::new(), |t| t.all())
}

struct Table<'a> {
    count: usize,
    /// Added to each start.
    text: u64,
    /// Bytes of a start or place.
    width: usize,
    names: &'a [u8],
    functions: &'a [u8],
}

impl<'a> Table<'a> {
    fn of(elf: &Elf, file: &[u8], table: &'a [u8]) -> Option<Self> {
        let magic = number(table, 0, 4)? as u32;
        if table.get(7) != Some(&8) {
            return None;
        }
        let word = |index: usize| number(table, 8 + index * 8, 8);
        let part = |index: usize| table.get(usize::try_from(word(index)?).ok()?..);
        let count = usize::try_from(word(0)?).ok()?;
        if magic == WORDS {
            return Some(Self {
                count,
                text: 0,
                width: 8,
                names: part(2)?,
                functions: part(6)?,
            });
        }
        if !OFFSETS.contains(&magic) {
            return None;
        }
        // A position-independent program has its start filled in by the loader.
        let text = match word(2)? {
            0 => elf.section(file, ".text")?.link,
            start => start,
        };
        Some(Self {
            count,
            text,
            width: 4,
            names: part(3)?,
            functions: part(7)?,
        })
    }

    fn all(&self) -> Vec<Symbol<'a>> {
        let mut budget = self.names.len().saturating_mul(4).saturating_add(1 << 20);
        (0..self.count)
            .map_while(|index| {
                let symbol = self.function(index)?;
                budget = budget.checked_sub(symbol.name.len())?;
                Some(symbol)
            })
            .filter(|symbol| !symbol.name.is_empty() && symbol.size > 0)
            .collect()
    }

    fn function(&self, index: usize) -> Option<Symbol<'a>> {
        let pair = index.checked_mul(self.width * 2)?;
        let start = number(self.functions, pair, self.width)?;
        let record =
            usize::try_from(number(self.functions, pair + self.width, self.width)?).ok()?;
        let next = number(self.functions, pair + self.width * 2, self.width)?;
        let name = number(self.functions, record.checked_add(self.width)?, 4)?;
        let name = self.names.get(usize::try_from(name).ok()?..)?;
        let name = &name[..name.len().min(MAX_NAME)];
        Some(Symbol {
            name: &name[..memchr::memchr(0, name)?],
            value: self.text.wrapping_add(start),
            size: next.saturating_sub(start),
            kind: elf::STT_FUNC,
            index,
            defined: true,
        })
    }
}

/// A number of `width` bytes, 4 or 8.
fn number(bytes: &[u8], at: usize, width: usize) -> Option<u64> {
    let bytes = bytes.get(at..)?;
    if width == 8 {
        return bytes.first_chunk().map(|b| u64::from_le_bytes(*b));
    }
    bytes.first_chunk().map(|b| u32::from_le_bytes(*b).into())
}
