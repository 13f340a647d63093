//! The checker finds what is wrong with a copy.

mod common;

use common::{AT, BIAS, Module, names};
use lancet_abi::units::RuntimeAddr;
use lancet_isa::{Copy, Plan, Violation, check};

/// What the checker says after `change`.
#[track_caller]
fn broken(hex: &str, change: impl FnOnce(&mut Copy)) -> &'static str {
    let (plan, mut copy) = Module::of(hex).copy(0);
    change(&mut copy);
    match check(&plan, &copy, AT, BIAS) {
        Err(Violation { what, .. }) => what,
        Ok(()) => panic!("the checker accepts {:02x?}", copy.bytes),
    }
}

#[test]
fn another_operation() {
    assert_eq!(
        broken("48 89 e5 90 90 c3", |c| c.bytes[1] = 0x8b),
        "another operation or operand"
    );
    assert_eq!(
        broken("83 ff 01 90 90 c3", |c| c.bytes[2] = 2),
        "another operation or operand"
    );
    assert_eq!(
        broken("48 8b 05 80 00 00 00 c3", |c| c.bytes[3] ^= 1),
        "another operation or operand"
    );
    assert_eq!(
        broken("90 90 90 90 90 c3", |c| c.bytes[0] = 6),
        "the copy does not decode"
    );
}

#[test]
fn another_way() {
    assert_eq!(
        broken("85 ff 74 00 90 c3", |c| c.bytes[3] = 0x85),
        "another kind of branch"
    );
    assert_eq!(
        broken("85 ff 74 00 90 c3", |c| c.bytes[4] ^= 1),
        "a branch goes elsewhere"
    );
    assert_eq!(
        broken("eb 03 90 90 90 90 c3", |c| c.bytes[1] ^= 4),
        "a branch goes elsewhere"
    );
    assert_eq!(
        broken("e3 03 90 90 90 90 c3", |c| c.bytes[0] = 0xe2),
        "another counted branch"
    );
    assert_eq!(
        broken("e3 03 90 90 90 90 c3", |c| c.bytes[1] = 3),
        "a counted branch does not skip the way around"
    );
    assert_eq!(
        broken("e3 03 90 90 90 90 c3", |c| c.bytes[3] = 4),
        "the way around is wrong"
    );
}

#[test]
fn branch_to_the_site_that_misses_hits() {
    let site = |c: &mut Copy| {
        let stays_in_copy = (-(2 + 6_i32)).to_le_bytes();
        c.bytes[4..8].copy_from_slice(&stays_in_copy);
        assert_eq!(names(c, 4), AT.0);
    };
    assert_eq!(broken("ff cf 75 fc 90 c3", site), "a branch goes elsewhere");
}

#[test]
fn another_call() {
    let call = "e8 fb 0f 00 00 c3";
    assert_eq!(
        broken(call, |c| *c.bytes.last_mut().expect("bytes") ^= 1),
        "another return address"
    );
    assert_eq!(broken(call, |c| c.bytes[7] ^= 1), "a branch goes elsewhere");
    assert_eq!(
        broken(call, |c| c.bytes[6] = 0xe8),
        "a call does not end in a jump"
    );
    assert_eq!(
        broken(call, |c| c.bytes[2] ^= 1),
        "the return address is not aligned"
    );
    assert_eq!(
        broken("90 90 90 ff d0 c3", |c| c.bytes[10] = 0xe1),
        "another register"
    );
    assert_eq!(
        broken("90 90 90 ff 54 24 08 c3", |c| c.bytes[12] = 8),
        "another displacement"
    );
}

#[test]
fn another_end() {
    let plain = "90 90 90 90 90 c3";
    assert_eq!(
        broken(plain, |c| c.bytes[6] ^= 1),
        "control does not go back to the window's end"
    );
    assert_eq!(
        broken(plain, |c| c.bytes.truncate(5)),
        "the copy does not decode"
    );
    assert_eq!(
        broken(plain, |c| c.bytes.push(0)),
        "there are bytes without a meaning"
    );
    assert_eq!(
        broken(plain, |c| c.boundaries.truncate(5)),
        "the map from window to copy names another offset"
    );
    assert_eq!(
        broken(plain, |c| c.boundaries[2].1 += 1),
        "the map from window to copy names another offset"
    );
    assert_eq!(
        broken(plain, |c| c.boundaries.push((9, 9))),
        "the map from window to copy has more entries"
    );
}

#[test]
fn a_copy_holds_for_one_place_and_one_process() {
    let (plan, copy): (Plan, Copy) = Module::of("48 8b 05 80 00 00 00 c3").copy(0);
    assert!(check(&plan, &copy, RuntimeAddr(AT.0 + 8), BIAS).is_err());
    assert!(check(&plan, &copy, AT, BIAS + 0x1000).is_err());
    assert_eq!(plan.emit_copy(AT, BIAS), Ok(copy));
}
