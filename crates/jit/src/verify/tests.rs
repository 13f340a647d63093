use super::*;
use crate::{Action, Form, Key, Rseq, Update, Value, emit};
use lancet_abi::{LayoutBuilder, SlotId};

const AT: RuntimeAddr = RuntimeAddr(0x10_0000);

fn env() -> Env {
    let mut b = LayoutBuilder::new();
    b.plain(67);
    b.map(1024, 1);
    Env {
        rseq: Some(Rseq {
            area_from_fs: -96,
            signature: 0x5305_3053,
        }),
        tid_from_fs: Some(0x2d0),
        mode: RuntimeAddr(0x7fff_0000_0000),
        region: RuntimeAddr(0x100_0000),
        layout: b.build(4).unwrap(),
        script: None,
        check: false,
    }
}

fn raw(bytes: &[u8]) -> Result<(), JitError> {
    let code = Code {
        bytes: bytes.to_vec(),
        entry: 0,
        end: bytes.len() as u32,
        functions: 0,
    };
    verify(&code, &env(), AT)
}

#[track_caller]
fn refused(bytes: &[u8], expected: &str) {
    match raw(bytes) {
        Err(JitError::Verify { rule, .. }) => assert!(rule.contains(expected), "{rule}"),
        other => panic!("{other:?}"),
    }
}

fn sample() -> Code {
    sample_for(&env())
}

fn sample_for(env: &Env) -> Code {
    let update = Update::Hist(Value::Arg(3));
    let keyed = Action::Keyed {
        map: lancet_abi::MapId(0),
        function: Some(1),
        key: Key::Tid,
        update: Update::Sum(Value::Arg(2)),
    };
    let actions = [
        Action::Plain {
            slot: SlotId(0),
            update,
        },
        keyed,
        Action::MarkUncertain {
            when: crate::Mark::Always,
        },
    ];
    emit(&actions, Form::Fused, env, AT, AT).unwrap()
}

#[test]
fn emitted_code_passes() {
    verify(&sample(), &env(), AT).unwrap();
    let count = [Action::Plain {
        slot: SlotId(66),
        update: Update::Count,
    }];
    for form in [Form::Fused, Form::LockOnly] {
        verify(&emit(&count, form, &env(), AT, AT).unwrap(), &env(), AT).unwrap();
    }
    raw(&[]).unwrap();
}

#[test]
fn each_rule_is_noticed() {
    refused(&[0x50, 0x58], "red zone");
    // mov eax, fs:[0x28]
    refused(&[0x64, 0x8b, 0x04, 0x25, 0x28, 0, 0, 0], "through fs");
    refused(
        &[0x48, 0x8d, 0x64, 0x24, 0x80, 0x50],
        "stack pointer differ",
    );
    refused(&[0x48, 0xff, 0xc0], "flags");
    refused(&[0x48, 0x8d, 0x40, 0x01], "a register differs");
    refused(&[0x0f, 0x28, 0xc1], "not general");
    refused(&[0xc3], "return");
    refused(&[0xeb, 0x10], "leaves");
    refused(&[0x0f, 0x05], "gettid");
    refused(&[0x74, 0xfe], "loop");
    refused(&[0x90, 0xe3, 0xfd], "loop");
    refused(&[0xeb, 0xfe], "never reached");
    refused(&[0x48, 0x89, 0x04, 0x24], "no push");
    refused(&[0x48, 0x8b, 0x05, 0, 0, 0, 0], "outside region");
    // lea rsp,[rsp-256]; push rax
    refused(
        &[0x48, 0x8d, 0xa4, 0x24, 0, 0xff, 0xff, 0xff, 0x50],
        "too deep",
    );
}

#[test]
fn loop_count_is_bounded() {
    let mut code = sample();
    let mov_r8d = [0x41, 0xb8, 64, 0, 0, 0];
    let at = code
        .bytes
        .windows(6)
        .position(|bytes| bytes == mov_r8d)
        .unwrap();
    code.bytes[at + 2] = 65;
    match verify(&code, &env(), AT) {
        Err(JitError::Verify { rule, .. }) => assert_eq!(rule, "a loop without a bound"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn section_must_store_at_its_end() {
    let mut code = sample();
    // One byte more, or less: the commit no longer ends the section.
    code.bytes[16] += 1;
    assert!(verify(&code, &env(), AT).is_err());
    code.bytes[16] -= 2;
    assert!(verify(&code, &env(), AT).is_err());
    code.bytes[16] += 1;
    verify(&code, &env(), AT).unwrap();
    let mut other = env();
    other.rseq = Some(Rseq {
        area_from_fs: -96,
        signature: 1,
    });
    assert!(verify(&code, &other, AT).is_err(), "the signature counts");
}

#[test]
fn registers_of_the_target_are_not_followed() {
    let emitted = |in_memory| {
        let when = crate::Mark::CloneFlags { in_memory };
        let mark = [Action::MarkUncertain { when }];
        emit(&mark, Form::LockOnly, &env(), AT, AT).unwrap()
    };
    for in_memory in [false, true] {
        verify(&emitted(in_memory), &env(), AT).unwrap();
    }
    let framed = |access: &[u8]| {
        let enter = [0x48, 0x8d, 0x64, 0x24, 0x80, 0x51];
        let leave = [0x59, 0x48, 0x8d, 0xa4, 0x24, 0x80, 0, 0, 0];
        [&enter, access, &leave].concat()
    };
    let chosen = "target's choosing";
    raw(&framed(&[0x8b, 0x0f])).unwrap(); // mov ecx, [rdi]
    refused(&framed(&[0x48, 0x8b, 0x0f]), chosen); // mov rcx, [rdi]
    refused(&framed(&[0x8b, 0x4f, 0x04]), chosen); // mov ecx, [rdi+4]
    refused(&framed(&[0x8b, 0x0e]), chosen); // mov ecx, [rsi]
    refused(&framed(&[0x8b, 0x0c, 0x37]), chosen); // mov ecx, [rdi+rsi]
    refused(&framed(&[0x89, 0x0f]), chosen); // mov [rdi], ecx
}

#[test]
fn removed_saves_are_noticed() {
    let code = sample();
    let hot = &code.bytes[code.entry as usize..];
    let mut decoder = Decoder::with_ip(64, hot, u64::from(code.entry), DecoderOptions::NONE);
    let mut saves = 0;
    while decoder.can_decode() {
        let instruction = decoder.decode();
        if matches!(
            instruction.mnemonic(),
            Mnemonic::Push | Mnemonic::Pop | Mnemonic::Lahf | Mnemonic::Sahf | Mnemonic::Seto
        ) {
            let mut changed = code.clone();
            let at = instruction.ip() as usize;
            changed.bytes[at..at + instruction.len()].fill(0x90);
            assert!(verify(&changed, &env(), AT).is_err(), "{instruction}");
            saves += 1;
        }
    }
    // Six registers and the flags, saved and restored; a histogram's value.
    assert_eq!(saves, 2 * 7 + 3 + 1);
}

#[test]
fn lock_only_never_reads_fs() {
    let keyed = |update| Action::Keyed {
        map: lancet_abi::MapId(0),
        function: None,
        key: Key::Tid,
        update,
    };
    let actions = [
        Action::Plain {
            slot: SlotId(0),
            update: Update::Hist(Value::Arg(3)),
        },
        keyed(Update::Count),
        keyed(Update::Sum(Value::Arg(7))),
    ];
    let through_fs = |form| {
        let code = emit(&actions, form, &env(), AT, AT).unwrap();
        verify(&code, &env(), AT).unwrap();
        let mut graph = Graph {
            code: &code,
            env: &env(),
            at: AT.0,
            nodes: BTreeMap::new(),
            sections: BTreeMap::new(),
        };
        graph.discover().unwrap();
        graph
            .nodes
            .values()
            .filter(|i| i.memory_segment() == R::FS)
            .count()
    };
    assert_eq!(through_fs(Form::LockOnly), 0);
    // Descriptor and CPU of three sections, the thread's id twice.
    assert_eq!(through_fs(Form::Fused), 8);
}

#[test]
fn code_that_checks_itself_has_rules_of_its_own() {
    let mut checked = env();
    checked.check = true;
    let code = sample_for(&checked);
    verify(&code, &checked, AT).unwrap();
    assert!(verify(&code, &env(), AT).is_err(), "too deep, and pushfq");
    verify(&sample(), &checked, AT).unwrap();
    refused(&[0x48, 0x8d, 0x64, 0x24, 0x80, 0x9c], "stack pointer");

    // What the actions give back is proven though it is compared with copies: two pops change
    // places. So are the copies: each load of one loads another.
    let end = code.bytes.len();
    let saves = code.entry as usize..end;
    let decoder = Decoder::with_ip(64, &code.bytes, 0, DecoderOptions::NONE);
    let all: Vec<Instruction> = decoder.into_iter().collect();
    let byte = |i: &Instruction| (i.ip() as usize, i.len());
    let mut pops = all.windows(2).filter(|pair| {
        let one = |i: &Instruction| i.mnemonic() == Mnemonic::Pop && i.len() == 1;
        saves.contains(&(pair[0].ip() as usize)) && pair.iter().all(one)
    });
    let (at, _) = byte(&pops.next().expect("two registers are saved")[0]);
    let mut swapped = code.clone();
    swapped.bytes.swap(at, at + 1);
    assert!(verify(&swapped, &checked, AT).is_err());

    let loads = all.iter().filter(|i| {
        i.mnemonic() == Mnemonic::Mov
            && (i.ip() as u32) < code.entry
            && i.memory_base() == R::RSP
            && i.memory_displacement64() >= 24
            && i.op0_register().is_gpr64()
    });
    let mut changed = 0;
    for load in loads {
        let mut other = code.clone();
        let (at, length) = byte(load);
        // The displacement is the instruction's end, of one byte or of four.
        let wide = load.memory_displacement64() >= 128;
        other.bytes[at + length - if wide { 4 } else { 1 }] ^= 8;
        assert!(verify(&other, &checked, AT).is_err(), "{load}");
        changed += 1;
    }
    assert!(changed >= 15, "{changed} loads of copies");
}
