//! Any text gives messages or a program that the verifier accepts and the interpreter runs to its end, within bounded stack.

use lancet_script::eval::{Host, run};
use lancet_script::ir::{Agg, Fact, FormatId, MapId, StrSource, Warning, verify};
use lancet_script::{Options, Source, compile};
use proptest::prelude::*;

/// Every fact is odd, no memory is there, maps give what they can hold at most.
struct Nowhere<'a>(&'a lancet_script::ir::Program);

impl Host for Nowhere<'_> {
    fn fact(&mut self, _: Fact) -> i64 {
        -3
    }
    fn text(&mut self, _: StrSource) -> Vec<u8> {
        vec![b'x'; 5000]
    }
    fn read(&mut self, addr: u64, into: &mut [u8]) -> usize {
        into.fill(b'y');
        if addr.is_multiple_of(2) {
            0
        } else {
            into.len()
        }
    }
    fn map_word(&mut self, _: MapId, _: &[u8]) -> i64 {
        i64::MIN
    }
    fn map_bytes(&mut self, _: MapId, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
    fn map_set(&mut self, map: MapId, key: &[u8], _: &[u8]) {
        assert_eq!(key.len(), self.0.maps[map.index()].key_size as usize);
    }
    fn map_update(&mut self, _: MapId, _: &[u8], change: &dyn Fn(i64) -> i64) -> (i64, i64) {
        (i64::MIN, change(i64::MIN))
    }
    fn aggregate(&mut self, map: MapId, key: &[u8], _: Agg, _: i64) {
        assert_eq!(key.len(), self.0.maps[map.index()].key_size as usize);
    }
    fn map_delete(&mut self, _: MapId, _: &[u8]) -> bool {
        true
    }
    fn map_has(&mut self, _: MapId, _: &[u8]) -> bool {
        false
    }
    fn map_len(&mut self, _: MapId) -> u64 {
        u64::MAX
    }
    fn map_next(&mut self, _: MapId, cursor: u64) -> Option<(u64, Vec<u8>)> {
        (cursor < 3).then(|| (cursor + 1, vec![b'z'; 5000]))
    }
    fn emit(&mut self, format: FormatId, record: &[u8]) {
        assert_eq!(record.len(), self.0.formats[format.index()].size() as usize);
    }
    fn warn(&mut self, _: Warning) {}
}

fn try_text(text: &str) -> bool {
    let source = Source {
        name: "stdin",
        text,
    };
    match compile(
        source,
        &Options {
            params: vec!["7".into()],
            ..Options::default()
        },
    ) {
        Ok(program) => {
            verify(&program).unwrap_or_else(|error| panic!("{text}\n{error}\n{program}"));
            for action in &program.actions {
                let short = lancet_script::ir::Action {
                    fuel: 300,
                    ..action.clone()
                };
                run(&program, &short, &mut Nowhere(&program));
            }
            true
        }
        Err(diags) => {
            assert!(!diags.is_empty(), "{text}");
            diags
                .iter()
                .for_each(|diag| assert!(diag.render(source).contains("ERROR"), "{text}"));
            false
        }
    }
}

/// Pieces of programs; joined at random they are often nearly right.
const PIECES: &[&str] = &[
    "BEGIN",
    "uprobe:x:f",
    "interval:s:1",
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ";",
    ",",
    "/",
    "@x",
    "@m[1]",
    "$x",
    "$y",
    "1",
    "\"a\"",
    "\"long text here\"",
    "=",
    "+=",
    "++",
    "--",
    "+",
    "*",
    "&&",
    "==",
    "?",
    ":",
    "if",
    "else",
    "while",
    "for",
    "unroll(3)",
    "..",
    "let",
    "return",
    "break",
    "count()",
    "hist(arg0)",
    "sum(1)",
    "printf(\"%s\", ",
    "print(",
    "str(arg0)",
    "comm",
    "arg0",
    "tid",
    "(int8)",
    "*(uint32*)",
    "delete(@m, 1)",
    "exit()",
    "macro m(a) { a }",
    "m(2)",
    "(1, \"a\")",
    ".0",
    "probe",
    "nsecs",
    "join(arg0)",
    "buf(arg0, 8)",
    "true",
    "$1",
    "config = { max_strlen=16 }",
];

const STATEMENTS: &[&str] = &[
    "$x = 1;",
    "$x = \"text\";",
    "$y = $x;",
    "@x = $x;",
    "@x = count();",
    "@x++;",
    "@m[$x] = @x;",
    "@m[1] = $y;",
    "@m[comm] = count();",
    "@m[tid, comm] = (1, comm);",
    "$t = (1, $x);",
    "print($t.1);",
    "if (arg0) {",
    "} else {",
    "}",
    "while ($x < 5) {",
    "for ($i : 0..3) {",
    "for ($kv : @m) {",
    "print($kv);",
    "break;",
    "continue;",
    "return;",
    "exit();",
    "printf(\"%d %s\", arg0, str(arg1));",
    "$s = str(arg0);",
    "@m[$s] = $s;",
    "print(@m);",
    "delete(@m, 1);",
    "$x = $x ? 2 : 3;",
    "$x += @x;",
    "$p = (uint32*)arg0;",
    "print($p[1]);",
    "unroll(3) {",
    "@h = hist(arg0 / $x);",
    "$b = $s == comm && arg0 != 1;",
    "@t = $t;",
    "$t = (300, \"longer than that\");",
    "join(arg0);",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: std::env::var("LANCET_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(400), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn characters(text in "\\PC{0,80}") {
        try_text(&text);
        try_text(&format!("BEGIN {{ {text} }}"));
    }

    #[test]
    fn pieces(picks in proptest::collection::vec(0..PIECES.len(), 0..40)) {
        let text: Vec<&str> = picks.iter().map(|pick| PIECES[*pick]).collect();
        try_text(&text.join(" "));
        try_text(&format!("uprobe:x:f {{ {} }}", text.join(" ")));
    }

    #[test]
    fn statements(picks in proptest::collection::vec(0..STATEMENTS.len(), 0..16)) {
        let mut text = String::from("uprobe:x:f { $x = 3; ");
        let mut open = 0i32;
        for pick in picks {
            let stmt = STATEMENTS[pick];
            if stmt.starts_with('}') && open == 0 || stmt == "} else {" && !text.trim_end().ends_with(';') {
                continue;
            }
            open += stmt.matches('{').count() as i32 - stmt.matches('}').count() as i32;
            text.push_str(stmt);
            text.push(' ');
        }
        text.push_str(&"}".repeat(open as usize + 1));
        try_text(&text);
    }
}

#[test]
fn statements_in_random_order_are_sometimes_right() {
    assert!(try_text(
        "uprobe:x:f { $x = 3; @x = $x; for ($i : 0..3) { @m[$i] = @x; } for ($kv : @m) { print($kv); } }"
    ));
}

#[test]
fn nesting_is_bounded() {
    let deep = 20_000;
    for (open, close) in [
        ("(", ")"),
        ("{", "}"),
        ("-", ""),
        ("!", ""),
        ("@[", "]"),
        ("if (1) {", "}"),
        ("1 + ", ""),
        ("(int8)", ""),
        ("str(", ")"),
    ] {
        let text = format!(
            "BEGIN {{ @ = {}1{} }}",
            open.repeat(deep),
            close.repeat(deep)
        );
        assert!(!try_text(&text), "{open}");
        let text = format!("BEGIN {{ {}1{} }}", open.repeat(deep), close.repeat(deep));
        assert!(!try_text(&text), "{open}");
    }
    assert!(!try_text(&format!(
        "BEGIN {{ @ = 1{} }}",
        " + 1".repeat(deep)
    )));
    assert!(!try_text(&format!(
        "BEGIN {{ @ = 1{} }}",
        ".0".repeat(deep)
    )));
    assert!(!try_text(&format!(
        "BEGIN {{ if 1 {{ }} {} }}",
        "else if 1 { } ".repeat(deep)
    )));
}

#[test]
fn macros_do_not_explode() {
    let mut text = String::from("macro m0(a) { a + a } ");
    for level in 1..30 {
        text.push_str(&format!(
            "macro m{level}(a) {{ m{}(a) + m{}(a) }} ",
            level - 1,
            level - 1
        ));
    }
    text.push_str("BEGIN { @ = m29(1); }");
    assert!(!try_text(&text));
}

#[test]
fn tuples_do_not_explode() {
    for body in [
        "@t = (@t, @t);",
        "@t = (@t,);",
        "let $t; $t = ($t, $t);",
        "@m[@m[1]] = (@m[1], 1);",
    ] {
        assert!(!try_text(&format!("uprobe:x:f {{ {body} }}")), "{body}");
    }
    for tuple in ["($t, $t)", "($t,)"] {
        let mut text = String::from("uprobe:x:f { let $t0 = ();");
        for level in 1..2000 {
            let inner = format!("$t{}", level - 1);
            text.push_str(&format!("let $t{level} = {};", tuple.replace("$t", &inner)));
        }
        assert!(!try_text(&(text + "}")), "{tuple}");
    }
}
