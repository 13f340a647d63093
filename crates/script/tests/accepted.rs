//! Programs that are right: each compiles, its IR is accepted by the verifier, and the IR is as it was.

use lancet_script::ir::{Program, verify};
use lancet_script::{Options, Source, compile};

fn program(text: &str) -> Program {
    let source = Source {
        name: "stdin",
        text,
    };
    let options = Options {
        params: vec!["42".into(), "word".into()],
        ..Options::default()
    };
    let program = compile(source, &options).unwrap_or_else(|diags| {
        let told: String = diags.iter().map(|diag| diag.render(source)).collect();
        panic!("{text}\n{told}")
    });
    verify(&program).unwrap_or_else(|error| panic!("{text}\n{error}\n{program}"));
    program
}

fn all(texts: &[&str]) -> String {
    texts
        .iter()
        .map(|text| format!("== {text}\n{}\n", program(text)))
        .collect()
}

/// Bodies of `uprobe:/bin/x:f`.
fn bodies(texts: &[&str]) -> String {
    texts
        .iter()
        .map(|text| {
            format!(
                "== {text}\n{}\n",
                program(&format!("uprobe:/bin/x:f {{ {text} }}"))
            )
        })
        .collect()
}

/// Without the whole list in the snapshot's head.
fn check(name: &str, shown: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_omit_expression(true);
    settings.bind(|| insta::assert_snapshot!(name, shown));
}

#[test]
fn one_liners() {
    check(
        "one_liners",
        &all(&[
            "BEGIN { printf(\"hello\\n\"); }",
            "begin { exit() }",
            "END { clear(@); } uprobe:libc:malloc { @ = count(); }",
            "uprobe:libc:malloc { @bytes = hist(arg0); } uprobe:libc:free { @frees = count(); }",
            "uprobe:/usr/bin/redis-server:processCommand { @[tid] = count(); } interval:s:1 { print(@); clear(@); }",
            "uprobe:libc:malloc /pid == 42/ { @[comm] = sum(arg0); }",
            "uprobe:libc:malloc /pid == $1 && comm == \"ls\"/ { @ = count(); }",
            "uprobe:libc:fopen { printf(\"%s %d %s\\n\", comm, pid, str(arg0)); }",
            "uprobe:/bin/bash:readline { time(\"%H:%M:%S  \"); printf(\"%-6d\\n\", pid); }",
            "uprobe:libc:getaddrinfo,\nuprobe:libc:gethostbyname,\n{ @start[tid] = nsecs; @name[tid] = str(arg0); }",
            "u:libc:a { @s[tid] = nsecs; } u:libc:b /@s[tid]/ { @ns = hist(nsecs - @s[tid]); delete(@s[tid]); }",
            "u:libc:a { @s[tid] = nsecs; } u:libc:b /@s[tid]/ { @us[comm] = lhist((nsecs - @s[tid]) / 1000, 0, 100, 10); delete(@s, tid); }",
            "uprobe:libc:str* { @[func] = count(); }",
            "uprobe:libc:f+0x10 { @[probe] = count(); }",
            "uprobe:./a.out:0x1234 { @ = count(); } u:./a.out:4660 { @b = count(); }",
            "uprobe:/lib/x.so:cpp:\"ns::f(int)\" { @ = count(); }",
            "uprobe:\"/path with blank/x\":f { @ = count(); }",
            "#!/usr/bin/env lancet\n// a comment\n/* another */\nBEGIN { }",
            "BEGIN, END { print(1); }",
            "BEGIN, uprobe:x:f { @[pid] = count(); }",
            "BEGIN { } BEGIN { } END { } end { }",
            "interval:5s { exit(); } interval:ms:100 { } i:us:10 { } interval:hz:99 { } interval:1000 { }",
            "uprobe:$2:f { @ = count(); }",
            "uprobe:x:f { @ = count(); } uprobe:x:f { @b = count(); }",
            "uprobe:x:f /(arg0 / 2) > 3/ { @ = count(); }",
            "config = { missing_probes=warn; max_strlen=64 } BEGIN { }",
            "config = { missing_probes=\"ignore\"; max_map_keys=10; print_maps_on_exit=false; license=\"GPL\" } u:x:f { @[arg0] = count(); }",
            "let @m = lruhash(100); u:x:f { @m[arg0] = 1; }",
            "let @m = hash(5) u:x:f { @m[arg0] = 1; }",
            "BEGIN { join(1); }".replace("BEGIN", "u:x:f").as_str(),
        ]),
    );
}

#[test]
fn statements() {
    check(
        "statements",
        &bodies(&[
            "if (arg0 > 10) { @a = count(); } else if arg0 == 3 { @b = count(); } else { @c = count(); }",
            "$x = 1; $x++; ++$x; $x--; @ = $x;",
            "$x = arg0; $x += 2; $x -= 1; $x *= 3; $x /= 2; $x %= 7; $x &= 6; $x |= 1; $x ^= 3; $x <<= 2; $x >>= 1; @ = $x;",
            "@x++; @x--; ++@x; --@x; @x += 5; @x -= 1; @x *= 2; @x /= 3; @x |= 8; @x &= 15; @x ^= 1; @x <<= 1; @x >>= 1; @x %= 9",
            "$a = @x++; printf(\"%d\", $a)",
            "@m[arg0]++; @m[arg1] += arg2;",
            "while (arg0 < 10) { @ = count(); break; }",
            "$i = 0; while $i < 5 { $i++; if ($i == 3) { continue } @ = sum($i); }",
            "unroll(3) { @ = count(); }",
            "for ($i : 0..10) { @ = sum($i); }",
            "for $i : 0..arg0 { for $j : 0..$i { if $j == 2 { break } @++ } }",
            "@m[arg0] = 1; for ($kv : @m) { printf(\"%d %d\\n\", $kv.0, $kv.1); }",
            "@m[comm, arg0] = count(); for ($kv : @m) { print($kv.0); print($kv.1); }",
            "@m[1] = \"abc\"; for ($kv : @m) { print($kv); }",
            "if (arg0) { return; } @ = count();",
            "exit(3); @ = count();",
            "let $x; $x = 5; print($x)",
            "let $x : uint8 = 255; $x++; print($x)",
            "let $x = \"ab\"; $x = \"abcdefghijk\"; print($x)",
            "if arg0 { $y = 1 } else { $y = 2 } print($y)",
            "{ let $z = 1; print($z) }",
            "_ = arg0;",
            "$x = { let $y = arg0; $y * 2 }; print($x)",
            "arg0 > 5 ? print(1) : print(2);",
        ]),
    );
}

#[test]
fn expressions() {
    check(
        "expressions",
        &bodies(&[
            "@ = 1 + 2 * 3 - 4 / 2;",
            "@ = (arg0 + arg1) * arg2;",
            "@ = arg0 / arg1; @b = arg0 % arg1;",
            "@ = (int64)arg0 / 2; @b = (int32)arg0 % 3;",
            "@ = (int8)arg0; @b = (uint16)arg0; @c = (int32)-1; @d = (uint8)300;",
            "@ = arg0 << 2; @b = arg0 >> 3; @c = (int64)arg0 >> 3;",
            "@ = ~arg0; @b = -arg0; @c = !arg0;",
            "@ = arg0 && arg1; @b = arg0 || arg1;",
            "@ = arg0 == 1; @b = arg0 != 1; @c = arg0 < 5; @d = arg0 <= 5; @e = arg0 > 5; @f = arg0 >= 5;",
            "@ = arg0 ? 1 : 2; @s = arg0 ? \"a\" : \"longer text\";",
            "@ = *(uint32*)arg0; @b = *(int8 *)(arg0 + 4);",
            "$p = (uint64*)arg0; @ = $p[2]; @b = *($p + 1); @c = $p + 1;",
            "@ = **(uint64**)arg0;",
            "@ = 0x10 + 010 + 1e3 + 1_000 + 5ms + 1us + 2s + 3u + 4ull;",
            "@ = $1 + $# + $9; printf(\"%s\", str($2))",
            "@ = comm == \"ls\"; @b = \"a\" != \"b\"; @c = str(arg0) == str(arg1);",
            "@ = (1, 2) == (1, 3);",
            "$t = (1, \"a\", (2, 3)); print($t); print($t.1); print($t.2.0); @t[$t.0] = $t;",
            "print((1,)); print(()); print(true);",
            "@ = sizeof(uint32); @b = sizeof(arg0); @c = sizeof(int32*);",
            "@ = strncmp(comm, \"ls\", 2); @b = strcontains(comm, \"x\"); @c = strlen(str(arg0)); @d = strstr(comm, \"y\");",
            "@ = probe == \"uprobe:x:f\"; @b = func == \"f\";",
            "@ = reg(\"ax\") + reg(\"r10\") + reg(\"pc\");",
            "@ = nsecs; @b = nsecs(monotonic); @c = nsecs(tai); @d = elapsed;",
            "@ = pid + tid + uid + gid + cpu + ncpus + rand;",
            "@ = 5 / 0;",
            "@[-1] = 1; @[0xffffffffffffffff] = 2;",
            "@ = bswap((uint16)arg0);",
            "@ = arg9 + arg8;",
            "@ = 18446744073709551615;",
        ]),
    );
}

#[test]
fn maps() {
    check(
        "maps",
        &bodies(&[
            "@ = count(); @s = sum(arg0); @a = avg(arg0); @i = min(arg0); @x = max((int32)arg0); @t = stats(arg0);",
            "@ = hist(arg0); @b = hist(arg0, 3); @l = lhist(arg0, 0, 1000, 100); @m = lhist((int64)arg0, -10, 10, 1);",
            "@[pid, comm] = count();",
            "@[(pid, comm)] = count(); @[tid, \"x\"] = count();",
            "@[str(arg0)] = count(); @[\"lit\"] = count();",
            "@m[1] = \"a\"; @m[2] = \"longer than eight\"; print(@m[1]);",
            "@m[1] = (1, \"a\"); @m[2] = (2, \"longer than eight\"); print(@m[1].1);",
            "@x = 1; @x = arg0; print(@x);",
            "@m[1] = count(); if (@m[1] > 5) { exit(); }",
            "@m[1,2] = 1; delete(@m, (1,2)); delete(@m[1,2]); if (has_key(@m, (1,2))) { print(1) } print(len(@m));",
            "@x = 1; delete(@x); print(len(@x));",
            "@m[1] = 1; print(@m); print(@m, 5); print(@m, 5, 2); clear(@m); zero(@m);",
            "@m[usermode, cpu] = avg(arg0);",
            "@m[@k[tid]] = count(); @k[tid] = 1;",
            "@m[buf(arg0, 4)] = count();",
            "@m[func, probe, username] = count();",
            "@a = 1; @b = @a; @c = @b; @d[@c] = @d[@c] + 1;",
            "@s = str(arg0); @t = @s; print(@t == @s);",
            "@m[1] = sum(1); @m[1] = sum(arg0);",
            "@m[1] = arg0; $x = @m[1] > 5 ? @m[1] : 0; print($x);",
        ]),
    );
}

#[test]
fn output() {
    check(
        "output",
        &bodies(&[
            "printf(\"%d %i %u %x %X %o %c %p\", arg0, arg0, arg0, arg0, arg0, arg0, arg0, arg0);",
            "printf(\"%hhd %hd %ld %lld %jd %zu %td\", 1, 2, 3, 4, 5, 6, 7);",
            "printf(\"%-10s|%10s|%05d|%+d|%#x|% d|%%\\n\", comm, \"x\", 1, 2, 3, 4);",
            "printf(\"%r %rx %rh\", buf(arg0, 3), buf(arg0, arg1), buf(arg0));",
            "printf(\"%s %s %s %s\", 1, (1, 2), true, probe);",
            "printf(\"%s\", strftime(\"%H:%M\", nsecs));",
            "printf(\"%s\", str(arg0, 5)); printf(\"%s\", str(arg0, arg1)); printf(\"plain\");",
            "print(\"text\"); print(arg0); print(-5); print(comm); print(username); print(func);",
            "time(); time(\"%s\"); join(arg0); join(arg0, \",\");",
            "printf(\"%d\", (int32)arg0); printf(\"%s\", (int8)1);",
        ]),
    );
}

#[test]
fn macros() {
    check(
        "macros",
        &all(&[
            "macro add(a, b) { a + b } u:x:f { @ = add(arg0, 2) * 3; }",
            "macro bump($v) { $v += 1; } u:x:f { $x = 1; bump($x); @ = $x; }",
            "macro note(@m, k) { @m[k] = count(); } u:x:f { note(@seen, tid); }",
            "macro twice(a) { let $t = a; $t + $t } u:x:f { $t = 7; @ = twice(arg0) + $t; }",
        ]),
    );
}
