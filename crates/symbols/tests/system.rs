//! Against the libraries of this system, with binutils as the oracle.
#![allow(missing_docs)]

mod support;

use std::collections::BTreeSet;
use std::path::Path;

use lancet_abi::units::{FileOffset, Pid};
use lancet_symbols::{Kind, Libc, Module, libc_facts, locate, locate_for};
use support::{open, output, sites};

fn libc() -> Module {
    open(&locate("libc", None).expect("every system has a libc"))
}

#[test]
fn libc_functions_are_those_of_nm() {
    let module = libc();
    let Some(text) = output("nm", &["-D", "--defined-only"], module.path()) else {
        return;
    };
    let expected: BTreeSet<(u64, &str)> = text
        .lines()
        .filter_map(|line| {
            let mut parts = line.split_whitespace();
            let address = u64::from_str_radix(parts.next()?, 16).ok()?;
            let kind = parts.next()?;
            let name = parts.next()?.split('@').next()?;
            matches!(kind, "T" | "t" | "W" | "w" | "i" | "I").then_some((address, name))
        })
        .collect();
    let found: BTreeSet<(u64, &str)> = module
        .functions()
        .iter()
        .map(|f| (f.link.0, f.name.as_str()))
        .collect();
    let missing: Vec<_> = expected.difference(&found).collect();
    assert!(expected.len() > 1000 && missing.is_empty(), "{missing:x?}");
    let sorted = module
        .functions()
        .windows(2)
        .all(|w| (w[0].link, &w[0].name) < (w[1].link, &w[1].name));
    assert!(sorted, "by address, then name, each once");
    assert!(
        module
            .functions()
            .iter()
            .all(|f| module.offset_of(f.link) == Some(f.offset))
    );
}

#[test]
fn segments_are_those_of_readelf() {
    let module = libc();
    let Some(text) = output("readelf", &["-lW"], module.path()) else {
        return;
    };
    let expected: Vec<(u64, u64, u64)> = text
        .lines()
        .filter_map(|line| {
            let mut parts = line.strip_prefix("  LOAD")?.split_whitespace();
            let mut hex = || u64::from_str_radix(parts.next()?.strip_prefix("0x")?, 16).ok();
            let (offset, link) = (hex()?, hex()?);
            hex()?;
            Some((offset, link, hex()?))
        })
        .collect();
    let found: Vec<_> = module
        .segments()
        .iter()
        .map(|s| (s.offset.0, s.link.0, s.file_size))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn build_id_and_kind() {
    let module = libc();
    assert_eq!(module.kind(), Kind::SharedObject);
    let Some(text) = output("readelf", &["-nW"], module.path()) else {
        return;
    };
    let hex: String = module
        .build_id()
        .expect("distributions use build ids")
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    assert!(text.contains(&hex));
    let (link, length) = module.slack().unwrap_or_default();
    assert!(length == 0 || (link.0 + length) % 4096 == 0);
    assert_eq!(
        module.offset_of(
            module
                .link_of(FileOffset(0x400))
                .expect("the header is mapped")
        ),
        Some(FileOffset(0x400))
    );
}

#[test]
fn b093_an_indirect_function_is_refused_by_name() {
    let error = sites(&libc(), "memcpy")
        .expect_err("memcpy is an IFUNC")
        .to_string();
    assert!(error.contains("indirect function"), "{error}");
}

#[test]
fn b093_a_star_skips_indirect_functions_and_counts_aliases_once() {
    let module = libc();
    let all = sites(&module, "*").expect("many");
    assert!(all.windows(2).all(|w| w[0].link < w[1].link));
    assert!(
        all.iter()
            .all(|s| s.function_start == s.link && s.link < s.function_end)
    );
    assert!(all.iter().all(|s| s.next_start > s.link));
    let malloc = sites(&module, "malloc").expect("malloc");
    assert_eq!(malloc.len(), 1);
    assert_eq!(malloc[0].name, "malloc");
}

#[test]
fn b102_a_near_miss_is_suggested() {
    let error = sites(&libc(), "mallok").expect_err("no such").to_string();
    assert!(error.contains("did you mean `malloc`"), "{error}");
    let error = sites(&libc(), "FOPEN").expect_err("no such").to_string();
    assert!(error.contains("`fopen`"), "{error}");
}

#[test]
fn thread_layout_of_this_libc() {
    let module = libc();
    let Libc::Glibc {
        tid_offset,
        tid_by_symbol,
        ..
    } = libc_facts([&module])
    else {
        eprintln!("skipped: no glibc");
        return;
    };
    assert!(tid_by_symbol && tid_offset == 0x2d0);
    assert_eq!(libc_facts(std::iter::empty()), Libc::None);
    if let Ok(musl) = Module::open(Path::new("/lib/ld-musl-x86_64.so.1")) {
        assert_eq!(libc_facts([&musl]), Libc::Musl { tid_offset: 0x30 });
    }
}

#[test]
fn files_are_found_by_short_names() {
    let own = Pid(std::process::id() as i32);
    let found = locate_for("libc", Some(own)).expect("mapped here");
    assert!(found.in_process && found.path.ends_with("libc.so.6"));
    assert!(
        locate("libc.so.6", None)
            .expect("in the cache")
            .ends_with("libc.so.6")
    );
    assert!(
        locate("libc.so", None)
            .expect("not the linker script")
            .ends_with("libc.so.6")
    );
    assert!(locate("sh", None).expect("in $PATH").is_absolute());
    let error = locate("libnosuch", None).expect_err("none").to_string();
    assert!(
        error.contains("ld.so.cache") && error.contains("$PATH"),
        "{error}"
    );
    locate("/nosuch/file", None).expect_err("none");
    let kept = locate_for("/nosuch/file", Some(own)).expect("only the process knows");
    assert!(kept.in_process);
}

#[test]
fn exceptions_have_landing_pads() {
    let Ok(path) = locate("libstdc++", None) else {
        eprintln!("skipped: no libstdc++");
        return;
    };
    let module = open(&path);
    let roots = module.roots();
    assert!(roots.starts.len() > 1000 && roots.entries.len() > 1000);
    let code = module.text();
    let inside = |at: u64| {
        code.iter()
            .any(|(l, b)| l.0 <= at && at - l.0 < b.len() as u64)
    };
    assert!(
        roots
            .entries
            .iter()
            .chain(&roots.starts)
            .all(|at| inside(at.0))
    );
    assert!(!roots.data.is_empty() && roots.forbidden.is_empty());
}
