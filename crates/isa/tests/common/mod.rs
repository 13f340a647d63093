//! A module of a few functions, and what the tests ask of it.
#![allow(dead_code, reason = "each test file uses a part")]

use lancet_abi::units::{LinkAddr, RuntimeAddr};
use lancet_isa::{
    Copy, Entries, FaultPolicy, Function, Plan, PlanRequest, Refusal, Roots, Text, check, plan,
};

/// Where the module's text starts.
pub(crate) const BASE: u64 = 0x40_0000;
/// Runtime minus link address.
pub(crate) const BIAS: u64 = 0x7f00_0000_0000;
/// Where copies lie.
pub(crate) const AT: RuntimeAddr = RuntimeAddr(BIAS + 0x60_0000);

/// A text that starts at [`BASE`].
pub(crate) struct Module {
    pub(crate) bytes: Vec<u8>,
    pub(crate) roots: Roots<'static>,
    pub(crate) function: Function,
    pub(crate) faults: FaultPolicy,
}

impl Module {
    /// One function of these bytes (given in hexadecimal), with nothing behind it.
    pub(crate) fn of(hex: &str) -> Self {
        Self::padded(hex, "")
    }

    /// A function, then padding up to where the next one would start.
    pub(crate) fn padded(hex: &str, padding: &str) -> Self {
        let mut bytes = unhex(hex);
        let end = BASE + bytes.len() as u64;
        bytes.extend(unhex(padding));
        let next = LinkAddr(BASE + bytes.len() as u64);
        let function = Function {
            start: LinkAddr(BASE),
            end: LinkAddr(end),
            next,
        };
        let roots = Roots {
            starts: vec![LinkAddr(BASE), next],
            ..Roots::default()
        };
        Self {
            bytes,
            roots,
            function,
            faults: FaultPolicy::Native,
        }
    }

    /// Another function behind this one.
    pub(crate) fn then(mut self, hex: &str) -> Self {
        self.bytes.extend(unhex(hex));
        self
    }

    pub(crate) fn plan(&self, offset: u64) -> Result<Plan, Refusal> {
        let text = Text {
            start: LinkAddr(BASE),
            bytes: &self.bytes,
        };
        let entries = Entries::scan(&[text], &self.roots);
        plan(&PlanRequest {
            text: &text,
            site: LinkAddr(BASE + offset),
            function: self.function,
            entries: &entries,
            roots: &self.roots,
            faults: self.faults,
        })
    }

    /// The plan and its copy, which the checker has accepted.
    #[track_caller]
    pub(crate) fn copy(&self, offset: u64) -> (Plan, Copy) {
        let plan = self
            .plan(offset)
            .unwrap_or_else(|refusal| panic!("{refusal}"));
        let copy = plan
            .emit_copy(AT, BIAS)
            .unwrap_or_else(|refusal| panic!("{refusal}"));
        check(&plan, &copy, AT, BIAS).unwrap_or_else(|violation| panic!("{violation}"));
        (plan, copy)
    }

    /// The reason of a refusal.
    #[track_caller]
    pub(crate) fn refusal(&self, offset: u64) -> Refusal {
        match self.plan(offset) {
            Ok(plan) => panic!("a plan: {plan:?}"),
            Err(refusal) => refusal,
        }
    }
}

pub(crate) fn unhex(text: &str) -> Vec<u8> {
    text.split_whitespace()
        .map(|b| u8::from_str_radix(b, 16).expect("two hexadecimal digits"))
        .collect()
}

/// The runtime address of an offset in the module.
pub(crate) fn live(offset: u64) -> u64 {
    BASE + BIAS + offset
}

/// Where the 32-bit displacement at `field` of the copy points.
pub(crate) fn names(copy: &Copy, field: usize) -> u64 {
    let value = i32::from_le_bytes(copy.bytes[field..field + 4].try_into().expect("four bytes"));
    AT.0.wrapping_add(field as u64 + 4)
        .wrapping_add_signed(value.into())
}

/// The 64-bit constant at the end of the copy.
pub(crate) fn constant(copy: &Copy) -> u64 {
    u64::from_le_bytes(*copy.bytes.last_chunk().expect("eight bytes"))
}
