//! Records for the tracer: `lancet_abi::ring`, step by step, on the same bytes.

use cranelift_codegen::ir::InstBuilder;
use cranelift_codegen::ir::condcodes::IntCC;
use lancet_abi::ring::{DEAD, MAX_TRIES, RECORD, RingLayout};
use lancet_script::ir::{Arg, FormatId};

use super::frame;
use super::function::{Maker, PLAIN};
use super::shared::{Count, RECORD_HEAD};

impl Maker<'_> {
    pub(super) fn emit(&mut self, format: FormatId, args: &[Arg]) {
        let rings = self.shared.rings_of(&self.program.formats[format.index()]);
        let (Some(&ring), number) = (rings.first(), rings.len() as i64) else {
            return;
        };
        // The rings lie one behind the other, all alike.
        let between = rings.get(1).map_or(0, |second| second.at - ring.at);
        let cpu = self.word(frame::CPU);
        let known = self
            .b
            .ins()
            .icmp_imm_s(IntCC::UnsignedLessThan, cpu, number);
        let zero = self.imm(0);
        let cpu = self.b.ins().select(known, cpu, zero);
        let base = self.region(ring.at);
        let offset = self.b.ins().imul_imm_s(cpu, between as i64);
        let head = self.b.ins().iadd(base, offset);

        // The slot that was taken, 0 for none; its first word while it is free.
        self.put(frame::FOUND, zero);
        let tries = self.imm(MAX_TRIES.into());
        self.until(tries, |maker, _| maker.take(&ring, head));
        let slot = self.word(frame::FOUND);
        let (write, lost, out) = (self.block(0), self.block(0), self.block(0));
        self.branch(slot, write, lost);
        self.enter(lost);
        self.count(Count::Lost);
        self.jump(out);

        self.enter(write);
        let fields = self.program.formats[format.index()].fields().to_vec();
        let size = self.program.formats[format.index()].size();
        let what = self.imm(i64::from(format.0) | i64::from(size) << 32);
        let record = self.b.ins().iadd_imm_s(slot, RECORD as i64);
        self.b.ins().store(PLAIN, what, record, 0);
        let when = self.word(frame::TSC);
        self.b.ins().store(PLAIN, when, record, 8);
        for (field, arg) in fields.iter().zip(args) {
            let to = i64::from(RECORD_HEAD + field.offset);
            match *arg {
                Arg::Value(value) => {
                    let value = self.value(value);
                    self.b.ins().store(PLAIN, value, record, to as i32);
                }
                Arg::Bytes(place) => {
                    let from = self.place(place);
                    let to = self.b.ins().iadd_imm_s(record, to);
                    self.copy_words(to, from, field.size / 8);
                }
            }
        }
        let free = self.word(frame::FREE);
        let full = self.b.ins().iadd_imm_s(free, 1);
        let was = self.b.ins().atomic_cas(PLAIN, slot, free, full);
        // Given up by the tracer meanwhile, who has counted it.
        let _ = was;
        self.jump(out);
        self.enter(out);
    }

    /// One try to take a slot; whether that is the end of trying.
    fn take(
        &mut self,
        ring: &RingLayout,
        head: cranelift_codegen::ir::Value,
    ) -> cranelift_codegen::ir::Value {
        let position = self.load(head, 0);
        let index = self.b.ins().band_imm_s(position, i64::from(ring.slots) - 1);
        let offset = self.b.ins().imul_imm_s(index, i64::from(ring.stride));
        let first = self.b.ins().iadd_imm_s(head, 64);
        let slot = self.b.ins().iadd(first, offset);
        let lap = self
            .b
            .ins()
            .ushr_imm_s(position, i64::from(ring.slots.trailing_zeros()));
        let free = self.b.ins().ishl_imm_s(lap, 1);
        let turn = self.load(slot, 0);
        let is_free = self.b.ins().icmp(IntCC::Equal, turn, free);
        let is_dead = self
            .b
            .ins()
            .icmp_imm_s(IntCC::Equal, turn, DEAD.cast_signed());
        let to_take = self.b.ins().bor(is_free, is_dead);
        let (pass, other, done) = (self.block(0), self.block(0), self.block(1));
        self.branch(to_take, pass, other);
        self.enter(other);
        let full = self.b.ins().icmp(IntCC::UnsignedLessThan, turn, free);
        let full = self
            .b
            .ins()
            .uextend(cranelift_codegen::ir::types::I64, full);
        self.jump_with(done, &[full]);
        self.enter(pass);
        let next = self.b.ins().iadd_imm_s(position, 1);
        let was = self.b.ins().atomic_cas(PLAIN, head, position, next);
        let passed = self.b.ins().icmp(IntCC::Equal, was, position);
        let mine = self.b.ins().band(passed, is_free);
        self.when(mine, |maker| {
            maker.put(frame::FOUND, slot);
            maker.put(frame::FREE, free);
        });
        let mine = self
            .b
            .ins()
            .uextend(cranelift_codegen::ir::types::I64, mine);
        self.jump_with(done, &[mine]);
        self.enter(done);
        self.b.block_params(done)[0]
    }
}
