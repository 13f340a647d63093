//! Where control may enter, beyond what falls through.

mod common;

use common::{BASE, Module, unhex};
use lancet_abi::units::LinkAddr;
use lancet_isa::{Entries, Refusal, Roots, Text};

const DATA: u64 = 0x50_0000;

fn scan(hex: &str, roots: &Roots<'_>) -> Vec<u64> {
    let bytes = unhex(hex);
    all(&Entries::scan(
        &[Text {
            start: LinkAddr(BASE),
            bytes: &bytes,
        }],
        roots,
    ))
}

/// Offsets of all entries.
fn all(entries: &Entries) -> Vec<u64> {
    let mut found = Vec::new();
    let mut from = LinkAddr(0);
    while let Some(at) = entries.within(from..LinkAddr(u64::MAX)) {
        found.push(at.0 - BASE);
        from = at.plus(1);
    }
    assert_eq!(
        (found.len(), found.is_empty()),
        (entries.len(), entries.is_empty())
    );
    found
}

#[test]
fn each_kind_of_branch_is_an_entry() {
    let cases = [
        ("eb 02 90 90 c3", 4),
        ("75 02 90 90 c3", 4),
        ("e3 02 90 90 c3", 4),
        ("e2 02 90 90 c3", 4),
        ("e8 01 00 00 00 90 c3", 6),
        ("e9 01 00 00 00 90 c3", 6),
        ("0f 8f 01 00 00 00 90 c3", 7),
        ("c7 f8 01 00 00 00 90 c3", 7),
        ("90 f3 0f 1e fa c3", 1),
        ("48 8d 05 01 00 00 00 90 c3", 8),
        ("b8 06 00 40 00 90 c3", 6),
        ("48 c7 c0 07 00 40 00 c3", 7),
        ("68 05 00 40 00 c3", 5),
    ];
    for (hex, target) in cases {
        assert_eq!(scan(hex, &Roots::default()), [target], "{hex}");
    }
    assert_eq!(scan("48 89 c3 c3", &Roots::default()), [0; 0]);
}

#[test]
fn roots_are_entries() {
    let roots = Roots {
        starts: vec![LinkAddr(BASE + 1)],
        entries: vec![LinkAddr(BASE + 2), LinkAddr(7)],
        ..Roots::default()
    };
    assert_eq!(scan("90 90 90 c3", &roots), [1, 2]);
}

#[test]
fn decoding_starts_again_at_each_function() {
    // A stray first byte of a long instruction would swallow the branch behind it.
    let hex = "48 b8 eb 01 90 c3 90 90 90 90 90 90";
    assert_eq!(scan(hex, &Roots::default()), [0; 0]);
    let roots = Roots {
        starts: vec![LinkAddr(BASE + 2)],
        ..Roots::default()
    };
    assert_eq!(scan(hex, &roots), [2, 5]);
}

#[test]
fn short_branches_behind_unknown_bytes_are_taken_at_every_offset() {
    let hex = "06 48 b8 eb 01 90 c3";
    assert_eq!(scan(hex, &Roots::default()), [6]);
}

#[test]
fn what_looks_like_a_branch_inside_a_known_function_is_none() {
    // mov eax, 0xe9000000; add [rax], al is e9 with a displacement of 2 at offset 4.
    let hex = "b8 00 00 00 e9 02 00 00 00 90 90 c3 c3";
    let range = |from: u64, to: u64| LinkAddr(BASE + from)..LinkAddr(BASE + to);
    let roots = |functions: &[core::ops::Range<LinkAddr>]| Roots {
        starts: vec![LinkAddr(BASE)],
        functions: functions.to_vec(),
        ..Roots::default()
    };
    assert_eq!(scan(hex, &roots(&[])), [0, 11]);
    assert_eq!(scan(hex, &roots(&[range(0, 13)])), [0]);
    assert_eq!(scan(hex, &roots(&[range(0, 2), range(0, 13)])), [0]);
    // The range ends before it, or does not begin at a start.
    assert_eq!(scan(hex, &roots(&[range(0, 4)])), [0, 11]);
    assert_eq!(scan(hex, &roots(&[range(1, 13)])), [0, 11]);
    // Behind bytes that are no instruction nobody knows.
    let hex = "06 00 00 00 e9 02 00 00 00 90 90 c3 c3";
    assert_eq!(scan(hex, &roots(&[range(0, 13)])), [0, 11]);
    // A real branch is found once, and an endbr64 at any offset.
    let real = "e9 02 00 00 00 90 90 c3 c3";
    assert_eq!(scan(real, &roots(&[range(0, 9)])), [0, 7]);
    let entries = Entries::scan(
        &[Text {
            start: LinkAddr(BASE),
            bytes: &unhex(real),
        }],
        &roots(&[range(0, 9)]),
    );
    assert!(entries.has_one_origin(LinkAddr(BASE + 7)));
    assert_eq!(scan("b8 f3 0f 1e fa c3", &roots(&[range(0, 6)])), [0, 1]);
}

#[test]
fn tables_of_distances_and_of_addresses_are_read() {
    // lea rax, [rip+DATA]; movsxd rcx, [rax+rdi*4]; add rcx, rax; jmp rcx
    let code = "48 8d 05 f9 ff 0f 00 48 63 0c b8 48 01 c1 ff e1 90 90 90 90 90 c3";
    let target = |offset: u64| ((BASE + offset).wrapping_sub(DATA) as u32).to_le_bytes();
    let table = [target(17), target(19), [0xff, 0xff, 0xff, 0x7f], target(20)].concat();
    let mut module = Module::of(code);
    assert_eq!(module.refusal(16).reason(), "indirect jump in the function");
    module.roots.data = vec![(LinkAddr(DATA), table.clone().leak())];
    assert_eq!(scan(code, &module.roots), [0, 17, 19]);
    assert!(matches!(
        module.refusal(16),
        Refusal::BranchInto {
            target: LinkAddr(0x40_0011),
            ..
        }
    ));

    // jmp [DATA+rdi*8]
    let code = "ff 24 fd 00 00 50 00 90 90 90 90 90 90 c3";
    let table = [BASE + 8, BASE + 10, 1, BASE + 9]
        .map(u64::to_le_bytes)
        .concat();
    let mut module = Module::of(code);
    assert_eq!(module.refusal(7).reason(), "indirect jump in the function");
    module.roots.data = vec![(LinkAddr(DATA), table.leak())];
    assert_eq!(scan(code, &module.roots), [0, 8, 10]);
    assert!(matches!(
        module.refusal(7),
        Refusal::BranchInto {
            target: LinkAddr(0x40_0008),
            ..
        }
    ));
}

#[test]
fn tables_of_addresses_are_read_through_a_register_too() {
    // mov eax, DATA; jmp [rax+rdi*8]
    let table = [BASE + 8, BASE + 10, 1, BASE + 9]
        .map(u64::to_le_bytes)
        .concat();
    let roots = Roots {
        data: vec![(LinkAddr(DATA), &table)],
        ..Roots::default()
    };
    assert_eq!(
        scan("b8 00 00 50 00 ff 24 f8 90 90 90 90 c3", &roots),
        [8, 10]
    );
}

#[test]
fn table_that_does_not_enter_the_window_lets_it_pass() {
    let mut module =
        Module::of("48 8d 05 f9 ff 0f 00 48 63 0c b8 48 01 c1 ff e1 90 90 90 90 90 c3");
    module.roots.data = vec![(
        LinkAddr(DATA),
        ((BASE + 16).wrapping_sub(DATA) as u32)
            .to_le_bytes()
            .to_vec()
            .leak(),
    )];
    assert_eq!(module.copy(16).0.boundaries(), [0, 1, 2, 3, 4, 5]);
}

#[test]
fn indirect_jump_of_unknown_origin_refuses_the_middle_but_not_the_start() {
    let module = Module::of("90 90 90 90 90 90 90 90 90 90 ff e2");
    assert_eq!(
        module.refusal(1),
        Refusal::IndirectJumpInFunction {
            at: LinkAddr(BASE + 1),
            jump: LinkAddr(BASE + 10)
        }
    );
    assert_eq!(module.copy(0).0.window_len(), 5);
    // A pointer that is loaded whole was made from an address that the scan knows.
    let loaded = Module::of("90 90 90 90 90 90 90 48 8b 57 08 ff e2");
    assert_eq!(loaded.copy(1).0.window_len(), 5);
    // A call or a hidden operand writes the register behind the load.
    for between in ["e8 10 00 00 00", "48 f7 e2"] {
        let overwritten = Module::of(&format!("90 90 90 90 90 90 90 48 8b 47 08 {between} ff e0"));
        assert_eq!(
            overwritten.refusal(1).reason(),
            "indirect jump in the function",
            "{between}"
        );
    }
    // One instruction needs no proof, nor does the padding behind a last ret.
    assert_eq!(
        Module::of("90 b8 01 00 00 00 ff e2").copy(1).0.window_len(),
        5
    );
    assert_eq!(
        Module::padded("ff e2 c3", "90 90 90 90")
            .copy(2)
            .0
            .window_len(),
        5
    );
}

#[test]
fn own_branch_counts_only_where_the_scan_was_in_step() {
    let mut module = Module::of("85 ff 74 00 90 c3");
    assert_eq!(module.copy(0).0.window_len(), 5);
    module.roots.starts.clear();
    assert_eq!(module.refusal(0).reason(), "branch into the window");
}

#[test]
fn large_text_is_scanned_in_parts_with_the_same_result() {
    // Functions of 64 bytes; each calls one in the other half, and branches within itself.
    const COUNT: u64 = 0x8000;
    let mut bytes = Vec::new();
    for i in 0..COUNT {
        let to = ((i + COUNT / 2) % COUNT * 64 + 2).wrapping_sub(i * 64 + 5) as u32;
        bytes.push(0xe8);
        bytes.extend(to.to_le_bytes());
        bytes.extend([0x74, 0x03]);
        bytes.resize((i as usize + 1) * 64, 0x90);
    }
    let starts = (0..COUNT).map(|i| LinkAddr(BASE + i * 64)).collect();
    let roots = Roots {
        starts,
        ..Roots::default()
    };
    let entries = Entries::scan(
        &[Text {
            start: LinkAddr(BASE),
            bytes: &bytes,
        }],
        &roots,
    );
    assert_eq!(entries.len() as u64, 3 * COUNT);
    for i in [0, 1, COUNT / 2 - 1, COUNT / 2, COUNT - 1] {
        let start = LinkAddr(BASE + i * 64);
        assert_eq!(
            entries.within(start.plus(1)..start.plus(64)),
            Some(start.plus(2))
        );
        assert_eq!(
            entries.within(start.plus(3)..start.plus(64)),
            Some(start.plus(10))
        );
        assert_eq!(
            [0, 2, 10].map(|o| entries.has_one_origin(start.plus(o))),
            [false, true, true]
        );
    }
}
