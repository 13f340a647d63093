//! Files with probes in them: symbols, branch targets and plans, made once and shared.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use lancet_abi::units::{FileOffset, LinkAddr, Pid, RuntimeAddr};
use lancet_isa::{
    ChildCalls, Entries, FaultPolicy, Function, Plan, PlanRequest, Refusal, Roots, Text,
};
use lancet_procs::{self as procs, FileId, Mapping};
use lancet_symbols::{Kind, Module, Runtime, Site};

use crate::error::EngineError;

/// The kind of filesystem that overlayfs is.
const OVERLAY: rustix::fs::FsWord = 0x794c_7630;

/// An ELF file that is probed, with what was found out about it.
pub struct Binary {
    /// Its symbols and bytes.
    pub module: Module,
    /// As mappings show it.
    pub id: FileId,
    /// The kernel's events show another device than mappings do.
    pub(crate) on_overlay: bool,
    entries: OnceLock<Entries>,
}

/// A [`Binary`] in one process.
#[derive(Clone)]
pub(crate) struct Instance {
    pub(crate) binary: Arc<Binary>,
    /// Runtime address = link address + bias.
    pub(crate) bias: u64,
    /// The executable mapping's addresses.
    pub(crate) span: Range<RuntimeAddr>,
}

impl Binary {
    /// Opens a file for probing.
    pub fn open(path: &Path) -> Result<Arc<Self>, EngineError> {
        let opened = File::options()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(path);
        Self::from_file(opened, path)
    }

    /// Opens a file for probing as a process sees it: in its mount namespace, below its root.
    pub fn open_as_seen(pid: Pid, path: &Path) -> Result<Arc<Self>, EngineError> {
        Self::from_file(lancet_remote::open_as_seen(pid, path), path)
    }

    fn from_file(opened: std::io::Result<File>, path: &Path) -> Result<Arc<Self>, EngineError> {
        let file = opened.map_err(|source| EngineError::Open {
            path: path.to_owned(),
            source,
        })?;
        let again = file.try_clone().map_err(|source| EngineError::Open {
            path: path.to_owned(),
            source,
        })?;
        // Module does the checks of what kind of file it is.
        let module = Module::from_file(again, path)?;
        let id = procs::shown_id(&file)?;
        let on_overlay = rustix::fs::fstatfs(&file).is_ok_and(|of| of.f_type == OVERLAY);
        Ok(Arc::new(Self {
            module,
            id,
            on_overlay,
            entries: OnceLock::new(),
        }))
    }

    fn roots(&self) -> Roots<'_> {
        let found = self.module.roots();
        Roots {
            starts: found.starts,
            functions: found.functions,
            entries: found.entries,
            data: found.data,
            forbidden: found.forbidden,
        }
    }

    fn faults(&self) -> FaultPolicy {
        match self.module.runtime() {
            Runtime::Native => FaultPolicy::Native,
            Runtime::Go => FaultPolicy::ByAddress { go: true },
            _ => FaultPolicy::ByAddress { go: false },
        }
    }

    /// Whether this is the dynamic loader: its code runs before the thread pointer is set.
    pub(crate) fn is_loader(&self) -> bool {
        let name = self.module.path().file_name().unwrap_or_default();
        let name = name.as_encoded_bytes();
        name.starts_with(b"ld-linux")
            || name.starts_with(b"ld-musl")
            || name.starts_with(b"ld.so")
            || name.starts_with(b"ld-2.")
    }

    /// Whether this is a program without a loader, whose own start-up code sets the thread
    /// pointer.
    pub(crate) fn is_static(&self) -> bool {
        matches!(self.module.kind(), Kind::StaticExec | Kind::StaticPie)
    }

    /// Plans the window at each site.
    pub(crate) fn plan(&self, sites: &[Site]) -> Vec<Result<Plan, Refusal>> {
        let roots = self.roots();
        let texts: Vec<Text<'_>> = self
            .module
            .text()
            .into_iter()
            .map(|(start, bytes)| Text { start, bytes })
            .collect();
        let entries = self.entries.get_or_init(|| Entries::scan(&texts, &roots));
        let faults = self.faults();
        sites
            .iter()
            .map(|site| {
                let text = texts
                    .iter()
                    .find(|t| t.start <= site.link && site.link < t.end())
                    .ok_or(Refusal::Outside { at: site.link })?;
                lancet_isa::plan(&PlanRequest {
                    text,
                    site: site.link,
                    function: Function {
                        start: site.function_start,
                        end: site.function_end,
                        next: site.next_start,
                    },
                    entries,
                    roots: &roots,
                    faults,
                })
            })
            .collect()
    }

    /// Its system calls that make children.
    pub(crate) fn child_calls(&self) -> ChildCalls {
        let texts: Vec<Text<'_>> = self
            .module
            .text()
            .into_iter()
            .map(|(start, bytes)| Text { start, bytes })
            .collect();
        ChildCalls::find(&texts, |at| self.module.function_range(at))
    }

    /// The site at a file offset: an instruction of a function that the file names.
    pub fn site_at(&self, offset: FileOffset) -> Option<Site> {
        let link = self.module.link_of(offset)?;
        let target = lancet_symbols::Target::Address(link);
        lancet_symbols::select(&self.module, &target).ok()?.pop()
    }

    /// Where the file's code lies in a process.
    pub(crate) fn instances(self: &Arc<Self>, mappings: &[Mapping]) -> Vec<Instance> {
        mappings
            .iter()
            .filter(|m| m.execute && m.has_file())
            .filter(|m| (m.dev, m.inode) == (self.id.dev, self.id.inode))
            .filter_map(|m| {
                // By the executable segment: the mapping starts at a page, whose first bytes may
                // belong to the segment before, which is linked elsewhere.
                let segment = self.module.segments().iter().find(|s| {
                    s.executable
                        && s.offset.0 & !0xfff <= m.offset.0
                        && m.offset.0 < s.offset.0.saturating_add(s.file_size)
                })?;
                let link = LinkAddr(
                    segment
                        .link
                        .0
                        .wrapping_add(m.offset.0)
                        .wrapping_sub(segment.offset.0),
                );
                Some(Instance {
                    binary: Arc::clone(self),
                    bias: m.start.0.wrapping_sub(link.0),
                    span: m.start..m.end,
                })
            })
            .collect()
    }
}
