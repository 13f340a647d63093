//! From a site to the function of a script's action and back: a scratch slot, the site's registers
//! in it, the call.

use iced_x86::code_asm::{
    AsmRegister64, dword_ptr, eax, ecx, qword_ptr, r8, r9, r10, r11, r12, r13, r14, r15, rax, rbp,
    rbx, rcx, rdi, rdx, rsi, rsp,
};
use iced_x86::{Code as Op, IcedError, Instruction, Register as R};

use super::compile::Compiled;
use super::frame::{self, SLOTS};
use super::shared::Count;
use crate::action::Scratch;
use crate::counter::{CPU_SELECTOR, has_rdpid};
use crate::emitter::Emitter;

/// Slots that a hit looks at before it is skipped.
const TRIES: u32 = 64;
/// How far apart the slots are that two neighbouring CPUs look at first, as a power of two.
const APART: u32 = 2;

const GETTID: u32 = 186;

/// General registers by their number.
const REGISTERS: [AsmRegister64; 16] = [
    rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8, r9, r10, r11, r12, r13, r14, r15,
];

/// One run of an action's function at a site.
#[derive(Clone, Copy)]
pub(crate) struct Run<'e> {
    /// Where the function lies.
    pub(crate) function: u64,
    pub(crate) compiled: &'e Compiled,
    pub(crate) slot_size: u32,
    pub(crate) scratch: Scratch,
    /// The names of attach point and function, and where they lie.
    pub(crate) names: (&'e str, &'e str),
    pub(crate) names_at: (u64, u64),
    /// Offset in the region's part for scripts of the count of skipped hits.
    pub(crate) skipped: u64,
    pub(crate) probe: u32,
    pub(crate) func: u32,
}

impl Run<'_> {
    /// What is counted where no slot is free.
    pub(crate) const SKIPPED: Count = Count::Skipped;
    /// What the entry saves on the stack; the flags are saved too.
    pub(crate) const REGISTERS: [AsmRegister64; 3] = [rax, rcx, rdx];
}

impl Emitter<'_> {
    /// Runs the function with the registers of the site in a slot. Uses rax, rcx and rdx, which
    /// are saved, and the flags.
    pub(crate) fn run(&mut self, run: &Run<'_>) -> Result<(), IcedError> {
        let mut off = self.asm.create_label();
        self.skip_if_off(off)?;
        let mut none = self.asm.create_label();
        self.take_slot(run, none)?;
        self.fill_slot(run)?;
        self.push(rdi)?;
        self.asm.call(run.function)?;
        self.pop(rdx)?;
        for number in self.kept(run) {
            self.asm
                .mov(REGISTERS[number], qword_ptr(rdx + frame::register(number)))?;
        }
        // All that is in the slot is read: it is anybody's from here on.
        self.asm.mov(qword_ptr(rdx + frame::OWNER), 0)?;
        self.asm.set_label(&mut off)?;
        self.asm.zero_bytes()?;
        let (script, _) = self.env.layout.script();
        let skipped = self.region_mem(script + run.skipped);
        self.rarely(move |emitter| {
            emitter.asm.set_label(&mut none)?;
            let mut count = Instruction::with2(Op::Add_rm64_imm8, skipped, 1i32)?;
            count.set_has_lock_prefix(true);
            emitter.asm.add_instruction(count)?;
            emitter.asm.jmp(off)
        });
        Ok(())
    }

    /// The registers that go through the slot: those that are changed, but for the ones that are on
    /// the stack.
    fn kept(&self, run: &Run<'_>) -> Vec<usize> {
        const RDI: usize = 7;
        const R11: usize = 11;
        let on_stack = |number: &usize| *number < 3 || *number == 4;
        let mut changed = run.compiled.clobbers.clone();
        // It carries the slot to the function.
        changed.push(RDI);
        if run.compiled.tid && self.tid_from_fs().is_none() {
            changed.push(R11);
        }
        changed.retain(|number| !on_stack(number));
        changed.sort_unstable();
        changed.dedup();
        changed
    }

    /// Leaves a slot of this thread's in rdx, or goes to `none`.
    fn take_slot(
        &mut self,
        run: &Run<'_>,
        none: iced_x86::code_asm::CodeLabel,
    ) -> Result<(), IcedError> {
        let size = run.slot_size.cast_signed();
        let begin = run.scratch.at;
        let end = begin.plus(u64::from(run.slot_size) * u64::from(SLOTS));
        let mut next = self.asm.create_label();
        let mut inside = self.asm.create_label();
        let mut taken = self.asm.create_label();
        self.load_cpu()?;
        self.asm.shl(ecx, APART)?;
        self.asm.and(ecx, SLOTS.cast_signed() - 1)?;
        self.asm.imul_3(rcx, rcx, size)?;
        // The slots of a process lie near one of its arenas only.
        self.asm.mov(rdx, begin.0)?;
        self.asm.add(rdx, rcx)?;
        self.asm.mov(ecx, TRIES)?;
        self.asm.set_label(&mut next)?;
        self.asm.xor(eax, eax)?;
        // Any number but 0 says that it is taken.
        self.asm
            .lock()
            .cmpxchg(qword_ptr(rdx + frame::OWNER), rcx)?;
        self.asm.je(taken)?;
        self.asm.add(rdx, size)?;
        self.asm.mov(rax, end.0)?;
        self.asm.cmp(rdx, rax)?;
        self.asm.jb(inside)?;
        self.asm.mov(rdx, begin.0)?;
        self.asm.set_label(&mut inside)?;
        self.asm
            .add_instruction(Instruction::with1(Op::Dec_rm64, R::RCX)?)?;
        self.asm.jne(next)?;
        self.asm.jmp(none)?;
        self.asm.set_label(&mut taken)?;
        self.asm.zero_bytes()
    }

    /// The CPU's number in ecx; any number is right.
    fn load_cpu(&mut self) -> Result<(), IcedError> {
        if has_rdpid() {
            self.asm.rdpid(rcx)?;
        } else {
            self.asm.mov(ecx, CPU_SELECTOR)?;
            let limit = Instruction::with2(Op::Lsl_r32_r32m16, R::ECX, R::ECX)?;
            self.asm.add_instruction(limit)?;
        }
        self.asm.and(ecx, 0xfff)
    }

    /// Leaves the site's flags in rcx: the arithmetic ones are on top of the stack, the others are as
    /// they were.
    fn fill_flags(&mut self) -> Result<(), IcedError> {
        const ARITHMETIC: i32 = 0x8d5;
        const IN_AH: i32 = 0xd5;
        const OVERFLOW: i32 = 11;
        self.asm.pushfq()?;
        self.asm.pop(rcx)?;
        self.asm.and(ecx, !ARITHMETIC)?;
        self.asm.mov(rax, qword_ptr(rsp))?;
        self.asm.shr(eax, 8)?;
        self.asm.and(eax, IN_AH)?;
        self.asm.or(ecx, eax)?;
        self.asm.mov(rax, qword_ptr(rsp))?;
        self.asm.and(eax, 1)?;
        self.asm.shl(eax, OVERFLOW)?;
        self.asm.or(ecx, eax)
    }

    /// Writes what the function may ask for into the slot at rdx, and leaves the slot in rdi.
    fn fill_slot(&mut self, run: &Run<'_>) -> Result<(), IcedError> {
        let at = |offset: i32| qword_ptr(rdx + offset);
        let kept = self.kept(run);
        for &number in &kept {
            self.asm
                .mov(at(frame::register(number)), REGISTERS[number])?;
        }
        for &number in run.compiled.reads.iter().filter(|n| !kept.contains(n)) {
            if number == 4 {
                self.asm.lea(rax, rsp + self.depth())?;
                self.asm.mov(at(frame::register(4)), rax)?;
            } else if self.is_saved(REGISTERS[number].into()) {
                self.load_register(rax, REGISTERS[number])?;
                self.asm.mov(at(frame::register(number)), rax)?;
            } else {
                self.asm
                    .mov(at(frame::register(number)), REGISTERS[number])?;
            }
        }
        self.load_cpu()?;
        self.asm.mov(at(frame::CPU), rcx)?;
        let (script, _) = self.env.layout.script();
        self.lea_region(rax, script)?;
        self.asm.mov(at(frame::REGION), rax)?;
        self.asm.mov(rax, self.env.mode.0)?;
        self.asm.mov(at(frame::MODE), rax)?;
        self.asm.mov(rax, self.site().0)?;
        self.asm.mov(at(frame::SITE), rax)?;
        self.asm.mov(eax, run.probe)?;
        self.asm.mov(at(frame::PROBE), rax)?;
        self.asm.mov(eax, run.func)?;
        self.asm.mov(at(frame::FUNC), rax)?;
        for (wanted, address, place) in [
            (run.compiled.names.0, run.names_at.0, frame::PROBE_NAME),
            (run.compiled.names.1, run.names_at.1, frame::FUNC_NAME),
        ] {
            if wanted {
                self.asm.mov(rax, address)?;
                self.asm.mov(at(place), rax)?;
            }
        }
        if run.compiled.tid {
            match self.tid_from_fs() {
                Some(offset) => self.asm.mov(eax, dword_ptr(i64::from(offset)).fs())?,
                None => {
                    self.asm.mov(eax, GETTID)?;
                    self.asm.syscall()?;
                }
            }
            self.asm.mov(at(frame::TID), rax)?;
        }
        if run.compiled.flags {
            self.fill_flags()?;
            self.asm.mov(at(frame::FLAGS), rcx)?;
        }
        self.asm.mov(rdi, rdx)?;
        if run.compiled.time {
            self.asm.rdtsc()?;
            self.asm.shl(rdx, 32)?;
            self.asm.or(rax, rdx)?;
            self.asm.mov(qword_ptr(rdi + frame::TSC), rax)?;
        }
        Ok(())
    }
}
