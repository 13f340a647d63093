//! An opened executable or shared object.

use std::ffi::OsStr;
use std::fs::File;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use lancet_abi::units::{FileOffset, LinkAddr};

use crate::bytes::Bytes;
use crate::debuginfo::{self, OwnedTable};
use crate::dynamic::Dynamic;
use crate::elf::Elf;
use crate::error::SymbolError;
use crate::frames::{self, Frame};
use crate::function::Function;
use crate::roots::{self, Roots};
use crate::symtab::Symtab;
use crate::{facts, gopclntab, notes, open, table};

/// What the kernel maps at once.
const PAGE: u64 = 4096;
/// Fewer unused bytes than this are of no use.
const MIN_SLACK: u64 = 64;

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
        Self {
            dev: libc::makedev(major, minor),
            inode,
        }
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
    elf: Elf,
    kind: Kind,
    // Parsed when first asked for. writer: whoever asks first / readers: all / ordering: OnceLock.
    extra: OnceLock<Vec<OwnedTable>>,
    frames: OnceLock<Vec<Frame>>,
    functions: OnceLock<Vec<Function>>,
    starts: OnceLock<Vec<u64>>,
    runtime: OnceLock<Runtime>,
}

impl Module {
    /// Opens a program or shared library for x86-64; everything else is refused by name.
    pub fn open(path: &Path) -> Result<Self, SymbolError> {
        Self::from_file(open::open(path)?, path)
    }

    /// Reads an already opened file; `shown` is its name in messages and for debuginfo.
    pub fn from_file(file: File, shown: &Path) -> Result<Self, SymbolError> {
        let (bytes, id) = open::read(&file, shown)?;
        Self::parse(bytes, id, shown)
    }

    /// Reads a file's bytes; its [`FileId`] is zero.
    pub fn from_bytes(bytes: Vec<u8>, shown: &Path) -> Result<Self, SymbolError> {
        if bytes.is_empty() {
            return Err(SymbolError::Empty { path: shown.into() });
        }
        Self::parse(Bytes::Owned(bytes), FileId::default(), shown)
    }

    fn parse(bytes: Bytes, id: FileId, shown: &Path) -> Result<Self, SymbolError> {
        let elf = Elf::parse(&bytes, shown)?;
        let kind = facts::kind(&elf, &bytes);
        Ok(Self {
            inner: Arc::new(Inner {
                path: shown.into(),
                id,
                bytes,
                elf,
                kind,
                extra: OnceLock::new(),
                frames: OnceLock::new(),
                functions: OnceLock::new(),
                starts: OnceLock::new(),
                runtime: OnceLock::new(),
            }),
        })
    }

    pub(crate) fn elf(&self) -> &Elf {
        &self.inner.elf
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
        let elf = self.elf();
        elf.notes
            .iter()
            .find_map(|range| notes::build_id(self.bytes().get(range.clone())?))
    }

    /// How it is linked.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.inner.kind
    }

    /// It is loaded at an address that the kernel or loader chooses.
    #[must_use]
    pub fn is_pie(&self) -> bool {
        !matches!(self.kind(), Kind::StaticExec | Kind::DynamicExec)
    }

    /// Where the program starts; zero for most libraries.
    #[must_use]
    pub fn entry(&self) -> LinkAddr {
        LinkAddr(self.elf().entry)
    }

    /// The loader that it asks for.
    #[must_use]
    pub fn interpreter(&self) -> Option<&Path> {
        let bytes = self.bytes().get(self.elf().interpreter.clone()?)?;
        let end = memchr::memchr(0, bytes).unwrap_or(bytes.len());
        Some(Path::new(OsStr::from_bytes(&bytes[..end])))
    }

    /// The libraries that it asks for, in order.
    #[must_use]
    pub fn needed(&self) -> Vec<String> {
        let dynamic = Dynamic::of(self.elf(), self.bytes());
        dynamic
            .all(object::elf::DT_NEEDED)
            .filter_map(|at| dynamic.string(at))
            .collect()
    }

    /// Who handles faults of its code.
    #[must_use]
    pub fn runtime(&self) -> Runtime {
        *self.inner.runtime.get_or_init(|| {
            let name = self
                .path()
                .file_name()
                .unwrap_or_default()
                .to_string_lossy();
            facts::runtime(self.elf(), self.bytes(), &name)
        })
    }

    /// What is loaded, by address.
    #[must_use]
    pub fn segments(&self) -> &[Segment] {
        &self.elf().segments
    }

    /// The file's bytes of each executable segment.
    #[must_use]
    pub fn text(&self) -> Vec<(LinkAddr, &[u8])> {
        let code = self.segments().iter().filter(|s| s.executable);
        code.filter_map(|s| Some((s.link, self.elf().bytes_at(self.bytes(), s.link.0)?)))
            .collect()
    }

    /// Unused bytes behind an executable segment's file part, up to the page's end: where
    /// they start and how many, when there are at least 64.
    #[must_use]
    pub fn slack(&self) -> Option<(LinkAddr, u64)> {
        let segments = self.segments();
        segments.iter().enumerate().find_map(|(index, s)| {
            // A segment with more memory than file keeps its zeroed variables there.
            if !s.executable || s.file_size != s.mem_size {
                return None;
            }
            let start = s.link.0.checked_add(s.file_size)?;
            let end = start.checked_next_multiple_of(PAGE)?;
            let taken = segments
                .get(index + 1)
                .is_some_and(|next| next.link.0 < end);
            (!taken && end - start >= MIN_SLACK).then_some((LinkAddr(start), end - start))
        })
    }

    /// Where a loaded byte lies in the file.
    #[must_use]
    pub fn offset_of(&self, link: LinkAddr) -> Option<FileOffset> {
        let segment = self.elf().segment_of(link.0)?;
        segment
            .offset
            .0
            .checked_add(link.0 - segment.link.0)
            .map(FileOffset)
    }

    /// Where a byte of the file is loaded.
    #[must_use]
    pub fn link_of(&self, offset: FileOffset) -> Option<LinkAddr> {
        // Two segments may share a page of the file; code is what probes ask for. Where segments
        // overlap in memory, only what the address leads back to is there.
        let loaded = |s: &Segment| {
            let within = offset.0.checked_sub(s.offset.0)?;
            let link = LinkAddr(s.link.0.checked_add(within)?);
            (within < s.file_size && self.offset_of(link) == Some(offset)).then_some(link)
        };
        let code = self.segments().iter().filter(|s| s.executable);
        code.chain(self.segments()).find_map(loaded)
    }

    /// All functions, by address, then name.
    #[must_use]
    pub fn functions(&self) -> &[Function] {
        self.inner.functions.get_or_init(|| {
            let tables = self.tables();
            // Go's own table is the last resort: it has no aliases and no assembly labels.
            let stripped = tables.iter().all(|table| table.symbols.is_empty());
            let own = stripped.then(|| gopclntab::functions(self.elf(), self.bytes()));
            table::functions(self.elf(), &tables, own.unwrap_or_default(), || {
                self.frames()
            })
        })
    }

    /// The function or unwind entry around an address.
    #[must_use]
    pub fn function_range(&self, link: LinkAddr) -> Option<Range<LinkAddr>> {
        let range = roots::range_around(self.functions(), self.frames(), link.0)?;
        Some(LinkAddr(range.start)..LinkAddr(range.end))
    }

    /// The next start of code behind an address that is known, or its section's end.
    #[must_use]
    pub fn next_start(&self, link: LinkAddr) -> LinkAddr {
        let starts = self.starts();
        let end = table::region_end(self.elf(), link.0);
        let next = starts.get(starts.partition_point(|&start| start <= link.0));
        LinkAddr(next.map_or(end, |&next| next.min(end)))
    }

    /// The functions that start at an address: one and its aliases.
    #[must_use]
    pub fn functions_at(&self, link: LinkAddr) -> &[Function] {
        let functions = self.functions();
        let start = functions.partition_point(|f| f.link < link);
        let end = functions.partition_point(|f| f.link <= link);
        &functions[start..end]
    }

    /// What a scan of its branches has to start from.
    #[must_use]
    pub fn roots(&self) -> Roots<'_> {
        roots::roots(
            self.elf(),
            self.bytes(),
            self.functions(),
            self.frames(),
            self.starts(),
        )
    }

    /// The first `len` bytes in the file at a symbol (function or data).
    #[must_use]
    pub fn data_at_symbol(&self, name: &str, len: usize) -> Option<&[u8]> {
        let link = self.static_symbol_value(name)?;
        self.elf().bytes_at(self.bytes(), link.0)?.get(..len)
    }

    /// The address of a symbol (function or data).
    #[must_use]
    pub fn static_symbol_value(&self, name: &str) -> Option<LinkAddr> {
        let wanted = name.as_bytes();
        let find = |table: Symtab<'_>| {
            table
                .iter()
                .find(|s| s.defined && s.name == wanted)
                .map(|s| LinkAddr(s.value))
        };
        let (elf, bytes) = (self.elf(), self.bytes());
        find(Symtab::dynamic(elf, bytes))
            .or_else(|| find(Symtab::full(elf, bytes)))
            .or_else(|| self.extra().iter().find_map(|table| find(table.view())))
    }

    /// It carries the note of glibc's start code (`NT_GNU_ABI_TAG`).
    pub(crate) fn has_gnu_abi_tag(&self) -> bool {
        let notes = self.elf().notes.iter();
        notes
            .filter_map(|range| self.bytes().get(range.clone()))
            .any(|bytes| notes::gnu_note(bytes, 1).is_some())
    }

    /// All symbol tables that belong to the file.
    fn tables(&self) -> Vec<Symtab<'_>> {
        let (elf, bytes) = (self.elf(), self.bytes());
        let mut tables = vec![Symtab::full(elf, bytes), Symtab::dynamic(elf, bytes)];
        tables.extend(self.extra().iter().map(OwnedTable::view));
        tables
    }

    /// The tables of a stripped file that lie elsewhere.
    fn extra(&self) -> &[OwnedTable] {
        self.inner.extra.get_or_init(|| {
            let (elf, bytes) = (self.elf(), self.bytes());
            if !Symtab::full(elf, bytes).symbols.is_empty() {
                return Vec::new();
            }
            let outside = debuginfo::find(self.path(), self.build_id(), elf, bytes);
            outside
                .or_else(|| debuginfo::embedded(elf, bytes, self.path()))
                .into_iter()
                .collect()
        })
    }

    /// Unwind entries, by address.
    pub(crate) fn frames(&self) -> &[Frame] {
        self.inner
            .frames
            .get_or_init(|| frames::frames(self.elf(), self.bytes()))
    }

    /// Starts of functions and unwind entries, each once.
    fn starts(&self) -> &[u64] {
        self.inner.starts.get_or_init(|| {
            let functions = self.functions().iter().map(|f| f.link.0);
            let mut starts: Vec<u64> = functions
                .chain(self.frames().iter().map(|f| f.start))
                .collect();
            starts.sort_unstable();
            starts.dedup();
            starts
        })
    }
}

impl std::fmt::Debug for Module {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Module").field(&self.inner.path).finish()
    }
}
