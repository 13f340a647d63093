//! Relocations that store an address which the file itself determines.

use object::LittleEndian as LE;
use object::elf;
use object::pod;

use crate::dynamic::Dynamic;
use crate::elf::Elf;

/// A word that the loader fills in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stored {
    /// The word's address.
    pub(crate) place: u64,
    /// The link address that it then holds.
    pub(crate) target: u64,
}

/// All such words, by place: `RELATIVE`, `64` and `IRELATIVE` entries, and `RELR`.
pub(crate) fn stored(elf: &Elf, file: &[u8]) -> Vec<Stored> {
    let dynamic = Dynamic::of(elf, file);
    let mut found = Vec::new();
    let tables = [
        (elf::DT_RELA, elf::DT_RELASZ),
        (elf::DT_JMPREL, elf::DT_PLTRELSZ),
    ];
    for (address, size) in tables {
        addends(&dynamic, dynamic.table(address, size), &mut found);
    }
    // Static programs resolve their indirect functions from sections only.
    if dynamic.first(elf::DT_RELA).is_none() {
        for section in elf.sections.iter().filter(|s| s.kind == elf::SHT_RELA) {
            if section.flags & u64::from(elf::SHF_ALLOC) != 0 {
                addends(&dynamic, section.bytes(file), &mut found);
            }
        }
    }
    packed(
        elf,
        file,
        dynamic.table(elf::DT_RELR, elf::DT_RELRSZ),
        &mut found,
    );
    found.sort_unstable_by_key(|stored| (stored.place, stored.target));
    found
}

fn addends(dynamic: &Dynamic<'_, '_>, table: &[u8], found: &mut Vec<Stored>) {
    let count = table.len() / size_of::<elf::Rela64<LE>>();
    let Ok((entries, _)) = pod::slice_from_bytes::<elf::Rela64<LE>>(table, count) else {
        return;
    };
    let symbols = dynamic.symbols();
    for entry in entries {
        let addend = entry.r_addend.get(LE) as u64;
        let base = match entry.r_type(LE, false) {
            elf::R_X86_64_RELATIVE | elf::R_X86_64_IRELATIVE => 0,
            elf::R_X86_64_64 => match symbols.get(entry.r_sym(LE, false) as usize) {
                Some(symbol) if symbol.st_shndx.get(LE) != elf::SHN_UNDEF => {
                    symbol.st_value.get(LE)
                }
                _ => continue,
            },
            _ => continue,
        };
        found.push(Stored {
            place: entry.r_offset.get(LE),
            target: base.wrapping_add(addend),
        });
    }
}

/// `RELR`: an even word is an address, the next word's place follows it; an odd word is a
/// bitmap over the next 63 words. What is stored lies at the place itself.
fn packed(elf: &Elf, file: &[u8], table: &[u8], found: &mut Vec<Stored>) {
    let mut next = 0_u64;
    let mut store = |place| {
        if let Some(target) = elf.word_at(file, place) {
            found.push(Stored { place, target });
        }
    };
    for word in table.as_chunks::<8>().0 {
        let word = u64::from_le_bytes(*word);
        if word & 1 == 0 {
            store(word);
            next = word.wrapping_add(8);
            continue;
        }
        for bit in 1..64 {
            if word >> bit & 1 == 1 {
                store(next.wrapping_add((bit - 1) * 8));
            }
        }
        next = next.wrapping_add(63 * 8);
    }
}
