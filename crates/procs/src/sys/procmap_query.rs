//! `PROCMAP_QUERY`: the mapping at or after an address, from the open maps file of a process (Linux 6.11 and later).

use std::{fs::File, io};

use lancet_abi::units::{FileOffset, RuntimeAddr};
use linux_raw_sys::general::{procmap_query, procmap_query_flags as flag};
use rustix::{
    io::Errno,
    ioctl::{Opcode, Updater, ioctl, opcode},
};

use crate::Mapping;

const QUERY: Opcode = opcode::read_write::<procmap_query>(b'f', 17);

/// A path as the kernel shows it is at most one page with its closing zero.
const LONGEST_NAME: usize = 4096;

/// Which mapping, and whether with its name.
#[derive(Clone, Copy, Default)]
pub(crate) struct Want {
    pub(crate) file_backed: bool,
    pub(crate) executable: bool,
    /// Else only the one that covers the address.
    pub(crate) or_next: bool,
    pub(crate) name: bool,
}

/// `None` when there is no such mapping. `ESRCH` when the memory is gone, `ENOTTY` on kernels without the query.
pub(crate) fn query(file: &File, address: RuntimeAddr, want: Want) -> io::Result<Option<Mapping>> {
    let mut name = [0_u8; LONGEST_NAME];
    match raw(file, address, want, want.name.then_some(&mut name)) {
        // A path that is longer than the kernel can show has no name in the text form either.
        Err(Errno::NAMETOOLONG) => raw(file, address, want, None),
        answer => answer,
    }
    .or_else(|e| {
        if e == Errno::NOENT {
            Ok(None)
        } else {
            Err(e.into())
        }
    })
}

fn raw(
    file: &File,
    address: RuntimeAddr,
    want: Want,
    mut name: Option<&mut [u8; LONGEST_NAME]>,
) -> Result<Option<Mapping>, Errno> {
    let choice = |on: bool, flag: flag| if on { flag as u64 } else { 0 };
    let mut answer = procmap_query {
        size: size_of::<procmap_query>() as u64,
        query_flags: choice(want.file_backed, flag::PROCMAP_QUERY_FILE_BACKED_VMA)
            | choice(want.executable, flag::PROCMAP_QUERY_VMA_EXECUTABLE)
            | choice(want.or_next, flag::PROCMAP_QUERY_COVERING_OR_NEXT_VMA),
        query_addr: address.0,
        vma_start: 0,
        vma_end: 0,
        vma_flags: 0,
        vma_page_size: 0,
        vma_offset: 0,
        inode: 0,
        dev_major: 0,
        dev_minor: 0,
        vma_name_size: if name.is_some() {
            LONGEST_NAME as u32
        } else {
            0
        },
        build_id_size: 0,
        vma_name_addr: name
            .as_mut()
            .map_or(0, |buffer| buffer.as_mut_ptr().expose_provenance() as u64),
        build_id_addr: 0,
    };
    // SAFETY: the opcode is that of `procmap_query` and the structure states its own size. The one buffer it points to is
    // `name`, borrowed for this whole call and as long as the structure says.
    unsafe { ioctl(file, Updater::<QUERY, procmap_query>::new(&mut answer))? };
    if answer.vma_end <= answer.vma_start || answer.vma_end <= address.0 {
        return Err(Errno::INVAL);
    }
    let has = |flag: flag| answer.vma_flags & flag as u64 != 0;
    let path = name.map_or_else(Vec::new, |buffer| {
        // The stated size includes the closing zero.
        let stated = &buffer[..LONGEST_NAME.min(answer.vma_name_size as usize)];
        stated
            .split(|&b| b == 0)
            .next()
            .unwrap_or_default()
            .to_vec()
    });
    Ok(Some(Mapping {
        start: RuntimeAddr(answer.vma_start),
        end: RuntimeAddr(answer.vma_end),
        offset: FileOffset(answer.vma_offset),
        read: has(flag::PROCMAP_QUERY_VMA_READABLE),
        write: has(flag::PROCMAP_QUERY_VMA_WRITABLE),
        execute: has(flag::PROCMAP_QUERY_VMA_EXECUTABLE),
        shared: has(flag::PROCMAP_QUERY_VMA_SHARED),
        dev: libc::makedev(answer.dev_major, answer.dev_minor),
        inode: answer.inode,
        path,
    }))
}
