//! Where children are made.

mod common;
#[path = "common/library.rs"]
mod library;

use common::{BASE, unhex};
use lancet_abi::units::LinkAddr;
use lancet_isa::{ChildCall, ChildCalls, Maker, Text};

const VFORK: &str = "b8 3a 00 00 00 0f 05";

/// Searches a text whose functions have these sizes, one behind the other.
fn find(hex: &str, sizes: &[u64]) -> ChildCalls {
    let bytes = unhex(hex);
    let text = Text {
        start: LinkAddr(BASE),
        bytes: &bytes,
    };
    ChildCalls::find(&[text], |at| {
        let mut start = BASE;
        for size in sizes {
            if at.0 >= start && at.0 < start + size {
                return Some(LinkAddr(start)..LinkAddr(start + size));
            }
            start += size;
        }
        None
    })
}

#[track_caller]
fn calls(hex: &str, expected: &[(u64, Maker)]) {
    let found = find(hex, &[unhex(hex).len() as u64]);
    let due: Vec<ChildCall> = expected
        .iter()
        .map(|&(offset, maker)| ChildCall {
            at: LinkAddr(BASE + offset),
            maker,
        })
        .collect();
    assert_eq!((found.calls, found.doubtful), (due, vec![]), "{hex}");
}

#[track_caller]
fn doubtful(hex: &str, offset: u64) {
    let found = find(hex, &[unhex(hex).len() as u64]);
    assert_eq!(found.calls, [], "{hex}");
    assert_eq!(found.doubtful, [LinkAddr(BASE + offset)], "{hex}");
}

#[test]
fn the_usual_forms_are_found() {
    calls(&format!("5f {VFORK} 57 c3"), &[(1, Maker::Vfork)]);
    calls("b8 38 00 00 00 0f 05 c3", &[(0, Maker::Clone)]);
    calls(
        "b8 b3 01 00 00 0f 05 c3",
        &[(0, Maker::Clone3 { checked: false })],
    );
    // test rdi, rdi; je: as in libc.
    calls(
        "48 85 ff 74 08 b8 b3 01 00 00 0f 05 c3 90 c3",
        &[(5, Maker::Clone3 { checked: true })],
    );
}

#[test]
fn other_calls_and_other_uses_of_the_numbers_are_not() {
    calls("b8 39 00 00 00 0f 05 c3", &[]);
    calls("bf 3a 00 00 00 31 c0 0f 05 c3", &[]);
    // The number is a result, and the system call's number another one.
    calls("b8 3a 00 00 00 74 07 b8 01 00 00 00 0f 05 c3", &[]);
    calls("b8 3a 00 00 00 c3 b8 01 00 00 00 0f 05 c3", &[]);
    // A function without a system call is not even read.
    calls("b8 3a 00 00 00 c3", &[]);
}

#[test]
fn other_forms_are_doubtful() {
    // Something stands between.
    doubtful("b8 3a 00 00 00 90 0f 05 c3", 0);
    doubtful("b8 38 00 00 00 49 89 ca 0f 05 c3", 0);
    // xor eax, eax; mov al, 56: as in musl.
    doubtful("31 c0 b0 38 49 89 fb 0f 05 c3", 2);
    // mov rax, 58
    doubtful("48 c7 c0 3a 00 00 00 0f 05 c3", 0);
    // push 58; pop rax
    doubtful("6a 3a 58 0f 05 c3", 0);
    // A jump to the system call: near, or in another function.
    doubtful("b8 3a 00 00 00 eb 01 c3 0f 05 c3", 0);
    let found = find("b8 3a 00 00 00 eb 03 0f 05 c3 0f 05 c3", &[10, 3]);
    assert_eq!(found.doubtful, [LinkAddr(BASE)]);
    // A branch that may or may not be taken.
    doubtful("b8 3a 00 00 00 74 01 c3 0f 05 c3", 0);
}

#[test]
fn a_function_that_is_said_to_end_at_the_system_call() {
    let found = find("b8 38 00 00 00 0f 05 c3", &[5]);
    assert_eq!((found.calls.len(), found.doubtful), (1, vec![]));
}

#[test]
fn what_no_function_holds_is_doubtful() {
    let found = find(VFORK, &[]);
    assert_eq!(found.calls, []);
    assert!(!found.doubtful.is_empty());
    assert_eq!(find("b8 01 00 00 00 0f 05", &[]).doubtful, []);
    // Behind bytes that are no instruction, and inside of another instruction.
    assert!(!find(&format!("06 {VFORK}"), &[8]).doubtful.is_empty());
    let inside = find(&format!("48 b8 00 {VFORK} c3"), &[11]);
    assert_eq!(
        (inside.calls, inside.doubtful),
        (vec![], vec![LinkAddr(BASE + 3)])
    );
}

#[test]
fn code_that_may_run_before_registration_is_named() {
    let hex = format!("{VFORK} c3 b8 4e 01 00 00 0f 05 c3 b8 01 00 00 00 0f 05 c3");
    let found = find(&hex, &[8, 8, 8]);
    let range = |from, to| LinkAddr(BASE + from)..LinkAddr(BASE + to);
    assert_eq!(found.unregistered, [range(0, 8 + 64), range(8, 16 + 64)]);
}

#[test]
fn libc_makes_children_in_usual_forms_only() {
    let Some(path) = library::path().filter(|p| p.contains("/libc.so")) else {
        return;
    };
    let file = std::fs::read(path).expect("libc is readable");
    let module = library::read(&file);
    let around = |at: LinkAddr| {
        let holds = module.roots.functions.iter().filter(|f| f.contains(&at));
        holds.max_by_key(|f| f.start).cloned()
    };
    let found = ChildCalls::find(&module.text, around);
    assert_eq!(found.doubtful, []);
    let makers: Vec<Maker> = found.calls.iter().map(|c| c.maker).collect();
    assert!(makers.contains(&Maker::Vfork), "{makers:?}");
    // One in fork, one in clone.
    assert!(
        makers.iter().filter(|m| **m == Maker::Clone).count() >= 2,
        "{makers:?}"
    );
    assert!(
        makers
            .iter()
            .all(|m| !matches!(m, Maker::Clone3 { checked: false })),
        "{makers:?}"
    );
}
