//! The entry of a key: `lancet_abi::map::find_or_insert`, step by step.

use iced_x86::code_asm::{
    CodeLabel, eax, ebx, edi, edx, esi, qword_ptr, r8, r8d, rax, rbx, rcx, rdi, rdx, rsi,
};
use iced_x86::{Code as Op, IcedError, Instruction};
use lancet_abi::{MapLayout, SlotId, map};

use crate::action::{Key, Update};
use crate::counter::Addition;
use crate::emitter::Emitter;

impl Emitter<'_> {
    /// A keyed update. The flags, rax, rcx, rdx, rsi, rdi, r8 (and r11 for
    /// gettid) are saved. During the search: rax index, rdi entry, rsi key,
    /// rdx first entry, rcx the entry's meta word, r8 probes left. After it: rdi slot, rsi addend.
    pub(crate) fn keyed(
        &mut self,
        map: MapLayout,
        meta: u32,
        key: Key,
        update: Update,
    ) -> Result<(), IcedError> {
        let mut search = Search {
            probe: self.asm.create_label(),
            next: self.asm.create_label(),
            miss: self.asm.create_label(),
            full: self.asm.create_label(),
            found: self.asm.create_label(),
            update: self.asm.create_label(),
        };
        let mut done = self.asm.create_label();
        let meta_operand = meta.cast_signed();
        self.skip_if_off(done)?;
        match key {
            Key::Tid => self.load_tid()?,
            Key::Value(value) => self.load(rsi, value)?,
        }
        self.asm.mov(rax, map::HASH_MULTIPLIER)?;
        self.asm.imul_2(rax, rsi)?;
        self.asm.shr(rax, 64 - map.capacity.trailing_zeros())?;
        let seed = map::seed(meta, map.capacity);
        if seed != 0 {
            self.asm.add(eax, seed.cast_signed())?;
            self.asm.and(eax, (map.capacity - 1).cast_signed())?;
        }
        self.lea_region(rdx, map.entries)?;
        self.asm.mov(r8d, map::probes(map.capacity))?;

        self.asm.set_label(&mut search.probe)?;
        self.asm.mov(edi, eax)?;
        self.asm.shl(edi, 4)?;
        self.asm.add(rdi, rdx)?;
        // Loaded once: a second look could see an entry for this very key that
        // the first did not, and would take it for another's.
        self.asm.mov(rcx, qword_ptr(rdi))?;
        self.asm.cmp(rcx, meta_operand)?;
        self.asm.jne(search.miss)?;
        self.asm.cmp(qword_ptr(rdi + 8), rsi)?;
        self.asm.jne(search.next)?;
        self.asm.set_label(&mut search.found)?;
        self.check_entry(&map, meta_operand, search.full)?;
        if map.width == 1 {
            self.asm.lea(edi, rax + map.values.0.cast_signed())?;
        } else {
            self.asm.imul_3(edi, eax, map.width.cast_signed())?;
            self.asm.add(edi, map.values.0.cast_signed())?;
        }
        let mut addend = None;
        match update {
            Update::Count => {}
            Update::Sum(value) => {
                self.load(rsi, value)?;
                addend = Some(rsi);
            }
            Update::Hist(value) => {
                self.load(rdx, value)?;
                self.bucket()?;
                self.asm.add(edi, edx)?;
            }
        }
        self.asm.set_label(&mut search.update)?;
        self.add(
            Addition {
                slot: SlotId(0),
                index: Some(rdi),
                addend,
            },
            true,
        )?;
        self.asm.set_label(&mut done)?;
        self.asm.zero_bytes()?;
        self.rarely(move |emitter| emitter.search_on(search, map, meta_operand, addend.is_some()));
        Ok(())
    }

    /// The rare parts of a search: the next entry, a free one, a full map.
    fn search_on(
        &mut self,
        mut search: Search,
        map: MapLayout,
        meta: i32,
        has_addend: bool,
    ) -> Result<(), IcedError> {
        self.asm.set_label(&mut search.miss)?;
        self.asm.test(rcx, rcx)?;
        self.asm.jne(search.next)?;
        self.push(rbx)?;
        self.push(rax)?;
        self.asm.xor(eax, eax)?;
        self.asm.xor(edx, edx)?;
        self.asm.mov(ebx, meta)?;
        self.asm.mov(rcx, rsi)?;
        self.asm
            .lock()
            .cmpxchg16b(iced_x86::code_asm::xmmword_ptr(rdi))?;
        self.pop(rax)?;
        self.pop(rbx)?;
        self.lea_region(rdx, map.entries)?;
        self.asm.je(search.found)?;
        // Somebody claimed it just now, perhaps for the same key.
        self.asm.cmp(qword_ptr(rdi), meta)?;
        self.asm.jne(search.next)?;
        self.asm.cmp(qword_ptr(rdi + 8), rsi)?;
        self.asm.je(search.found)?;

        self.asm.set_label(&mut search.next)?;
        self.asm.add(eax, 1)?;
        self.asm.and(eax, (map.capacity - 1).cast_signed())?;
        self.asm
            .add_instruction(Instruction::with1(Op::Dec_rm64, iced_x86::Register::R8)?)?;
        self.asm.jne(search.probe)?;
        self.asm.set_label(&mut search.full)?;
        self.asm.mov(edi, map.dropped.0)?;
        if has_addend {
            self.asm.mov(esi, 1)?;
        }
        self.asm.jmp(search.update)
    }
}

/// Places in a search.
#[derive(Clone, Copy)]
struct Search {
    probe: CodeLabel,
    next: CodeLabel,
    miss: CodeLabel,
    full: CodeLabel,
    found: CodeLabel,
    update: CodeLabel,
}

/// What a keyed update needs besides rax and rcx.
pub(crate) const REGISTERS: [iced_x86::code_asm::AsmRegister64; 4] = [rdx, rsi, rdi, r8];
