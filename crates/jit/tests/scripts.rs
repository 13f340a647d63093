//! Actions of scripts, compiled and run for real in this process, beside the interpreter.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use common::{Hit, SITE, State, World, back, cpus, run_in};
use lancet_abi::Memory;
use lancet_abi::layout::LayoutBuilder;
use lancet_abi::ring::{Consumer, Next};
use lancet_abi::table::{LIVE, TableLayout};
use lancet_jit::script::{Count, RECORD_HEAD, Scripts, Shared};
use lancet_jit::{Action, Form};
use lancet_script::eval::{self, Host};
use lancet_script::ir::{Agg, Fact, FormatId, MapId, MapValue, Program, StrSource, Warning};
use lancet_script::{Options, Source};

/// One at a time: the state switch has one cell.
static SWITCH: Mutex<()> = Mutex::new(());

fn program(text: &str) -> Program {
    let source = Source { name: "test", text };
    let rules = Options {
        params: Vec::new(),
        ..Options::default()
    };
    lancet_script::compile(source, &rules).unwrap_or_else(|diagnostics| {
        let all: Vec<String> = diagnostics.iter().map(|d| d.render(source)).collect();
        panic!("{}", all.concat())
    })
}

fn world(program: &Program) -> World {
    let shared = Shared::new(program, |_| true, |_| true, cpus()).expect("it has a place");
    let mut builder = LayoutBuilder::new();
    builder.script(shared.size());
    let scripts = Scripts::compile(program, |_| true, shared, cpus())
        .unwrap_or_else(|error| panic!("{error}\n{program}"));
    let mut world = World::new(builder.build(cpus()).unwrap());
    world.set_script(Arc::clone(&scripts));
    world
}

/// The region's part for scripts.
struct Part(World);

impl Part {
    fn shared(&self) -> &Shared {
        self.0.env.script.as_ref().unwrap().0.shared()
    }

    fn word(&self, at: u64) -> u64 {
        let (part, _) = self.0.env.layout.script();
        let memory = self.0.memory();
        memory.load(part + at).expect("inside the region")
    }

    fn bytes(&self, at: u64, words: u32) -> Vec<u8> {
        let words = (0..u64::from(words)).map(|n| self.word(at + 8 * n));
        words.flat_map(u64::to_ne_bytes).collect()
    }

    /// Live entries: key and value words.
    fn table(&self, table: &TableLayout) -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut all = BTreeMap::new();
        for bucket in 0..table.buckets {
            assert_eq!(self.word(table.bucket(bucket)), 0, "a lock is held");
            for entry in 0..table.entries {
                let at = table.entry(bucket, entry);
                if self.word(at) == LIVE {
                    let key = self.bytes(at + 8, table.key_words);
                    let value = at + 8 + 8 * u64::from(table.key_words);
                    let known = all.insert(key, self.bytes(value, table.value_words));
                    assert_eq!(known, None, "two entries of one key");
                }
            }
        }
        assert_eq!(self.word(table.at), all.len() as u64, "the length");
        all
    }

    fn records(&self) -> Vec<(u32, Vec<u8>)> {
        let mut all = Vec::new();
        for ring in self.shared().rings() {
            let (part, _) = self.0.env.layout.script();
            let mut ring = *ring;
            ring.at += part;
            let mut consumer = Consumer::new(ring);
            let mut position = 0;
            while let Next::Record(at) = consumer.next(&self.0.memory()) {
                let at = at - part;
                let head = self.word(at);
                let words = (head >> 32).div_ceil(8) as u32;
                let time = self.word(at + 8);
                all.push((
                    time,
                    head as u32,
                    self.bytes(at + u64::from(RECORD_HEAD), words),
                ));
                position += 1;
                consumer.free(&self.0.memory_mut());
            }
            assert!(position <= ring.slots);
        }
        all.sort_by_key(|(time, ..)| *time);
        all.into_iter().map(|(_, id, bytes)| (id, bytes)).collect()
    }
}

/// What the interpreter does with the same hits.
struct Model<'p> {
    program: &'p Program,
    state: State,
    sp: u64,
    maps: Vec<BTreeMap<Vec<u8>, Vec<u8>>>,
    records: Vec<(u32, Vec<u8>)>,
    warnings: BTreeMap<&'static str, u64>,
    part: &'p Part,
}

const ARGUMENTS: [usize; 6] = [7, 6, 2, 1, 8, 9];
const NAMES: [&str; 16] = [
    "ax", "cx", "dx", "bx", "sp", "bp", "si", "di", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];

fn named(warning: Warning) -> &'static str {
    match warning {
        Warning::Unreadable => "unreadable",
        Warning::DivisionByZero => "division",
        Warning::MapFull => "full",
        Warning::Fuel => "fuel",
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(8 * at..8 * at + 8)
        .map_or(0, |b| u64::from_ne_bytes(b.try_into().unwrap()))
}

impl Model<'_> {
    fn table(&self, map: MapId) -> &TableLayout {
        self.part.shared().table(map)
    }

    fn signed(&self, map: MapId) -> bool {
        let value = &self.program.maps[map.index()].value;
        matches!(value, MapValue::Agg { signed: true, .. })
    }
}

impl Host for Model<'_> {
    fn fact(&mut self, fact: Fact) -> i64 {
        let register = |number: usize| self.state.gpr[number].cast_signed();
        match fact {
            Fact::Pid => i64::from(std::process::id()),
            // SAFETY: no memory is involved.
            Fact::Tid => i64::from(unsafe { libc::gettid() }),
            // SAFETY: no memory is involved.
            Fact::Uid => i64::from(unsafe { libc::getuid() }),
            // SAFETY: as above.
            Fact::Gid => i64::from(unsafe { libc::getgid() }),
            Fact::Ncpus => cpus().into(),
            Fact::Probe => 3,
            Fact::Func => 4,
            Fact::Arg(n) if n < 6 => register(ARGUMENTS[usize::from(n)]),
            Fact::Register("ip") => SITE.cast_signed(),
            Fact::Register("sp") => self.sp.cast_signed(),
            // Interrupts are on, and bit 1 is always set.
            Fact::Register("flags") => self.state.flags.cast_signed(),
            Fact::Register(name) => register(NAMES.iter().position(|n| *n == name).unwrap()),
            other => panic!("{other:?} has no fixed value"),
        }
    }

    fn text(&mut self, source: StrSource) -> Vec<u8> {
        assert_eq!(source, StrSource::Comm);
        let mut name = std::fs::read("/proc/thread-self/comm").unwrap();
        name.pop();
        name
    }

    fn read(&mut self, addr: u64, into: &mut [u8]) -> usize {
        use std::io::{Seek, SeekFrom};
        let mut file = std::fs::File::open("/proc/self/mem").unwrap();
        if file.seek(SeekFrom::Start(addr)).is_err() {
            return 0;
        }
        let mut done = 0;
        while done < into.len() {
            match std::io::Read::read(&mut file, &mut into[done..]) {
                Ok(n) if n > 0 => done += n,
                _ => break,
            }
        }
        done
    }

    fn map_word(&mut self, map: MapId, key: &[u8]) -> i64 {
        let Some(value) = self.maps[map.index()].get(key) else {
            return 0;
        };
        let first = word(value, 0);
        let signed = self.signed(map);
        match self.program.maps[map.index()].value {
            MapValue::Agg { agg, .. } => match agg {
                Agg::Avg | Agg::Stats if signed => {
                    first.cast_signed() / word(value, 1).cast_signed()
                }
                Agg::Avg | Agg::Stats => (first / word(value, 1)).cast_signed(),
                Agg::Min => decoded(!first, signed),
                Agg::Max => decoded(first, signed),
                _ => first.cast_signed(),
            },
            MapValue::Field(_) => first.cast_signed(),
        }
    }

    fn map_bytes(&mut self, map: MapId, key: &[u8]) -> Option<Vec<u8>> {
        self.maps[map.index()].get(key).cloned()
    }

    fn map_set(&mut self, map: MapId, key: &[u8], value: &[u8]) {
        let capacity = self.program.maps[map.index()].capacity as usize;
        let entries = &mut self.maps[map.index()];
        if entries.len() < capacity || entries.contains_key(key) {
            entries.insert(key.to_vec(), value.to_vec());
        }
    }

    fn map_update(&mut self, map: MapId, key: &[u8], change: &dyn Fn(i64) -> i64) -> (i64, i64) {
        let old = self.map_word(map, key);
        let new = change(old);
        self.map_set(map, key, &new.to_ne_bytes());
        (old, new)
    }

    fn aggregate(&mut self, map: MapId, key: &[u8], agg: Agg, value: i64) {
        let words = self.table(map).value_words as usize;
        let old = self.maps[map.index()].get(key).cloned();
        let mut new = old.unwrap_or_else(|| vec![0; 8 * words]);
        let mut put = |at: usize, with: &dyn Fn(u64) -> u64| {
            let changed = with(word(&new, at));
            new[8 * at..8 * at + 8].copy_from_slice(&changed.to_ne_bytes());
        };
        let signed = self.signed(map);
        let encoded = decoded(value.cast_unsigned(), signed).cast_unsigned();
        match agg {
            Agg::Count | Agg::Sum => put(0, &|old| old.wrapping_add(value.cast_unsigned())),
            Agg::Avg | Agg::Stats => {
                put(0, &|old| old.wrapping_add(value.cast_unsigned()));
                put(1, &|old| old + 1);
            }
            Agg::Min => put(0, &|old| old.max(!encoded)),
            Agg::Max => put(0, &|old| old.max(encoded)),
            Agg::Hist { bits } => put(power_bucket(value, bits), &|old| old + 1),
            Agg::Lhist { min, max, step } => {
                let at = if value < min {
                    0
                } else if value >= max {
                    1 + (max - min) / step
                } else {
                    1 + (value - min) / step
                };
                put(at as usize, &|old| old + 1);
            }
        }
        self.map_set(map, key, &new);
    }

    fn map_delete(&mut self, map: MapId, key: &[u8]) -> bool {
        self.maps[map.index()].remove(key).is_some()
    }

    fn map_has(&mut self, map: MapId, key: &[u8]) -> bool {
        self.maps[map.index()].contains_key(key)
    }

    fn map_len(&mut self, map: MapId) -> u64 {
        self.maps[map.index()].len() as u64
    }

    fn map_next(&mut self, map: MapId, cursor: u64) -> Option<(u64, Vec<u8>)> {
        let key = self.maps[map.index()].keys().nth(cursor as usize)?;
        Some((cursor + 1, key.clone()))
    }

    fn emit(&mut self, format: FormatId, record: &[u8]) {
        self.records.push((format.0, record.to_vec()));
    }

    fn warn(&mut self, warning: Warning) {
        *self.warnings.entry(named(warning)).or_default() += 1;
    }
}

fn decoded(value: u64, signed: bool) -> i64 {
    let flip = if signed { 1 << 63 } else { 0 };
    (value ^ flip).cast_signed()
}

fn power_bucket(value: i64, bits: u8) -> usize {
    let parts = 1i64 << bits;
    if value < 0 {
        0
    } else if value < parts {
        1 + value as usize
    } else {
        let power = 63 - value.leading_zeros();
        let shift = power - u32::from(bits);
        let part = (value >> shift) & (parts - 1);
        (1 + parts + i64::from(shift) * parts + part) as usize
    }
}

/// Runs every uprobe block at each state, compiled and interpreted, and compares all that is left.
fn compare(text: &str, states: &[State]) {
    let _one = SWITCH.lock().unwrap_or_else(|e| e.into_inner());
    let program = program(text);
    let mut part = Part(world(&program));
    let entries: Vec<u64> = (0..program.actions.len() as u32)
        .map(|action| {
            let run = Action::Run {
                action,
                probe: 3,
                func: 4,
            };
            part.0.code(&[run], Form::Fused, back)
        })
        .collect();
    let part = part;
    let mut model = Model {
        program: &program,
        state: states[0].clone(),
        sp: 0,
        maps: vec![BTreeMap::new(); program.maps.len()],
        records: Vec::new(),
        warnings: BTreeMap::new(),
        part: &part,
    };
    for state in states {
        for (action, entry) in program.actions.iter().zip(&entries) {
            let after = run_in(*entry, state);
            assert_eq!(&after, state, "{text}");
            model.state = state.clone();
            eval::run(&program, action, &mut model);
        }
    }
    for (map, id) in program.maps.iter().zip(0..) {
        let found = part.table(part.shared().table(MapId(id)));
        assert_eq!(found, model.maps[id as usize], "{}: {text}", map.name);
    }
    assert_eq!(part.records(), model.records, "{text}");
    for (action, _) in program.actions.iter().enumerate() {
        assert_eq!(part.word(part.shared().count(action, Count::Skipped)), 0);
        assert_eq!(part.word(part.shared().count(action, Count::Lost)), 0);
    }
    for warning in [Warning::Unreadable, Warning::DivisionByZero, Warning::Fuel] {
        let counts = (0..program.actions.len())
            .map(|action| part.word(part.shared().count(action, Count::Warning(warning))));
        let expected = model.warnings.get(named(warning)).copied().unwrap_or(0);
        assert_eq!(counts.sum::<u64>(), expected, "{warning:?}: {text}");
    }
}

fn state(arguments: [u64; 6]) -> State {
    let mut gpr: [u64; 16] = std::array::from_fn(|n| 0x1000 + n as u64);
    gpr[4] = 0;
    for (register, value) in ARGUMENTS.iter().zip(arguments) {
        gpr[*register] = value;
    }
    State {
        gpr,
        // CF, PF, AF, ZF, SF, DF, OF and AC.
        flags: 0x202 | 0x401 | 0x8d4 | 0x4_0000,
        red_zone: [7; 16],
    }
}

const VALUES: [i64; 12] = [
    0,
    1,
    -1,
    2,
    7,
    63,
    -100,
    1000,
    0x1234_5678_9abc,
    i64::MIN,
    i64::MAX,
    255,
];

fn states() -> Vec<State> {
    let mut all = Vec::new();
    for (n, &a) in VALUES.iter().enumerate() {
        for (m, &b) in VALUES.iter().enumerate() {
            let [a, b] = [a, b].map(i64::cast_unsigned);
            all.push(state([a, b, n as u64, m as u64, a ^ b, (n % 3) as u64]));
        }
    }
    all
}

#[test]
fn integers_and_their_operators() {
    for op in [
        "+", "-", "*", "/", "%", "&", "|", "^", "<<", ">>", "==", "!=", "<", "<=", ">", ">=", "&&",
        "||",
    ] {
        for cast in [
            "", "(int8)", "(uint8)", "(int16)", "(uint32)", "(int32)", "(int64)",
        ] {
            let text = format!(
                "uprobe:/bin/true:main {{ @x[arg2, arg3] = {cast}(arg0) {op} {cast}(arg1); }}"
            );
            compare(&text, &states());
        }
    }
}

#[test]
fn statements() {
    for body in [
        "@x++; @y[arg0] = arg1 + 1;",
        "if (arg0 > 100) { @big = count(); } else if (arg0 == 1) { @one++; } else { @[arg2] = 3; }",
        "$a = arg0; $b = arg1; if ($a < $b) { $a = $b; } @m[arg2, arg3] = $a;",
        "@s = sum(arg2); @c = count(); @lo = min(arg0); @hi = max(arg0); @a = avg(arg2); @t = stats(arg3);",
        "@s[arg2] = sum((int32)arg0); @lo[arg2] = min((int64)arg0); @hi[arg2] = max((int64)arg0); @a[arg3] = avg((int16)arg0);",
        "@h = hist(arg0); @k = hist(arg0, 3); @l = lhist(arg2, 0, 10, 2); @m[arg2] = lhist((int64)arg0, -50, 50, 7);",
        "@x[arg2] = arg0; @y = @x[arg3]; if (has_key(@x, arg3)) { @z++; } @n = len(@x);",
        "@x[arg2] = arg0; delete(@x, arg3); @left = len(@x);",
        "@x[arg2, comm] = count(); @p[pid, tid] = count(); @u[uid, gid] = 1;",
        "@x += arg2; @y -= arg3; @z *= 3; @w |= arg2; @v <<= 1; @v ^= 5; @d /= (arg2 + 1); --@q; @r = @q--;",
        "$i = 0; while ($i < arg2) { $i++; if ($i == 5) { break; } if ($i == 2) { continue; } @x[$i] = count(); }",
        "unroll(3) { @x++; } for $i : 0..4 { @y[$i] = arg2; }",
        "@t = (arg0, arg1, \"text\"); @k[\"a\", arg2] = (arg3, \"b\"); @u = @t.1;",
        "@c = arg0 ? 1 : 2; @n = !arg0; @m = ~arg1; @o = -arg0;",
        "printf(\"%d %s %x\\n\", arg0, \"text\", arg1); if (arg2 == 3) { print(@x); clear(@x); } @x++;",
        "printf(\"%s %d\\n\", comm, arg3); print((arg0, arg1)); if (arg2 == 11 && arg3 == 11) { exit(); }",
        "@r = reg(\"r12\"); @i = reg(\"ip\"); @f[func] = count(); @q[probe] = count();",
        "@a[arg0 / arg2] = count(); @b = arg0 % arg3;",
        "@f[reg(\"flags\")] = count();",
        "@x[arg2] = arg3; for ($kv : @x) { @s += $kv.1; @n[$kv.0] = count(); }",
    ] {
        let text = format!("uprobe:/bin/true:main {{ {body} }}");
        compare(&text, &states());
    }
}

#[test]
fn predicates_and_several_blocks() {
    compare(
        "uprobe:/bin/true:main /arg0 == 1 && arg1 != 1/ { @a[arg1] = count(); @last = arg1; }
         uprobe:/bin/true:main /@last > 5/ { @b++; printf(\"%d\", @last); }
         uprobe:/bin/true:main { @start[arg2] = arg3; }
         uprobe:/bin/true:main /@start[arg3]/ { @d = sum(arg3 - @start[arg3]); delete(@start[arg3]); }",
        &states(),
    );
}

#[test]
fn texts_are_read_and_never_fault() {
    let page = Pages::new();
    let mut all = Vec::new();
    for (n, at) in page.places().into_iter().enumerate() {
        all.push(state([at, n as u64, 5, 0, at, 3]));
    }
    for body in [
        "@x[str(arg0)] = count();",
        "@x[str(arg0, 5)] = count(); @y[str(arg0, arg2)] = count(); @z[arg1] = str(arg0, 64);",
        "printf(\"%s|%s\\n\", str(arg0), str(arg0, 3));",
        "if (str(arg0) == \"hello\") { @eq++; } if (strncmp(str(arg0), \"help\", 3) == 0) { @n++; }",
        "@b[arg1] = buf(arg0, 7); @i[arg1] = *(int32*)arg0; @c[arg1] = *(uint8*)(arg0 + 1);",
        "@l[arg1] = strlen(str(arg0));",
        "@f[arg1] = strcontains(str(arg0), \"ll\");",
    ] {
        let text = format!("uprobe:/bin/true:main {{ {body} }}");
        compare(&text, &all);
    }
}

/// Memory with texts in it, up to a page that is not there.
struct Pages(*mut u8);

impl Pages {
    fn new() -> Self {
        // SAFETY: a new mapping, whose second page is taken away again.
        unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                8192,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            assert_eq!(libc::munmap(at.add(4096), 4096), 0);
            Self(at.cast())
        }
    }

    fn places(&self) -> Vec<u64> {
        let put = |at: usize, text: &[u8]| {
            // SAFETY: inside the first page.
            unsafe {
                self.0
                    .add(at)
                    .copy_from_nonoverlapping(text.as_ptr(), text.len());
            }
            self.0 as u64 + at as u64
        };
        vec![
            put(0, b"hello\0"),
            put(101, b"help\0"),
            put(200, b"\0"),
            put(300, &[b'x'; 1500]),
            put(4096 - 6, b"world\0"),
            put(4096 - 20, b"a text! hello world\0"),
            // Ends with the page, without a zero.
            put(4096 - 3, b"abc"),
            self.0 as u64 + 4096,
            0,
            8,
            u64::MAX,
            1 << 63,
            0xffff_8000_0000_0000,
        ]
    }
}

fn rounds(short: u64) -> u64 {
    let long = std::env::var("LANCET_ROUNDS").ok();
    long.and_then(|n| n.parse().ok()).unwrap_or(short)
}

/// The number of all value words `at` of a map.
fn sum(part: &Part, map: u32, at: usize) -> u64 {
    let table = *part.shared().table(MapId(map));
    part.table(&table)
        .values()
        .map(|value| word(value, at))
        .sum()
}

/// What a map's table says that it dropped.
fn dropped(part: &Part, map: u32) -> u64 {
    let at = part.shared().table(MapId(map)).at;
    part.word(at + lancet_abi::table::FULL) + part.word(at + lancet_abi::table::LOCKED_OUT)
}

/// Four threads, each interrupted all the time by a handler that hits too: every update is in the
/// map, or counted as dropped or skipped.
#[test]
fn b033_updates_are_exact_under_threads_and_signals() {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    static HANDLER: OnceLock<Hit> = OnceLock::new();
    static SIGNALS: AtomicU64 = AtomicU64::new(0);
    extern "C" fn handler(_: i32) {
        if let Some(hit) = HANDLER.get() {
            hit(3);
            SIGNALS.fetch_add(1, Ordering::Relaxed);
        }
    }
    const THREADS: u64 = 4;
    let program = program(
        "uprobe:/bin/true:main { @n = count(); @k[arg0 % 5] = count(); @a = avg(arg0); @m = max(arg0);
            $v = arg0 % 3; if ($v == 1) { @odd[$v, arg0 % 7] = sum(1); }
            @x++; @d[arg0 % 4] = arg0; delete(@d[arg0 % 4]); }",
    );
    let mut part = Part(world(&program));
    let run = Action::Run {
        action: 0,
        probe: 0,
        func: 0,
    };
    let hit = part.0.hit(&[run], Form::Fused);
    HANDLER.get_or_init(|| hit);
    // SAFETY: the handler touches atomics and emitted code only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        let set = libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut());
        assert_eq!(set, 0);
    }
    let each = rounds(200_000);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let _alarms = common::Alarms::start(50);
                common::repeat(hit, each);
            });
        }
    });
    let signals = SIGNALS.load(Ordering::Relaxed);
    assert!(signals > 20, "only {signals} signals");
    let skipped = part.word(part.shared().count(0, Count::Skipped));
    let hits = THREADS * each + signals - skipped;
    let names: Vec<&str> = program.maps.iter().map(|map| map.name.as_str()).collect();
    let id = |name: &str| names.iter().position(|n| *n == name).unwrap() as u32;
    assert_eq!(sum(&part, id("@n"), 0), hits);
    assert_eq!(sum(&part, id("@x"), 0), hits);
    assert_eq!(sum(&part, id("@k"), 0) + dropped(&part, id("@k")), hits);
    assert_eq!(sum(&part, id("@a"), 1), hits);
    assert_eq!(sum(&part, id("@m"), 0), each - 1);
    let ones = |n: u64| (0..n).filter(|v| v % 3 == 1).count() as u64;
    let odd = sum(&part, id("@odd"), 0) + dropped(&part, id("@odd"));
    assert!(odd <= THREADS * ones(each) && odd + skipped >= THREADS * ones(each));
    assert!(
        sum(&part, id("@d"), 0) < each * 4,
        "entries of a handler may stay"
    );
}

/// b131: pointers into memory that comes and goes, of every protection.
#[test]
fn b131_a_pointer_that_faults_never_reaches_the_target() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let program = program(
        "uprobe:/bin/true:main { @t[str(arg0)] = count(); @i = sum(*(uint32*)arg0); @b = buf(arg0, 16); @n++; }",
    );
    let mut part = Part(world(&program));
    let run = Action::Run {
        action: 0,
        probe: 0,
        func: 0,
    };
    let hit = part.0.hit(&[run], Form::Fused);
    // SAFETY: a new mapping, which only `changer` changes from here on.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    } as usize;
    let file = tempfile_with_a_page();
    let done = AtomicBool::new(false);
    let each = rounds(20_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut step = 0u32;
            while !done.load(Ordering::Relaxed) {
                step += 1;
                let (protection, flags, fd) = match step % 4 {
                    0 => (libc::PROT_NONE, libc::MAP_ANONYMOUS, -1),
                    1 => (libc::PROT_READ, libc::MAP_ANONYMOUS, -1),
                    // Beyond the end of its file: an access would be SIGBUS.
                    2 => (libc::PROT_READ, 0, file.0),
                    _ => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_ANONYMOUS, -1),
                };
                let offset = if fd == -1 { 0 } else { 1 << 20 };
                // SAFETY: replaces the test's own page; nothing but actions reads it.
                let at = unsafe {
                    libc::mmap(
                        page as *mut _,
                        4096,
                        protection,
                        libc::MAP_PRIVATE | libc::MAP_FIXED | flags,
                        fd,
                        offset,
                    )
                };
                assert_ne!(at, libc::MAP_FAILED);
            }
        });
        for round in 0..each {
            let at = match round % 5 {
                0 => 0,
                1 => u64::MAX - round % 4096,
                2 => 0xffff_8000_0000_0000 + round,
                _ => page as u64 + round % 4096,
            };
            hit(at);
        }
        done.store(true, Ordering::Relaxed);
    });
    let unread = part.word(part.shared().count(0, Count::Warning(Warning::Unreadable)));
    assert!(unread >= each / 5 * 2 && unread <= 3 * each, "{unread}");
    let names: Vec<&str> = program.maps.iter().map(|map| map.name.as_str()).collect();
    let id = |name: &str| names.iter().position(|n| *n == name).unwrap() as u32;
    assert_eq!(sum(&part, id("@n"), 0), each);
    assert_eq!(sum(&part, id("@t"), 0) + dropped(&part, id("@t")), each);
}

/// An open file of one page that has no name any more.
struct Unnamed(i32);

fn tempfile_with_a_page() -> Unnamed {
    // SAFETY: a new descriptor of a new file.
    let fd = unsafe { libc::memfd_create(c"page".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0);
    // SAFETY: our own descriptor.
    assert_eq!(unsafe { libc::ftruncate(fd, 4096) }, 0);
    Unnamed(fd)
}

impl Drop for Unnamed {
    fn drop(&mut self) {
        // SAFETY: our own descriptor, closed once.
        unsafe { libc::close(self.0) };
    }
}

/// b137: recorded and dropped are all, for maps and for rings.
#[test]
fn b137_full_maps_and_rings_count_what_they_drop() {
    let program = program(
        "config = { max_map_keys = 10; } uprobe:/bin/true:main { @k[arg0] = count(); printf(\"%d\", arg0); }",
    );
    let mut part = Part(world(&program));
    let run = Action::Run {
        action: 0,
        probe: 0,
        func: 0,
    };
    let hit = part.0.hit(&[run], Form::Fused);
    let hits = 100_000;
    common::repeat(hit, hits);
    let table = *part.shared().table(MapId(0));
    assert_eq!(part.table(&table).len(), 10);
    assert_eq!(sum(&part, 0, 0) + dropped(&part, 0), hits);
    let lost = part.word(part.shared().count(0, Count::Lost));
    let records = part.records();
    assert_eq!(records.len() as u64 + lost, hits);
    assert!(lost > 0);
    let first: Vec<u64> = records.iter().take(100).map(|(_, r)| word(r, 0)).collect();
    assert_eq!(
        first,
        (0..100).collect::<Vec<u64>>(),
        "in the order of time"
    );
}

/// Every program that the front end's own tests accept compiles, and both verifiers agree.
#[test]
fn what_the_language_accepts_is_compiled() {
    let texts = [
        include_str!("../../script/tests/snapshots/accepted__expressions.snap"),
        include_str!("../../script/tests/snapshots/accepted__macros.snap"),
        include_str!("../../script/tests/snapshots/accepted__maps.snap"),
        include_str!("../../script/tests/snapshots/accepted__one_liners.snap"),
        include_str!("../../script/tests/snapshots/accepted__output.snap"),
        include_str!("../../script/tests/snapshots/accepted__statements.snap"),
    ];
    let mut done = 0;
    for line in texts.iter().flat_map(|text| text.lines()) {
        let Some(text) = line.strip_prefix("== ") else {
            continue;
        };
        let rules = Options {
            params: vec!["42".into(), "word".into()],
            ..Options::default()
        };
        let whole = Source { name: "test", text };
        let body = format!("uprobe:/bin/x:f {{ {text} }}");
        let body = Source {
            name: "test",
            text: &body,
        };
        let Ok(program) =
            lancet_script::compile(whole, &rules).or_else(|_| lancet_script::compile(body, &rules))
        else {
            continue;
        };
        let in_target = |number: usize| {
            let points = &program.actions[number].points;
            points.iter().any(|p| program.points[p.index()].in_target())
        };
        if !(0..program.actions.len()).any(in_target) {
            continue;
        }
        // Nothing runs: small tables do.
        let shared = Shared::new(&program, |_| false, in_target, cpus()).expect("it has a place");
        let mut builder = LayoutBuilder::new();
        builder.script(shared.size());
        match Scripts::compile(&program, in_target, shared, cpus()) {
            Ok(scripts) => {
                let mut world = World::new(builder.build(cpus()).unwrap());
                world.set_script(scripts);
                for action in (0..program.actions.len()).filter(|n| in_target(*n)) {
                    let run = Action::Run {
                        action: action as u32,
                        probe: 0,
                        func: 0,
                    };
                    world.code(&[run], Form::Fused, back);
                    world.code(&[run], Form::LockOnly, back);
                    done += 1;
                }
            }
            Err(error) => panic!("{text}: {error}"),
        }
    }
    assert!(done >= 60, "{done}");
}
