//! The independent checker of a copy.
//!
//! It knows the original bytes and the finished copy, and nothing of how the one was made from the other. It holds that
//! a copy is right when, decoded from where it will lie:
//!
//! - each original instruction is there, in order, starting where [`Copy::boundaries`] says: the same operation on the
//!   same operands, with memory relative to the instruction pointer naming the same address;
//! - each branch goes, under the same condition, where the original goes; a branch into the window goes to that
//!   instruction in the copy, but a branch to the site goes to the site;
//! - a call pushes the address behind the window and then goes where the call would go;
//! - behind the last instruction control goes to the window's end, unless it never gets there.

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register,
};
use lancet_abi::units::RuntimeAddr;

use super::{Copy, Plan};
use crate::Violation;

/// Compares `copy`, which will lie at `at`, with the window of `plan`.
///
/// # Errors
/// The first difference.
pub fn check(plan: &Plan, copy: &Copy, at: RuntimeAddr, bias: u64) -> Result<(), Violation> {
    let site = plan.site().0.wrapping_add(bias);
    let mut checker = Checker {
        plan,
        copy,
        at: at.0,
        site,
        position: 0,
        offset: 0,
    };
    let starts = &plan.boundaries()[..plan.boundaries().len() - 1];
    let mut last = None;
    for (index, offset) in starts.iter().enumerate() {
        checker.offset = *offset;
        let original = checker.original(*offset)?;
        let next = starts.get(index + 1).copied();
        if next.is_some_and(|next| usize::from(next) != usize::from(*offset) + original.len()) {
            return Err(checker.wrong("the plan's instruction starts do not follow each other"));
        }
        checker.expect_start(index, *offset)?;
        checker.instruction(&original)?;
        last = Some(original);
    }
    let last = last.ok_or_else(|| checker.wrong("the window is empty"))?;
    checker.end(&last, starts.len())
}

struct Checker<'a> {
    plan: &'a Plan,
    copy: &'a Copy,
    at: u64,
    site: u64,
    /// How far the copy is read.
    position: usize,
    /// The window offset of the instruction that is compared.
    offset: u8,
}

impl Checker<'_> {
    fn wrong(&self, what: &'static str) -> Violation {
        Violation {
            at: RuntimeAddr(self.at.wrapping_add(self.position as u64)),
            offset: self.offset,
            what,
        }
    }

    fn expect(&self, holds: bool, what: &'static str) -> Result<(), Violation> {
        if holds { Ok(()) } else { Err(self.wrong(what)) }
    }

    fn original(&self, offset: u8) -> Result<Instruction, Violation> {
        let bytes = &self.plan.original()[offset.into()..];
        let instruction = decode(bytes, self.site.wrapping_add(offset.into()));
        self.expect(!instruction.is_invalid(), "the original does not decode")?;
        Ok(instruction)
    }

    /// The next instruction of the copy.
    fn next(&mut self) -> Result<Instruction, Violation> {
        let bytes = self.copy.bytes.get(self.position..).unwrap_or(&[]);
        let instruction = decode(bytes, self.at.wrapping_add(self.position as u64));
        self.expect(!instruction.is_invalid(), "the copy does not decode")?;
        self.position += instruction.len();
        Ok(instruction)
    }

    fn expect_start(&self, index: usize, offset: u8) -> Result<(), Violation> {
        let told = self.copy.boundaries.get(index);
        let holds = told.is_some_and(|(o, c)| *o == offset && usize::from(*c) == self.position);
        self.expect(holds, "the map from window to copy names another offset")
    }

    fn instruction(&mut self, original: &Instruction) -> Result<(), Violation> {
        match original.flow_control() {
            FlowControl::Call if original.op0_kind() == OpKind::NearBranch64 => {
                self.pushed_return_address()?;
                let jump = self.next()?;
                self.expect(
                    jump.mnemonic() == Mnemonic::Jmp,
                    "a call does not end in a jump",
                )?;
                self.goes_to(&jump, original.near_branch64())
            }
            FlowControl::IndirectCall => {
                self.expect(
                    original.code() == Code::Call_rm64,
                    "this kind of call can't be moved",
                )?;
                self.pushed_return_address()?;
                let jump = self.next()?;
                self.same_pointer(original, &jump)
            }
            _ if matches!(
                original.op0_kind(),
                OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
            ) =>
            {
                self.branch(original)
            }
            _ => {
                let moved = self.next()?;
                self.expect(*original == moved, "another operation or operand")
            }
        }
    }

    fn branch(&mut self, original: &Instruction) -> Result<(), Violation> {
        let target = original.near_branch_target();
        let moved = self.next()?;
        if original.is_jcx_short() || original.code().is_loop() || original.code().is_loopcc() {
            self.expect(moved.code() == original.code(), "another counted branch")?;
            let taken = moved.near_branch_target();
            let around = self.next()?;
            let is_jump = around.code() == Code::Jmp_rel8_64;
            self.expect(
                is_jump && taken == around.next_ip(),
                "a counted branch does not skip the way around",
            )?;
            let long = self.next()?;
            let is_jump = long.mnemonic() == Mnemonic::Jmp;
            self.expect(
                is_jump && around.near_branch64() == long.next_ip(),
                "the way around is wrong",
            )?;
            return self.goes_to(&long, target);
        }
        // The mnemonic of a conditional branch names its condition.
        self.expect(
            original.mnemonic() == moved.mnemonic(),
            "another kind of branch",
        )?;
        self.goes_to(&moved, target)
    }

    /// Whether a direct branch of the copy does what the original's branch to `target` means.
    fn goes_to(&self, branch: &Instruction, target: u64) -> Result<(), Violation> {
        self.expect(
            branch.op0_kind() == OpKind::NearBranch64,
            "not a direct branch",
        )?;
        let offset = target.wrapping_sub(self.site);
        let inside = offset != 0 && offset < u64::from(self.plan.window_len());
        let meant = if inside {
            let at = self
                .copy
                .boundaries
                .iter()
                .find(|(o, _)| u64::from(*o) == offset);
            let (_, copy) = at.ok_or_else(|| {
                self.wrong("a branch into the window that has no place in the copy")
            })?;
            self.at.wrapping_add((*copy).into())
        } else {
            target
        };
        self.expect(branch.near_branch64() == meant, "a branch goes elsewhere")
    }

    fn pushed_return_address(&mut self) -> Result<(), Violation> {
        let push = self.next()?;
        let form = push.code() == Code::Push_rm64 && push.memory_base() == Register::RIP;
        self.expect(
            form && push.segment_prefix() == Register::None,
            "a call does not push its return address",
        )?;
        let constant = push.memory_displacement64();
        self.expect(
            constant.is_multiple_of(8),
            "the return address is not aligned",
        )?;
        let offset = usize::try_from(constant.wrapping_sub(self.at)).unwrap_or(usize::MAX);
        let stored = self
            .copy
            .bytes
            .get(offset..)
            .and_then(|b| b.first_chunk())
            .map(|b| u64::from_le_bytes(*b));
        self.expect(stored == Some(self.window_end()), "another return address")
    }

    /// Whether `jump`, with the stack eight bytes lower, reads the pointer that `call` reads.
    fn same_pointer(&self, call: &Instruction, jump: &Instruction) -> Result<(), Violation> {
        self.expect(
            jump.code() == Code::Jmp_rm64,
            "an indirect call does not end in an indirect jump",
        )?;
        self.expect(
            call.segment_prefix() == jump.segment_prefix(),
            "another segment",
        )?;
        if call.op0_kind() == OpKind::Register {
            let same =
                call.op0_register() == jump.op0_register() && call.op0_register() != Register::RSP;
            return self.expect(same, "another register");
        }
        let parts = |i: &Instruction| (i.memory_base(), i.memory_index(), i.memory_index_scale());
        self.expect(parts(call) == parts(jump), "another memory operand")?;
        let lower = if call.memory_base() == Register::RSP {
            8
        } else {
            0
        };
        let same = jump.memory_displacement64() == call.memory_displacement64().wrapping_add(lower);
        self.expect(same, "another displacement")
    }

    fn window_end(&self) -> u64 {
        self.site.wrapping_add(self.plan.window_len().into())
    }

    /// What lies behind the last instruction.
    fn end(&mut self, last: &Instruction, index: usize) -> Result<(), Violation> {
        let is_call = last.code() == Code::Call_rm64 || last.code() == Code::Call_rel32_64;
        let leaves = is_call
            || matches!(
                last.flow_control(),
                FlowControl::Return
                    | FlowControl::UnconditionalBranch
                    | FlowControl::IndirectBranch
            );
        let mut pairs = index;
        if !leaves {
            self.expect_start(index, self.plan.window_len())?;
            pairs += 1;
            let back = self.next()?;
            let returns =
                back.code() == Code::Jmp_rel32_64 && back.near_branch64() == self.window_end();
            self.expect(returns, "control does not go back to the window's end")?;
        }
        self.expect(
            self.copy.boundaries.len() == pairs,
            "the map from window to copy has more entries",
        )?;
        let rest = self.copy.bytes.len() - self.position;
        self.expect(
            if is_call {
                (8..16).contains(&rest)
            } else {
                rest == 0
            },
            "there are bytes without a meaning",
        )
    }
}

fn decode(bytes: &[u8], ip: u64) -> Instruction {
    Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).decode()
}
