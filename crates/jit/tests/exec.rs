//! Runs emitted code for real, in this process.
#![allow(missing_docs)]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, OnceLock};

use common::{Hit, SITE, State, World, back, cpus, repeat, run_in};
use lancet_abi::layout::LayoutBuilder;
use lancet_abi::{MapId, SlotId, histogram, private};
use lancet_jit::{Action, Form, Key, Mark, Register, Update, Value};
use proptest::prelude::*;

const COUNT: SlotId = SlotId(0);
const SUM: SlotId = SlotId(1);
const HIST: SlotId = SlotId(2);
const BY_KEY: MapId = MapId(0);
const SUM_BY_KEY: MapId = MapId(1);
const HIST_BY_KEY: MapId = MapId(2);

fn world() -> World {
    world_with(false)
}

fn world_with(far_mode: bool) -> World {
    let mut b = LayoutBuilder::new();
    b.plain(1);
    b.plain(1);
    b.plain(histogram::BUCKETS);
    b.map(4096, 1);
    b.map(256, 1);
    b.map(64, histogram::BUCKETS);
    World::with_far_mode(b.build(cpus()).unwrap(), far_mode)
}

fn plain(slot: SlotId, update: Update) -> Action {
    Action::Plain { slot, update }
}

fn keyed(map: MapId, function: Option<u32>, key: Value, update: Update) -> Action {
    Action::Keyed {
        map,
        function,
        key: Key::Value(key),
        update,
    }
}

fn total(world: &World, slot: SlotId) -> u64 {
    world.region().slot_total(slot, 0).unwrap()
}

const DI: Value = Value::Arg(0);
const REGISTERS: [Register; 16] = {
    use Register::*;
    [
        Ax, Cx, Dx, Bx, Sp, Bp, Si, Di, R8, R9, R10, R11, R12, R13, R14, R15,
    ]
};

/// Flags that a program can set: CF PF AF ZF SF DF OF AC ID.
const FLAGS: u64 = 0x1 | 0x4 | 0x10 | 0x40 | 0x80 | 0x400 | 0x800 | 0x4_0000 | 0x20_0000;

fn any_state() -> impl Strategy<Value = State> {
    let word = prop_oneof![
        any::<u64>(),
        0u64..300,
        (0u32..64).prop_map(|n| u64::MAX >> n)
    ];
    let sixteen = || prop::array::uniform16(word.clone());
    (sixteen(), any::<u64>(), sixteen()).prop_map(|(mut gpr, flags, red_zone)| {
        gpr[4] = 0;
        // Bit 1 is always set, and interrupts stay on.
        State {
            gpr,
            flags: flags & FLAGS | 0x202,
            red_zone,
        }
    })
}

/// One at a time: the state switch has one cell.
static SWITCH: Mutex<()> = Mutex::new(());

fn everything(register: Register) -> Vec<Action> {
    let value = Value::Register(register);
    vec![
        plain(COUNT, Update::Count),
        plain(SUM, Update::Sum(value)),
        plain(HIST, Update::Hist(value)),
        keyed(BY_KEY, Some(7), value, Update::Count),
        keyed(SUM_BY_KEY, None, DI, Update::Sum(value)),
        keyed(HIST_BY_KEY, Some(1), DI, Update::Hist(value)),
        Action::Keyed {
            map: SUM_BY_KEY,
            function: Some(2),
            key: Key::Tid,
            update: Update::Sum(DI),
        },
    ]
}

/// Each kind alone, and all in a row, in both forms.
fn programs(register: Register) -> Vec<(Vec<Action>, Form)> {
    let all = everything(register);
    let mut programs: Vec<Vec<Action>> = all.iter().map(|action| vec![*action]).collect();
    programs.push(all[..3].to_vec());
    programs.push(all);
    let marks = [Mark::Always, Mark::CloneFlags { in_memory: false }];
    programs.extend(marks.map(|when| vec![Action::MarkUncertain { when }]));
    let mut marked = programs[0].clone();
    marked.push(Action::MarkUncertain { when: marks[1] });
    programs.push(marked);
    let forms = [Form::Fused, Form::LockOnly];
    forms
        .iter()
        .flat_map(|form| programs.iter().map(|p| (p.clone(), *form)))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 64, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// b031: the red zone; b033: registers and flags with rax live; b034: DF
    /// and AC set. All in one state, for every kind of action and every value.
    #[test]
    fn b031_b033_b034_state_is_kept_and_values_are_right(
        state in any_state(), which in 0usize..16, uncertain in any::<bool>(),
        far in any::<bool>(),
    ) {
        let _one = SWITCH.lock().unwrap_or_else(|e| e.into_inner());
        let register = REGISTERS[which];
        for (actions, form) in programs(register) {
            let mut world = world_with(far);
            let entry = world.code(&actions, form, back);
            world.set_mode(private::UNCERTAIN_BYTE, uncertain.into());
            let after = run_in(entry, &state);
            prop_assert_eq!(&after, &state, "{:?} {:?}", form, &actions);
            let region = world.region();
            if register != Register::Sp {
                let value = state.gpr[which];
                let bucket = histogram::bucket(value as i64);
                for action in &actions {
                    match *action {
                        Action::Plain { slot: HIST, .. } =>
                            prop_assert_eq!(region.slot_total(HIST, bucket), Some(1)),
                        Action::Plain { slot: SUM, .. } =>
                            prop_assert_eq!(region.slot_total(SUM, 0), Some(value)),
                        Action::Plain { .. } =>
                            prop_assert_eq!(region.slot_total(COUNT, 0), Some(1)),
                        Action::Keyed { map, function, key, update } => {
                            let entry = region.map_entries(map).find(|e| e.function == function);
                            let entry = entry.unwrap();
                            let (expected_key, summand) = match key {
                                Key::Tid => (tid(), state.gpr[7]),
                                Key::Value(DI) => (state.gpr[7], value),
                                Key::Value(_) => (value, value),
                            };
                            prop_assert_eq!(entry.key, expected_key);
                            let (slot, total) = match update {
                                Update::Count => (0, 1),
                                Update::Sum(_) => (0, summand),
                                Update::Hist(_) => (bucket, 1),
                            };
                            prop_assert_eq!(region.map_value(map, entry.index, slot), Some(total));
                        }
                        Action::MarkUncertain { .. } | Action::Run { .. } => {}
                    }
                }
            }
        }
    }
}

fn tid() -> u64 {
    // SAFETY: no memory is involved.
    unsafe { libc::gettid() as u64 }
}

/// The word of a slot in one half, over all CPUs.
fn half(world: &World, offset: impl Fn(&lancet_abi::Layout) -> u64) -> u64 {
    let layout = &world.env.layout;
    let block = |cpu| layout.block(cpu).unwrap();
    (0..layout.ncpus())
        .map(|cpu| world.word(block(cpu) + offset(layout)))
        .sum()
}

#[test]
fn forms_use_their_own_half() {
    let mut world = world();
    let actions = [
        Action::MarkUncertain { when: Mark::Always },
        plain(COUNT, Update::Count),
    ];
    let fused = world.hit(&actions[1..], Form::Fused);
    let lock = world.hit(&actions[1..], Form::LockOnly);
    let sentinel = world.hit(&actions, Form::Fused);
    repeat(fused, 1000);
    repeat(lock, 500);
    let halves = |world: &World| {
        (
            half(world, |l| l.rseq_slot(COUNT)),
            half(world, |l| l.lock_slot(COUNT)),
        )
    };
    assert_eq!(halves(&world), (1000, 500));
    sentinel(0);
    repeat(fused, 100);
    assert_eq!(
        halves(&world),
        (1000, 601),
        "the sentinel's own hit is uncertain too"
    );
}

#[test]
fn what_cannot_be_served_is_named() {
    use lancet_abi::units::RuntimeAddr;
    let world = world();
    let mut env = world.env.clone();
    let try_one = |env: &lancet_jit::Env, action, at| {
        lancet_jit::emit(
            &[action],
            Form::Fused,
            env,
            RuntimeAddr(at),
            RuntimeAddr(SITE),
        )
        .map(|_| ())
        .map_err(|error| error.to_string())
    };
    let near = env.region.0 & !0xfff;
    let slots = env.layout.slots();
    let says = |result: Result<(), String>, text: &str| {
        let message = result.unwrap_err();
        assert!(message.contains(text), "{message}");
    };
    let count = plain(COUNT, Update::Count);
    says(try_one(&env, count, near + 8), "32-aligned");
    says(
        try_one(&env, plain(SlotId(slots), Update::Count), near),
        "not in the region",
    );
    says(
        try_one(&env, plain(SlotId(slots - 65), Update::Hist(DI)), near),
        "not in the region",
    );
    says(
        try_one(&env, plain(SUM, Update::Sum(Value::Arg(16))), near),
        "arg15 is the last",
    );
    says(
        try_one(&env, keyed(MapId(9), None, DI, Update::Count), near),
        "not in the region",
    );
    says(
        try_one(&env, keyed(BY_KEY, None, DI, Update::Hist(DI)), near),
        "needs 66",
    );
    says(
        try_one(&env, keyed(BY_KEY, Some(1 << 29), DI, Update::Count), near),
        "too large",
    );
    env.region = RuntimeAddr(near.wrapping_sub(3 << 30));
    says(try_one(&env, count, near), "within 2 GiB");
}

#[test]
fn stack_arguments_sp_and_ip() {
    let _one = SWITCH.lock().unwrap_or_else(|e| e.into_inner());
    let mut world = world();
    let ip = world.hit(
        &[plain(SUM, Update::Sum(Value::Register(Register::Ip)))],
        Form::Fused,
    );
    ip(0);
    assert_eq!(total(&world, SUM), SITE);
    // Called as C with eight arguments: 6 and 7 lie on the stack.
    let sums = [
        plain(SUM, Update::Sum(Value::Arg(6))),
        plain(COUNT, Update::Sum(Value::Arg(7))),
        plain(HIST, Update::Hist(Value::Arg(4))),
    ];
    let entry = world.code(&sums, Form::Fused, |_| vec![0xc3]);
    // SAFETY: emitted code before a ret keeps the C calling convention.
    let f: extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64) =
        unsafe { std::mem::transmute(entry as usize) };
    f(1, 2, 3, 4, 5, 6, 70, 80);
    assert_eq!((total(&world, SUM), total(&world, COUNT)), (SITE + 70, 80));
    assert_eq!(
        world.region().slot_total(HIST, histogram::bucket(5)),
        Some(1)
    );
}

/// Hits of `threads` threads, each `n`. Each has a timer whose signals interrupt
/// its own sections, and the handler hits as well.
fn storm(threads: u64, n: u64) {
    static HANDLER: OnceLock<Hit> = OnceLock::new();
    static IN_HANDLER: AtomicU64 = AtomicU64::new(0);
    extern "C" fn handler(_: i32) {
        if let Some(hit) = HANDLER.get() {
            hit(3);
            IN_HANDLER.fetch_add(1, Ordering::Relaxed);
        }
    }
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(|e| e.into_inner());
    static WORLD: OnceLock<(World, Hit)> = OnceLock::new();
    let (world, hit) = WORLD.get_or_init(|| {
        let mut world = self::world();
        let hit = world.hit(
            &[
                plain(COUNT, Update::Count),
                plain(SUM, Update::Sum(DI)),
                plain(HIST, Update::Hist(DI)),
            ],
            Form::Fused,
        );
        (world, hit)
    });
    HANDLER.get_or_init(|| *hit);
    let before = (
        total(world, COUNT),
        total(world, SUM),
        IN_HANDLER.load(Ordering::Relaxed),
    );
    let hist_before: u64 = (0..66)
        .map(|b| world.region().slot_total(HIST, b).unwrap())
        .sum();
    // SAFETY: the handler touches atomics and emitted code only.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(
            libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()),
            0
        );
    }
    let barrier = Barrier::new(threads as usize);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                barrier.wait();
                let _alarms = common::Alarms::start(50);
                repeat(*hit, n);
            });
        }
    });
    let signals = IN_HANDLER.load(Ordering::Relaxed) - before.2;
    assert!(signals > 100, "only {signals} signals");
    assert_eq!(total(world, COUNT) - before.0, threads * n + signals);
    assert_eq!(
        total(world, SUM) - before.1,
        threads * (n * (n - 1) / 2) + 3 * signals
    );
    let hist: u64 = (0..66)
        .map(|b| world.region().slot_total(HIST, b).unwrap())
        .sum();
    assert_eq!(hist - hist_before, threads * n + signals);
    assert_eq!(world.broken(), []);
}

#[test]
fn two_threads_in_a_signal_storm_are_exact() {
    storm(2, 10_000_000);
}

#[test]
fn eight_threads_in_a_signal_storm_are_exact() {
    storm(8, 10_000_000);
}

#[test]
fn unregistered_thread_takes_the_lock_form() {
    let mut world = world();
    let hit = world.hit(
        &[plain(COUNT, Update::Count), plain(SUM, Update::Sum(DI))],
        Form::Fused,
    );
    let n = 200_000;
    std::thread::scope(|scope| {
        scope.spawn(|| repeat(hit, n));
        scope.spawn(|| {
            let area = common::rseq_area();
            // SAFETY: takes this thread's registered area away from the kernel.
            let gone = unsafe { libc::syscall(libc::SYS_rseq, area, 32, 1, 0x5305_3053u32) };
            assert_eq!(gone, 0, "{}", std::io::Error::last_os_error());
            for id in [-1i32, -2] {
                // SAFETY: cpu_id of this thread's own area, aligned.
                unsafe { ((area + 4) as *mut i32).write_volatile(id) };
                repeat(hit, n);
            }
        });
    });
    assert_eq!(total(&world, COUNT), 3 * n);
    assert_eq!(total(&world, SUM), 3 * (n * (n - 1) / 2));
    let locked = half(&world, |l| l.lock_slot(COUNT));
    assert!(locked >= 2 * n, "the lock form counted {locked}");
}

#[test]
fn vfork_child_counts_after_the_sentinel() {
    static HIT: OnceLock<Hit> = OnceLock::new();
    const N: u64 = 300_000;
    extern "C" fn child(_: *mut libc::c_void) -> i32 {
        repeat(*HIT.get().unwrap(), N);
        0
    }
    let mut world = world();
    let hit = *HIT.get_or_init(|| world.hit(&[plain(COUNT, Update::Count)], Form::Fused));
    let sentinel = world.hit(
        &[
            plain(SUM, Update::Count),
            Action::MarkUncertain { when: Mark::Always },
        ],
        Form::Fused,
    );
    let mut stack = vec![0u128; 4096];
    std::thread::scope(|scope| {
        let other = scope.spawn(|| repeat(hit, N));
        sentinel(0);
        // SAFETY: the child runs `child` on a stack of its own and exits while
        // this thread waits.
        unsafe {
            let top = stack.as_mut_ptr().add(stack.len()).cast();
            let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
            let pid = libc::clone(child, top, flags, std::ptr::null_mut());
            assert!(pid > 0);
            let mut status = 0;
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
            assert_eq!(status, 0);
        }
        other.join().unwrap();
    });
    assert_eq!(total(&world, COUNT), 2 * N);
    assert_eq!(total(&world, SUM), 1);
}

#[test]
fn clone_flags_decide_whether_a_sentinel_marks() {
    const PTHREAD: u32 = 0x3d_0f00;
    let cases = [
        (PTHREAD, false),
        (libc::SIGCHLD as u32, false),
        (
            (libc::CLONE_CHILD_SETTID | libc::CLONE_CHILD_CLEARTID | libc::SIGCHLD) as u32,
            false,
        ),
        (0, false),
        (
            (libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD) as u32,
            true,
        ),
        (PTHREAD & !libc::CLONE_SETTLS as u32, true),
        ((libc::CLONE_VM | libc::CLONE_SETTLS) as u32, true),
        (libc::CLONE_VM as u32, true),
    ];
    for far in [false, true] {
        for in_memory in [false, true] {
            let when = Mark::CloneFlags { in_memory };
            let mark = [Action::MarkUncertain { when }];
            for (flags, due) in cases {
                let mut world = world_with(far);
                let hit = world.hit(&mark, Form::LockOnly);
                // What lies behind and above the 32 bits does not count.
                let words = [flags, 0x0bad_cafe];
                hit(if in_memory {
                    words.as_ptr() as u64
                } else {
                    u64::from(flags) | 0xf00d_0000_0000
                });
                let marked = world.mode(private::UNCERTAIN_BYTE);
                assert_eq!(marked, u8::from(due), "{flags:#x}, in memory {in_memory}");
            }
        }
    }
}

#[test]
fn two_sentinels_at_one_site_mark_for_either() {
    let mut world = world();
    let both = [
        Action::MarkUncertain {
            when: Mark::CloneFlags { in_memory: false },
        },
        Action::MarkUncertain { when: Mark::Always },
    ];
    world.hit(&both, Form::Fused)(0);
    assert_eq!(world.mode(private::UNCERTAIN_BYTE), 1);
}

#[test]
fn b137_full_map_counts_what_it_drops() {
    const KEYS: u64 = 1_000_000;
    let mut world = world();
    let hit = world.hit(&[keyed(BY_KEY, None, DI, Update::Count)], Form::Fused);
    std::thread::scope(|scope| {
        scope.spawn(|| repeat(hit, KEYS));
        scope.spawn(|| repeat(hit, KEYS));
    });
    let region = world.region();
    let entries: Vec<_> = region.map_entries(BY_KEY).collect();
    let value = |e: &lancet_abi::Entry| region.map_value(BY_KEY, e.index, 0).unwrap();
    let recorded: u64 = entries.iter().map(value).sum();
    let dropped = region.map_dropped(BY_KEY).unwrap();
    assert_eq!(recorded + dropped, 2 * KEYS);
    assert!(entries.len() > 3000 && dropped > KEYS);
    let mut keys: Vec<u64> = entries.iter().map(|e| e.key).collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), entries.len(), "a key has two entries");
    // Keys that are in keep counting exactly.
    let first = entries[0];
    let before = value(&first);
    (0..1000).for_each(|_| hit(first.key));
    assert_eq!(value(&first), before + 1000);
}

#[test]
fn one_entry_a_key_when_threads_race_for_it() {
    for _ in 0..40 {
        let mut world = world();
        let hit = world.hit(&[keyed(BY_KEY, None, DI, Update::Count)], Form::Fused);
        let barrier = Barrier::new(2);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    barrier.wait();
                    repeat(hit, 3000);
                });
            }
        });
        let region = world.region();
        let values: Vec<_> = region
            .map_entries(BY_KEY)
            .map(|e| region.map_value(BY_KEY, e.index, 0))
            .collect();
        assert_eq!(values, vec![Some(2); 3000]);
    }
}

#[test]
fn emitted_search_finds_what_the_model_finds() {
    let mut world = world();
    let hit = world.hit(
        &[keyed(SUM_BY_KEY, Some(5), DI, Update::Sum(DI))],
        Form::Fused,
    );
    let map = *world.env.layout.map(SUM_BY_KEY).unwrap();
    let model = common::Model::new(world.env.layout.size());
    let meta = lancet_abi::map::meta(Some(5)).unwrap();
    for i in 0..600u64 {
        let key = i.wrapping_mul(0x1234_5677);
        hit(key);
        lancet_abi::map::find_or_insert(&model, &map, meta, key);
    }
    for at in (0..u64::from(map.capacity) * 2).map(|i| map.entries + 8 * i) {
        assert_eq!(world.word(at), model.word(at), "at {at:#x}");
    }
}

#[test]
fn thread_id_is_read_from_the_thread_block() {
    let mut world = world();
    let asked = tid() as u32;
    let block = common::rseq_area().wrapping_add_signed(-i64::from(common::rseq().area_from_fs));
    // SAFETY: the first kilobytes of glibc's own thread block.
    let word = |at: i32| unsafe { ((block + at as u64) as *const u32).read_volatile() };
    let offset = (0..0x400).step_by(4).find(|at| word(*at) == asked).unwrap();
    world.env.tid_from_fs = Some(offset);
    let key = Key::Tid;
    let action = Action::Keyed {
        map: BY_KEY,
        function: None,
        key,
        update: Update::Count,
    };
    world.hit(&[action], Form::Fused)(0);
    world.hit(&[action], Form::LockOnly)(0);
    let region = world.region();
    let entries: Vec<_> = region.map_entries(BY_KEY).collect();
    assert_eq!(entries.len(), 1, "thread block and gettid agree");
    assert_eq!(entries[0].key, u64::from(asked));
    assert_eq!(region.map_value(BY_KEY, entries[0].index, 0), Some(2));
}

#[test]
fn off_switch_stops_every_form() {
    let mut world = world();
    let mut hits = Vec::new();
    for form in [Form::Fused, Form::LockOnly] {
        hits.push(world.hit(&[plain(COUNT, Update::Count)], form));
        hits.push(world.hit(&[keyed(BY_KEY, None, DI, Update::Count)], form));
    }
    let counted = || {
        let region = world.region();
        let values = region
            .map_entries(BY_KEY)
            .map(|e| region.map_value(BY_KEY, e.index, 0));
        total(&world, COUNT) + values.map(Option::unwrap).sum::<u64>()
    };
    let hit_all = || hits.iter().for_each(|hit| hit(9));
    hit_all();
    assert_eq!(counted(), 4);
    world.set_mode(private::OFF_BYTE, 1);
    hit_all();
    assert_eq!(counted(), 4, "the process is off");
    world.set_mode(private::OFF_BYTE, 0);
    hit_all();
    assert_eq!(counted(), 8);
    world.switch_off();
    hit_all();
    hits[1](77);
    assert_eq!(counted(), 8, "the session is off");
    assert!(
        world.region().map_entries(BY_KEY).all(|e| e.key == 9),
        "no key came in"
    );
}
