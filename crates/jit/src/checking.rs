//! What the code of a checking session asserts at each hit, beside what it does anyway.
//!
//! All of it is compiled in between, so that the actions themselves run as they always do. The
//! invariants and where their words lie: `lancet_abi::invariant`. What is found broken is counted
//! and then gone around: a store to a wrong place is not made (the hit takes the lock form, the
//! first block or the map's lost hits instead), a wrong register gets the site's value.
//!
//! A frame of copies lies between the red zone and what the actions save:
//!
//! ```text
//! rax .. r15 without rsp | flags as pushfq has them | flags as lahf and seto have them
//! | the site's rsp | CANARY
//! ```
//!
//! Flags are given back by sahf here too: popfq would also give back a single-stepper's TF.

use iced_x86::code_asm::{
    AsmRegister64, CodeLabel, al, eax, qword_ptr, r8, r9, r9d, r10, r10d, r11, r12, r13, r14, r15,
    rax, rbp, rbx, rcx, rdi, rdx, rsi, rsp,
};
use iced_x86::{Code as Op, IcedError, Instruction, Register as R};
use lancet_abi::{Invariant, MapLayout};

use crate::action::Rseq;
use crate::counter::{CPU_SELECTOR, RSEQ_CS, has_rdpid};
use crate::emitter::{Emitter, RED_ZONE};

/// What checks compute with; the actions use neither.
pub(crate) const SCRATCH: [AsmRegister64; 2] = [r9, r10];
/// The word under the copies.
pub const CANARY: u64 = 0xfd5a_6c61_6e63_6574;
/// CF PF AF ZF SF DF OF NT AC ID: what a program can set. RF and TF belong to debuggers.
const VISIBLE: u32 = 0x24_4cd5;
const WORD: i32 = 8;

const COPIED: [AsmRegister64; 15] = [
    rax, rcx, rdx, rbx, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15,
];
/// Depth of each copy: bytes between the site's stack pointer and the word's lower end.
const fn depth_of(word: usize) -> i32 {
    RED_ZONE + WORD * (word as i32 + 1)
}
const ALL_FLAGS: i32 = depth_of(COPIED.len());
const FLAGS: i32 = depth_of(COPIED.len() + 1);
const STACK_POINTER: i32 = depth_of(COPIED.len() + 2);
const LOWEST: i32 = depth_of(COPIED.len() + 3);
/// Bytes of the frame.
pub(crate) const FRAME: i32 = LOWEST - RED_ZONE;

impl Emitter<'_> {
    /// Copies the site's state. The stack is as deep as the red zone; nothing is changed.
    pub(crate) fn copy_state(&mut self) -> Result<(), IcedError> {
        for register in COPIED {
            self.push(register)?;
        }
        self.push_all_flags()?;
        self.push_flags()?;
        self.asm.lea(rax, rsp + self.depth())?;
        self.push(rax)?;
        self.asm.mov(rax, CANARY)?;
        self.push(rax)?;
        self.asm.mov(rax, rsp + (LOWEST - depth_of(0)))
    }

    /// Compares all with the copies, once the actions have given everything back.
    pub(crate) fn check_state(&mut self) -> Result<(), IcedError> {
        // rax, then the flags, as the actions left them.
        self.push_all_flags()?;
        self.push(rax)?;
        self.push_flags()?;
        let depth = self.depth();
        let copy = move |at: i32| rsp + (depth - at);
        let [mut strange, mut moved, mut spoilt, mut flagged] =
            std::array::from_fn(|_| self.asm.create_label());
        let [mut placed, mut left, mut given, mut end] =
            std::array::from_fn(|_| self.asm.create_label());

        self.asm.mov(rax, CANARY)?;
        self.asm.cmp(rax, copy(LOWEST))?;
        self.asm.jne(strange)?;
        self.asm.lea(rax, rsp + depth)?;
        self.asm.cmp(rax, copy(STACK_POINTER))?;
        self.asm.jne(moved)?;
        self.asm.set_label(&mut placed)?;
        self.asm.mov(rax, rsp + WORD)?;
        for (word, register) in COPIED.into_iter().enumerate() {
            self.asm.cmp(register, copy(depth_of(word)))?;
            self.asm.jne(spoilt)?;
        }
        self.asm.mov(rax, rsp + 2 * WORD)?;
        self.asm.xor(rax, copy(ALL_FLAGS))?;
        self.asm.test(eax, VISIBLE)?;
        self.asm.jne(flagged)?;
        self.asm.set_label(&mut left)?;
        self.asm.mov(rax, qword_ptr(rsp))?;
        self.asm.set_label(&mut given)?;
        self.asm.add(al, 0x7f)?;
        self.asm.sahf()?;
        self.asm.mov(rax, rsp + WORD)?;
        self.asm.set_label(&mut end)?;
        self.asm.zero_bytes()?;
        self.rarely(move |emitter| {
            // Then nobody knows what the copies are.
            emitter.asm.set_label(&mut strange)?;
            emitter.count_broken(Invariant::Canary)?;
            emitter.asm.jmp(left)?;
            emitter.asm.set_label(&mut moved)?;
            emitter.count_broken(Invariant::StackPointer)?;
            emitter.asm.jmp(placed)?;
            emitter.asm.set_label(&mut flagged)?;
            emitter.count_broken(Invariant::Flags)?;
            emitter.asm.mov(rax, copy(FLAGS))?;
            emitter.asm.jmp(given)?;
            emitter.asm.set_label(&mut spoilt)?;
            emitter.count_broken(Invariant::Registers)?;
            for (word, register) in COPIED.into_iter().enumerate().skip(1) {
                emitter.asm.mov(register, copy(depth_of(word)))?;
            }
            emitter.asm.mov(rax, qword_ptr(rsp))?;
            emitter.asm.add(al, 0x7f)?;
            emitter.asm.sahf()?;
            emitter.asm.mov(rax, copy(depth_of(0)))?;
            emitter.asm.jmp(end)
        });
        Ok(())
    }

    /// Of the mode word in rcx. Writes flags.
    pub(crate) fn check_mode(&mut self) -> Result<(), IcedError> {
        if !self.env.check {
            return Ok(());
        }
        let (unknown, mut back) = (self.asm.create_label(), self.asm.create_label());
        self.asm.test(rcx, !0x0101i32)?;
        self.asm.jne(unknown)?;
        self.asm.set_label(&mut back)?;
        self.asm.zero_bytes()?;
        self.broken(unknown, Invariant::Mode, back);
        Ok(())
    }

    /// Of the `on` word, which is not 0 or was not just now. Writes flags.
    pub(crate) fn check_on(&mut self) -> Result<(), IcedError> {
        if !self.env.check {
            return Ok(());
        }
        let (other, mut back) = (self.asm.create_label(), self.asm.create_label());
        let on = self.region_mem(self.env.layout.on());
        let compare = Instruction::with2(Op::Cmp_rm64_imm8, on, 1i32)?;
        self.asm.add_instruction(compare)?;
        self.asm.ja(other)?;
        self.asm.set_label(&mut back)?;
        self.asm.zero_bytes()?;
        self.broken(other, Invariant::On, back);
        Ok(())
    }

    /// In a section, where r9 is the area's CPU and rcx the block's offset from the CPU table.
    /// Any event that makes a check false aborts the section before the check, unless the kernel
    /// does not know of the section at all.
    pub(crate) fn check_section(
        &mut self,
        descriptor: CodeLabel,
        rseq: Rseq,
        otherwise: CodeLabel,
    ) -> Result<(), IcedError> {
        let [block, cpu, other] = std::array::from_fn(|_| self.asm.create_label());
        let mut unknown = self.asm.create_label();
        self.asm.cmp(r9, self.env.layout.ncpus().cast_signed())?;
        self.asm.jae(block)?;
        self.block_offset(r10, r9)?;
        self.asm.cmp(r10, rcx)?;
        self.asm.jne(block)?;
        if has_rdpid() {
            self.asm.rdpid(r10)?;
        } else {
            self.asm.mov(r10d, CPU_SELECTOR)?;
            let limit = Instruction::with2(Op::Lsl_r32_r32m16, R::R10D, R::R10D)?;
            self.asm.add_instruction(limit)?;
            self.asm.jne(unknown)?;
        }
        self.asm.xor(r10d, r9d)?;
        self.asm.test(r10d, 0xfff)?;
        self.asm.jne(cpu)?;
        self.asm.set_label(&mut unknown)?;
        self.asm.lea(r10, qword_ptr(descriptor))?;
        let field = i64::from(rseq.area_from_fs + RSEQ_CS);
        self.asm.cmp(qword_ptr(field).fs(), r10)?;
        self.asm.jne(other)?;
        self.broken(block, Invariant::Block, otherwise);
        self.broken(cpu, Invariant::Cpu, otherwise);
        self.broken(other, Invariant::Descriptor, otherwise);
        Ok(())
    }

    /// In a section, where r9 is the area's CPU and rcx the address that will be stored to.
    pub(crate) fn check_rseq_half(&mut self, otherwise: CodeLabel) -> Result<(), IcedError> {
        let outside = self.asm.create_label();
        self.block_offset(r9, r9)?;
        self.lea_region(r10, 0)?;
        self.asm.add(r9, r10)?;
        self.asm.mov(r10, rcx)?;
        self.asm.sub(r10, r9)?;
        self.asm.cmp(r10, self.env.layout.half() as i32)?;
        self.asm.jae(outside)?;
        self.broken(outside, Invariant::RseqHalf, otherwise);
        Ok(())
    }

    /// In the lock form, where r9 is a CPU of the layout and rcx, not 0, what the table says.
    /// Falls through where that is wrong.
    pub(crate) fn check_block(&mut self, right: CodeLabel) -> Result<(), IcedError> {
        self.block_offset(r9, r9)?;
        self.asm.cmp(r9, rcx)?;
        self.asm.je(right)?;
        self.count_broken(Invariant::Block)
    }

    /// In the lock form, where r9 is the block's offset and rcx the address that will be added to.
    /// Uses rax.
    pub(crate) fn check_lock_half(&mut self, otherwise: CodeLabel) -> Result<(), IcedError> {
        let mut inside = self.asm.create_label();
        let half = self.env.layout.half();
        self.asm.mov(r10, rcx)?;
        self.asm.sub(r10, r9)?;
        self.lea_region(rax, half)?;
        self.asm.sub(r10, rax)?;
        self.asm.cmp(r10, half as i32)?;
        self.asm.jb(inside)?;
        self.count_broken(Invariant::LockHalf)?;
        self.asm.jmp(otherwise)?;
        self.asm.set_label(&mut inside)?;
        self.asm.zero_bytes()
    }

    /// Of the entry that a search has found: rax its index, rdi its address, rsi the key, rdx the
    /// map's first entry.
    pub(crate) fn check_entry(
        &mut self,
        map: &MapLayout,
        meta: i32,
        otherwise: CodeLabel,
    ) -> Result<(), IcedError> {
        if !self.env.check {
            return Ok(());
        }
        let (outside, other) = (self.asm.create_label(), self.asm.create_label());
        self.asm.cmp(rax, map.capacity.cast_signed())?;
        self.asm.jae(outside)?;
        self.asm.mov(r9, rax)?;
        self.asm.shl(r9, 4)?;
        self.asm.add(r9, rdx)?;
        self.asm.cmp(r9, rdi)?;
        self.asm.jne(outside)?;
        self.asm.cmp(qword_ptr(rdi), meta)?;
        self.asm.jne(other)?;
        self.asm.cmp(qword_ptr(rdi + 8), rsi)?;
        self.asm.jne(other)?;
        self.broken(outside, Invariant::MapIndex, otherwise);
        self.broken(other, Invariant::MapEntry, otherwise);
        Ok(())
    }

    /// The offset of a CPU's block, as the layout has it.
    fn block_offset(&mut self, into: AsmRegister64, cpu: AsmRegister64) -> Result<(), IcedError> {
        let layout = &self.env.layout;
        // A region has at most 2^30 bytes.
        let (first, stride) = (layout.block(0).unwrap_or_default(), layout.stride());
        self.asm.imul_3(into, cpu, stride as i32)?;
        self.asm.add(into, first as i32)
    }

    fn push_all_flags(&mut self) -> Result<(), IcedError> {
        self.asm.pushfq()?;
        self.grow(WORD);
        Ok(())
    }

    /// The rare part at `place`: counts, and goes on at `then`.
    fn broken(&mut self, mut place: CodeLabel, invariant: Invariant, then: CodeLabel) {
        self.rarely(move |emitter| {
            emitter.asm.set_label(&mut place)?;
            emitter.count_broken(invariant)?;
            emitter.asm.jmp(then)
        });
    }

    fn count_broken(&mut self, invariant: Invariant) -> Result<(), IcedError> {
        let word = self.region_mem(self.env.layout.broken(invariant));
        let mut count = Instruction::with1(Op::Inc_rm64, word)?;
        count.set_has_lock_prefix(true);
        self.asm.add_instruction(count)
    }
}
