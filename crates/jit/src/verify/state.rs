//! What is known of registers, stack and flags before an instruction.

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
    /// An address in the process's scratch slots.
    Slot,
    Anything,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FlagState {
    Original,
    /// Only OF is the site's.
    Overflow,
    Anything,
}

/// Words that the stack may be deep, at most.
const WORDS: usize = 64;

/// Of fixed size: thousands are copied for each library whose functions get probes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct State {
    /// By register number.
    pub(super) registers: [Holds; 16],
    /// By depth, in words.
    stack: [Option<Holds>; WORDS],
    /// What the thread's scratch slot keeps of the registers, by number.
    pub(super) kept: [Holds; 16],
    pub(super) depth: i64,
    pub(super) flags: FlagState,
}

impl State {
    pub(super) fn at_site() -> Self {
        Self {
            registers: std::array::from_fn(|n| Holds::Original(R::RAX + n as u32)),
            stack: [None; WORDS],
            kept: [Holds::Anything; 16],
            depth: 0,
            flags: FlagState::Original,
        }
    }

    pub(super) fn get(&self, register: R) -> Holds {
        let full = register.full_register();
        if !full.is_gpr64() {
            return Holds::Anything;
        }
        self.registers[full.number()]
    }

    pub(super) fn set(&mut self, register: R, holds: Holds) {
        self.registers[register.full_register().number()] = holds;
    }

    /// A word goes on the stack, whose depth counts it already.
    pub(super) fn push(&mut self, holds: Holds) {
        if let Some(word) = usize::try_from(self.depth / 8)
            .ok()
            .and_then(|n| self.stack.get_mut(n))
        {
            *word = Some(holds);
        }
    }

    /// The word on top of the stack, whose depth counts it still.
    pub(super) fn pop(&mut self) -> Holds {
        usize::try_from(self.depth / 8)
            .ok()
            .and_then(|n| self.stack.get_mut(n))
            .and_then(Option::take)
            .unwrap_or(Holds::Anything)
    }

    /// The word whose lower end is this deep.
    pub(super) fn word(&self, depth: i64) -> Holds {
        usize::try_from(depth)
            .ok()
            .filter(|depth| depth % 8 == 0)
            .and_then(|depth| *self.stack.get(depth / 8)?)
            .unwrap_or(Holds::Anything)
    }

    /// Words deeper than this are no longer on the stack.
    pub(super) fn forget_below(&mut self, depth: i64) {
        for (n, word) in self.stack.iter_mut().enumerate() {
            if n as i64 * 8 > depth {
                *word = None;
            }
        }
    }

    /// After a function that changes these registers, by number, and flags, but neither stack nor
    /// what the slot keeps.
    pub(super) fn call(&mut self, changed: &[usize]) {
        for number in changed.iter().filter(|n| **n != R::RSP.number()) {
            self.registers[*number] = Holds::Anything;
        }
        self.flags = FlagState::Anything;
    }

    /// What holds whichever way control came; `None` where the depths differ.
    pub(super) fn join(&self, other: &Self) -> Option<Self> {
        let both = |a: Holds, b: Holds| if a == b { a } else { Holds::Anything };
        let registers = std::array::from_fn(|n| both(self.registers[n], other.registers[n]));
        let stack = std::array::from_fn(|n| Some(both(self.stack[n]?, other.stack[n]?)));
        let kept = std::array::from_fn(|n| both(self.kept[n], other.kept[n]));
        let flags = if self.flags == other.flags {
            self.flags
        } else {
            FlagState::Anything
        };
        (self.depth == other.depth).then_some(Self {
            registers,
            stack,
            kept,
            depth: self.depth,
            flags,
        })
    }
}
