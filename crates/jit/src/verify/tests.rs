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
    }
}

fn raw(bytes: &[u8]) -> Result<(), JitError> {
    let code = Code {
        bytes: bytes.to_vec(),
        entry: 0,
        end: bytes.len() as u32,
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
        Action::MarkUncertain,
    ];
    emit(&actions, Form::Fused, &env(), AT, AT).unwrap()
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
    // A counted loop whose count is whatever rax was.
    refused(&[0x48, 0xff, 0xc8, 0x75, 0xfb], "");
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
fn removed_saves_are_noticed() {
    let code = sample();
    let mut noticed = 0;
    let mut saves = 0;
    for at in code.entry as usize..code.bytes.len() {
        // push r64 and pop r64 without prefix become nop: the stack is off.
        if matches!(code.bytes[at], 0x50..=0x5f) {
            let mut changed = code.clone();
            changed.bytes[at] = 0x90;
            saves += 1;
            noticed += usize::from(verify(&changed, &env(), AT).is_err());
        }
    }
    assert!(saves >= 12 && noticed >= saves - 4, "{noticed} of {saves}");
}
