//! Files that are not what they seem: refused by name, never a panic, never blocked.
#![allow(missing_docs)]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;

use lancet_symbols::{Module, SymbolError};
use support::{Folder, open, run, sites};

/// Everything that a module answers.
fn ask_all(module: &Module) {
    for function in module.functions() {
        assert!(module.offset_of(function.link) == Some(function.offset));
        let _ = (
            function.demangled(),
            function.end(),
            module.next_start(function.link),
        );
    }
    let _ = (
        module.roots().starts.len(),
        module.slack(),
        module.needed(),
        module.runtime(),
    );
    let _ = (module.build_id(), module.interpreter(), module.text().len());
    let _ = (
        sites(module, "*"),
        sites(module, "nosuch"),
        sites(module, "main+3"),
    );
    let _ = lancet_symbols::libc_facts([module]);
}

fn small() -> Option<(Folder, Vec<u8>)> {
    let folder = Folder::new();
    let source = "void fun(void) {} void _start(void) { fun(); for (;;) {} }";
    let flags = [
        "-nostdlib",
        "-Wl,-z,noseparate-code",
        "-s",
        "-shared",
        "-fPIC",
    ];
    let path = folder.build("cc", ("t.c", source), "t.so", &flags)?;
    let bytes = fs::read(path).expect("built");
    Some((folder, bytes))
}

#[test]
fn b103_every_truncation_is_refused() {
    let Some((_folder, bytes)) = small() else {
        return;
    };
    let shown = Path::new("cut");
    ask_all(&Module::from_bytes(bytes.clone(), shown).expect("whole"));
    for length in 0..bytes.len() {
        let error = Module::from_bytes(bytes[..length].to_vec(), shown).expect_err("cut");
        let named = matches!(
            error,
            SymbolError::Truncated { .. } | SymbolError::NotElf { .. } | SymbolError::Empty { .. }
        );
        assert!(named, "{length}: {error}");
    }
}

#[test]
fn b103_every_changed_byte_is_survived() {
    let Some((_folder, bytes)) = small() else {
        return;
    };
    for at in 0..bytes.len() {
        for value in [0, 0x7f, 0xff] {
            let mut changed = bytes.clone();
            changed[at] = value;
            if let Ok(module) = Module::from_bytes(changed, Path::new("changed")) {
                ask_all(&module);
            }
        }
    }
}

#[test]
fn b103_what_is_no_file_is_refused_at_once() {
    let folder = Folder::new();
    let fifo = folder.path("fifo");
    let mut mkfifo = Command::new("mkfifo");
    mkfifo.arg(&fifo);
    if run(mkfifo) {
        let error = Module::open(&fifo).expect_err("a FIFO").to_string();
        assert!(error.contains("a FIFO"), "{error}");
    }
    let error = |path: &Path| Module::open(path).expect_err("refused").to_string();
    assert!(error(Path::new("/dev/zero")).contains("a device"));
    assert!(error(Path::new("/")).contains("a directory"));
    let file = |name: &str, bytes: &[u8]| {
        fs::write(folder.path(name), bytes).expect("written");
        error(&folder.path(name))
    };
    assert!(file("empty", b"").contains("is empty"));
    assert!(file("script", b"#!/bin/sh\n").contains("script"));
    assert!(file("lib.a", b"!<arch>\n").contains("static library"));
    let missing = folder.path("missing");
    assert!(error(&missing).contains("missing"));
}

#[test]
fn other_machines_are_named() {
    let Some((_folder, bytes)) = small() else {
        return;
    };
    let refused = |edit: fn(&mut Vec<u8>)| {
        let mut bytes = bytes.clone();
        edit(&mut bytes);
        Module::from_bytes(bytes, Path::new("x"))
            .expect_err("refused")
            .to_string()
    };
    assert!(refused(|b| b[4] = 1).contains("32-bit x86-64"));
    assert!(refused(|b| (b[4], b[18]) = (1, 3)).contains("32-bit x86;"));
    assert!(refused(|b| b[18] = 183).contains("arm64"));
    assert!(refused(|b| b[16] = 1).contains("object file"));
    assert!(refused(|b| b[16] = 4).contains("core dump"));
}

#[test]
fn a_deleted_looking_name_is_a_name() {
    let Some((folder, bytes)) = small() else {
        return;
    };
    let path = folder.path("a.out (deleted)");
    fs::write(&path, bytes).expect("written");
    let module = open(&path);
    assert!(module.file_id().inode != 0 && module.path() == path);
}

#[test]
fn b103_names_that_share_one_string_stay_bounded() {
    let Some((_folder, _)) = small() else { return };
    let folder = Folder::new();
    let source = "void fun(void) {}";
    let Some(path) = folder.build("cc", ("t.c", source), "t.so", &["-nostdlib", "-shared"]) else {
        return;
    };
    let mut bytes = fs::read(path).expect("built");
    // A table of 100 000 symbols, all with one name of 60 000 bytes.
    let word = |bytes: &[u8], at: usize| {
        u64::from_le_bytes(*bytes[at..].first_chunk().expect("inside")) as usize
    };
    let (headers, count) = (word(&bytes, 40), usize::from(bytes[60]));
    let table = (0..count)
        .map(|i| headers + i * 64)
        .find(|&h| bytes[h + 4] == 2)
        .expect(".symtab");
    let strings = headers + usize::from(bytes[table + 40]) * 64;
    let code = open(&folder.path("t.so")).functions()[0].link.0;
    let mut put = |header: usize, content: Vec<u8>| {
        let at = bytes.len().next_multiple_of(8);
        bytes.resize(at, 0);
        bytes[header + 24..header + 32].copy_from_slice(&(at as u64).to_le_bytes());
        bytes[header + 32..header + 40].copy_from_slice(&(content.len() as u64).to_le_bytes());
        bytes.extend(content);
    };
    let mut names = vec![b'x'; 60_000];
    names.push(0);
    put(strings, names);
    let symbol = |i: u64| {
        [
            &[0, 0, 0, 0, 0x12, 0, 1, 0][..],
            &(code + i % 2).to_le_bytes(),
            &1_u64.to_le_bytes(),
        ]
        .concat()
    };
    put(table, (0..100_000).flat_map(symbol).collect());
    let module = Module::from_bytes(bytes, Path::new("shared names")).expect("loadable");
    let total: usize = module.functions().iter().map(|f| f.name.len()).sum();
    assert!(total < 4 << 20, "{total}");
}

/// Two segments at the same addresses: what lies under the other is nowhere.
#[test]
fn segments_that_overlap_lead_back_or_nowhere() {
    let Some((_folder, mut bytes)) = small() else {
        return;
    };
    const TABLE: usize = 64;
    let word = |bytes: &[u8], at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().unwrap());
    let is_load = |bytes: &[u8], at: &usize| bytes[*at..at + 4] == 1u32.to_le_bytes();
    let count = usize::from(bytes[56]);
    let headers = (0..count).map(|i| TABLE + i * 56);
    let loads: Vec<usize> = headers.filter(|at| is_load(&bytes, at)).collect();
    let [first, .., last] = loads[..] else {
        panic!("one segment: {loads:?}");
    };
    // The last one's address becomes that of the middle of the first.
    let middle = word(&bytes, first + 16) + word(&bytes, first + 32) / 2;
    bytes[last + 16..last + 24].copy_from_slice(&middle.to_le_bytes());
    let module = match Module::from_bytes(bytes.clone(), Path::new("overlapping")) {
        Ok(module) => module,
        Err(_) => return,
    };
    ask_all(&module);
    let mut nowhere = 0;
    for offset in (0..bytes.len() as u64).map(lancet_abi::units::FileOffset) {
        match module.link_of(offset) {
            Some(link) => assert_eq!(module.offset_of(link), Some(offset)),
            None => nowhere += 1,
        }
    }
    assert!(nowhere > 0);
}
