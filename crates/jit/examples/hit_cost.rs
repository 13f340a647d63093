//! Prints the nanoseconds that each form of a hit adds to a call and return:
//! thread CPU time, median of several rounds.
#![allow(missing_docs)]

#[path = "../tests/common/mod.rs"]
mod common;

use common::{Hit, World, cpus, repeat};
use lancet_abi::{LayoutBuilder, SlotId};
use lancet_jit::{Action, Form, Key, Register, Update, Value};

/// Functions that are hit in turn.
const MANY: usize = 1000;
const HITS: u64 = 2_000_000;
const ROUNDS: usize = 15;

fn cpu_time() -> f64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `t` is a timespec of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut t) };
    t.tv_sec as f64 * 1e9 + t.tv_nsec as f64
}

fn round(hit: Hit) -> f64 {
    let start = cpu_time();
    repeat(hit, HITS);
    (cpu_time() - start) / HITS as f64
}

fn main() {
    let mut builder = LayoutBuilder::new();
    let slot = builder.plain(1);
    let hist = builder.plain(66);
    let map = builder.map(4096, 1);
    let hists = builder.map(256, 66);
    let many = builder.plain(MANY as u32);
    let mut world = World::with_room(
        builder.build(cpus()).expect("a small layout"),
        false,
        16 << 20,
    );
    let di = Value::Arg(0);
    let plain = |slot, update| vec![Action::Plain { slot, update }];
    let keyed = |map, key, update| {
        vec![Action::Keyed {
            map,
            function: Some(3),
            key,
            update,
        }]
    };
    let tid = Key::Tid;
    let zero = Key::Value(Value::Arg(1));
    let cases = [
        ("count, fused", Form::Fused, plain(slot, Update::Count)),
        ("count, lock", Form::LockOnly, plain(slot, Update::Count)),
        (
            "sum of di, fused",
            Form::Fused,
            plain(slot, Update::Sum(di)),
        ),
        (
            "sum of ax, fused",
            Form::Fused,
            plain(slot, Update::Sum(Value::Register(Register::Ax))),
        ),
        ("hist, fused", Form::Fused, plain(hist, Update::Hist(di))),
        (
            "keyed count, one key",
            Form::Fused,
            keyed(map, zero, Update::Count),
        ),
        (
            "keyed count, lock",
            Form::LockOnly,
            keyed(map, zero, Update::Count),
        ),
        (
            "keyed hist, one key",
            Form::Fused,
            keyed(hists, zero, Update::Hist(di)),
        ),
        (
            "keyed by gettid",
            Form::Fused,
            keyed(map, tid, Update::Count),
        ),
        (
            "two counts, fused",
            Form::Fused,
            [plain(slot, Update::Count), plain(hist, Update::Count)].concat(),
        ),
    ];
    let empty = world.hit(&[], Form::Fused);
    round(empty);
    println!("{:22} {:6.2} ns", "bare call and return", round(empty));
    for (name, form, actions) in cases {
        let hit = world.hit(&actions, form);
        round(hit);
        let mut added: Vec<f64> = (0..ROUNDS)
            .map(|_| {
                let bare = round(empty);
                round(hit) - bare
            })
            .collect();
        added.sort_by(f64::total_cmp);
        println!(
            "{name:22} {:6.2} ns   (best {:.2})",
            added[ROUNDS / 2],
            added[0]
        );
    }
    let mut sites = |actions: &dyn Fn(u32) -> Vec<Action>| -> Vec<Hit> {
        (0..MANY as u32)
            .map(|i| world.hit(&actions(i), Form::Fused))
            .collect()
    };
    let bare = sites(&|_| Vec::new());
    let counted = sites(&|i| plain(SlotId(many.0 + i), Update::Count));
    let mut added: Vec<f64> = (0..ROUNDS)
        .map(|_| -in_turn(&bare) + in_turn(&counted))
        .collect();
    added.sort_by(f64::total_cmp);
    println!(
        "{:22} {:6.2} ns   (best {:.2})",
        "1000 sites in turn",
        added[ROUNDS / 2],
        added[0]
    );
}

fn in_turn(sites: &[Hit]) -> f64 {
    let rounds = HITS as usize / 10 / sites.len();
    let start = cpu_time();
    for _ in 0..rounds {
        sites.iter().for_each(|hit| hit(1));
    }
    (cpu_time() - start) / (rounds * sites.len()) as f64
}
