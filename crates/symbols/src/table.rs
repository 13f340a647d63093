//! The list of a module's functions, out of all its symbol tables.

use std::collections::HashMap;

use lancet_abi::units::{FileOffset, LinkAddr};
use object::elf;

use crate::elf::Elf;
use crate::frames::Frame;
use crate::function::Function;
use crate::symtab::{Symbol, Symtab};

/// All functions of `tables` and `more`, by address, then name; `frames` is asked for only when some
/// symbol has no size.
pub(crate) fn functions<'f>(
    elf: &Elf,
    tables: &[Symtab<'_>],
    more: Vec<Symbol<'_>>,
    frames: impl FnOnce() -> &'f [Frame],
) -> Vec<Function> {
    let mut symbols: Vec<Symbol<'_>> = tables
        .iter()
        .flat_map(|table| table.iter())
        .chain(more)
        .filter(|symbol| symbol.defined && may_be_function(elf, symbol))
        .collect();
    // Of equal ones the typed and larger comes first and is kept.
    symbols.sort_unstable_by(|a, b| {
        (a.value, a.name, b.kind, b.size).cmp(&(b.value, b.name, a.kind, a.size))
    });
    symbols.dedup_by(|later, first| later.value == first.value && later.name == first.name);
    drop_labels(&mut symbols);
    fill_sizes(elf, &mut symbols, frames);
    symbols
        .iter()
        .filter_map(|symbol| function(elf, symbol))
        .collect()
}

/// A function, or an untyped symbol in a section of code.
fn may_be_function(elf: &Elf, symbol: &Symbol<'_>) -> bool {
    if !elf.is_code(symbol.value) {
        return false;
    }
    match symbol.kind {
        elf::STT_FUNC | elf::STT_GNU_IFUNC => true,
        elf::STT_NOTYPE => {
            !symbol.name.starts_with(b".")
                && !symbol.name.starts_with(b"$")
                && elf.code_around(symbol.value).is_some()
        }
        _ => false,
    }
}

/// Untyped symbols inside a function are its labels.
fn drop_labels(symbols: &mut Vec<Symbol<'_>>) {
    let mut inside = 0..0;
    symbols.retain(|symbol| {
        if symbol.kind == elf::STT_NOTYPE {
            return !(inside.start < symbol.value && symbol.value < inside.end);
        }
        let end = symbol.value.saturating_add(symbol.size);
        if end > inside.end {
            inside = symbol.value..end;
        }
        true
    });
}

/// Gives symbols without a size the bytes up to their unwind entry's end, else up to the
/// next symbol, else up to the section's end.
fn fill_sizes<'f>(elf: &Elf, symbols: &mut [Symbol<'_>], frames: impl FnOnce() -> &'f [Frame]) {
    if symbols.iter().all(|symbol| symbol.size > 0) {
        return;
    }
    let frames: HashMap<u64, u64> = frames().iter().map(|f| (f.start, f.size)).collect();
    let mut next = u64::MAX;
    let mut current = u64::MAX;
    for symbol in symbols.iter_mut().rev() {
        if symbol.value != current {
            next = current;
            current = symbol.value;
        }
        if symbol.size == 0 {
            let end = next.min(region_end(elf, symbol.value));
            symbol.size = frames
                .get(&symbol.value)
                .copied()
                .unwrap_or(end - symbol.value);
        }
    }
}

/// Where the section around an address ends, else its segment's bytes; the address itself
/// when neither is there.
pub(crate) fn region_end(elf: &Elf, link: u64) -> u64 {
    let section = elf.code_around(link);
    let segment = || {
        elf.segment_of(link)
            .map(|s| s.link.0.saturating_add(s.file_size))
    };
    section
        .map(|range| range.end)
        .or_else(segment)
        .unwrap_or(link)
        .max(link)
}

fn function(elf: &Elf, symbol: &Symbol<'_>) -> Option<Function> {
    let segment = elf.segment_of(symbol.value)?;
    let skip = symbol.value - segment.link.0;
    Some(Function {
        name: String::from_utf8_lossy(symbol.name).into_owned(),
        link: LinkAddr(symbol.value),
        size: symbol.size.min(segment.file_size - skip),
        offset: FileOffset(segment.offset.0.checked_add(skip)?),
        is_ifunc: symbol.kind == elf::STT_GNU_IFUNC,
        is_untyped: symbol.kind == elf::STT_NOTYPE,
    })
}
