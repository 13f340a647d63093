//! What programs do, by running their IR: each prints numbers, which are compared.

use std::collections::BTreeMap;

use lancet_script::eval::{Host, run};
use lancet_script::ir::{Agg, Fact, FormatId, MapId, StrSource, Warning, verify};
use lancet_script::{Options, Source, compile};

/// Memory is one page at 0x1000 that begins with a text.
#[derive(Default)]
struct Recorder {
    maps: BTreeMap<(u32, Vec<u8>), Vec<u8>>,
    records: Vec<Vec<u8>>,
    warnings: Vec<Warning>,
}

const MEMORY: &[u8] = b"hello\0world\0\xfe\xff\xff\xff";

fn word(bytes: &[u8]) -> i64 {
    i64::from_ne_bytes(bytes[..8].try_into().expect("eight bytes"))
}

impl Host for Recorder {
    fn fact(&mut self, fact: Fact) -> i64 {
        match fact {
            Fact::Arg(0) => 0x1000,
            Fact::Arg(1) => -1,
            Fact::Arg(number) => i64::from(number),
            _ => 7,
        }
    }
    fn text(&mut self, _: StrSource) -> Vec<u8> {
        b"name".to_vec()
    }
    fn read(&mut self, addr: u64, into: &mut [u8]) -> usize {
        let from = addr
            .checked_sub(0x1000)
            .and_then(|at| MEMORY.get(at as usize..))
            .unwrap_or(&[]);
        let len = from.len().min(into.len());
        into[..len].copy_from_slice(&from[..len]);
        len
    }
    fn map_word(&mut self, map: MapId, key: &[u8]) -> i64 {
        self.maps
            .get(&(map.0, key.to_vec()))
            .map_or(0, |value| word(value))
    }
    fn map_bytes(&mut self, map: MapId, key: &[u8]) -> Option<Vec<u8>> {
        self.maps.get(&(map.0, key.to_vec())).cloned()
    }
    fn map_set(&mut self, map: MapId, key: &[u8], value: &[u8]) {
        self.maps.insert((map.0, key.to_vec()), value.to_vec());
    }
    fn map_update(&mut self, map: MapId, key: &[u8], change: &dyn Fn(i64) -> i64) -> (i64, i64) {
        let old = self.map_word(map, key);
        self.map_set(map, key, &change(old).to_ne_bytes());
        (old, change(old))
    }
    fn aggregate(&mut self, map: MapId, key: &[u8], _: Agg, value: i64) {
        self.map_update(map, key, &|old| old + value);
    }
    fn map_delete(&mut self, map: MapId, key: &[u8]) -> bool {
        self.maps.remove(&(map.0, key.to_vec())).is_some()
    }
    fn map_has(&mut self, map: MapId, key: &[u8]) -> bool {
        self.maps.contains_key(&(map.0, key.to_vec()))
    }
    fn map_len(&mut self, map: MapId) -> u64 {
        self.maps.keys().filter(|key| key.0 == map.0).count() as u64
    }
    fn map_next(&mut self, map: MapId, cursor: u64) -> Option<(u64, Vec<u8>)> {
        self.maps
            .keys()
            .filter(|key| key.0 == map.0)
            .nth(cursor as usize)
            .map(|key| (cursor + 1, key.1.clone()))
    }
    fn emit(&mut self, _: FormatId, record: &[u8]) {
        self.records.push(record.to_vec());
    }
    fn warn(&mut self, warning: Warning) {
        self.warnings.push(warning);
    }
}

fn ran(body: &str) -> Recorder {
    let text = format!("uprobe:x:f {{ {body} }}");
    let source = Source {
        name: "stdin",
        text: &text,
    };
    let program = compile(source, &Options::default())
        .unwrap_or_else(|diags| panic!("{}", diags[0].render(source)));
    verify(&program).unwrap_or_else(|error| panic!("{text}\n{error}"));
    let mut host = Recorder::default();
    run(&program, &program.actions[0], &mut host);
    host
}

/// The first word of each record.
fn printed(body: &str) -> Vec<i64> {
    ran(body)
        .records
        .iter()
        .map(|record| word(record))
        .collect()
}

#[test]
fn arithmetic() {
    assert_eq!(printed("print(2 + 3 * 4 - 10 / 3 % 2);"), [13]);
    assert_eq!(printed("print(arg2 + arg3 * arg4);"), [14]);
    assert_eq!(
        printed("print((int8)arg1); print((uint8)arg1); print(arg1 > 5); print((int64)arg1 > 5);"),
        [-1, 255, 1, 0]
    );
    assert_eq!(
        printed("print(arg1 >> 60); print((int64)arg1 >> 60); print(1 << arg4);"),
        [15, -1, 16]
    );
    assert_eq!(
        printed("print(-arg2); print(~arg2); print(!arg2); print(arg2 && 0); print(0 || arg3);"),
        [-2, -3, 0, 0, 1]
    );
    assert_eq!(
        printed("print(arg2 == 2 ? 10 : 20); print(arg2 == 3 ? 10 : arg4 == 4 ? 30 : 40);"),
        [10, 30]
    );
    assert_eq!(printed("let $x : uint8 = 255; $x++; print($x);"), [0]);
    let host = ran("print(arg2 / (arg2 - 2)); print(arg2 % 0);");
    assert_eq!(
        host.records
            .iter()
            .map(|record| word(record))
            .collect::<Vec<_>>(),
        [1, 1]
    );
    assert_eq!(host.warnings, [Warning::DivisionByZero; 2]);
    assert_eq!(printed("$x = 5; print($x++ + $x); print(++$x);"), [11, 7]);
    assert_eq!(printed("print(bswap((uint16)0x1234));"), [0x3412]);
}

#[test]
fn loops() {
    assert_eq!(
        printed("for ($i : 0..10) { if ($i == 2) { continue } if ($i == 5) { break } print($i); }"),
        [0, 1, 3, 4]
    );
    assert_eq!(
        printed("$i = 0; while ($i < 3) { print($i); $i++; }"),
        [0, 1, 2]
    );
    assert_eq!(
        printed("unroll(2) { for ($j : 0..2) { print($j); } }"),
        [0, 1, 0, 1]
    );
    assert_eq!(
        printed("@m[5] = 50; @m[6] = 60; for ($kv : @m) { print($kv.0); print($kv.1); }"),
        [5, 50, 6, 60]
    );
    assert_eq!(
        printed("for ($i : 0..3) { if ($i == 1) { return; } print($i); }"),
        [0]
    );
    assert_eq!(ran("while (1) { @x++; }").warnings, [Warning::Fuel]);
}

#[test]
fn maps_and_texts() {
    assert_eq!(
        printed("@x++; @x += 4; @x *= 3; print(@x + 0); print(@x--); print(--@x);"),
        [15, 15, 13]
    );
    assert_eq!(
        printed(
            "@m[1, \"a\"] = 3; print(@m[1, \"a\"]); print(@m[1, \"b\"]); print(has_key(@m, (1, \"a\")));"
        ),
        [3, 0, 1]
    );
    assert_eq!(
        printed(
            "@m[1] = 2; print(len(@m)); print(delete(@m, 1)); print(delete(@m, 1)); print(len(@m));"
        ),
        [1, 1, 0, 0]
    );
    assert_eq!(
        printed(
            "print(str(arg0) == \"hello\"); print(str(arg0, 3) == \"he\"); print(strlen(str(arg0 + 6)));"
        ),
        [1, 1, 5]
    );
    assert_eq!(
        printed(
            "print(strncmp(\"hello\", \"help\", 3)); print(strcontains(str(arg0), \"ell\")); print(strstr(\"abc\", \"c\"));"
        ),
        [0, 1, 2]
    );
    assert_eq!(
        printed("print(*(int32*)(arg0 + 12)); print(((uint8*)arg0)[1]);"),
        [-2, i64::from(b'e')]
    );
    assert_eq!(
        printed(
            "$s = \"a\"; $s = \"a much longer text\"; print($s == \"a much longer text\"); print($s == \"a\");"
        ),
        [1, 0]
    );
    assert_eq!(
        printed(
            "$t = (1, \"x\", (2, 3)); print($t.2.1); print($t.1 == \"x\"); print($t == (1, \"x\", (2, 3)));"
        ),
        [3, 1, 1]
    );
    assert_eq!(
        printed("print(comm == \"name\"); print(comm != \"nam\");"),
        [1, 1]
    );
    let host = ran("print(str(1)); print(*(uint32*)1);");
    assert_eq!(host.warnings, [Warning::Unreadable; 2]);
    assert!(host.records.iter().all(|record| word(record) == 0));
    assert_eq!(word(&ran("print(buf(arg0, 5));").records[0]), 5);
}

#[test]
fn predicates_and_macros() {
    let text = "macro twice(a) { let $t = a; $t + $t } uprobe:x:f /arg2 == 2 && arg3 != 4/ { $t = 1; print(twice(arg4)); print($t); }";
    let program = compile(
        Source {
            name: "stdin",
            text,
        },
        &Options::default(),
    )
    .expect("right");
    let mut host = Recorder::default();
    run(&program, &program.actions[0], &mut host);
    assert_eq!(
        host.records
            .iter()
            .map(|record| word(record))
            .collect::<Vec<_>>(),
        [8, 1]
    );
    assert_eq!(
        printed(
            "if (arg2 == 3) { print(1); } else if (arg3 == 3) { print(2); } else { print(3); } exit(); print(9);"
        ),
        [2, 0]
    );
}
