//! How the C library lays out a thread.

use crate::module::Module;

/// Which C library a process uses, and where its thread block keeps what probes need.
///
/// Offsets are relative to the thread pointer (`fs:0`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Libc {
    /// The GNU library.
    Glibc {
        /// Where each thread's rseq area is, when the file already says so; else it is
        /// only known at run time (read `__rseq_offset` in the process).
        rseq_offset: Option<i64>,
        /// Where the thread's id is.
        tid_offset: u64,
        /// The offset was read from a symbol; otherwise it is the usual value and must
        /// be verified on a thread.
        tid_by_symbol: bool,
    },
    /// musl.
    Musl {
        /// Where the thread's id is; to be verified on a thread.
        tid_offset: u64,
    },
    /// No known C library among the modules.
    None,
}

/// `tid` in glibc's thread block on x86-64, the same since 2.4.
const GLIBC_TID: u64 = 0x2d0;
/// `tid` in musl's thread block on x86-64.
const MUSL_TID: u64 = 0x30;
/// A thread block is smaller than this.
const MAX_BLOCK: u32 = 1 << 16;

/// The C library among the modules of one process (the executable, `ld.so`, libc).
pub fn libc_facts<'a>(modules: impl IntoIterator<Item = &'a Module>) -> Libc {
    let modules: Vec<&Module> = modules.into_iter().collect();
    if modules.iter().any(|module| is_musl(module)) {
        return Libc::Musl {
            tid_offset: MUSL_TID,
        };
    }
    if !modules.iter().any(|module| is_glibc(module)) {
        return Libc::None;
    }
    let rseq_offset = modules.iter().find_map(|module| rseq_offset(module));
    let by_symbol = modules.iter().find_map(|module| tid_offset(module));
    Libc::Glibc {
        rseq_offset,
        tid_offset: by_symbol.unwrap_or(GLIBC_TID),
        tid_by_symbol: by_symbol.is_some(),
    }
}

fn is_musl(module: &Module) -> bool {
    let named = |path: &std::path::Path| {
        path.file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"ld-musl-"))
    };
    named(module.path())
        || module.interpreter().is_some_and(named)
        || module.static_symbol_value("__init_tp").is_some()
}

/// By symbols of libc and `ld.so`, of static programs, and by the note that glibc's start
/// code puts into each program.
fn is_glibc(module: &Module) -> bool {
    [
        "gnu_get_libc_version",
        "__libc_early_init",
        "_dl_relocate_static_pie",
        "_rtld_global",
    ]
    .iter()
    .any(|name| module.static_symbol_value(name).is_some())
        || module.has_gnu_abi_tag()
}

/// `const ptrdiff_t __rseq_offset`; zero until the loader has set it.
fn rseq_offset(module: &Module) -> Option<i64> {
    let bytes = module.data_at_symbol("__rseq_offset", 8)?;
    let offset = i64::from_le_bytes(*bytes.first_chunk()?);
    (offset != 0 && offset.unsigned_abs() < u64::from(MAX_BLOCK)).then_some(offset)
}

/// The field descriptor that glibc keeps for thread debuggers: bits, count, offset.
fn tid_offset(module: &Module) -> Option<u64> {
    let bytes = module.data_at_symbol("_thread_db_pthread_tid", 12)?;
    let word = |at: usize| bytes[at..].first_chunk().map(|b| u32::from_le_bytes(*b));
    let (bits, count, offset) = (word(0)?, word(4)?, word(8)?);
    (bits == 32 && count == 1 && offset < MAX_BLOCK).then(|| offset.into())
}
