//! One page of a file in this process's memory, for as long as the value lives.

use std::{io, os::fd::BorrowedFd, ptr::NonNull};

use lancet_abi::units::RuntimeAddr;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// `mmap` covers at least one page, whatever the page size.
const LENGTH: usize = 1;

pub(crate) struct Page(NonNull<core::ffi::c_void>);

/// Maps the first page of a file, without any access to it.
pub(crate) fn map_page(file: BorrowedFd<'_>) -> io::Result<Page> {
    // SAFETY: a new mapping at an address that the kernel chooses touches no memory of this program.
    let address = unsafe {
        mmap(
            std::ptr::null_mut(),
            LENGTH,
            ProtFlags::empty(),
            MapFlags::PRIVATE,
            file,
            0,
        )?
    };
    NonNull::new(address)
        .map(Page)
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

impl Page {
    pub(crate) fn address(&self) -> RuntimeAddr {
        RuntimeAddr(self.0.addr().get() as u64)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the page was mapped by `map_page` and nobody has a reference into it: it is not even readable.
        // An error could only leave the page mapped.
        let _ = unsafe { munmap(self.0.as_ptr(), LENGTH) };
    }
}
