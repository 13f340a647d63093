//! An independent look at an action's function: it decodes the bytes and follows every path.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register as R,
};
use lancet_abi::units::RuntimeAddr;

use crate::error::JitError;

/// What was proven.
pub(super) struct Proven {
    /// Bytes of stack with the return address.
    pub(super) stack: u32,
    /// General registers that may be changed, by number.
    pub(super) clobbers: Vec<usize>,
}

struct Walk<'b> {
    bytes: &'b [u8],
    thunks: &'b [usize],
    /// By offset: the depth before it.
    depths: BTreeMap<usize, i64>,
    written: BTreeSet<usize>,
    deepest: i64,
}

/// Proves of a function and the system call thunks behind it: control stays in the bytes, returns
/// with the stack as it was, and calls nothing but the thunks; no vector register is touched; no
/// memory is named by its address but constants among the bytes; a system call is made in a thunk
/// alone, and is one of `calls`.
pub(super) fn function(bytes: &[u8], thunks: &[usize], calls: &[i64]) -> Result<Proven, JitError> {
    let mut walk = Walk {
        bytes,
        thunks,
        depths: BTreeMap::new(),
        written: BTreeSet::new(),
        deepest: 0,
    };
    for &thunk in thunks {
        walk.number(thunk, calls)?;
        walk.follow(thunk)?;
    }
    let of_thunk = std::mem::take(&mut walk.deepest);
    walk.follow(0)?;
    // The thunk's own depth counts its return address.
    let deepest = walk.deepest.max(walk.call_depth() + of_thunk);
    Ok(Proven {
        stack: deepest as u32,
        clobbers: walk.written.into_iter().collect(),
    })
}

impl Walk<'_> {
    fn broken<T>(&self, offset: usize, rule: &'static str) -> Result<T, JitError> {
        Err(JitError::Verify {
            at: RuntimeAddr(offset as u64),
            rule,
        })
    }

    fn decode(&self, offset: usize) -> Option<Instruction> {
        let rest = self.bytes.get(offset..)?;
        let one = Decoder::with_ip(64, rest, offset as u64, DecoderOptions::NONE).decode();
        (!one.is_invalid()).then_some(one)
    }

    /// All paths from a function's first instruction, before which the return address is on the
    /// stack.
    fn follow(&mut self, start: usize) -> Result<(), JitError> {
        let mut todo = vec![(start, 8)];
        while let Some((offset, depth)) = todo.pop() {
            match self.depths.get(&offset) {
                Some(known) if *known == depth => continue,
                Some(_) => return self.broken(offset, "paths meet with different stacks"),
                None => {}
            }
            self.depths.insert(offset, depth);
            self.deepest = self.deepest.max(depth);
            let Some(i) = self.decode(offset) else {
                return self.broken(offset, "bytes that are no instruction");
            };
            let depth = self.step(offset, &i, depth)?;
            self.deepest = self.deepest.max(depth);
            let behind = i.next_ip() as usize;
            let target = i.near_branch_target() as usize;
            match i.flow_control() {
                FlowControl::Next => todo.push((behind, depth)),
                FlowControl::ConditionalBranch => {
                    todo.push((behind, depth));
                    todo.push((target, depth));
                }
                FlowControl::UnconditionalBranch => todo.push((target, depth)),
                FlowControl::Call if i.mnemonic() == Mnemonic::Syscall => {
                    if start == 0 {
                        return self.broken(offset, "a system call outside its thunk");
                    }
                    todo.push((behind, depth));
                }
                FlowControl::Call if self.thunks.contains(&target) && start == 0 => {
                    todo.push((behind, depth));
                }
                FlowControl::Return if depth == 8 && i.op_count() == 0 => {}
                _ => return self.broken(offset, "a call, return, indirect branch or trap"),
            }
        }
        Ok(())
    }

    /// The depth behind an instruction.
    fn step(&mut self, offset: usize, i: &Instruction, depth: i64) -> Result<i64, JitError> {
        let mut factory = InstructionInfoFactory::new();
        let info = factory.info(i);
        for used in info.used_registers() {
            let register = used.register();
            if !register.is_gpr() {
                return self.broken(offset, "a register that is not general");
            }
            if writes(used.access()) {
                self.written.insert(register.full_register().number());
            }
        }
        let constant = i.is_ip_rel_memory_operand()
            && i.ip_rel_memory_address() + 8 <= self.bytes.len() as u64
            && info.used_memory().iter().all(|m| !writes(m.access()));
        let named = |m: &iced_x86::UsedMemory| {
            !constant && m.index() == R::None && (m.base() == R::None || m.base() == R::RIP)
        };
        if info.used_memory().iter().any(named) || i.has_segment_prefix() {
            return self.broken(offset, "memory that is named by its address");
        }
        let to_stack = i.op0_register() == R::RSP && i.op0_kind() == OpKind::Register;
        match i.mnemonic() {
            Mnemonic::Push => Ok(depth + 8),
            Mnemonic::Pop => Ok(depth - 8),
            Mnemonic::Sub if to_stack && i.op1_kind() != OpKind::Register => {
                Ok(depth + i.immediate(1).cast_signed())
            }
            Mnemonic::Add if to_stack && i.op1_kind() != OpKind::Register => {
                Ok(depth - i.immediate(1).cast_signed())
            }
            // The frame pointer is set once, with it and the return address on the stack.
            Mnemonic::Mov if to_stack && i.op1_register() == R::RBP => Ok(16),
            Mnemonic::Mov
                if i.op0_register() == R::RBP && i.op1_register() == R::RSP && depth != 16 =>
            {
                self.broken(offset, "a frame pointer elsewhere than at the begin")
            }
            // Calls and returns leave it as they found it.
            Mnemonic::Call | Mnemonic::Ret | Mnemonic::Syscall => Ok(depth),
            _ if to_stack && i.mnemonic() != Mnemonic::Cmp => {
                self.broken(offset, "the stack pointer is lost")
            }
            _ => Ok(depth),
        }
    }

    /// The depth at the deepest call of the thunk.
    fn call_depth(&self) -> i64 {
        let calls = self.depths.iter().filter(|(offset, _)| {
            self.decode(**offset)
                .is_some_and(|i| i.mnemonic() == Mnemonic::Call)
        });
        calls.map(|(_, depth)| *depth).max().unwrap_or(0)
    }

    /// A thunk is straight code; rax holds a known number when it comes to the system call.
    fn number(&self, thunk: usize, calls: &[i64]) -> Result<(), JitError> {
        let mut at = thunk;
        let mut number = None;
        while let Some(i) = self.decode(at) {
            if i.mnemonic() == Mnemonic::Syscall {
                let known = number.is_some_and(|number| calls.contains(&number));
                return match known {
                    true => Ok(()),
                    false => self.broken(at, "a system call whose number is not known"),
                };
            }
            if i.flow_control() != FlowControl::Next {
                break;
            }
            let mut factory = InstructionInfoFactory::new();
            let info = factory.info(&i);
            let mut used = info.used_registers().iter();
            if used.any(|u| writes(u.access()) && u.register().full_register() == R::RAX) {
                let constant = i.mnemonic() == Mnemonic::Mov && i.op1_kind() == OpKind::Immediate32;
                number = constant.then(|| i64::from(i.immediate32()));
            }
            at = i.next_ip() as usize;
        }
        self.broken(thunk, "a thunk without a system call")
    }
}

fn writes(access: OpAccess) -> bool {
    !matches!(
        access,
        OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
    )
}
