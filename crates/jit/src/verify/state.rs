//! What is known of registers, stack and flags before an instruction.

use std::collections::BTreeMap;

use iced_x86::Register as R;

/// What a register or a pushed word holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Holds {
    /// What this register held at the site.
    Original(R),
    Number(i64),
    /// SF ZF AF PF CF of the site in AH.
    FlagsInAh,
    /// The same, and OF in AL.
    Flags,
    Anything,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FlagState {
    Original,
    /// Only OF is the site's.
    Overflow,
    Anything,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct State {
    pub(super) registers: BTreeMap<u8, Holds>,
    pub(super) stack: BTreeMap<i64, Holds>,
    pub(super) depth: i64,
    pub(super) flags: FlagState,
}

impl State {
    pub(super) fn at_site() -> Self {
        let registers = (0..16u8)
            .map(|n| (n, Holds::Original(R::RAX + u32::from(n))))
            .collect();
        Self {
            registers,
            stack: BTreeMap::new(),
            depth: 0,
            flags: FlagState::Original,
        }
    }

    pub(super) fn get(&self, register: R) -> Holds {
        let full = register.full_register();
        if !full.is_gpr64() {
            return Holds::Anything;
        }
        self.registers
            .get(&(full.number() as u8))
            .copied()
            .unwrap_or(Holds::Anything)
    }

    pub(super) fn set(&mut self, register: R, holds: Holds) {
        self.registers
            .insert(register.full_register().number() as u8, holds);
    }

    /// What holds whichever way control came; `None` where the depths differ.
    pub(super) fn join(&self, other: &Self) -> Option<Self> {
        let both = |a: Holds, b: Holds| if a == b { a } else { Holds::Anything };
        let registers = self
            .registers
            .iter()
            .map(|(n, a)| (*n, both(*a, other.registers[n])));
        let stack = self
            .stack
            .iter()
            .filter_map(|(d, a)| other.stack.get(d).map(|b| (*d, both(*a, *b))));
        let flags = if self.flags == other.flags {
            self.flags
        } else {
            FlagState::Anything
        };
        (self.depth == other.depth).then(|| Self {
            registers: registers.collect(),
            stack: stack.collect(),
            depth: self.depth,
            flags,
        })
    }
}
