//! Each invariant is broken on purpose: by another's write to the region or the stack, or by a
//! byte of the verified code. The hit counts it, and does no harm.
#![allow(missing_docs)]

mod common;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Hit, State, World, back, cpus, run_in};
use lancet_abi::{Invariant, Layout, LayoutBuilder, MapId, SlotId, histogram, map, private};
use lancet_jit::{Action, CANARY, Code, Form, Key, Update, Value};

const HIST: SlotId = SlotId(0);
const COUNT: SlotId = SlotId(66);
const BY_KEY: MapId = MapId(0);
const CAPACITY: u32 = 64;

/// The histogram's slots come first, so that its wrong buckets are slots of others.
fn layout() -> Layout {
    let mut builder = LayoutBuilder::new();
    builder.plain(histogram::BUCKETS);
    builder.plain(1);
    builder.map(CAPACITY, 1);
    // Entries that lie behind the map's own.
    builder.map(CAPACITY, 1);
    builder.build(cpus()).unwrap()
}

fn world() -> World {
    let mut world = World::new(layout());
    world.breaks = true;
    world
}

const ONE_MORE: Action = Action::Plain {
    slot: COUNT,
    update: Update::Count,
};
const BUCKET: Action = Action::Plain {
    slot: HIST,
    update: Update::Hist(Value::Arg(0)),
};
const KEYED: Action = Action::Keyed {
    map: BY_KEY,
    function: None,
    key: Key::Value(Value::Arg(0)),
    update: Update::Count,
};

fn hit_changed(world: &mut World, action: Action, change: impl FnOnce(&mut Code)) -> Hit {
    let entry = world.changed(&[action], Form::Fused, |_| vec![0xc3], change);
    // SAFETY: emitted code followed by a ret keeps the C calling convention.
    unsafe { std::mem::transmute::<usize, Hit>(entry as usize) }
}

/// The place of the only, or the last, such bytes from the code's entry on.
fn last(code: &Code, bytes: &[u8]) -> usize {
    let entry = code.entry as usize;
    let mut hot = code.bytes[entry..].windows(bytes.len());
    entry + hot.rposition(|w| w == bytes).unwrap()
}

fn broken(world: &World) -> BTreeSet<Invariant> {
    world.broken().into_iter().map(|(one, _)| one).collect()
}

fn total(world: &World, slot: SlotId) -> u64 {
    world.region().slot_total(slot, 0).unwrap()
}

#[test]
fn nothing_is_broken_by_itself() {
    let mut world = world();
    for form in [Form::Fused, Form::LockOnly] {
        let hit = world.hit(&[ONE_MORE, BUCKET, KEYED], form);
        (0..1000).for_each(|n| hit(n % 60));
    }
    assert_eq!(world.broken(), []);
    assert_eq!(total(&world, COUNT), 2000);
}

#[test]
fn unknown_bits_of_the_mode_word() {
    let mut world = world();
    let hit = world.hit(&[ONE_MORE], Form::Fused);
    for (byte, value) in [(private::UNCERTAIN_BYTE, 2), (7, 1)] {
        world.set_mode(byte, value);
        let before = world.broken().first().map_or(0, |(_, times)| *times);
        hit(0);
        world.set_mode(byte, 0);
        assert!(world.broken()[0].1 > before);
    }
    assert_eq!(broken(&world), BTreeSet::from([Invariant::Mode]));
    assert_eq!(total(&world, COUNT), 2, "by the lock form");
}

#[test]
fn an_on_word_that_is_neither() {
    let mut world = world();
    let hit = world.hit(&[ONE_MORE], Form::LockOnly);
    world.write_word(world.env.layout.on(), 2);
    hit(0);
    assert_eq!(world.broken(), [(Invariant::On, 1)]);
    assert_eq!(total(&world, COUNT), 1);
}

#[test]
fn a_cpu_table_that_names_other_blocks() {
    let table = layout().cpu_table();
    let wrong = [
        1,
        layout().block(0).unwrap() + 8,
        layout().size(),
        u64::MAX << 12,
    ];
    for (form, found) in [(Form::Fused, 2), (Form::LockOnly, 1)] {
        for word in wrong {
            let mut world = world();
            let hit = world.hit(&[ONE_MORE], form);
            for cpu in 0..u64::from(cpus()) {
                world.write_word(table + 8 * cpu, word);
            }
            hit(0);
            // The section and the lock form after it both look.
            assert_eq!(world.broken(), [(Invariant::Block, found)], "{word:#x}");
            assert_eq!(total(&world, COUNT), 1, "in the first block");
        }
    }
}

/// Runs in a thread whose area the kernel knows nothing of, which says that it is on `cpu`.
fn unregistered(cpu: u32, run: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let area = common::rseq_area();
            // SAFETY: takes this thread's registered area away from the kernel, and writes to it.
            unsafe {
                let gone = libc::syscall(libc::SYS_rseq, area, 32, 1, 0x5305_3053u32);
                assert_eq!(gone, 0, "{}", std::io::Error::last_os_error());
                ((area + 4) as *mut u32).write_volatile(cpu);
            }
            run();
        });
    });
}

/// Keeps the calling thread on one of its CPUs, and returns which.
fn pinned() -> u32 {
    // SAFETY: a set of this frame.
    unsafe {
        let cpu = libc::sched_getcpu();
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu as usize, &mut set);
        let size = std::mem::size_of_val(&set);
        assert_eq!(libc::sched_setaffinity(0, size, &raw const set), 0);
        cpu as u32
    }
}

#[test]
fn an_area_that_names_another_cpu() {
    if cpus() < 2 {
        eprintln!("skipped: one CPU");
        return;
    }
    let mut world = world();
    let hit = world.hit(&[ONE_MORE], Form::Fused);
    unregistered(0, || {
        let here = pinned();
        let other = u32::from(here == 0);
        let area = common::rseq_area();
        // SAFETY: cpu_id of this thread's own area, which is not registered.
        unsafe { ((area + 4) as *mut u32).write_volatile(other) };
        hit(0);
    });
    assert_eq!(world.broken(), [(Invariant::Cpu, 1)]);
    assert_eq!(total(&world, COUNT), 1);
    // A CPU that the layout does not have.
    let past = world.env.layout.ncpus();
    unregistered(past, || hit(0));
    assert!(broken(&world).is_subset(&[Invariant::Cpu, Invariant::Block].into()));
    assert_eq!(total(&world, COUNT), 2);
}

#[test]
fn a_section_that_the_kernel_is_not_told_of() {
    let mut world = world();
    let field = i64::from(common::rseq().area_from_fs + 8).to_le_bytes();
    let hit = hit_changed(&mut world, ONE_MORE, |code| {
        // mov fs:[rseq_cs], rax: becomes a load.
        let store = [&[0x64, 0x48, 0xa3], &field[..]].concat();
        let at = last(code, &store);
        code.bytes[at + 2] = 0xa1;
    });
    unregistered(0, || {
        let here = pinned();
        // SAFETY: cpu_id of this thread's own area, which is not registered.
        unsafe { ((common::rseq_area() + 4) as *mut u32).write_volatile(here) };
        hit(0);
    });
    assert_eq!(world.broken(), [(Invariant::Descriptor, 1)]);
    assert_eq!(total(&world, COUNT), 1);
}

#[test]
fn a_bucket_that_no_histogram_has() {
    for (form, due) in [
        (Form::Fused, vec![Invariant::RseqHalf, Invariant::LockHalf]),
        (Form::LockOnly, vec![Invariant::LockHalf]),
    ] {
        // Few slots, so that a half ends before slot 255.
        let mut builder = LayoutBuilder::new();
        builder.plain(histogram::BUCKETS);
        let mut world = World::new(builder.build(cpus()).unwrap());
        world.breaks = true;
        let hit = world.hit(&[BUCKET], form);
        let layout = world.env.layout.clone();
        world.write(layout.histogram(), &[255; histogram::TABLE_LEN]);
        hit(7);
        let due = due.into_iter().map(|one| (one, 1)).collect::<Vec<_>>();
        assert_eq!(world.broken(), due);
        // Nothing was stored anywhere.
        let words = (layout.block(0).unwrap()..layout.size()).step_by(8);
        assert!(words.into_iter().all(|at| world.word(at) == 0));
    }
}

#[test]
fn an_entry_behind_the_map() {
    let mut world = world();
    let hit = hit_changed(&mut world, KEYED, |code| {
        // shr rax, 64 - 6: one bit more of the hash.
        let at = last(code, &[0x48, 0xc1, 0xe8, 64 - 6]);
        code.bytes[at + 3] -= 1;
    });
    let first = |key| map::first_probe(1, key, 2 * CAPACITY);
    let key = (0..1000).find(|&key| first(key) >= CAPACITY).unwrap();
    hit(key);
    assert_eq!(world.broken(), [(Invariant::MapIndex, 1)]);
    assert_eq!(world.region().map_dropped(BY_KEY), Some(1));
}

#[test]
fn an_entry_of_another_key() {
    let mut world = world();
    let hit = hit_changed(&mut world, KEYED, |code| {
        // cmp [rdi + 8], rsi of the search: cmp rsi, rsi, so that every key is the one.
        let entry = code.entry as usize;
        let compare = [0x48, 0x39, 0x77, 8];
        let at = code.bytes[entry..].windows(4).position(|w| w == compare);
        code.bytes[entry + at.unwrap()..][..4].copy_from_slice(&[0x48, 0x39, 0xf6, 0x90]);
    });
    let place = |key| map::first_probe(1, key, CAPACITY);
    let other = (6..1000).find(|&key| place(key) == place(5)).unwrap();
    (0..3).for_each(|_| hit(5));
    hit(other);
    assert_eq!(world.broken(), [(Invariant::MapEntry, 1)]);
    let region = world.region();
    let values: Vec<_> = region
        .map_entries(BY_KEY)
        .map(|entry| (entry.key, region.map_value(BY_KEY, entry.index, 0)))
        .collect();
    assert_eq!(
        values,
        [(5, Some(3))],
        "the other key's entry has its own hits"
    );
    assert_eq!(region.map_dropped(BY_KEY), Some(1));
}

/// What the handler looks for in the stack of a hit that it interrupts, and overwrites: the
/// canary, or the word that lies `ABOVE` bytes over it.
static ABOVE: AtomicU64 = AtomicU64::new(0);
static CODE: AtomicU64 = AtomicU64::new(0);
static WRITTEN: AtomicU64 = AtomicU64::new(0);

extern "C" fn overwrite(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel gives the context; the words looked at lie in the interrupted thread's
    // own stack, below the frame that called the hit.
    unsafe {
        let registers = &(*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let ip = registers[libc::REG_RIP as usize] as u64;
        if WRITTEN.load(Ordering::Relaxed) > 0 || ip.abs_diff(CODE.load(Ordering::Relaxed)) > 4096 {
            return;
        }
        let stack = registers[libc::REG_RSP as usize] as *mut u64;
        // A canary that was left below the stack pointer is not looked at.
        if let Some(at) = (0..24).find(|&at| stack.add(at).read_volatile() == CANARY) {
            let word = stack.add(at + ABOVE.load(Ordering::Relaxed) as usize / 8);
            word.write_volatile(!word.read_volatile());
            WRITTEN.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn a_stack_that_another_writes_to() {
    // Bytes above the canary; the copies of r11 and of the flags are compared with what is right.
    let words = [
        (0, Invariant::Canary),
        (8, Invariant::StackPointer),
        (24, Invariant::Flags),
        (64, Invariant::Registers),
    ];
    for (above, due) in words {
        let mut world = world();
        let entry = world.code(&[ONE_MORE], Form::Fused, |_| vec![0xc3]);
        // SAFETY: emitted code followed by a ret; the handler touches atomics and the stack.
        let hit = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = overwrite as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            let set = libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut());
            assert_eq!(set, 0);
            std::mem::transmute::<usize, Hit>(entry as usize)
        };
        ABOVE.store(above, Ordering::Relaxed);
        CODE.store(entry, Ordering::Relaxed);
        WRITTEN.store(0, Ordering::Relaxed);
        let alarms = common::Alarms::start(50);
        let end = Instant::now() + Duration::from_secs(30);
        let mut hits = 0;
        while broken(&world).is_empty() && Instant::now() < end {
            // A copy that is overwritten once it was looked at is not missed.
            WRITTEN.store(0, Ordering::Relaxed);
            (0..10_000).for_each(|n| hit(n));
            hits += 10_000;
        }
        drop(alarms);
        assert_eq!(broken(&world), BTreeSet::from([due]));
        assert_eq!(total(&world, COUNT), hits);
    }
}

/// A state with all flags but AC, and other words in all registers.
fn state() -> State {
    State {
        gpr: std::array::from_fn(|n| if n == 4 { 0 } else { 0x1111 * (n as u64 + 1) }),
        flags: 0x202 | 0x8d5,
        red_zone: std::array::from_fn(|n| n as u64),
    }
}

#[test]
fn an_action_that_gives_registers_or_flags_back_wrong() {
    // The pops of rax and rcx, before the pushfq, change places; add al, 0x7f without its overflow.
    let swapped = |code: &mut Code| {
        let at = last(code, &[0x58, 0x59, 0x9c]);
        code.bytes[at..at + 2].copy_from_slice(&[0x59, 0x58]);
    };
    let flagged = |code: &mut Code| {
        let entry = code.entry as usize;
        let at = code.bytes[entry..].windows(2).position(|w| w == [4, 0x7f]);
        code.bytes[entry + at.unwrap() + 1] = 0;
    };
    let changes = [
        (swapped as fn(&mut Code), Invariant::Registers),
        (flagged, Invariant::Flags),
    ];
    for (change, due) in changes {
        let mut world = world();
        let entry = world.changed(&[ONE_MORE], Form::Fused, back, change);
        assert_eq!(
            run_in(entry, &state()),
            state(),
            "the copies are given back"
        );
        assert_eq!(world.broken(), [(due, 1)]);
    }
}

#[test]
fn every_invariant_has_its_test() {
    // What is asserted above, by name: a new one must be broken here as well.
    let source = include_str!("checking.rs");
    for invariant in Invariant::ALL {
        let name = format!("Invariant::{invariant:?}");
        assert!(source.contains(&name), "{name}");
    }
}
