//! What becomes of the displaced instructions, with the exact bytes that broke other tools.

mod common;

use common::{AT, BASE, Module, constant, live, names};
use lancet_abi::units::{LinkAddr, RuntimeAddr};
use lancet_isa::{FaultPolicy, Refusal, check, jump};

#[test]
fn b001_indirect_call_reads_the_same_slot() {
    let (plan, copy) = Module::of("ff 15 10 20 00 00 c3").copy(0);
    assert!(plan.has_call());
    assert_eq!(plan.boundaries(), [0, 6]);
    assert_eq!(
        (&copy.bytes[..2], &copy.bytes[6..8]),
        (&[0xff, 0x35][..], &[0xff, 0x25][..])
    );
    assert_eq!(names(&copy, 8), live(6 + 0x2010));
    assert_eq!(names(&copy, 2), AT.0 + copy.bytes.len() as u64 - 8);
    assert_eq!(constant(&copy), live(6));
    assert_eq!(copy.boundaries, [(0, 0)]);
}

#[test]
fn b001_tail_jump_and_push_read_the_same_slot() {
    let (plan, copy) = Module::of("ff 25 10 20 00 00").copy(0);
    assert!(!plan.has_call());
    assert_eq!((copy.bytes.len(), names(&copy, 2)), (6, live(6 + 0x2010)));
    let (_, copy) = Module::of("ff 35 10 20 00 00 c3").copy(0);
    assert_eq!(
        (copy.bytes.len(), names(&copy, 2), names(&copy, 7)),
        (11, live(6 + 0x2010), live(6))
    );
}

#[test]
fn b003_short_function_before_another_is_refused() {
    for bytes in ["f3 c3", "c3", "31 c0 c3"] {
        let module = Module::of(bytes).then("55 48 89 e5 5d c3");
        assert!(
            matches!(module.refusal(0), Refusal::TooShort { need: 5, .. }),
            "{bytes}"
        );
    }
}

#[test]
fn b003_short_function_with_padding_is_patched() {
    let cases = [
        ("f3 c3", "66 2e 0f 1f 84 00 00 00 00 00"),
        ("c3", "cc cc cc cc"),
        ("31 c0 c3", "0f 1f 00"),
        ("c3", "00 00 00 00 00 00 00"),
    ];
    for (bytes, padding) in cases {
        let (plan, copy) = Module::padded(bytes, padding)
            .then("55 48 89 e5 5d c3")
            .copy(0);
        assert_eq!(plan.window_len(), 5, "{bytes}");
        assert_eq!(copy.bytes, common::unhex(bytes));
    }
}

#[test]
fn b003_padding_that_may_be_data_or_code_is_not_covered() {
    let data = Module::padded("c3", "00 00 00 00 00 01").refusal(0);
    let code = Module::padded("c3", "90 90 48 89 c3 c3").refusal(0);
    assert_eq!([data.reason(), code.reason()], ["too short"; 2]);
}

#[test]
fn b003_padding_that_is_entered_is_not_covered() {
    let module = Module::padded("c3", "90 90 90 90 90 90 90").then("e9 f5 ff ff ff");
    assert!(matches!(
        module.refusal(0),
        Refusal::BranchInto {
            target: LinkAddr(0x40_0002),
            ..
        }
    ));
}

#[test]
fn b004_short_branch_in_the_middle() {
    // cmp edi, esi; jbe +7; mov eax, 1; leave; ret; xor eax, eax; ret
    let module = Module::padded("39 f7 76 07 b8 01 00 00 00 c9 c3 31 c0 c3", "90 90 90 90");
    let (plan, copy) = module.copy(2);
    assert_eq!(plan.boundaries(), [0, 2, 7]);
    assert_eq!(copy.bytes[..2], [0x0f, 0x86]);
    assert_eq!(names(&copy, 2), live(11));
    let (last, copy) = module.copy(13);
    assert_eq!((last.window_len(), copy.bytes.as_slice()), (5, &[0xc3][..]));
    // leave; ret; xor eax, eax: the branch target begins inside.
    assert!(matches!(
        module.refusal(9),
        Refusal::BranchInto {
            target: LinkAddr(0x40_000b),
            ..
        }
    ));
}

#[test]
fn b005_jump_over_nothing_at_the_end_of_the_window() {
    let (plan, copy) = Module::of("ff c6 ff c8 eb 00 ff c6 c3").copy(0);
    assert_eq!(plan.boundaries(), [0, 2, 4, 6]);
    assert_eq!(copy.bytes[..5], [0xff, 0xc6, 0xff, 0xc8, 0xe9]);
    assert_eq!(names(&copy, 5), live(6));
}

#[test]
fn b006_branch_into_own_window() {
    let (plan, copy) = Module::of("85 ff 74 00 90 c3").copy(0);
    assert_eq!(plan.boundaries(), [0, 2, 4, 5]);
    assert_eq!(copy.boundaries, [(0, 0), (2, 2), (4, 8), (5, 9)]);
    assert_eq!(names(&copy, 4), AT.0 + 8);
    assert_eq!(names(&copy, 10), live(5));
}

#[test]
fn b006_other_branches_into_own_window() {
    // The window is the branch (2 bytes), a nop that it may skip, two more nops.
    for opcode in ["e3", "e2", "e1", "e0", "67 e3"] {
        let (_, copy) = Module::of(&format!("{opcode} 01 90 90 90 90 c3")).copy(0);
        let (branch, long) = (
            opcode.len().div_ceil(3) + 1,
            opcode.len().div_ceil(3) + 1 + 3,
        );
        assert_eq!(copy.bytes[branch..long], [0xeb, 5, 0xe9], "{opcode}");
        let skipped_to = copy.boundaries[2].1;
        assert_eq!(names(&copy, long), AT.0 + u64::from(skipped_to), "{opcode}");
    }
    // jcc rel32 is a window of its own.
    let (plan, copy) = Module::of("0f 84 00 00 00 00 c3").copy(0);
    assert_eq!((plan.window_len(), names(&copy, 2)), (6, live(6)));
}

#[test]
fn b006_branch_between_instructions_is_refused() {
    let refusal = Module::of("85 ff 74 01 66 90 90 c3").refusal(0);
    assert_eq!(refusal.reason(), "instruction can't be moved");
}

#[test]
fn b006_second_origin_is_refused() {
    let module = Module::of("85 ff 74 00 90 31 c0 74 fb c3");
    assert!(matches!(
        module.refusal(0),
        Refusal::BranchInto {
            target: LinkAddr(0x40_0004),
            ..
        }
    ));
}

#[test]
fn b007_window_that_ends_before_a_branch_target() {
    let (plan, copy) = Module::of("f3 0f 1e fa 85 d2 75 04 c3 0f 1f 00 c3").copy(0);
    assert!(plan.starts_with_endbr());
    assert_eq!((plan.window_len(), copy.bytes.len()), (6, 11));
    let (plan, copy) = Module::of("f3 0f 1e fa 85 d2 75 04 c3 0f 1f 00 c3").copy(4);
    assert!(!plan.starts_with_endbr());
    assert_eq!(plan.boundaries(), [0, 2, 4, 5]);
    assert_eq!(
        (names(&copy, 4), copy.bytes.last()),
        (live(12), Some(&0xc3))
    );
}

#[test]
fn b008_loop_to_the_entry_goes_to_the_site() {
    let (plan, copy) = Module::of("ff cf 75 fc c3").copy(0);
    assert_eq!(plan.window_len(), 5);
    assert_eq!(names(&copy, 4), live(0));
}

#[test]
fn b009_branch_from_another_function() {
    let refusal = Module::of("55 48 89 e5 5d c3")
        .then("e9 f7 ff ff ff")
        .refusal(0);
    assert_eq!(
        refusal,
        Refusal::BranchInto {
            at: LinkAddr(BASE),
            target: LinkAddr(BASE + 2)
        }
    );
    let unharmed = Module::of("55 48 89 e5 5d c3").then("e9 f5 ff ff ff");
    assert_eq!(unharmed.copy(0).0.boundaries(), [0, 1, 4, 5]);
}

#[test]
fn b009_one_instruction_needs_no_other_entry() {
    let module = Module::of("b8 01 00 00 00 c3").then("e9 f7 ff ff ff");
    assert_eq!(module.copy(0).0.window_len(), 5);
}

#[test]
fn b013_thunk_is_patched_itself() {
    let (plan, copy) = Module::of("e9 40 00 00 00").copy(0);
    assert_eq!(
        (plan.window_len(), names(&copy, 1), copy.bytes.len()),
        (5, live(0x45), 5)
    );
}

#[test]
fn b019_trap_byte_is_named() {
    let module = Module::of("90 cc 90 90 90 90 c3");
    assert_eq!(
        module.refusal(1),
        Refusal::TrapByte {
            at: LinkAddr(BASE + 1)
        }
    );
    assert_eq!(
        module.refusal(0),
        Refusal::TrapByte {
            at: LinkAddr(BASE + 1)
        }
    );
    let padded_inside = Module::of("31 c0 c3 cc cc cc cc cc").copy(2);
    assert_eq!(
        (padded_inside.0.window_len(), padded_inside.1.bytes),
        (5, vec![0xc3])
    );
}

#[test]
fn b020_xbegin_jrcxz_and_loop_are_never_verbatim() {
    let (_, copy) = Module::of("c7 f8 02 00 00 00 ff c0 c3").copy(0);
    assert_eq!(
        (&copy.bytes[..2], names(&copy, 2)),
        (&[0xc7, 0xf8][..], live(8))
    );
    let (plan, copy) = Module::padded("e3 02 ff c0 c3", "90").copy(0);
    assert_eq!(plan.boundaries(), [0, 2, 4, 5]);
    assert_eq!(copy.bytes[..5], [0xe3, 2, 0xeb, 5, 0xe9]);
    assert_eq!(names(&copy, 5), AT.0 + u64::from(copy.boundaries[2].1));
    let (_, copy) = Module::padded("e2 fe c3", "cc cc").copy(0);
    assert_eq!(
        (&copy.bytes[..5], names(&copy, 5)),
        (&[0xe2, 2, 0xeb, 5, 0xe9][..], live(0))
    );
}

#[test]
fn b020_forms_that_processors_disagree_about_are_refused() {
    for bytes in [
        "66 c7 f8 02 00 90 c3",
        "66 e9 00 00 00 00 c3",
        "66 0f 84 00 00 00 00 c3",
        "90 90 66 ff d0 c3",
    ] {
        assert_eq!(
            Module::of(bytes).refusal(0).reason(),
            "instruction can't be moved",
            "{bytes}"
        );
    }
}

#[test]
fn b021_syscall_ends_the_window() {
    let module = Module::of("b8 27 00 00 00 0f 05 c3");
    assert!(!module.copy(0).0.ends_with_syscall());
    let refusal = module.refusal(5);
    assert_eq!(refusal.reason(), "call or syscall inside the window");
    let (plan, copy) = Module::of("49 89 ca 0f 05 c3").copy(0);
    assert!(plan.ends_with_syscall());
    assert_eq!(copy.boundaries, [(0, 0), (3, 3), (5, 5)]);
    assert_eq!(names(&copy, 6), live(5));
}

#[test]
fn b023_call_pushes_the_original_return_address() {
    let (plan, copy) = Module::of("e8 fb 0f 00 00 c3").copy(0);
    assert!(plan.has_call());
    assert_eq!(
        (copy.bytes[6], names(&copy, 7), constant(&copy)),
        (0xe9, live(0x1000), live(5))
    );
    let unaligned = plan
        .emit_copy(RuntimeAddr(AT.0 + 3), common::BIAS)
        .expect("in reach");
    assert_eq!(
        check(&plan, &unaligned, RuntimeAddr(AT.0 + 3), common::BIAS),
        Ok(())
    );
}

#[test]
fn b023_call_before_the_end_of_the_window_is_refused() {
    let refusal = Module::of("ff d0 31 c0 90 c3").refusal(0);
    assert_eq!(refusal.reason(), "call or syscall inside the window");
}

#[test]
fn b024_call_that_fetches_its_own_address() {
    let (_, copy) = Module::of("e8 00 00 00 00 58 c3").copy(0);
    assert_eq!((names(&copy, 7), constant(&copy)), (live(5), live(5)));
}

#[test]
fn call_through_the_stack_is_adjusted_for_the_push() {
    // 90 90 90; call [rsp+0x78]: the displacement outgrows its byte.
    let (_, copy) = Module::of("90 90 90 ff 54 24 78 c3").copy(0);
    assert_eq!(copy.bytes[9..16], [0xff, 0xa4, 0x24, 0x80, 0, 0, 0]);
    let (_, copy) = Module::of("90 90 90 ff 14 24 c3").copy(0);
    assert_eq!(copy.bytes[9..13], [0xff, 0x64, 0x24, 8]);
    let (_, copy) = Module::of("90 90 90 41 ff 54 24 08 c3").copy(0);
    assert_eq!(
        copy.bytes[9..14],
        [0x41, 0xff, 0x64, 0x24, 8],
        "r12 is not the stack pointer"
    );
    for refused in ["90 90 90 ff 54 24 f8 c3", "90 90 90 ff d4 c3"] {
        assert_eq!(
            Module::of(refused).refusal(0).reason(),
            "instruction can't be moved"
        );
    }
}

#[test]
fn b026_restartable_sequence_is_forbidden() {
    let mut module = Module::of("90 90 90 90 90 90 90 90 90 90 c3");
    module
        .roots
        .forbidden
        .push(LinkAddr(BASE + 5)..LinkAddr(BASE + 8));
    assert_eq!(
        module.refusal(1),
        Refusal::Forbidden {
            at: LinkAddr(BASE + 5)
        }
    );
    assert_eq!(module.copy(0).0.window_len(), 5);
}

#[test]
fn b027_new_instructions_are_known_or_named() {
    let known = [
        ("c4 e2 fb f6 c1 c3", 5),                 // mulx rax, rax, rcx
        ("66 0f 38 cf c1 c3", 5),                 // gf2p8mulb
        ("62 f1 7c 48 58 c1 c3", 6),              // vaddps zmm0, zmm0, zmm1
        ("62 f1 7c 48 58 05 10 00 00 00 c3", 10), // the same, relative to rip
        ("c4 e2 7b 4b 04 08 c3", 6),              // tileloadd
    ];
    for (bytes, len) in known {
        assert_eq!(Module::of(bytes).copy(0).0.window_len(), len, "{bytes}");
    }
    // REX2 (push r16), and a REX2 jmpabs.
    for bytes in ["d5 10 50 90 90 90 c3", "d5 00 a1 00 00 00 00 00 00 00 00"] {
        let refusal = Module::of(bytes).refusal(0);
        assert_eq!(refusal.reason(), "unknown instruction", "{bytes}");
        assert!(refusal.to_string().contains("d5"), "{refusal}");
    }
}

#[test]
fn b028_each_refusal_stands_alone() {
    let module = Module::of("06 90 90 90 90 c3");
    let refusal = module.refusal(0);
    assert_eq!(refusal.reason(), "unknown instruction");
    assert!(refusal.to_string().contains("0x400000"));
}

#[test]
fn b039_comparison_and_branch_move_together() {
    let module = Module::of("83 ff 01 74 02 31 c0 c3");
    let (plan, copy) = module.copy(0);
    assert_eq!(plan.window_len(), 5);
    assert_eq!(
        (copy.bytes[..5].to_vec(), names(&copy, 5)),
        (vec![0x83, 0xff, 1, 0x0f, 0x84], live(7))
    );
    // At +3 the window ends on the ret, which the branch enters: its own branch, so it stays inside.
    let (plan, copy) = module.copy(3);
    assert_eq!(plan.boundaries(), [0, 2, 4, 5]);
    assert_eq!(names(&copy, 2), AT.0 + u64::from(copy.boundaries[2].1));
}

#[test]
fn site_between_instructions_is_refused() {
    assert_eq!(
        Module::of("b8 01 00 00 00 c3").refusal(1).reason(),
        "not an instruction start"
    );
    assert_eq!(
        Module::of("b8 01 00 00 00 c3").refusal(6).reason(),
        "outside of the function"
    );
}

#[test]
fn instruction_that_reads_its_own_window_is_refused() {
    // mov rax, [rip-3]
    assert_eq!(
        Module::of("48 8b 05 fd ff ff ff c3").refusal(0).reason(),
        "instruction can't be moved"
    );
    // lea rax, [rip-7] names the site, and may.
    let (_, copy) = Module::of("48 8d 05 f9 ff ff ff c3").copy(0);
    assert_eq!(names(&copy, 3), live(0));
}

#[test]
fn faults_by_address_are_kept_in_place() {
    let cases = [
        ("48 8b 07 48 85 c0 c3", false, false),   // mov rax, [rdi]
        ("48 8b 44 24 08 c3", false, true),       // [rsp+8]
        ("48 8b 45 f8 90 c3", false, true),       // [rbp-8]
        ("48 8b 05 10 00 00 00 c3", false, true), // [rip+16]
        ("64 48 8b 04 25 28 00 00 00 c3", false, true), // fs:[0x28]
        ("49 3b 66 10 90 c3", true, true),        // cmp rsp, [r14+16]
        ("49 3b 66 10 90 c3", false, false),
        ("48 8d 47 08 90 c3", false, true),  // lea
        ("48 f7 f9 90 90 c3", false, false), // idiv rcx
        ("48 8b 04 cc 90 c3", false, false), // [rsp+rcx*8]
        ("55 48 89 e5 90 c3", false, true),  // push rbp
    ];
    for (bytes, go, accepted) in cases {
        let mut module = Module::of(bytes);
        assert_eq!(module.copy(0).0.site(), LinkAddr(BASE));
        module.faults = FaultPolicy::ByAddress { go };
        match module.plan(0) {
            Ok(_) => assert!(accepted, "{bytes}"),
            Err(refusal) => assert_eq!(
                (refusal.reason(), accepted),
                ("faults are handled by address", false),
                "{bytes}"
            ),
        }
    }
}

#[test]
fn displacements_that_do_not_reach_are_refused() {
    let from = RuntimeAddr(0x10_0000_0000);
    assert_eq!(
        jump(from, RuntimeAddr(from.0 + 5 + 0x7fff_ffff)),
        Ok([0xe9, 0xff, 0xff, 0xff, 0x7f])
    );
    assert_eq!(
        jump(from, RuntimeAddr(from.0 + 5 - 0x8000_0000)),
        Ok([0xe9, 0, 0, 0, 0x80])
    );
    let refusal = jump(from, RuntimeAddr(from.0 + 5 + 0x8000_0000)).expect_err("too far");
    assert_eq!(refusal.reason(), "out of reach");
    let plan = Module::of("90 90 90 90 90 c3").plan(0).expect("a plan");
    let refusal = plan
        .emit_copy(RuntimeAddr(AT.0 + (4 << 30)), common::BIAS)
        .expect_err("too far");
    assert_eq!(refusal.reason(), "out of reach");
}
