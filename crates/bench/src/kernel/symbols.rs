//! From a function's name to the place of its first byte in the file.

use std::collections::HashMap;
use std::path::Path;

use lancet_abi::units::FileOffset;
use object::{Object, ObjectSection, ObjectSymbol};

use crate::Error;

/// The file offset of each function, in the order of `functions`.
pub(super) fn file_offsets(exe: &Path, functions: &[&str]) -> Result<Vec<FileOffset>, Error> {
    let unreadable = |reason: &dyn ToString| Error::File {
        path: exe.to_owned(),
        reason: reason.to_string(),
    };
    let bytes = std::fs::read(exe).map_err(|error| unreadable(&error))?;
    let file = object::File::parse(&*bytes).map_err(|error| unreadable(&error))?;
    let mut offsets = HashMap::new();
    for symbol in file.symbols() {
        let (Ok(name), Some(index)) = (symbol.name(), symbol.section_index()) else {
            continue;
        };
        if !functions.contains(&name) {
            continue;
        }
        let place = file.section_by_index(index).ok().and_then(|section| {
            let (start, _) = section.file_range()?;
            Some(FileOffset(
                start + symbol.address().checked_sub(section.address())?,
            ))
        });
        if let Some(offset) = place {
            offsets.insert(name, offset);
        }
    }
    functions
        .iter()
        .map(|function| {
            offsets
                .get(function)
                .copied()
                .ok_or_else(|| Error::NoSymbol {
                    path: exe.to_owned(),
                    function: (*function).to_owned(),
                })
        })
        .collect()
}
