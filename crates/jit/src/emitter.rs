//! The frame around a site's actions: what is saved, where the rare parts go,
//! and how instructions become bytes.

use iced_x86::code_asm::{
    AsmRegister64, CodeAssembler, CodeLabel, al, r8, r9, r10, r11, r12, r13, r14, r15, rax, rbp,
    rbx, rcx, rdi, rdx, rsi, rsp,
};
use iced_x86::{
    BlockEncoder, BlockEncoderOptions, Code as Op, IcedError, Instruction, InstructionBlock,
    MemoryOperand, Register as R,
};
use lancet_abi::units::RuntimeAddr;

use crate::action::{Env, Form, Register, Rseq, Value};

/// Bytes under the stack pointer that belong to a leaf function.
pub(crate) const RED_ZONE: i32 = 128;
/// Bytes of an rseq descriptor, and its alignment.
pub(crate) const DESCRIPTOR: usize = 32;

/// An rseq section to be described.
pub(crate) struct Section {
    /// The descriptor that points to it.
    pub(crate) descriptor: CodeLabel,
    /// Index of the first instruction inside.
    pub(crate) start: usize,
    /// Index of the first instruction behind the commit.
    pub(crate) commit: usize,
    /// Where the abort handler begins anew.
    pub(crate) restart: CodeLabel,
}

/// A part that is rarely run and therefore lies before the entry.
pub(crate) type Cold = Box<dyn FnOnce(&mut Emitter<'_>) -> Result<(), IcedError>>;

/// What is on the stack at a point of the code.
#[derive(Clone)]
struct Around {
    depth: i32,
    saved: Vec<(R, i32)>,
    flags_saved: bool,
}

/// Instructions of one site in the making.
pub(crate) struct Emitter<'e> {
    pub(crate) asm: CodeAssembler,
    pub(crate) env: &'e Env,
    pub(crate) form: Form,
    at: RuntimeAddr,
    site: RuntimeAddr,
    /// Bytes between the stack pointer at the site and now.
    depth: i32,
    /// Registers that are on the stack, with the depth after their push.
    saved: Vec<(R, i32)>,
    /// Whether the flags are saved for all of the site's actions.
    pub(crate) flags_saved: bool,
    cold: Vec<(Cold, Around)>,
    sections: Vec<Section>,
}

impl<'e> Emitter<'e> {
    pub(crate) fn new(
        env: &'e Env,
        form: Form,
        at: RuntimeAddr,
        site: RuntimeAddr,
    ) -> Result<Self, IcedError> {
        Ok(Self {
            asm: CodeAssembler::new(64)?,
            env,
            form,
            at,
            site,
            depth: 0,
            saved: Vec::new(),
            flags_saved: false,
            cold: Vec::new(),
            sections: Vec::new(),
        })
    }

    /// The rseq area, where this site may use one.
    pub(crate) fn rseq(&self) -> Option<Rseq> {
        match self.form {
            Form::Fused => self.env.rseq,
            Form::LockOnly => None,
        }
    }

    /// Skips the red zone and saves what the actions use.
    pub(crate) fn enter(
        &mut self,
        registers: &[AsmRegister64],
        flags: bool,
    ) -> Result<(), IcedError> {
        self.asm.lea(rsp, rsp - RED_ZONE)?;
        self.depth = RED_ZONE;
        if self.env.check {
            self.copy_state()?;
        }
        for &register in registers {
            self.push(register)?;
            self.saved.push((register.into(), self.depth));
        }
        if flags {
            self.push_flags()?;
            self.flags_saved = true;
        }
        Ok(())
    }

    /// Restores everything; control then falls out of the code, or to what is entered next.
    pub(crate) fn leave(&mut self, registers: &[AsmRegister64]) -> Result<(), IcedError> {
        if std::mem::take(&mut self.flags_saved) {
            self.pop_flags()?;
        }
        self.saved.clear();
        for &register in registers.iter().rev() {
            self.pop(register)?;
        }
        if self.env.check {
            self.check_state()?;
        }
        let depth = std::mem::take(&mut self.depth);
        self.asm.lea(rsp, rsp + depth)
    }

    /// The site's address.
    pub(crate) fn site(&self) -> RuntimeAddr {
        self.site
    }

    /// Loads a register of the site that is only on the stack.
    pub(crate) fn load_register(
        &mut self,
        into: AsmRegister64,
        register: AsmRegister64,
    ) -> Result<(), IcedError> {
        let known = self
            .saved
            .iter()
            .find(|(saved, _)| *saved == register.into());
        match known {
            Some((_, depth)) => self.asm.mov(into, rsp + (self.depth - depth)),
            None => self.asm.mov(into, register),
        }
    }

    /// Bytes between the stack pointer at the site and now.
    pub(crate) fn depth(&self) -> i32 {
        self.depth
    }

    /// Something was pushed that is no register.
    pub(crate) fn grow(&mut self, bytes: i32) {
        self.depth += bytes;
    }

    pub(crate) fn push(&mut self, register: AsmRegister64) -> Result<(), IcedError> {
        self.depth += 8;
        self.asm.push(register)
    }

    pub(crate) fn pop(&mut self, register: AsmRegister64) -> Result<(), IcedError> {
        self.depth -= 8;
        self.asm.pop(register)
    }

    /// Drops the newest word of the stack, without a flag.
    pub(crate) fn drop_word(&mut self) -> Result<(), IcedError> {
        self.depth -= 8;
        self.asm.lea(rsp, rsp + 8)
    }

    /// Saves the six arithmetic flags; rax is saved already. DF and AC are
    /// never changed by an action, so a slow pushfq is not needed.
    pub(crate) fn push_flags(&mut self) -> Result<(), IcedError> {
        self.asm.lahf()?;
        self.asm.seto(al)?;
        self.push(rax)
    }

    /// Gives the flags back: the addition overflows just where OF was set.
    pub(crate) fn pop_flags(&mut self) -> Result<(), IcedError> {
        self.pop(rax)?;
        self.asm.add(al, 0x7f)?;
        self.asm.sahf()
    }

    /// Whether a register's value at the site is only on the stack.
    pub(crate) fn is_saved(&self, register: R) -> bool {
        self.saved.iter().any(|(saved, _)| *saved == register)
    }

    /// Loads a value as it was at the site, without a flag.
    pub(crate) fn load(&mut self, into: AsmRegister64, value: Value) -> Result<(), IcedError> {
        let register = match source(value) {
            Source::Register(register) => register,
            Source::Stack(above) => return self.asm.mov(into, rsp + (self.depth + above)),
            Source::StackPointer => return self.asm.lea(into, rsp + self.depth),
            Source::Site => return self.asm.mov(into, self.site.0),
        };
        self.load_register(into, register)
    }

    /// An instruction on the word at an address in this process, relative to
    /// the instruction pointer.
    pub(crate) fn region_mem(&self, offset: u64) -> MemoryOperand {
        absolute(self.env.region.plus(offset))
    }

    /// `lea into, [region + offset]`
    pub(crate) fn lea_region(&mut self, into: AsmRegister64, offset: u64) -> Result<(), IcedError> {
        let operand = self.region_mem(offset);
        self.asm
            .add_instruction(Instruction::with2(Op::Lea_r64_m, into.into(), operand)?)
    }

    /// Loads the mode word into rcx.
    pub(crate) fn load_mode(&mut self) -> Result<(), IcedError> {
        if self.mode_is_near() {
            let load = Instruction::with2(Op::Mov_r64_rm64, R::RCX, absolute(self.env.mode))?;
            self.asm.add_instruction(load)
        } else {
            self.asm.mov(rcx, self.env.mode.0)?;
            self.asm.mov(rcx, iced_x86::code_asm::qword_ptr(rcx))
        }
    }

    /// Whether the private page can be reached by a displacement, with room
    /// for the length of any code.
    pub(crate) fn mode_is_near(&self) -> bool {
        self.env.mode.0.abs_diff(self.at.0) < (1 << 31) - (1 << 16)
    }

    /// Puts off a rare part; it is emitted with the stack as it is now.
    pub(crate) fn rarely(
        &mut self,
        part: impl FnOnce(&mut Emitter<'_>) -> Result<(), IcedError> + 'static,
    ) {
        let around = Around {
            depth: self.depth,
            saved: self.saved.clone(),
            flags_saved: self.flags_saved,
        };
        self.cold.push((Box::new(part), around));
    }

    pub(crate) fn add_section(&mut self, section: Section) {
        self.sections.push(section);
    }

    /// Emits the rare parts and encodes all: descriptors, abort handlers and
    /// rare parts first, then the entry, cache-line aligned where it can be.
    /// Returns the bytes and the entry's offset.
    pub(crate) fn finish(mut self) -> Result<(Vec<u8>, u32), IcedError> {
        let hot = self.asm.instructions().len();
        let mut sections = std::mem::take(&mut self.sections);
        for section in &mut sections {
            self.asm.set_label(&mut section.descriptor)?;
            self.asm.db(&[0; 16])?;
            self.asm.db(&[0; 16])?;
        }
        let mut aborts = Vec::new();
        if let Some(rseq) = self.rseq() {
            for section in &sections {
                // The signature is dressed as the displacement of an undefined
                // instruction, so that a disassembly stays in step.
                self.asm.db(&[0x0f, 0xb9, 0x3d])?;
                self.asm.db(&rseq.signature.to_le_bytes())?;
                aborts.push(self.asm.instructions().len() - hot);
                // The encoder gives no offset for a branch that it rewrites.
                self.asm.zero_bytes()?;
                self.asm.jmp(section.restart)?;
            }
        }
        while !self.cold.is_empty() {
            for (part, around) in std::mem::take(&mut self.cold) {
                self.depth = around.depth;
                self.saved = around.saved;
                self.flags_saved = around.flags_saved;
                part(&mut self)?;
            }
        }
        let mut order = self.asm.take_instructions();
        let entry = order.len() - hot;
        order.rotate_left(hot);

        let mut encoded = self.encode(&order)?;
        let pad = (self.at.0 + u64::from(encoded.offsets[entry])).wrapping_neg() % 64;
        if pad != 0 {
            let nops = vec![Instruction::with(Op::Nopd); pad as usize];
            order.splice(entry..entry, nops);
            encoded = self.encode(&order)?;
        }
        let mut bytes = encoded.bytes;
        let entry = entry + pad as usize;
        let address = |index: usize| self.at.0 + u64::from(encoded.offsets[index]);
        for (i, (section, abort)) in sections.iter().zip(&aborts).enumerate() {
            let (start, commit) = (
                address(entry + section.start),
                address(entry + section.commit),
            );
            let words = [0, start, commit - start, address(*abort)];
            for (word, out) in words
                .iter()
                .zip(bytes[i * DESCRIPTOR..].chunks_exact_mut(8))
            {
                out.copy_from_slice(&word.to_le_bytes());
            }
        }
        Ok((bytes, encoded.offsets[entry]))
    }

    fn encode(&self, order: &[Instruction]) -> Result<Encoded, IcedError> {
        let block = InstructionBlock::new(order, self.at.0);
        let options = BlockEncoderOptions::RETURN_NEW_INSTRUCTION_OFFSETS;
        let result = BlockEncoder::encode(64, block, options)?;
        Ok(Encoded {
            bytes: result.code_buffer,
            offsets: result.new_instruction_offsets,
        })
    }
}

struct Encoded {
    bytes: Vec<u8>,
    offsets: Vec<u32>,
}

/// The memory at an address, relative to the instruction pointer.
pub(crate) fn absolute(address: RuntimeAddr) -> MemoryOperand {
    MemoryOperand::with_base_displ(R::RIP, address.0.cast_signed())
}

/// Where a value is at the site.
pub(crate) enum Source {
    Register(AsmRegister64),
    /// Bytes above the stack pointer.
    Stack(i32),
    StackPointer,
    Site,
}

pub(crate) fn source(value: Value) -> Source {
    let register = match value {
        Value::Arg(n @ 0..=5) => [rdi, rsi, rdx, rcx, r8, r9][usize::from(n)],
        // The return address lies below the first argument on the stack.
        Value::Arg(n) => return Source::Stack(8 * (i32::from(n) - 5)),
        Value::Register(register) => match register {
            Register::Ax => rax,
            Register::Bx => rbx,
            Register::Cx => rcx,
            Register::Dx => rdx,
            Register::Si => rsi,
            Register::Di => rdi,
            Register::Bp => rbp,
            Register::R8 => r8,
            Register::R9 => r9,
            Register::R10 => r10,
            Register::R11 => r11,
            Register::R12 => r12,
            Register::R13 => r13,
            Register::R14 => r14,
            Register::R15 => r15,
            Register::Sp => return Source::StackPointer,
            Register::Ip => return Source::Site,
        },
    };
    Source::Register(register)
}
