//! One addition to one slot: the rseq section and the lock form.

use iced_x86::code_asm::{
    AsmRegister64, CodeLabel, byte_ptr, ch, dword_ptr, eax, ecx, qword_ptr, r9, rax, rcx,
};
use iced_x86::{Code as Op, IcedError, Instruction, Register as R};
use lancet_abi::SlotId;

use crate::action::Rseq;
use crate::emitter::{Emitter, Section};

/// Selector of the descriptor whose limit holds the CPU's number.
pub(crate) const CPU_SELECTOR: u32 = 0x7b;
/// Offsets in the rseq area: cpu_id, which unlike cpu_id_start says when the
/// thread is not registered, and the pointer to the current descriptor.
const CPU_ID: i32 = 4;
pub(crate) const RSEQ_CS: i32 = 8;

/// Whether this machine, and so each target on it, has rdpid: it reads the
/// CPU's number in a twentieth of the time that lsl takes.
pub(crate) fn has_rdpid() -> bool {
    const STRUCTURED_FEATURES: u32 = 7;
    // Asked once: in a virtual machine cpuid takes microseconds.
    static HAS: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    *HAS.get_or_init(|| {
        let (highest, _) = std::arch::x86_64::__get_cpuid_max(0);
        highest >= STRUCTURED_FEATURES
            && std::arch::x86_64::__cpuid_count(STRUCTURED_FEATURES, 0).ecx >> 22 & 1 != 0
    })
}

/// What is added, and where.
#[derive(Clone, Copy)]
pub(crate) struct Addition {
    /// The slot, or the first of those that `index` chooses from.
    pub(crate) slot: SlotId,
    /// Slots further on; neither rax nor rcx.
    pub(crate) index: Option<AsmRegister64>,
    /// What is added; 1 without. Neither rax nor rcx.
    pub(crate) addend: Option<AsmRegister64>,
}

impl Emitter<'_> {
    /// Adds. Uses rax and rcx, which are saved; writes no flag that is not
    /// saved. `checked` says that `on` and the mode's off byte were looked at.
    pub(crate) fn add(&mut self, addition: Addition, checked: bool) -> Result<(), IcedError> {
        let Some(rseq) = self.rseq() else {
            return self.add_locked(addition, checked);
        };
        let mut fast = self.asm.create_label();
        let mut slow = self.asm.create_label();
        let mut to_slow = self.asm.create_label();
        let mut done = self.asm.create_label();
        self.load_mode()?;
        self.check_mode()?;
        self.asm.jrcxz(fast)?;
        self.asm.set_label(&mut to_slow)?;
        self.asm.jmp(slow)?;
        // Also where an interrupted section begins anew.
        self.asm.set_label(&mut fast)?;
        self.add_in_section(addition, rseq, fast, to_slow)?;
        self.asm.set_label(&mut done)?;
        self.asm.zero_bytes()?;
        self.rarely(move |emitter| {
            emitter.asm.set_label(&mut slow)?;
            let own_flags = !emitter.flags_saved;
            if own_flags {
                emitter.push_flags()?;
            }
            emitter.add_locked(addition, checked)?;
            if own_flags {
                emitter.pop_flags()?;
            }
            emitter.asm.jmp(done)
        });
        Ok(())
    }

    /// The section: everything before its last store can be done again, and
    /// that store is the commit.
    fn add_in_section(
        &mut self,
        addition: Addition,
        rseq: Rseq,
        restart: CodeLabel,
        to_slow: CodeLabel,
    ) -> Result<(), IcedError> {
        let descriptor = self.asm.create_label();
        self.asm.lea(rax, qword_ptr(descriptor))?;
        self.asm
            .mov(qword_ptr(i64::from(rseq.area_from_fs + RSEQ_CS)).fs(), rax)?;
        let start = self.asm.instructions().len();
        // Sign-extended, so that the ids -1 and -2 of threads that are not
        // registered fall on the reserved entries before the table. An id past
        // its end can't occur: the table has an entry for each possible CPU.
        self.asm
            .movsxd(rax, dword_ptr(i64::from(rseq.area_from_fs + CPU_ID)).fs())?;
        let check = self.env.check;
        if check {
            self.asm.mov(r9, rax)?;
        }
        self.lea_region(rcx, self.env.layout.cpu_table())?;
        self.asm.mov(rcx, qword_ptr(rcx + rax * 8))?;
        self.asm.jrcxz(to_slow)?;
        if check {
            self.check_section(descriptor, rseq, to_slow)?;
        }
        self.lea_region(rax, self.env.layout.rseq_slot(addition.slot))?;
        self.asm.lea(rcx, rcx + rax)?;
        if let Some(index) = addition.index {
            self.asm.lea(rcx, rcx + index * 8)?;
        }
        if check {
            self.check_rseq_half(to_slow)?;
        }
        self.asm.mov(rax, qword_ptr(rcx))?;
        match addition.addend {
            None => self.asm.lea(rax, rax + 1)?,
            Some(addend) => self.asm.lea(rax, rax + addend)?,
        }
        self.asm.mov(qword_ptr(rcx), rax)?;
        let commit = self.asm.instructions().len();
        self.add_section(Section {
            descriptor,
            start,
            commit,
            restart,
        });
        Ok(())
    }

    /// Right on any thread, at any time: the CPU's number only spreads the load. As
    /// [`lancet_abi::counter::add_locked`].
    fn add_locked(&mut self, addition: Addition, checked: bool) -> Result<(), IcedError> {
        let mut off = self.asm.create_label();
        let mut known = self.asm.create_label();
        let mut backed = self.asm.create_label();
        if !checked {
            self.skip_if_off(off)?;
        }
        if has_rdpid() {
            self.asm.rdpid(rcx)?;
        } else {
            // Works everywhere, at the cost of a lookup in the descriptor
            // table. Where it fails ecx stays: any number is right.
            self.asm.mov(ecx, CPU_SELECTOR)?;
            let limit = Instruction::with2(Op::Lsl_r32_r32m16, R::ECX, R::ECX)?;
            self.asm.add_instruction(limit)?;
        }
        self.asm.and(ecx, 0xfff)?;
        self.asm.cmp(ecx, self.env.layout.ncpus())?;
        self.asm.jb(known)?;
        self.asm.xor(ecx, ecx)?;
        self.asm.set_label(&mut known)?;
        let check = self.env.check;
        if check {
            self.asm.mov(r9, rcx)?;
        }
        self.lea_region(rax, self.env.layout.cpu_table())?;
        self.asm.mov(rcx, qword_ptr(rax + rcx * 8))?;
        self.asm.test(rcx, rcx)?;
        if check {
            let mut null = self.asm.create_label();
            self.asm.je(null)?;
            self.check_block(backed)?;
            self.asm.set_label(&mut null)?;
        } else {
            self.asm.jne(backed)?;
        }
        // The table was nulled after the look at `on`: CPU 0 always has a block.
        let first = self.env.layout.block(0).unwrap_or_default();
        self.asm.mov(rcx, first)?;
        self.asm.set_label(&mut backed)?;
        if check {
            self.asm.mov(r9, rcx)?;
        }
        self.lea_region(rax, self.env.layout.lock_slot(addition.slot))?;
        self.asm.add(rcx, rax)?;
        if let Some(index) = addition.index {
            self.asm.lea(rcx, rcx + index * 8)?;
        }
        if check {
            self.check_lock_half(off)?;
        }
        match addition.addend {
            None => self.asm.lock().add(qword_ptr(rcx), 1)?,
            Some(addend) => self.asm.lock().add(qword_ptr(rcx), addend)?,
        }
        self.asm.set_label(&mut off)?;
        self.asm.zero_bytes()
    }

    /// Goes to `off` where hits don't count. Writes flags and rcx.
    pub(crate) fn skip_if_off(&mut self, off: CodeLabel) -> Result<(), IcedError> {
        self.load_mode()?;
        self.check_mode()?;
        self.asm.test(ch, ch)?;
        self.asm.jne(off)?;
        let on = self.region_mem(self.env.layout.on());
        let compare = Instruction::with2(Op::Cmp_rm64_imm8, on, 0i32)?;
        self.asm.add_instruction(compare)?;
        self.asm.je(off)?;
        self.check_on()
    }

    /// Replaces rdx, a value, by its histogram bucket. Uses rcx, writes no
    /// flag: the highest non-zero byte is found by halving.
    pub(crate) fn bucket(&mut self) -> Result<(), IcedError> {
        use iced_x86::code_asm::{rdx, rsp, word_ptr};
        let mut found = self.asm.create_label();
        let mut labels: Vec<CodeLabel> = (0..8).map(|_| self.asm.create_label()).collect();
        self.push(rdx)?;
        self.asm.mov(ecx, dword_ptr(rsp + 4))?;
        self.asm.jrcxz(labels[4])?;
        for half in [4, 0] {
            // labels: [4] the low half; [h + 2] a half's low word; [h + 1],
            // [h + 3] the low byte of a word.
            if half == 0 {
                self.asm.set_label(&mut labels[4])?;
            }
            self.asm.movzx(ecx, word_ptr(rsp + (half + 2)))?;
            let low_word = if half == 4 { 6 } else { 2 };
            self.asm.jrcxz(labels[low_word])?;
            for word in [half + 2, half] {
                if word == half {
                    self.asm.set_label(&mut labels[low_word])?;
                }
                self.asm.movzx(ecx, byte_ptr(rsp + (word + 1)))?;
                let low_byte = [1usize, 3, 5, 7][(word / 2) as usize];
                self.asm.jrcxz(labels[low_byte])?;
                self.table_row(word + 1)?;
                self.asm.jmp(found)?;
                self.asm.set_label(&mut labels[low_byte])?;
                self.asm.movzx(ecx, byte_ptr(rsp + word))?;
                self.table_row(word)?;
                if word != 0 {
                    self.asm.jmp(found)?;
                }
            }
        }
        self.asm.set_label(&mut found)?;
        self.asm
            .movzx(iced_x86::code_asm::edx, byte_ptr(rdx + rcx))?;
        self.drop_word()
    }

    fn table_row(&mut self, byte: i32) -> Result<(), IcedError> {
        let row = self.env.layout.histogram() + 256 * byte.unsigned_abs() as u64;
        self.lea_region(iced_x86::code_asm::rdx, row)
    }

    /// Loads the thread's id into `rsi`; clobbers rax, rcx, r11 where the
    /// kernel is asked.
    pub(crate) fn load_tid(&mut self) -> Result<(), IcedError> {
        use iced_x86::code_asm::esi;
        const GETTID: u32 = 186;
        match self.tid_from_fs() {
            Some(offset) => self.asm.mov(esi, dword_ptr(i64::from(offset)).fs()),
            None => {
                self.asm.mov(eax, GETTID)?;
                self.asm.syscall()?;
                self.asm.mov(esi, eax)
            }
        }
    }

    /// The offset of the thread's id, where this site may read it.
    pub(crate) fn tid_from_fs(&self) -> Option<i32> {
        match self.form {
            crate::Form::Fused => self.env.tid_from_fs,
            crate::Form::LockOnly => None,
        }
    }
}
