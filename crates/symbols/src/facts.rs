//! What kind of file it is, and whose runtime it brings.

use object::elf;

use crate::dynamic::Dynamic;
use crate::elf::Elf;
use crate::module::{Kind, Runtime};
use crate::symtab::Symtab;

/// `DF_1_PIE`, set by linkers for position-independent programs.
const PIE: u64 = 0x0800_0000;

/// How the file is linked; older linkers mark programs only by `DT_DEBUG`.
pub(crate) fn kind(elf: &Elf, file: &[u8]) -> Kind {
    let dynamic = Dynamic::of(elf, file);
    let has_loader = elf.interpreter.is_some();
    if elf.kind == elf::ET_EXEC {
        return if has_loader {
            Kind::DynamicExec
        } else {
            Kind::StaticExec
        };
    }
    let marked = dynamic
        .first(elf::DT_FLAGS_1)
        .is_some_and(|flags| flags & PIE != 0);
    let debug = dynamic.first(elf::DT_DEBUG).is_some();
    match (has_loader, marked) {
        (true, true) => Kind::DynamicPie,
        (true, false) if debug => Kind::DynamicPie,
        (false, true) => Kind::StaticPie,
        _ => Kind::SharedObject,
    }
}

/// Whose runtime handles faults by address. V8 is not named: its handler looks only at code
/// that it generated itself.
pub(crate) fn runtime(elf: &Elf, file: &[u8], name: &str) -> Runtime {
    let is = |library: &str| name.starts_with(library);
    if is("libjvm.so") {
        return Runtime::Jvm;
    }
    if ["libcoreclr.so", "libclrjit.so", "libmonosgen", "libclrgc"]
        .into_iter()
        .any(is)
    {
        return Runtime::DotNet;
    }
    if ["libwasmtime", "libwasmer", "libwasmedge", "libiwasm"]
        .into_iter()
        .any(is)
    {
        return Runtime::Wasm;
    }
    let go = [".go.buildinfo", ".gopclntab"]
        .into_iter()
        .any(|s| elf.section(file, s).is_some());
    if go || go_by_magic(elf, file) {
        return Runtime::Go;
    }
    let strings = [
        Symtab::dynamic(elf, file).strings,
        Symtab::full(elf, file).strings,
    ];
    let names = |wanted: &str| {
        strings
            .iter()
            .any(|s| memchr::memmem::find(s, wanted.as_bytes()).is_some())
    };
    if names("\0JVM_GetInterfaceVersion\0") || names("JNI_GetCreatedJavaVMs_impl") {
        Runtime::Jvm
    } else if names("\0coreclr_initialize\0") {
        Runtime::DotNet
    } else if names("wasmtime_")
        || names("wasmtime7runtime")
        || names("wasmer_vm")
        || names("\0wasm_engine_new\0")
    {
        Runtime::Wasm
    } else {
        Runtime::Native
    }
}

/// Go's build information, which stays when the section table is removed: aligned to 16, at
/// the start of the data.
fn go_by_magic(elf: &Elf, file: &[u8]) -> bool {
    const MAGIC: &[u8] = b"\xff Go buildinf:";
    let data = elf.segments.iter().filter(|s| s.writable && !s.executable);
    data.filter_map(|s| elf.bytes_at(file, s.link.0))
        .any(|bytes| {
            memchr::memmem::find(&bytes[..bytes.len().min(64 << 10)], MAGIC)
                .is_some_and(|at| at % 16 == 0)
        })
}
