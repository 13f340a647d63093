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
    thunk: usize,
    /// By offset: the depth before it.
    depths: BTreeMap<usize, i64>,
    written: BTreeSet<usize>,
    deepest: i64,
}

/// Proves of a function and the system call thunk behind it: control stays in the bytes, returns
/// with the stack as it was, and calls nothing but the thunk; no vector register is touched; no
/// memory is named by its address but constants among the bytes; a system call is made in the thunk alone, and the function
/// stores no other number for it than those of `calls`.
pub(super) fn function(bytes: &[u8], thunk: usize, calls: &[i64]) -> Result<Proven, JitError> {
    let mut walk = Walk {
        bytes,
        thunk,
        depths: BTreeMap::new(),
        written: BTreeSet::new(),
        deepest: 0,
    };
    walk.follow(thunk)?;
    let of_thunk = walk.deepest;
    walk.deepest = 0;
    walk.follow(0)?;
    walk.numbers(calls)?;
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
                    if offset < self.thunk {
                        return self.broken(offset, "a system call outside its thunk");
                    }
                    todo.push((behind, depth));
                }
                FlowControl::Call if target == self.thunk && start == 0 => {
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
            && i.ip_rel_memory_address() + 8 <= self.thunk as u64
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
            **offset < self.thunk
                && self
                    .decode(**offset)
                    .is_some_and(|i| i.mnemonic() == Mnemonic::Call)
        });
        calls.map(|(_, depth)| *depth).max().unwrap_or(0)
    }

    /// Each number that is stored for the thunk is one of these.
    fn numbers(&self, calls: &[i64]) -> Result<(), JitError> {
        let mut last = None;
        for &offset in self.depths.keys().filter(|offset| **offset < self.thunk) {
            let Some(i) = self.decode(offset) else {
                continue;
            };
            let store = i.mnemonic() == Mnemonic::Mov
                && i.op0_kind() == OpKind::Memory
                && i.memory_displacement64() == super::frame::CALL as u64
                && i.memory_base() != R::RSP
                && i.memory_base() != R::RBP;
            if store {
                last = match i.op1_kind() {
                    OpKind::Immediate8to64 | OpKind::Immediate32to64 => {
                        Some(i.immediate(1).cast_signed())
                    }
                    _ => self.constant_before(offset, i.op1_register()),
                };
                if last.is_none_or(|number| !calls.contains(&number)) {
                    return self.broken(offset, "a system call whose number is not known");
                }
            }
        }
        let has_call = self.call_depth() > 0;
        if has_call && last.is_none() {
            return self.broken(0, "a system call whose number is not known");
        }
        Ok(())
    }

    /// The constant that a register was last set to, by the instructions that lie before.
    fn constant_before(&self, offset: usize, register: R) -> Option<i64> {
        let full = register.full_register();
        for (&at, _) in self.depths.range(..offset).rev() {
            let i = self.decode(at)?;
            let mut factory = InstructionInfoFactory::new();
            let writes = factory
                .info(&i)
                .used_registers()
                .iter()
                .any(|used| writes(used.access()) && used.register().full_register() == full);
            if writes {
                let constant = i.mnemonic() == Mnemonic::Mov
                    && matches!(
                        i.op1_kind(),
                        OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64
                    );
                return constant.then(|| i.immediate(1).cast_signed());
            }
        }
        None
    }
}

fn writes(access: OpAccess) -> bool {
    !matches!(
        access,
        OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
    )
}
