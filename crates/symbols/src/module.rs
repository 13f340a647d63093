//! An opened executable or shared object.

use std::fs::File;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use lancet_abi::units::{FileOffset, LinkAddr};

use crate::bytes::Bytes;
use crate::error::SymbolError;
use crate::function::Function;
use crate::open;
use crate::roots::Roots;

/// Which file it is, as `/proc/PID/maps` shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    /// The device, as `makedev(major, minor)`.
    pub dev: u64,
    /// The inode.
    pub inode: u64,
}

impl FileId {
    /// From the three numbers of a line of `/proc/PID/maps`.
    #[must_use]
    pub fn new(major: u32, minor: u32, inode: u64) -> Self {
        Self { dev: libc::makedev(major, minor), inode }
    }
}

/// How the file is linked and loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A program at fixed addresses that needs no loader.
    StaticExec,
    /// A position-independent program that relocates itself.
    StaticPie,
    /// A program at fixed addresses with a loader.
    DynamicExec,
    /// A position-independent program with a loader.
    DynamicPie,
    /// A shared library.
    SharedObject,
}

/// Who handles faults of the module's code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runtime {
    /// Nobody looks at the faulting address.
    Native,
    /// Go: faults become panics, found by program counter.
    Go,
    /// A Java virtual machine.
    Jvm,
    /// A WebAssembly engine.
    Wasm,
    /// The .NET runtime.
    DotNet,
}

/// A part of the file that is loaded (`PT_LOAD`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Its first byte's address.
    pub link: LinkAddr,
    /// Its first byte's place in the file.
    pub offset: FileOffset,
    /// Bytes from the file.
    pub file_size: u64,
    /// Bytes in memory; those behind `file_size` are zero.
    pub mem_size: u64,
    /// It may be run.
    pub executable: bool,
    /// It may be read.
    pub readable: bool,
    /// It may be written.
    pub writable: bool,
    /// Its alignment.
    pub align: u64,
}

/// An opened ELF file; cloning shares it.
#[derive(Clone)]
pub struct Module {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    id: FileId,
    bytes: Bytes,
}

impl Module {
    /// Opens a program or shared library for x86-64; everything else is refused by name.
    pub fn open(path: &Path) -> Result<Self, SymbolError> {
        Self::from_file(open::open(path)?, path)
    }

    /// Reads an already opened file; `shown` is its name in messages and for debuginfo.
    pub fn from_file(file: File, shown: &Path) -> Result<Self, SymbolError> {
        let (bytes, id) = open::read(&file, shown)?;
        Ok(Self { inner: Arc::new(Inner { path: shown.into(), id, bytes }) })
    }

    /// Reads a file's bytes; its [`FileId`] is zero.
    pub fn from_bytes(bytes: Vec<u8>, shown: &Path) -> Result<Self, SymbolError> {
        Ok(Self { inner: Arc::new(Inner { path: shown.into(), id: FileId::default(), bytes: Bytes::Owned(bytes) }) })
    }

    /// The name that it was opened by.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Which file it is.
    #[must_use]
    pub fn file_id(&self) -> FileId {
        self.inner.id
    }

    /// All bytes of the file.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.inner.bytes
    }

    /// The linker's build id.
    #[must_use]
    pub fn build_id(&self) -> Option<&[u8]> {
        None
    }

    /// How it is linked.
    #[must_use]
    pub fn kind(&self) -> Kind {
        Kind::SharedObject
    }

    /// It is loaded at an address that the kernel or loader chooses.
    #[must_use]
    pub fn is_pie(&self) -> bool {
        !matches!(self.kind(), Kind::StaticExec | Kind::DynamicExec)
    }

    /// Where the program starts; zero for most libraries.
    #[must_use]
    pub fn entry(&self) -> LinkAddr {
        LinkAddr(0)
    }

    /// The loader that it asks for.
    #[must_use]
    pub fn interpreter(&self) -> Option<&Path> {
        None
    }

    /// The libraries that it asks for, in order.
    #[must_use]
    pub fn needed(&self) -> Vec<String> {
        Vec::new()
    }

    /// Who handles faults of its code.
    #[must_use]
    pub fn runtime(&self) -> Runtime {
        Runtime::Native
    }

    /// What is loaded, by address.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &[]
    }

    /// The file's bytes of each executable segment.
    #[must_use]
    pub fn text(&self) -> Vec<(LinkAddr, &[u8])> {
        Vec::new()
    }

    /// Zero bytes behind an executable segment's file part, up to the page's end: where
    /// they start and how many, when there are at least 64.
    #[must_use]
    pub fn slack(&self) -> Option<(LinkAddr, u64)> {
        None
    }

    /// Where a loaded byte lies in the file.
    #[must_use]
    pub fn offset_of(&self, link: LinkAddr) -> Option<FileOffset> {
        let _ = link;
        None
    }

    /// Where a byte of the file is loaded.
    #[must_use]
    pub fn link_of(&self, offset: FileOffset) -> Option<LinkAddr> {
        let _ = offset;
        None
    }

    /// All functions, by address, then name.
    #[must_use]
    pub fn functions(&self) -> &[Function] {
        &[]
    }

    /// The function or unwind entry around an address.
    #[must_use]
    pub fn function_range(&self, link: LinkAddr) -> Option<Range<LinkAddr>> {
        let _ = link;
        None
    }

    /// The next start of code behind an address that is known, or its section's end.
    #[must_use]
    pub fn next_start(&self, link: LinkAddr) -> LinkAddr {
        link
    }

    /// What a scan of its branches has to start from.
    #[must_use]
    pub fn roots(&self) -> Roots<'_> {
        Roots::default()
    }

    /// The first `len` bytes in the file at a symbol (function or data).
    #[must_use]
    pub fn data_at_symbol(&self, name: &str, len: usize) -> Option<&[u8]> {
        let _ = (name, len);
        None
    }

    /// The address of a symbol (function or data).
    #[must_use]
    pub fn static_symbol_value(&self, name: &str) -> Option<LinkAddr> {
        let _ = name;
        None
    }
}
