//! Counted loops over words and bytes of the scratch slot.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value as Ssa, types};

use super::function::{Maker, PLAIN};

/// Up to so many words are moved without a loop.
const UNROLLED: u32 = 8;

impl Maker<'_> {
    /// For each index below `count`, until `stop` says so of one: that index, else `count`.
    pub(super) fn until(&mut self, count: Ssa, stop: impl FnOnce(&mut Self, Ssa) -> Ssa) -> Ssa {
        let (head, body, out) = (self.block(1), self.block(0), self.block(1));
        let (next, zero) = (self.block(0), self.imm(0));
        self.jump_with(head, &[zero]);
        self.enter(head);
        let index = self.b.block_params(head)[0];
        let more = self.b.ins().icmp(IntCC::UnsignedLessThan, index, count);
        self.b.ins().brif(more, body, &[], out, &[index.into()]);
        self.enter(body);
        let found = stop(self, index);
        self.b.ins().brif(found, out, &[index.into()], next, &[]);
        self.enter(next);
        let following = self.b.ins().iadd_imm_s(index, 1);
        self.jump_with(head, &[following]);
        self.enter(out);
        self.b.block_params(out)[0]
    }

    /// For each index below `count`.
    pub(super) fn each(&mut self, count: Ssa, body: impl FnOnce(&mut Self, Ssa)) {
        self.until(count, |maker, index| {
            body(maker, index);
            maker.b.ins().iconst(types::I8, 0)
        });
    }

    /// The address of the word with this index.
    pub(super) fn nth(&mut self, base: Ssa, index: Ssa) -> Ssa {
        let offset = self.b.ins().ishl_imm_s(index, 3);
        self.b.ins().iadd(base, offset)
    }

    /// The byte at `base + index`, extended.
    pub(super) fn byte(&mut self, base: Ssa, index: Ssa) -> Ssa {
        let at = self.b.ins().iadd(base, index);
        self.b.ins().uload8(types::I64, PLAIN, at, 0)
    }

    /// Copies words that nobody else writes.
    pub(super) fn copy_words(&mut self, to: Ssa, from: Ssa, words: u32) {
        let one = |maker: &mut Self, to, from, offset| {
            let word = maker.b.ins().load(types::I64, PLAIN, from, offset);
            maker.b.ins().store(PLAIN, word, to, offset);
        };
        if words <= UNROLLED {
            (0..words as i32).for_each(|at| one(self, to, from, 8 * at));
            return;
        }
        let count = self.imm(words.into());
        self.each(count, |maker, index| {
            let (to, from) = (maker.nth(to, index), maker.nth(from, index));
            one(maker, to, from, 0);
        });
    }

    /// Writes zeros.
    pub(super) fn zero_words(&mut self, to: Ssa, words: u32) {
        let zero = self.imm(0);
        if words <= UNROLLED {
            for at in 0..words as i32 {
                self.b.ins().store(PLAIN, zero, to, 8 * at);
            }
            return;
        }
        let count = self.imm(words.into());
        self.each(count, |maker, index| {
            let (to, zero) = (maker.nth(to, index), maker.imm(0));
            maker.b.ins().store(PLAIN, zero, to, 0);
        });
    }

    /// Writes zeros from byte `from` up to byte `size`, a multiple of 8.
    pub(super) fn zero_from(&mut self, base: Ssa, from: Ssa, size: u32) {
        // Bytes up to the next word, then words.
        let up = self.b.ins().iadd_imm_s(from, 7);
        let up = self.b.ins().band_imm_s(up, !7);
        let bytes = self.b.ins().isub(up, from);
        self.each(bytes, |maker, index| {
            let at = maker.b.ins().iadd(base, from);
            let at = maker.b.ins().iadd(at, index);
            let zero = maker.imm(0);
            maker.b.ins().istore8(PLAIN, zero, at, 0);
        });
        let end = self.imm(size.into());
        let rest = self.b.ins().isub(end, up);
        let words = self.b.ins().ushr_imm_s(rest, 3);
        self.each(words, |maker, index| {
            let at = maker.b.ins().iadd(base, up);
            let (at, zero) = (maker.nth(at, index), maker.imm(0));
            maker.b.ins().store(PLAIN, zero, at, 0);
        });
    }

    /// Whether so many words are equal: 1 or 0.
    pub(super) fn words_equal(&mut self, a: Ssa, b: Ssa, words: u32) -> Ssa {
        let differ = |maker: &mut Self, a, b, offset| {
            let x = maker.b.ins().load(types::I64, PLAIN, a, offset);
            let y = maker.b.ins().load(types::I64, PLAIN, b, offset);
            maker.b.ins().bxor(x, y)
        };
        if words <= UNROLLED {
            let mut any = self.imm(0);
            for at in 0..words as i32 {
                let one = differ(self, a, b, 8 * at);
                any = self.b.ins().bor(any, one);
            }
            let same = self.b.ins().icmp_imm_s(IntCC::Equal, any, 0);
            return self.b.ins().uextend(types::I64, same);
        }
        let count = self.imm(words.into());
        let at = self.until(count, |maker, index| {
            let (a, b) = (maker.nth(a, index), maker.nth(b, index));
            let difference = differ(maker, a, b, 0);
            maker.b.ins().icmp_imm_s(IntCC::NotEqual, difference, 0)
        });
        let same = self.b.ins().icmp(IntCC::Equal, at, count);
        self.b.ins().uextend(types::I64, same)
    }
}
