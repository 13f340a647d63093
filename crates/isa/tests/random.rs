//! Random bytes: nothing panics, and what is accepted is right by the checker.

mod common;

use common::{AT, BASE, BIAS};
use lancet_abi::units::{LinkAddr, RuntimeAddr};
use lancet_isa::{
    Copy, Entries, FaultPolicy, Function, Plan, PlanRequest, Refusal, Roots, Text, check, plan,
};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Pieces that random bytes rarely form: branches, calls, tables, padding, traps.
const PIECES: &[&[u8]] = &[
    &[0xe8, 0, 0, 0, 0],
    &[0xff, 0x15, 0, 1, 0, 0],
    &[0xff, 0xd0],
    &[0xff, 0x54, 0x24, 0x10],
    &[0x0f, 0x05],
    &[0xeb, 0xfe],
    &[0x74, 0x00],
    &[0x75, 0xfc],
    &[0xe3, 0x01],
    &[0xe2, 0xfd],
    &[0xc7, 0xf8, 0, 0, 0, 0],
    &[0x48, 0x8d, 0x05, 0x10, 0, 0, 0],
    &[0x48, 0x8b, 0x05, 0x80, 0, 0, 0],
    &[0xff, 0xe0],
    &[0xc3],
    &[0xcc],
    &[0x90],
    &[0x55],
    &[0x00, 0x00],
    &[0xf3, 0x0f, 0x1e, 0xfa],
];

fn code() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        3 => prop::sample::select(PIECES).prop_map(<[u8]>::to_vec),
        1 => prop::collection::vec(any::<u8>(), 1..6),
    ];
    prop::collection::vec(piece, 1..16).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, rng_seed: RngSeed::Fixed(0x1a9ce7), ..ProptestConfig::default() })]

    #[test]
    fn accepted_plans_have_right_copies(
        bytes in code(), site in 0_u64..24, end in 0_u64..64, next in 0_u64..64, distance in -0x1000_i64..0x1000, go in any::<Option<bool>>(),
    ) {
        let text = Text { start: LinkAddr(BASE), bytes: &bytes };
        let function = Function { start: LinkAddr(BASE), end: LinkAddr(BASE + end), next: LinkAddr(BASE + next.max(end)) };
        let roots = Roots { starts: vec![function.start], data: vec![(LinkAddr(BASE), &bytes)], ..Roots::default() };
        let entries = Entries::scan(&[text], &roots);
        let faults = go.map_or(FaultPolicy::Native, |go| FaultPolicy::ByAddress { go });
        let request =
            PlanRequest { text: &text, site: LinkAddr(BASE + site), function, entries: &entries, roots: &roots, faults };
        if let Ok(plan) = plan(&request) {
            let len = u64::from(plan.window_len());
            prop_assert!((5..20).contains(&len));
            prop_assert!(site + len <= (next.max(end)).min(bytes.len() as u64));
            prop_assert_eq!(plan.original(), &bytes[site as usize..(site + len) as usize]);
            prop_assert_eq!(plan.boundaries().len(), plan.instructions() + 1);
            let at = RuntimeAddr(AT.0.wrapping_add_signed(distance));
            let Some(copy) = reachable(&plan, at) else { return Ok(()) };
            prop_assert_eq!(check(&plan, &copy, at, BIAS), Ok(()));
        }
    }

    /// A checker that accepts everything would pass the test above: a changed copy must not pass.
    #[test]
    fn changed_copies_are_found(bytes in code(), byte in any::<prop::sample::Index>(), bit in 0..8) {
        let text = Text { start: LinkAddr(BASE), bytes: &bytes };
        let end = text.end();
        let function = Function { start: LinkAddr(BASE), end, next: end };
        let roots = Roots::default();
        let entries = Entries::scan(&[text], &roots);
        let request = PlanRequest {
            text: &text, site: LinkAddr(BASE), function, entries: &entries, roots: &roots, faults: FaultPolicy::Native,
        };
        if let Ok(plan) = plan(&request) {
            let Some(mut copy) = reachable(&plan, AT) else { return Ok(()) };
            let code = copy.bytes.len() - if plan.has_call() { 16 } else { 0 };
            let at = byte.index(code);
            let before = copy.bytes[at];
            copy.bytes[at] ^= 1_u8 << bit;
            let other = lengths_and_meaning(&copy.bytes) != lengths_and_meaning(&{
                let mut bytes = copy.bytes.clone();
                bytes[at] = before;
                bytes
            });
            prop_assert_eq!(check(&plan, &copy, AT, BIAS).is_err(), other);
        }
    }
}

/// The copy; none where random displacements lie beyond its reach, which is the only reason that is left by then.
fn reachable(plan: &Plan, at: RuntimeAddr) -> Option<Copy> {
    match plan.emit_copy(at, BIAS) {
        Ok(copy) => Some(copy),
        Err(Refusal::OutOfReach { .. }) => None,
        Err(refusal) => panic!("{refusal}"),
    }
}

/// The copy as the decoder sees it. A flipped bit may leave the meaning as it was (an ignored prefix or hint).
fn lengths_and_meaning(bytes: &[u8]) -> Vec<iced_x86::Instruction> {
    iced_x86::Decoder::with_ip(64, bytes, AT.0, iced_x86::DecoderOptions::NONE)
        .into_iter()
        .collect()
}
