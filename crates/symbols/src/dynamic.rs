//! The dynamic section: what the loader reads.

use object::LittleEndian as LE;
use object::elf;
use object::pod;

use crate::elf::Elf;

/// The entries of the dynamic section, up to `DT_NULL`.
pub(crate) struct Dynamic<'e, 'a> {
    elf: &'e Elf,
    file: &'a [u8],
    entries: &'a [elf::Dyn64<LE>],
}

impl<'e, 'a> Dynamic<'e, 'a> {
    /// Of a file that may have none.
    pub(crate) fn of(elf: &'e Elf, file: &'a [u8]) -> Self {
        let bytes = elf
            .dynamic
            .clone()
            .and_then(|range| file.get(range))
            .unwrap_or(&[]);
        let count = bytes.len() / size_of::<elf::Dyn64<LE>>();
        let entries = pod::slice_from_bytes(bytes, count).map_or(&[][..], |(entries, _)| entries);
        let end = entries
            .iter()
            .position(|e: &elf::Dyn64<LE>| e.d_tag.get(LE) == 0)
            .unwrap_or(count);
        Self {
            elf,
            file,
            entries: &entries[..end.min(entries.len())],
        }
    }

    /// The values of every entry with that tag.
    pub(crate) fn all(&self, tag: i64) -> impl Iterator<Item = u64> + use<'e, 'a> {
        self.entries
            .iter()
            .filter(move |e| e.d_tag.get(LE) == tag)
            .map(|e| e.d_val.get(LE))
    }

    /// The value of the first entry with that tag.
    pub(crate) fn first(&self, tag: i64) -> Option<u64> {
        self.all(tag).next()
    }

    /// The bytes of a table that two entries describe by address and size.
    pub(crate) fn table(&self, address: i64, size: i64) -> &'a [u8] {
        let bytes = self
            .first(address)
            .and_then(|at| self.elf.bytes_at(self.file, at));
        let size = self.first(size).and_then(|size| usize::try_from(size).ok());
        bytes
            .zip(size)
            .map_or(&[], |(bytes, size)| &bytes[..size.min(bytes.len())])
    }

    /// The string table.
    pub(crate) fn strings(&self) -> &'a [u8] {
        self.table(elf::DT_STRTAB, elf::DT_STRSZ)
    }

    /// A string of the string table.
    pub(crate) fn string(&self, at: u64) -> Option<String> {
        let bytes = self.strings().get(usize::try_from(at).ok()?..)?;
        // Library names are paths.
        let bytes = &bytes[..bytes.len().min(4096)];
        let end = memchr::memchr(0, bytes)?;
        Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
    }

    /// The symbol table, its length taken from the hash tables: for files without sections.
    pub(crate) fn symbols(&self) -> &'a [elf::Sym64<LE>] {
        let table = self
            .first(elf::DT_SYMTAB)
            .and_then(|at| self.elf.bytes_at(self.file, at));
        let count = self.sysv_count().or_else(|| self.gnu_count());
        let Some((table, count)) = table.zip(count) else {
            return &[];
        };
        let fits = table.len() / size_of::<elf::Sym64<LE>>();
        pod::slice_from_bytes(table, count.min(fits)).map_or(&[], |(symbols, _)| symbols)
    }

    fn hash_words(&self, tag: i64) -> Option<&'a [u8]> {
        self.elf.bytes_at(self.file, self.first(tag)?)
    }

    fn sysv_count(&self) -> Option<usize> {
        word(self.hash_words(elf::DT_HASH)?, 1).map(|count| count as usize)
    }

    /// One more than the largest index that the buckets and their chains reach.
    fn gnu_count(&self) -> Option<usize> {
        let bytes = self.hash_words(elf::DT_GNU_HASH)?;
        let (buckets, base) = (word(bytes, 0)? as usize, word(bytes, 1)? as usize);
        let bloom = (word(bytes, 2)? as usize).checked_mul(2)?;
        let first = bloom.checked_add(4)?;
        let chains = first.checked_add(buckets)?;
        let mut last = 0;
        for bucket in first..chains {
            last = last.max(word(bytes, bucket)? as usize);
        }
        if last < base {
            return Some(base);
        }
        loop {
            let link = word(bytes, chains.checked_add(last - base)?)?;
            last += 1;
            if link & 1 == 1 {
                return Some(last);
            }
        }
    }
}

/// The 32-bit word number `index`.
fn word(bytes: &[u8], index: usize) -> Option<u32> {
    let at = index.checked_mul(4)?;
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}
