//! Opens bytes as an ELF file and asks everything about it.
#![no_main]

use std::path::Path;

use lancet_symbols::{Module, Pattern, Target, libc_facts, select};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // A folder that no file is in: debuginfo must not come from outside.
    let Ok(module) = Module::from_bytes(bytes.to_vec(), Path::new("/nonexistent/fuzzed")) else { return };
    for function in module.functions() {
        assert_eq!(module.offset_of(function.link), Some(function.offset));
        let _ = (function.demangled(), module.next_start(function.link), module.functions_at(function.link));
    }
    let roots = module.roots();
    assert!(roots.starts.is_sorted() && roots.entries.is_sorted());
    let _ = (module.text(), module.slack(), module.needed(), module.runtime(), module.build_id());
    let _ = (module.kind(), module.interpreter(), libc_facts([&module]));
    let targets = [
        Target::Functions(Pattern::new("*")),
        Target::Functions(Pattern::new("ns::f*(int)")),
        Target::Functions(Pattern::new("mallok")),
        Target::Offset { function: "main".into(), offset: 3 },
        Target::Address(module.entry().plus(1)),
    ];
    for target in &targets {
        for site in select(&module, target).iter().flatten() {
            assert!(site.function_start <= site.link && site.link < site.function_end);
            assert_eq!(module.link_of(site.offset).and_then(|l| module.offset_of(l)), Some(site.offset));
        }
    }
});
