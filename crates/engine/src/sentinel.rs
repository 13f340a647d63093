//! Keeps per-CPU counting exact around vfork, clone and posix_spawn.
//!
//! A child of these runs on its parent's thread block without being registered for rseq: it
//! would read the parent's `cpu_id`, which nobody updates. So the system calls that make such
//! children, in the C library and in the program, carry a probe of our own that switches the
//! process to locked additions for good, before the child exists. It lies on the `mov` that
//! loads the call's number, so it can always be placed. A forked child starts afresh: the word
//! is wiped by the fork.
//!
//! Where such a call may exist and can't be watched, the process gets locked additions from the
//! start ([`Guards::certain`]). Not seen are calls whose number is data (libc's `syscall`) and
//! those of other libraries, which by all experience call libc.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use lancet_abi::units::{LinkAddr, Pid};
use lancet_isa::{Maker, Plan};
use lancet_jit::Mark;
use lancet_procs::Mapping;
use lancet_symbols::{Kind, Module, Runtime, Site, Target};

use crate::catalog::Binary;
use crate::guardian::Tracer;

/// Functions that run while a thread may not be registered yet, or on somebody else's block;
/// beside those that are found by their system calls.
const UNREGISTERED: [&str; 20] = [
    "vfork",
    "__vfork",
    "clone",
    "__clone",
    "__clone2",
    "clone3",
    "__clone3",
    "__clone_internal",
    "start_thread",
    "__ctype_init",
    "_Fork",
    "_exit",
    "_Exit",
    "__libc_start_main",
    "__libc_setup_tls",
    "__libc_early_init",
    "__libc_init_secure",
    "__libc_start_call_main",
    "__spawni_child",
    "__rseq_register_current_thread",
];

/// A probe of ours.
#[derive(Clone)]
pub(crate) struct Sentinel {
    pub(crate) site: Site,
    pub(crate) plan: Plan,
    pub(crate) when: Mark,
}

/// A C library, or a program, with the places to watch.
pub(crate) struct Guard {
    pub(crate) binary: Arc<Binary>,
    pub(crate) sentinels: Vec<Sentinel>,
    unregistered: Vec<Range<LinkAddr>>,
    /// All its calls that make children are watched.
    certain: bool,
}

/// All that is watched in one process.
pub(crate) struct Guards {
    pub(crate) all: Vec<Arc<Guard>>,
    /// No child that shares its parent's thread block can come up unseen.
    pub(crate) certain: bool,
}

impl Guards {
    /// Whether a site lies in code that must not read the thread's rseq area.
    pub(crate) fn runs_unregistered(&self, binary: &Binary, site: &Site) -> bool {
        let guard = self.all.iter().find(|g| g.binary.id == binary.id);
        guard.is_some_and(|g| g.unregistered.iter().any(|r| r.contains(&site.link)))
            || is_named(&binary.module, site)
    }
}

fn is_named(module: &Module, site: &Site) -> bool {
    module
        .functions_at(site.function_start)
        .iter()
        .any(|f| UNREGISTERED.contains(&f.name.as_str()))
}

fn is_libc(path: &[u8]) -> bool {
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or_default();
    name.starts_with(b"libc.so") || name.starts_with(b"libc-2.")
}

/// The C library before 2.34 had its threads in a library of their own.
fn is_libpthread(path: &[u8]) -> bool {
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or_default();
    name.starts_with(b"libpthread")
}

/// What is to be watched in a process. Files are opened once for the tracer and kept.
pub(crate) fn guards(tracer: &Tracer, mappings: &[Mapping], pid: Pid) -> Guards {
    let program = lancet_procs::exe(pid).ok();
    let mut all: Vec<Arc<Guard>> = Vec::new();
    let (mut has_program, mut has_libc, mut certain) = (false, false, true);
    for mapping in mappings.iter().filter(|m| m.execute && m.has_file()) {
        let is_program = program.is_some_and(|p| (p.dev, p.inode) == (mapping.dev, mapping.inode));
        if !is_program && !is_libc(&mapping.path) && !is_libpthread(&mapping.path) {
            continue;
        }
        let id = (mapping.dev, mapping.inode);
        let Some(guard) = tracer.libraries().guard(id, || {
            let path = String::from_utf8_lossy(&mapping.path).into_owned();
            let path = PathBuf::from(path);
            [Binary::open(&path), Binary::open_as_seen(pid, &path)]
                .into_iter()
                .flatten()
                .find(|b| (b.id.dev, b.id.inode) == id)
                .map(watch)
        }) else {
            certain = false;
            continue;
        };
        has_program |= is_program;
        has_libc |= is_libc(&mapping.path) || is_program && guard.binary.is_static();
        // Go makes children by itself, with numbers that are data.
        certain &= guard.certain && guard.binary.module.runtime() != Runtime::Go;
        if !all.iter().any(|g| Arc::ptr_eq(g, &guard)) {
            all.push(guard);
        }
    }
    Guards {
        all,
        certain: certain && has_program && has_libc,
    }
}

/// Finds out beforehand what most processes need that will map one of these files: what is to be watched
/// in the files that are programs, and in the C library of this process.
pub(crate) fn prepare(tracer: &Tracer, binaries: &[Arc<Binary>]) {
    let programs = binaries
        .iter()
        .filter(|b| b.module.kind() != Kind::SharedObject || is_libc(path_of(b)));
    for binary in programs {
        let id = (binary.id.dev, binary.id.inode);
        let watched = || Some(watch(Arc::clone(binary)));
        tracer.libraries().guard(id, watched);
    }
    let own = Pid(std::process::id().cast_signed());
    let mappings = lancet_procs::mappings(own).unwrap_or_default();
    for mapping in mappings.iter().filter(|m| m.execute && is_libc(&m.path)) {
        let path = PathBuf::from(String::from_utf8_lossy(&mapping.path).into_owned());
        let id = (mapping.dev, mapping.inode);
        let open = || {
            let found = Binary::open(&path).ok()?;
            ((found.id.dev, found.id.inode) == id).then(|| watch(found))
        };
        tracer.libraries().guard(id, open);
    }
}

fn path_of(binary: &Binary) -> &[u8] {
    binary.module.path().as_os_str().as_encoded_bytes()
}

fn watch(binary: Arc<Binary>) -> Guard {
    let found = binary.child_calls();
    let mut certain = found.doubtful.is_empty();
    let mut sites: Vec<(Site, Mark)> = Vec::new();
    for call in &found.calls {
        let when = match call.maker {
            Maker::Vfork | Maker::Clone3 { checked: false } => Mark::Always,
            Maker::Clone => Mark::CloneFlags { in_memory: false },
            Maker::Clone3 { checked: true } => Mark::CloneFlags { in_memory: true },
        };
        match lancet_symbols::select(&binary.module, &Target::Address(call.at)) {
            Ok(found) => sites.extend(found.into_iter().map(|site| (site, when))),
            Err(_) => certain = false,
        }
    }
    let only: Vec<Site> = sites.iter().map(|(site, _)| site.clone()).collect();
    let plans = if only.is_empty() {
        Vec::new()
    } else {
        binary.plan(&only)
    };
    let mut sentinels = Vec::new();
    for ((site, when), plan) in sites.into_iter().zip(plans) {
        match plan {
            Ok(plan) => sentinels.push(Sentinel { site, plan, when }),
            Err(_) => certain = false,
        }
    }
    Guard {
        binary,
        sentinels,
        unregistered: found.unregistered,
        certain,
    }
}

/// Device and inode of a file, and its guard.
type Known = ((u64, u64), Arc<Guard>);

/// Guards that were made, by the file's identity.
#[derive(Default)]
pub(crate) struct Libraries {
    guards: std::sync::Mutex<Vec<Known>>,
}

impl Libraries {
    fn guard(&self, id: (u64, u64), make: impl FnOnce() -> Option<Guard>) -> Option<Arc<Guard>> {
        let mut guards = self.guards.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, guard)) = guards.iter().find(|(known, _)| *known == id) {
            return Some(Arc::clone(guard));
        }
        // What can't be read now, as of a process that ends, may be another time.
        let guard = Arc::new(make()?);
        guards.push((id, Arc::clone(&guard)));
        Some(guard)
    }
}
