//! Programs that the tests build: kinds, names, offsets, stripped ones.
#![allow(missing_docs)]

mod support;

use std::fs;
use std::process::Command;

use lancet_abi::units::LinkAddr;
use lancet_symbols::{Kind, Runtime, SymbolError};
use support::{Folder, names, open, run, sites};

const C: &str = "
#include <pthread.h>
__attribute__((noinline)) int fun(int x) { return x * 3 + 1; }
__attribute__((noinline)) static int hidden(int x) { return fun(x) + 2; }
int other(int x) __attribute__((alias(\"fun\")));
static void *work(void *p) { return p; }
int main(int argc, char **argv) {
    pthread_t t; pthread_create(&t, 0, work, 0); pthread_join(t, 0);
    return hidden(argc);
}
";

#[test]
fn kinds_of_programs() {
    let folder = Folder::new();
    let cases: [(&str, &[&str], Kind); 5] = [
        ("pie", &["-pie", "-fPIE"], Kind::DynamicPie),
        ("fixed", &["-no-pie"], Kind::DynamicExec),
        ("static", &["-static", "-no-pie"], Kind::StaticExec),
        ("static-pie", &["-static-pie", "-fPIE"], Kind::StaticPie),
        ("lib.so", &["-shared", "-fPIC"], Kind::SharedObject),
    ];
    for (name, flags, kind) in cases {
        let Some(path) = folder.build("cc", ("k.c", C), name, flags) else {
            return;
        };
        let module = open(&path);
        assert_eq!(module.kind(), kind, "{name}");
        assert_eq!(
            module.is_pie(),
            !matches!(kind, Kind::DynamicExec | Kind::StaticExec)
        );
        assert_eq!(module.runtime(), Runtime::Native);
        let site = &sites(&module, "hidden").expect("a local function")[0];
        assert_eq!(module.link_of(site.offset), Some(site.link));
        assert!(site.function_end <= site.next_start);
        let loaded = matches!(kind, Kind::DynamicExec | Kind::DynamicPie);
        assert_eq!(module.interpreter().is_some(), loaded, "{name}");
        assert!(!loaded || module.needed().contains(&"libc.so.6".to_owned()));
        assert!(kind == Kind::SharedObject || module.roots().entries.contains(&module.entry()));
    }
}

#[test]
fn b094_exact_names_are_exact() {
    let source = "
        namespace ns { struct Foo { void fun(int); }; void Foo::fun(int) {} void f() {} void f(int) {} void ff() {} }
        void fun(int) {} void fun(int, char) {} int function() { return 1; }
        template<class T> T twice(T x) { return x + x; } template int twice<int>(int);
        extern \"C\" void fun_c() {}";
    let folder = Folder::new();
    let Some(path) = folder.build(
        "c++",
        ("n.cc", source),
        "n.so",
        &["-shared", "-fPIC", "-O1"],
    ) else {
        return;
    };
    let module = open(&path);
    let found = |pattern: &str| -> Vec<String> {
        let mut all: Vec<String> = sites(&module, pattern)
            .iter()
            .flatten()
            .map(|s| s.name.clone())
            .collect();
        all.sort();
        all
    };
    assert_eq!(found("fun"), ["fun(int)", "fun(int, char)"]);
    assert_eq!(found("\"fun(int)\""), ["fun(int)"]);
    assert_eq!(found("\"fun(int,char)\""), ["fun(int, char)"]);
    assert_eq!(found("ns::f"), ["ns::f()", "ns::f(int)"]);
    assert_eq!(found("ns::Foo::fun"), ["ns::Foo::fun(int)"]);
    assert_eq!(found("twice<int>"), ["int twice<int>(int)"]);
    assert_eq!(found("_Z3funi"), ["fun(int)"]);
    assert_eq!(found("fun_c"), ["fun_c"]);
    assert_eq!(found("func*"), ["function()"]);
    assert_eq!(
        found("ns::*"),
        ["ns::Foo::fun(int)", "ns::f()", "ns::f(int)", "ns::ff()"]
    );
    let error = sites(&module, "fun+1").expect_err("two functions");
    assert!(
        matches!(error, SymbolError::Ambiguous { count: 2, .. }),
        "{error}"
    );
}

#[test]
fn rust_names_have_no_hash() {
    let folder = Folder::new();
    let source =
        "pub mod inner { #[inline(never)] pub fn work(x: u64) -> u64 { std::hint::black_box(x) } }
        fn main() { inner::work(3); }";
    let Some(path) = folder.build("rustc", ("prog.rs", source), "prog", &["--edition=2021"]) else {
        return;
    };
    let module = open(&path);
    assert_eq!(
        names(&sites(&module, "prog::inner::work").expect("by path")),
        ["prog::inner::work"]
    );
}

#[test]
fn aliases_are_one_site_named_as_asked() {
    let folder = Folder::new();
    let Some(path) = folder.build("cc", ("a.c", C), "a", &[]) else {
        return;
    };
    let module = open(&path);
    for name in ["fun", "other"] {
        assert_eq!(names(&sites(&module, name).expect("both exist")), [name]);
    }
    let all = sites(&module, "*").expect("many");
    assert_eq!(
        all.iter()
            .filter(|s| s.name == "fun" || s.name == "other")
            .count(),
        1
    );
    let link = sites(&module, "fun").expect("fun")[0].link;
    assert_eq!(module.functions_at(link).len(), 2);
}

const ASM: &str = "
    .text
    .globl sized
    .type sized,@function
sized:
    .byte 0x55, 0x48, 0x89, 0xe5, 0x5d, 0xc3
    .size sized, .-sized
    .p2align 4, 0xcc
    .globl unsized
    .type unsized,@function
unsized:
    .byte 0x31, 0xc0, 0xc3
    .globl label
label:
    .byte 0x31, 0xc0, 0xc3
    .section .note.GNU-stack,\"\",@progbits
";

#[test]
fn b095_a_symbol_without_size_ends_at_the_next() {
    let folder = Folder::new();
    let Some(path) = folder.build("cc", ("z.s", ASM), "z.so", &["-shared", "-nostdlib"]) else {
        return;
    };
    let module = open(&path);
    let function = |name: &str| {
        module
            .functions()
            .iter()
            .find(|f| f.name == name)
            .expect("there")
            .clone()
    };
    assert_eq!(function("unsized").size, 3);
    assert_eq!(function("label").size, 3);
    assert!(function("label").is_untyped);
    assert_eq!(
        names(&sites(&module, "*").expect("some")),
        ["sized", "unsized"],
        "a star skips what may be data"
    );
    assert_eq!(sites(&module, "label").expect("by name").len(), 1);
    let sized = &sites(&module, "sized").expect("by name")[0];
    assert_eq!(sized.function_end, sized.link.plus(6));
    assert_eq!(sized.next_start, sized.link.plus(16));
}

#[test]
fn b101_offsets_and_addresses_are_instructions() {
    let folder = Folder::new();
    let Some(path) = folder.build("cc", ("z.s", ASM), "z.so", &["-shared", "-nostdlib"]) else {
        return;
    };
    let module = open(&path);
    let start = sites(&module, "sized").expect("by name")[0].link;
    assert_eq!(
        names(&sites(&module, "sized+1").expect("a start")),
        ["sized+0x1"]
    );
    let error = sites(&module, "sized+2").expect_err("inside mov");
    let SymbolError::MidInstruction { before, after, .. } = error else {
        panic!("{error}")
    };
    assert_eq!((before, after), (start.plus(1), start.plus(4)));
    assert!(matches!(
        sites(&module, "sized+6"),
        Err(SymbolError::OutsideFunction { size: 6, .. })
    ));
    let site = &sites(&module, &start.plus(4).to_string()).expect("a start")[0];
    assert_eq!(
        (site.function_start, site.function_end),
        (start, start.plus(6))
    );
    assert!(matches!(
        sites(&module, &start.plus(3).to_string()),
        Err(SymbolError::MidInstruction { .. })
    ));
    let data = module
        .segments()
        .iter()
        .find(|s| !s.executable)
        .expect("headers")
        .link;
    for outside in [data, LinkAddr(u64::MAX)] {
        assert!(matches!(
            sites(&module, &outside.to_string()),
            Err(SymbolError::NotCode { .. })
        ));
    }
}

#[test]
fn b096_an_imported_function_names_its_library() {
    let folder = Folder::new();
    let Some(path) = folder.build("cc", ("i.c", C), "i", &[]) else {
        return;
    };
    let error = sites(&open(&path), "pthread_create")
        .expect_err("only imported")
        .to_string();
    assert!(
        error.contains("imported") && error.contains("libc.so.6"),
        "{error}"
    );
}

#[test]
fn stripped_programs_find_their_debug_file() {
    let folder = Folder::new();
    for (name, id) in [
        ("with-id", "-Wl,--build-id=sha1"),
        ("by-sum", "-Wl,--build-id=none"),
    ] {
        let Some(path) = folder.build("cc", ("s.c", C), name, &[id]) else {
            return;
        };
        let full = open(&path);
        let debug = folder.path(&format!("{name}.debug"));
        let mut keep = Command::new("objcopy");
        keep.arg("--only-keep-debug").arg(&path).arg(&debug);
        if !run(keep) {
            return;
        }
        let mut link = Command::new("objcopy");
        link.arg("--strip-all")
            .arg(format!("--add-gnu-debuglink={}", debug.display()))
            .arg(&path);
        run(link);
        let stripped = open(&path);
        assert_eq!(stripped.functions(), full.functions(), "{name}");
        fs::write(&debug, b"\x7fELF nonsense").expect("written");
        let lonely = open(&path);
        let error = sites(&lonely, "hidden").expect_err("no names").to_string();
        assert!(error.contains("no function"), "{error}");
    }
}

#[test]
fn stripped_programs_read_embedded_symbols() {
    let folder = Folder::new();
    let Some(path) = folder.build("cc", ("m.c", C), "m", &[]) else {
        return;
    };
    let mini = folder.path("mini");
    let mut keep = Command::new("objcopy");
    keep.arg("--only-keep-debug").arg(&path).arg(&mini);
    let mut pack = Command::new("xz");
    pack.arg(&mini);
    if !run(keep) || !run(pack) {
        return;
    }
    let mut add = Command::new("objcopy");
    add.arg("--strip-all")
        .arg(format!(
            "--add-section=.gnu_debugdata={}.xz",
            mini.display()
        ))
        .arg(&path);
    run(add);
    assert_eq!(
        names(&sites(&open(&path), "hidden").expect("embedded")),
        ["hidden"]
    );
}

#[test]
fn programs_without_sections_keep_their_exports() {
    let folder = Folder::new();
    let Some(path) = folder.build("cc", ("w.c", C), "w.so", &["-shared", "-fPIC"]) else {
        return;
    };
    let mut bytes = fs::read(&path).expect("built");
    bytes[40..48].fill(0);
    bytes[60..64].fill(0);
    let module = lancet_symbols::Module::from_bytes(bytes, &path).expect("still loadable");
    assert_eq!(names(&sites(&module, "fun").expect("exported")), ["fun"]);
    let whole = open(&path);
    let unnamed = sites(&whole, "hidden").expect("in .symtab")[0].link;
    let by_address = sites(&module, &unnamed.to_string()).expect("proved by unwind entries");
    assert_eq!(by_address[0].function_start, unnamed);
}

#[test]
fn b041_go_programs_are_known_as_such() {
    let folder = Folder::new();
    let source = "package main\nfunc main() { println(\"x\") }\n";
    let input = folder.path("g.go");
    fs::write(&input, source).expect("written");
    let mut build = Command::new("go");
    build
        .args(["tool", "compile", "-o"])
        .arg(folder.path("g.o"))
        .arg(&input);
    build.env("HOME", folder.path(""));
    let Ok(output) = build.output() else {
        eprintln!("skipped: no go");
        return;
    };
    let mut link = Command::new("go");
    link.args(["tool", "link", "-o"])
        .arg(folder.path("g"))
        .arg(folder.path("g.o"))
        .env("HOME", folder.path(""));
    if !output.status.success() || !link.output().is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: this go can't build without its cache");
        return;
    }
    let module = open(&folder.path("g"));
    assert_eq!(module.runtime(), Runtime::Go);
    let full = sites(&module, "main.main").expect("named");
    let strip = ["tool", "link", "-s", "-w", "-o"];
    let mut link = Command::new("go");
    link.args(strip)
        .arg(folder.path("s"))
        .arg(folder.path("g.o"))
        .env("HOME", folder.path(""));
    assert!(run(link));
    let module = open(&folder.path("s"));
    assert_eq!(module.runtime(), Runtime::Go);
    assert!(
        module.static_symbol_value("main.main").is_none(),
        "it is stripped"
    );
    assert_eq!(sites(&module, "main.main").expect("in Go's table"), full);
    let mut bytes = fs::read(folder.path("s")).expect("built");
    bytes[40..48].fill(0);
    let module = lancet_symbols::Module::from_bytes(bytes, &folder.path("s")).expect("loadable");
    assert_eq!(
        module.runtime(),
        Runtime::Go,
        "without sections, by its build information"
    );
}

#[test]
fn b026_restartable_sequences_are_forbidden() {
    let source = "
    .text
    .globl f
    .type f,@function
f:  push %rbp
    mov %rsp, %rbp
setup: lea desc(%rip), %rax
    mov %rax, 8(%rdi)
begin: mov (%rsi), %eax
    mov %eax, (%rdx)
commit: pop %rbp
    ret
    .byte 0x0f, 0xb9, 0x3d
    .long 0x53053053
abort: jmp setup
    .size f, .-f
    .section __rseq_cs,\"aw\"
    .balign 32
desc: .long 0, 0
    .quad begin, commit - begin, abort
    .section .note.GNU-stack,\"\",@progbits
";
    let folder = Folder::new();
    for (name, flags) in [
        ("r.so", ["-shared", "-nostdlib"]),
        ("r", ["-no-pie", "-nostdlib"]),
    ] {
        let Some(path) = folder.build(
            "cc",
            ("r.s", source),
            name,
            &[flags[0], flags[1], "-Wl,-e,f"],
        ) else {
            return;
        };
        let module = open(&path);
        let f = sites(&module, "f").expect("there")[0].link;
        let (setup, commit, abort) = (f.plus(4), f.plus(19), f.plus(28));
        let roots = module.roots();
        assert_eq!(
            roots.forbidden,
            [setup..commit, abort.minus(4)..abort],
            "{name}"
        );
        assert!(
            roots.entries.contains(&abort),
            "{name}: the abort handler is entered by the kernel"
        );
    }
}
