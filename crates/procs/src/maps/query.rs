//! The query form, an ioctl on the open maps file: one mapping an answer, chosen by the kernel, without text.

use std::{fs::File, io};

use lancet_abi::units::RuntimeAddr;

use super::{
    Mapping,
    source::{CODE_IN_EXEC, Seen},
    text,
};
use crate::{
    FileId,
    sys::{Want, query},
};

pub(super) fn of_file(file: &File, id: FileId, executable_only: bool) -> io::Result<Seen> {
    let mut want = Want {
        file_backed: true,
        executable: executable_only,
        or_next: true,
        name: false,
    };
    let mut address = RuntimeAddr(0);
    let mut code = 0;
    let mut mappings = Vec::new();
    loop {
        let found = match query(file, address, want) {
            Ok(Some(found)) => found,
            Ok(None) => break,
            Err(e) if unsupported(&e) => return text::of_file(file, id, executable_only),
            Err(e) => return Err(e),
        };
        code += usize::from(found.execute);
        address = found.end;
        if found.shows(id) {
            want.name = true;
            // Asked again for its name, which costs more than all else. The map may have changed in between; then the
            // newer answer counts.
            let named = query(file, found.start, want)?.filter(|m| m.shows(id));
            want.name = false;
            address = named.as_ref().map_or(address, |m| m.end);
            mappings.extend(named);
        }
    }
    Ok(Seen {
        complete: code > CODE_IN_EXEC || !mappings.is_empty(),
        mappings,
    })
}

/// Every mapping of a file as code, without names.
pub(super) fn code(file: &File) -> io::Result<Seen> {
    let want = Want {
        file_backed: true,
        executable: true,
        or_next: true,
        name: false,
    };
    let mut mappings: Vec<Mapping> = Vec::new();
    let mut address = RuntimeAddr(0);
    loop {
        match query(file, address, want) {
            Ok(Some(found)) => {
                address = found.end;
                mappings.push(found);
            }
            Ok(None) => break,
            Err(e) if unsupported(&e) => {
                let mut seen = text::read(file)?;
                seen.mappings.retain(|m| m.execute && m.has_file());
                return Ok(seen);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(Seen {
        complete: mappings.len() > CODE_IN_EXEC,
        mappings,
    })
}

pub(super) fn at(file: &File, address: RuntimeAddr) -> io::Result<Seen> {
    let found = match query(
        file,
        address,
        Want {
            name: true,
            ..Want::default()
        },
    ) {
        Err(e) if unsupported(&e) => {
            let mut seen = text::read(file)?;
            seen.mappings.retain(|m| m.contains(address));
            seen.complete |= !seen.mappings.is_empty();
            return Ok(seen);
        }
        found => found?,
    };
    Ok(Seen {
        complete: found.is_some(),
        mappings: found.into_iter().collect::<Vec<Mapping>>(),
    })
}

/// Kernels before 6.11 know no such ioctl.
fn unsupported(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(libc::ENOTTY | libc::EINVAL | libc::ENOSYS)
    )
}
