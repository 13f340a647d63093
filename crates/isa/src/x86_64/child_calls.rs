//! The system calls that make children.

use std::collections::BTreeSet;
use std::ops::Range;

use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic,
    OpAccess, OpKind, Register,
};
use lancet_abi::units::LinkAddr;

use super::{decode, flow};
use crate::Text;

const SYSCALL: [u8; 2] = [0x0f, 0x05];
const VFORK: u64 = 58;
const CLONE: u64 = 56;
const CLONE3: u64 = 435;
const RSEQ: u64 = 334;
/// Bytes of `mov eax, imm32`.
const MOV_LEN: usize = 5;
/// How far a jump out of the function is followed.
const FOLLOWED: usize = 8;
/// Bytes behind a function's end that its child may run.
const CHILD_CODE: u64 = 64;
/// Bytes before a system call outside of known functions that are looked at for a number.
const BEFORE: usize = 64;

/// Which system call makes the child, and so where its flags are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Maker {
    /// `vfork`.
    Vfork,
    /// `clone`: the flags are in edi.
    Clone,
    /// `clone3`: the flags are the first word of what rdi points to.
    Clone3 {
        /// The function tests rdi for zero first, as libc's does, which checks what it is given.
        /// Else anything may be in rdi: programs ask so whether the kernel has the call.
        checked: bool,
    },
}

/// One `mov eax, NUMBER` directly before its `syscall`: an instruction of exactly a jump's length, where all arguments
/// are in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChildCall {
    /// The `mov`.
    pub at: LinkAddr,
    /// Which call.
    pub maker: Maker,
}

/// What a search for calls that make children found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChildCalls {
    /// The calls in their usual form, by address.
    pub calls: Vec<ChildCall>,
    /// Places that may be such a call in another form, by address.
    pub doubtful: Vec<LinkAddr>,
    /// Functions in which a new child or thread begins, or registers its rseq area: code that may run before a thread
    /// is registered.
    pub unregistered: Vec<Range<LinkAddr>>,
}

impl ChildCalls {
    /// Searches a module. `function` gives the bounds of the function around an address.
    ///
    /// A system call whose number comes from elsewhere, as in libc's `syscall`, is not found.
    #[must_use]
    pub fn find(text: &[Text<'_>], function: impl Fn(LinkAddr) -> Option<Range<LinkAddr>>) -> Self {
        let mut found = Self::default();
        let mut seen = BTreeSet::new();
        for part in text {
            for offset in memory_finds(part.bytes, &SYSCALL) {
                let at = part.start.plus(offset as u64);
                // libc's descriptions of clone end before its system call, where frames change.
                let described = || {
                    let before = function(LinkAddr(at.0.checked_sub(1)?))?;
                    Some(before.start..at.plus(SYSCALL.len() as u64))
                };
                match function(at).or_else(described) {
                    Some(range) if range.start >= part.start => {
                        if seen.insert((range.start, range.end)) {
                            Body::read(part, &range).search(&mut found);
                        }
                    }
                    _ => found.outside(part, offset),
                }
            }
        }
        found.calls.sort_by_key(|c| c.at);
        found.calls.dedup_by_key(|c| c.at);
        for part in text {
            found.expect_all(part);
        }
        found.doubtful.sort_unstable();
        found.doubtful.dedup();
        found
    }

    /// A system call outside of all functions is doubtful where a number is near.
    fn outside(&mut self, text: &Text<'_>, offset: usize) {
        let before = &text.bytes[offset.saturating_sub(BEFORE)..offset];
        if before.windows(2).any(is_number_load) {
            self.doubtful.push(text.start.plus(offset as u64));
        }
    }

    /// Bytes that look like a call and were not found to be one.
    fn expect_all(&mut self, text: &Text<'_>) {
        for offset in memory_finds(text.bytes, &SYSCALL) {
            let Some(from) = offset.checked_sub(MOV_LEN) else {
                continue;
            };
            let mov = &text.bytes[from..offset];
            let number = u32::from_le_bytes([mov[1], mov[2], mov[3], mov[4]]);
            let at = text.start.plus(from as u64);
            let is_call = mov[0] == 0xb8 && makes_children(number.into());
            if is_call && self.calls.binary_search_by_key(&at, |c| c.at).is_err() {
                self.doubtful.push(at);
            }
        }
    }
}

fn makes_children(number: u64) -> bool {
    matches!(number, VFORK | CLONE | CLONE3)
}

/// The start of an instruction that may load one of the numbers.
fn is_number_load(pair: &[u8]) -> bool {
    matches!(
        pair,
        [0xb8, 0x38 | 0x3a | 0xb3] | [0xb0 | 0x6a, 0x38 | 0x3a] | [0x68, 0xb3]
    )
}

fn memory_finds<'b>(bytes: &'b [u8], what: &'b [u8; 2]) -> impl Iterator<Item = usize> + 'b {
    let pairs = bytes.windows(2).enumerate();
    pairs.filter(move |(_, pair)| pair == what).map(|(i, _)| i)
}

/// The instructions of one function.
struct Body<'t> {
    text: &'t Text<'t>,
    instructions: Vec<Instruction>,
    range: Range<LinkAddr>,
    /// Where decoding failed.
    unknown: Option<usize>,
}

impl<'t> Body<'t> {
    fn read(text: &'t Text<'t>, range: &Range<LinkAddr>) -> Self {
        let bytes = text.from(range.start);
        let size = range.end.0.saturating_sub(range.start.0) as usize;
        let bytes = &bytes[..bytes.len().min(size)];
        let mut decoder = Decoder::with_ip(64, bytes, range.start.0, DecoderOptions::NONE);
        let mut instructions = Vec::new();
        let mut unknown = None;
        while decoder.can_decode() {
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                unknown = Some((instruction.ip() - text.start.0) as usize);
                break;
            }
            instructions.push(instruction);
        }
        Self {
            text,
            instructions,
            range: range.clone(),
            unknown,
        }
    }

    fn search(&self, found: &mut ChildCalls) {
        let mut unregistered = false;
        for (i, instruction) in self.instructions.iter().enumerate() {
            let at = LinkAddr(instruction.ip());
            let Some(number) = loaded(instruction) else {
                continue;
            };
            let direct = instruction.code() == Code::Mov_r32_imm32
                && instruction.len() == MOV_LEN
                && self.instructions.get(i + 1).is_some_and(is_syscall);
            unregistered |= number == RSEQ && self.reaches_call(i);
            if !makes_children(number) {
                continue;
            }
            if !direct {
                if self.reaches_call(i) {
                    found.doubtful.push(at);
                    unregistered = true;
                }
                continue;
            }
            let maker = match number {
                VFORK => Maker::Vfork,
                CLONE => Maker::Clone,
                _ => Maker::Clone3 {
                    checked: self.instructions[..i].iter().any(tests_rdi),
                },
            };
            found.calls.push(ChildCall { at, maker });
            unregistered = true;
        }
        if unregistered {
            // A described range may end at the system call.
            let end = LinkAddr(self.range.end.0.saturating_add(CHILD_CODE));
            found.unregistered.push(self.range.start..end);
        }
        if let Some(unknown) = self.unknown {
            let end = (self.range.end.0 - self.text.start.0) as usize;
            let rest = &self.text.bytes[unknown..end.min(self.text.bytes.len())];
            for offset in memory_finds(rest, &SYSCALL) {
                found.outside(self.text, unknown + offset);
            }
        }
    }

    /// Whether control may come from behind the instruction to a system call while eax holds what it loaded.
    fn reaches_call(&self, load: usize) -> bool {
        let pushed = self.instructions[load].code() != Code::INVALID
            && self.instructions[load].mnemonic() == Mnemonic::Push;
        if pushed {
            let next = self.instructions[load + 1..].iter().take(FOLLOWED);
            return next
                .clone()
                .any(|i| i.mnemonic() == Mnemonic::Pop && is_rax(i.op0_register()));
        }
        let mut seen = BTreeSet::new();
        let mut todo = vec![load + 1];
        while let Some(i) = todo.pop() {
            let Some(instruction) = self.instructions.get(i).filter(|_| seen.insert(i)) else {
                continue;
            };
            if is_syscall(instruction) {
                return true;
            }
            if writes_rax(instruction) {
                continue;
            }
            match instruction.flow_control() {
                FlowControl::Next => todo.push(i + 1),
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                    if instruction.flow_control() == FlowControl::ConditionalBranch {
                        todo.push(i + 1);
                    }
                    let target = instruction.near_branch_target();
                    match self
                        .instructions
                        .binary_search_by_key(&target, Instruction::ip)
                    {
                        Ok(target) => todo.push(target),
                        Err(_) if self.calls_soon(target) => return true,
                        Err(_) => {}
                    }
                }
                FlowControl::IndirectBranch => return true,
                _ => {}
            }
        }
        false
    }

    /// Whether a system call stands among the first instructions of a jump's target.
    fn calls_soon(&self, target: u64) -> bool {
        let mut at = target;
        for _ in 0..FOLLOWED {
            match decode::one(self.text.from(LinkAddr(at)), at) {
                Some(i) if is_syscall(&i) => return true,
                Some(i) if !writes_rax(&i) && !flow::leaves(&i) => at = i.next_ip(),
                _ => return false,
            }
        }
        false
    }
}

/// The number that an instruction may load into eax or its low byte, or pushes.
fn loaded(instruction: &Instruction) -> Option<u64> {
    let operand = match instruction.mnemonic() {
        Mnemonic::Mov if is_rax(instruction.op0_register()) => 1,
        Mnemonic::Push => 0,
        _ => return None,
    };
    let immediate = matches!(
        instruction.op_kind(operand),
        OpKind::Immediate8
            | OpKind::Immediate16
            | OpKind::Immediate32
            | OpKind::Immediate64
            | OpKind::Immediate8to64
            | OpKind::Immediate32to64
    );
    immediate.then(|| instruction.immediate(operand))
}

fn is_rax(register: Register) -> bool {
    register.full_register() == Register::RAX
}

fn is_syscall(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Syscall
}

fn tests_rdi(instruction: &Instruction) -> bool {
    instruction.code() == Code::Test_rm64_r64
        && (instruction.op0_register(), instruction.op1_register())
            == (Register::RDI, Register::RDI)
}

/// Whether eax holds something else behind the instruction; a call's result lies there too.
fn writes_rax(instruction: &Instruction) -> bool {
    if matches!(
        instruction.flow_control(),
        FlowControl::Call | FlowControl::IndirectCall
    ) {
        return true;
    }
    InstructionInfoFactory::new()
        .info(instruction)
        .used_registers()
        .iter()
        .any(|used| {
            let whole = matches!(used.register(), Register::RAX | Register::EAX);
            whole && matches!(used.access(), OpAccess::Write | OpAccess::ReadWrite)
        })
}
