//! Keeps per-CPU counting exact around vfork, clone and posix_spawn.
//!
//! A child of these runs on its parent's thread block without being registered for rseq: it
//! would read the parent's `cpu_id`, which nobody updates. So the calls that make such children
//! carry a probe of our own that switches the process to locked additions for good, before the
//! child exists. A forked child starts afresh: the word is wiped by the fork.

use std::path::PathBuf;
use std::sync::Arc;

use lancet_abi::units::Pid;
use lancet_isa::Plan;
use lancet_procs::Mapping;
use lancet_symbols::{Module, Pattern, Site, Target};

use crate::catalog::Binary;
use crate::guardian::Tracer;

/// Functions that make children on their caller's thread block.
const SPAWNING: [&str; 10] = [
    "vfork",
    "__vfork",
    "clone",
    "__clone",
    "posix_spawn",
    "posix_spawnp",
    "system",
    "popen",
    "__libc_vfork",
    "wordexp",
];

/// Functions that run while a thread may not be registered yet, or on somebody else's block.
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

/// A C library in a process with the places to watch.
pub(crate) struct Guard {
    pub(crate) binary: Arc<Binary>,
    pub(crate) sites: Vec<(Site, Plan)>,
}

/// Whether a site lies in code that must not read the thread's rseq area.
pub(crate) fn runs_unregistered(module: &Module, site: &Site) -> bool {
    let functions = module.functions();
    let first = functions.partition_point(|f| f.link < site.function_start);
    functions[first..]
        .iter()
        .take_while(|f| f.link == site.function_start)
        .any(|f| UNREGISTERED.contains(&f.name.as_str()))
}

/// Whether a file is the C library, or a program that has one inside.
fn may_spawn(path: &[u8], is_program: bool) -> bool {
    let name = path.rsplit(|&b| b == b'/').next().unwrap_or_default();
    is_program
        || name.starts_with(b"libc.so")
        || name.starts_with(b"libc-2.")
        || name.starts_with(b"libpthread")
}

/// The C libraries of a process. Opened once for the tracer and kept.
pub(crate) fn binaries(tracer: &Tracer, mappings: &[Mapping], pid: Pid) -> Vec<Guard> {
    let program = lancet_procs::exe(pid).ok();
    let mut guards: Vec<Guard> = Vec::new();
    for mapping in mappings.iter().filter(|m| m.execute && m.has_file()) {
        let is_program = program.is_some_and(|p| (p.dev, p.inode) == (mapping.dev, mapping.inode));
        if !may_spawn(&mapping.path, is_program) {
            continue;
        }
        let Some(guard) = tracer.libraries().guard((mapping.dev, mapping.inode), || {
            let path = String::from_utf8_lossy(&mapping.path).into_owned();
            let path = PathBuf::from(path);
            let binary = [Binary::open(&path), Binary::open_as_seen(pid, &path)]
                .into_iter()
                .flatten()
                .find(|b| (b.id.dev, b.id.inode) == (mapping.dev, mapping.inode))?;
            Some(watch(binary))
        }) else {
            continue;
        };
        if !guard.sites.is_empty() {
            guards.push(Guard {
                binary: Arc::clone(&guard.binary),
                sites: guard.sites.clone(),
            });
        }
    }
    guards
}

fn watch(binary: Arc<Binary>) -> Guard {
    let names: Vec<&str> = SPAWNING.to_vec();
    let mut sites: Vec<Site> = Vec::new();
    for name in names {
        let defined = binary.module.functions().iter().any(|f| f.name == name);
        if !defined {
            continue;
        }
        let target = Target::Functions(Pattern::new(name));
        for site in lancet_symbols::select(&binary.module, &target).unwrap_or_default() {
            if !sites.iter().any(|s| s.link == site.link) {
                sites.push(site);
            }
        }
    }
    let plans = if sites.is_empty() {
        Vec::new()
    } else {
        binary.plan(&sites)
    };
    let sites = sites
        .into_iter()
        .zip(plans)
        .filter_map(|(site, plan)| plan.ok().map(|plan| (site, plan)))
        .collect();
    Guard { binary, sites }
}

/// Guards that were made, by the file's identity.
#[derive(Default)]
pub(crate) struct Libraries {
    guards: std::sync::Mutex<Vec<((u64, u64), Option<Arc<Guard>>)>>,
}

impl Libraries {
    fn guard(&self, id: (u64, u64), make: impl FnOnce() -> Option<Guard>) -> Option<Arc<Guard>> {
        let mut guards = self.guards.lock().unwrap_or_else(|e| e.into_inner());
        if let Some((_, guard)) = guards.iter().find(|(known, _)| *known == id) {
            return guard.clone();
        }
        let guard = make().map(Arc::new);
        guards.push((id, guard.clone()));
        guard
    }
}
