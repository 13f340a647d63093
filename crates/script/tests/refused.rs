//! Programs that are wrong, and what is told about them.

use lancet_script::{Options, Source, compile};

fn told(text: &str) -> String {
    let source = Source {
        name: "stdin",
        text,
    };
    match compile(
        source,
        &Options {
            params: vec!["word".into()],
            ..Options::default()
        },
    ) {
        Ok(program) => panic!("accepted: {text}\n{program}"),
        Err(diags) => {
            diags
                .iter()
                .map(|diag| diag.render(source))
                .collect::<String>()
                + "\n"
        }
    }
}

/// Without the whole list in the snapshot's head.
fn check(name: &str, shown: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, shown));
}

#[test]
fn attach_points() {
    check(
        "attach_points",
        &[
            "kprobe:do_nanosleep { }",
            "tracepoint:sched:sched_switch { }",
            "kretprobe:x { } fentry:y { }",
            "software:faults:1 { }",
            "uretprobe:libc:malloc { }",
            "usdt:./x:p:n { }",
            "profile:hz:99 { }",
            "watchpoint:0x1:8:w { }",
            "uprob:libc:malloc { }",
            "BEGINN { }",
            "nonsense { }",
            "uprobe:libc { }",
            "uprobe::f { }",
            "uprobe:libc: { }",
            "uprobe:libc:f+x { }",
            "uprobe:libc:f*+4 { }",
            "uprobe:libc:0xzz { }",
            "uprobe:./x@a.c:10 { }",
            "interval:s:0 { }",
            "interval:weeks:1 { }",
            "BEGIN:x { }",
            "uprobe:\"libc:f { }",
            "",
            "{ }",
        ]
        .map(told)
        .concat(),
    );
}

#[test]
fn syntax() {
    check(
        "syntax",
        &[
            "BEGIN { printf(\"x\" }",
            "BEGIN { 1 + ; }",
            "BEGIN { @x = ; } END { @y = ; }",
            "BEGIN { printf(\"x) }",
            "BEGIN { /* }",
            "BEGIN { print(1) print(2) }",
            "BEGIN { print(\"\\q\") }",
            "BEGIN { print(99999999999999999999) }",
            "BEGIN { print(1z) }",
            "BEGIN { print($) }",
            "BEGIN { print($0) }",
            "BEGIN { ` }",
            "BEGIN { if (1) print(1) }",
            "BEGIN",
            "BEGIN {",
            "BEGIN /1 { }",
            "BEGIN { 5 = 3; }",
            "BEGIN { for ($x : 5) { } }",
            "BEGIN { let x = 1; }",
            "struct x { int a; } BEGIN { }",
            "#include <stdio.h>\nBEGIN { }",
            "BEGIN { print(@x.y) }",
            "BEGIN { $x = 1 ?: 2; }",
        ]
        .map(told)
        .concat(),
    );
}

#[test]
fn names() {
    check(
        "names",
        &[
            "u:x:f { print(pidd) }",
            "u:x:f { print(retval) }",
            "u:x:f { print(kstack) }",
            "u:x:f { print(ustack) }",
            "u:x:f { print(arg10) }",
            "u:x:f { printff(\"x\") }",
            "u:x:f { usym(arg0) }",
            "u:x:f { ksym(arg0) }",
            "u:x:f { system(\"ls\") }",
            "u:x:f { print($x) }",
            "u:x:f { $count = 1; print($coumt) }",
            "u:x:f { print(@x) }",
            "u:x:f { @bytes = 1; print(@byte) }",
            "u:x:f { @ = reg(\"xx\") }",
            "u:x:f { print((int33)arg0) }",
            "u:x:f { let $x : strng = 1 }",
            "u:x:f { print((struct foo *)arg0) }",
            "config = { max_strln=5 } BEGIN { }",
            "config = { max_strlen=5 } BEGIN { }",
            "config = { missing_probes=maybe } BEGIN { }",
            "let @m = tree(5); BEGIN { }",
            "let @m = hash(0); BEGIN { }",
            "BEGIN { print(arg0) }",
            "BEGIN { print(str(0)) }",
            "interval:s:1 { print(func) }",
            "u:x:f { print($1) }",
        ]
        .map(told)
        .concat(),
    );
}

#[test]
fn types() {
    check(
        "types",
        &[
            "u:x:f { @x = 1; @x = \"a\"; }",
            "u:x:f { @x = count(); @x = 5; }",
            "u:x:f { @x = count(); @x = sum(1); }",
            "u:x:f { @x = hist(1); print(@x + 1); }",
            "u:x:f { @x[1] = hist(1); print(@x[1]); }",
            "u:x:f { @x[1] = 1; @x = 2; }",
            "u:x:f { @x[1] = 1; @x[\"a\"] = 2; }",
            "u:x:f { @x[1,2] = 1; @x[1] = 2; }",
            "u:x:f { @x = 1; for ($kv : @x) { } }",
            "u:x:f { $x = 1; $x = \"a\"; }",
            "u:x:f { print(\"a\" + 1) }",
            "u:x:f { print(\"a\" == 1) }",
            "u:x:f { if (comm) { } }",
            "u:x:f /\"a\"/ { }",
            "u:x:f { print(*5) }",
            "u:x:f { print((1, 2).5) }",
            "u:x:f { $t = 1; print($t.0) }",
            "u:x:f { print((int32)\"a\") }",
            "u:x:f { let $x : uint8 = 256; }",
            "u:x:f { print(arg0 ? 1 : \"a\") }",
            "u:x:f { count() }",
            "u:x:f { $x = count(); }",
            "u:x:f { @x += count(); }",
            "u:x:f { arg0 + 1; }",
            "u:x:f { $x = printf(\"a\"); }",
            "u:x:f { break; }",
            "u:x:f { unroll(1000) { } }",
            "u:x:f { unroll(arg0) { } }",
            "u:x:f { let $x = 1; let $x = 2; }",
            "u:x:f { @[strftime(\"%H\", nsecs)] = count(); }",
        ]
        .map(told)
        .concat(),
    );
}

#[test]
fn arguments() {
    check(
        "arguments",
        &[
            "u:x:f { printf() }",
            "u:x:f { printf(arg0) }",
            "u:x:f { printf(\"%d\") }",
            "u:x:f { printf(\"%d\", 1, 2) }",
            "u:x:f { printf(\"%d\", \"a\") }",
            "u:x:f { printf(\"%y\", 1) }",
            "u:x:f { printf(\"%f\", 1) }",
            "u:x:f { printf(\"%.5s\", comm) }",
            "u:x:f { printf(\"%\") }",
            "u:x:f { printf(\"%r\", comm) }",
            "u:x:f { @ = hist() }",
            "u:x:f { @ = hist(1, 9) }",
            "u:x:f { @ = hist(1, arg0) }",
            "u:x:f { @ = lhist(1, 10, 0, 1) }",
            "u:x:f { @ = lhist(1, 0, 100000, 1) }",
            "u:x:f { @ = lhist(1, 0, 10) }",
            "u:x:f { clear(1) }",
            "u:x:f { delete(1) }",
            "u:x:f { str() }",
            "u:x:f { print(str((1,2))) }",
            "u:x:f { exit(\"a\") }",
            "u:x:f { @x[1] = 1; print(@x, arg0) }",
            "u:x:f { time(arg0) }",
            "u:x:f { print(nsecs(sun)) }",
            "u:x:f { print(strlen(5)) }",
            "u:x:f { print(1, 2) }",
            "macro m(a) { a } u:x:f { print(m()) }",
            "macro m($a) { $a } u:x:f { print(m(1)) }",
            "macro m(a) { m(a) } u:x:f { print(m(1)) }",
            "macro m(a) { a } macro m(b) { b } BEGIN { }",
        ]
        .map(told)
        .concat(),
    );
}
