//! What a user may have meant by a name that is not there.

use object::LittleEndian as LE;
use object::elf;

use crate::dynamic::Dynamic;
use crate::module::Module;
use crate::symtab::Symtab;

/// How many names are suggested.
const MAX_SHOWN: usize = 3;

/// Near names, most likely first: other case, few edits, same beginning, containing it.
pub(crate) fn near(module: &Module, wanted: &str) -> Vec<String> {
    let wanted = wanted.trim_matches('*');
    if wanted.len() < 2 {
        return Vec::new();
    }
    let lower = wanted.to_ascii_lowercase();
    let mut found: Vec<(usize, &str)> = module
        .functions()
        .iter()
        .filter_map(|function| Some((distance(&lower, &function.name)?, function.name.as_str())))
        .collect();
    found.sort_unstable();
    found.dedup();
    found
        .into_iter()
        .take(MAX_SHOWN)
        .map(|(_, name)| crate::names::demangle(name).into_owned())
        .collect()
}

/// How far a name is from the wanted one (in lower case); nothing when too far.
fn distance(wanted: &str, name: &str) -> Option<usize> {
    let length = name.len().abs_diff(wanted.len());
    if name.eq_ignore_ascii_case(wanted) {
        return Some(0);
    }
    let bare = name.trim_start_matches('_').to_ascii_lowercase();
    let limit = (wanted.len() / 3).clamp(1, 3);
    if length <= limit + 2 {
        let edits = edits(wanted.as_bytes(), bare.as_bytes());
        if edits <= limit {
            return Some(1 + edits * 2 + usize::from(name.starts_with('_')));
        }
    }
    if bare.starts_with(wanted) {
        return Some(20 + length);
    }
    (wanted.len() >= 4 && bare.contains(wanted)).then_some(1000 + length)
}

/// The number of insertions, removals, replacements and swaps of neighbours between two.
fn edits(a: &[u8], b: &[u8]) -> usize {
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = last[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(last[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

/// The sentence for the user about near names and other files.
pub(crate) fn hint(module: &Module, wanted: &str, near: &[String]) -> String {
    let mut text = String::new();
    if let Some(library) = imported_from(module, wanted) {
        text.push_str(&format!(
            "; it is only imported there: probe it in {library}"
        ));
    }
    if !near.is_empty() {
        text.push_str(&format!("; did you mean `{}`?", near.join("`, `")));
    }
    if text.is_empty() && module.functions().is_empty() {
        text.push_str("; the file has no function names at all: install its debug symbols, or probe FILE:0xADDRESS");
    } else if text.is_empty() {
        text.push_str("; it may be inlined or have another name: list names with a pattern such as FILE:*part*");
    }
    text
}

/// The library that an undefined symbol is bound to, by its version, else all that are needed.
fn imported_from(module: &Module, wanted: &str) -> Option<String> {
    let (elf, file) = (module.elf(), module.bytes());
    let table = Symtab::dynamic(elf, file);
    let symbol = table
        .iter()
        .find(|s| !s.defined && s.name == wanted.as_bytes())?;
    let by_version = || {
        let dynamic = Dynamic::of(elf, file);
        let versions = elf.bytes_at(file, dynamic.first(elf::DT_VERSYM)?)?;
        let at = symbol.index.checked_mul(2)?;
        let version = u16::from_le_bytes(*versions.get(at..)?.first_chunk()?) & elf::VERSYM_VERSION;
        library_of(
            &dynamic,
            elf.bytes_at(file, dynamic.first(elf::DT_VERNEED)?)?,
            version,
        )
    };
    by_version().or_else(|| {
        let needed = module.needed();
        (!needed.is_empty()).then(|| needed.join(" or "))
    })
}

/// The file of a version index in the table of needed versions.
fn library_of(dynamic: &Dynamic<'_, '_>, table: &[u8], wanted: u16) -> Option<String> {
    let count = dynamic.first(elf::DT_VERNEEDNUM)?;
    let mut at = 0_usize;
    let mut budget = table.len();
    for _ in 0..count {
        let (need, _) = object::pod::from_bytes::<elf::Verneed<LE>>(table.get(at..)?).ok()?;
        let mut entry = at.checked_add(need.vn_aux.get(LE) as usize)?;
        for _ in 0..need.vn_cnt.get(LE) {
            budget = budget.checked_sub(16)?;
            let (aux, _) = object::pod::from_bytes::<elf::Vernaux<LE>>(table.get(entry..)?).ok()?;
            if aux.vna_other.get(LE) & elf::VERSYM_VERSION == wanted {
                return dynamic.string(need.vn_file.get(LE).into());
            }
            entry = entry.checked_add(aux.vna_next.get(LE) as usize)?;
        }
        budget = budget.checked_sub(16)?;
        at = at.checked_add(need.vn_next.get(LE) as usize)?;
    }
    None
}
