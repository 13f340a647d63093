//! Texts and bytes: constants, reads of the target's memory, comparisons.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value as Ssa, types};
use lancet_script::ir::{Inst, Place, StrSource, Warning, Width};

use super::frame;
use super::function::{Maker, PLAIN};

const PROCESS_VM_READV: i64 = 310;
const PRCTL: i64 = 157;
const PR_GET_NAME: i64 = 16;
const NAME_SIZE: u32 = 16;

impl Maker<'_> {
    pub(super) fn text_inst(&mut self, inst: &Inst) {
        match *inst {
            Inst::Str { dst, size, source } => self.text(dst, size, source),
            Inst::Zero { dst, size } => {
                let to = self.place(dst);
                self.zero_words(to, size / 8);
            }
            Inst::CopyBytes { dst, src, size } => {
                let (to, from) = (self.place(dst), self.place(src));
                self.copy_words(to, from, size / 8);
            }
            Inst::CopyStr {
                dst,
                dst_size,
                src,
                src_size,
            } => {
                // A text is zero from its end on, so whole words are right.
                let (to, from) = (self.place(dst), self.place(src));
                let words = dst_size.min(src_size) / 8;
                self.copy_words(to, from, words);
                let rest = self.b.ins().iadd_imm_s(to, i64::from(8 * words));
                self.zero_words(rest, dst_size / 8 - words);
            }
            Inst::ReadInt { dst, addr, width } => {
                let addr = self.value(addr);
                let value = self.read_integer(addr, width);
                self.set(dst, value);
            }
            Inst::ReadStr {
                dst,
                size,
                addr,
                limit,
            } => {
                let (addr, limit) = (self.value(addr), self.value(limit));
                self.read_limited(dst, size, addr, limit);
            }
            Inst::ReadBuf {
                dst,
                size,
                addr,
                len,
            } => {
                let (addr, len) = (self.value(addr), self.value(len));
                self.read_buffer(dst, size, addr, len);
            }
            Inst::ReadStrArray {
                found,
                dst,
                size,
                count,
                addr,
            } => {
                let addr = self.value(addr);
                let number = self.read_array(dst, size, count, addr);
                self.set(found, number);
            }
            Inst::StrLen { dst, src, size } => {
                let from = self.place(src);
                let length = self.length(from, size);
                self.set(dst, length);
            }
            Inst::StrCmp {
                dst,
                a,
                a_size,
                b,
                b_size,
                limit,
            } => {
                let (a, b) = (self.place(a), self.place(b));
                let difference = self.compare((a, a_size), (b, b_size), limit);
                self.set(dst, difference);
            }
            Inst::StrFind {
                dst,
                hay,
                hay_size,
                needle,
                needle_size,
            } => {
                let (hay, needle) = (self.place(hay), self.place(needle));
                let at = self.find_text((hay, hay_size), (needle, needle_size));
                self.set(dst, at);
            }
            Inst::BytesEq { dst, a, b, size } => {
                let (a, b) = (self.place(a), self.place(b));
                let same = self.words_equal(a, b, size / 8);
                self.set(dst, same);
            }
            // The others are done elsewhere.
            _ => {}
        }
    }

    fn text(&mut self, dst: Place, size: u32, source: StrSource) {
        let to = self.place(dst);
        match source {
            StrSource::Const(id) => {
                let mut bytes = self.program.strings[id.index()].clone().into_bytes();
                bytes.truncate(size as usize);
                bytes.resize(bytes.len().next_multiple_of(8), 0);
                for (chunk, at) in bytes.chunks_exact(8).zip(0..) {
                    let word = i64::from_le_bytes(chunk.try_into().expect("eight bytes"));
                    let word = self.imm(word);
                    self.b.ins().store(PLAIN, word, to, 8 * at);
                }
                let done = bytes.len() as u32;
                let rest = self.b.ins().iadd_imm_s(to, i64::from(done));
                self.zero_words(rest, (size - done) / 8);
            }
            StrSource::Comm => {
                let (name, option) = (self.address(frame::WORD), self.imm(PR_GET_NAME));
                self.system_call(PRCTL, &[option, name]);
                let words = size.min(NAME_SIZE) / 8;
                self.copy_words(to, name, words);
                let rest = self.b.ins().iadd_imm_s(to, i64::from(8 * words));
                self.zero_words(rest, size / 8 - words);
            }
            StrSource::Probe => self.name(frame::PROBE_NAME, to, size),
            StrSource::Func => self.name(frame::FUNC_NAME, to, size),
        }
    }

    /// Copies a name that lies beside the code.
    fn name(&mut self, at: i32, to: Ssa, size: u32) {
        let from = self.word(at);
        let length = self.b.ins().load(types::I64, PLAIN, from, 0);
        let whole = self.imm(size.into());
        let length = self.b.ins().umin(length, whole);
        let up = self.b.ins().iadd_imm_s(length, 7);
        let words = self.b.ins().ushr_imm_u(up, 3);
        self.each(words, |maker, index| {
            let (to, from) = (maker.nth(to, index), maker.nth(from, index));
            let word = maker.b.ins().load(types::I64, PLAIN, from, 8);
            maker.b.ins().store(PLAIN, word, to, 0);
        });
        self.zero_from(to, length, size);
    }

    /// Reads memory of this process without ever faulting; how many bytes could be read.
    fn read(&mut self, into: Ssa, addr: Ssa, length: Ssa) -> Ssa {
        for (word, at) in [into, length, addr, length].into_iter().zip(0..) {
            self.put(frame::VECTORS + 8 * at, word);
        }
        let (here, there) = (
            self.address(frame::VECTORS),
            self.address(frame::VECTORS + 16),
        );
        let (pid, one, none) = (self.own_pid(), self.imm(1), self.imm(0));
        let read = self.system_call(PROCESS_VM_READV, &[pid, here, one, there, one, none]);
        self.b.ins().smax(read, none)
    }

    fn read_integer(&mut self, addr: Ssa, width: Width) -> Ssa {
        let (to, zero) = (self.address(frame::WORD), self.imm(0));
        self.put(frame::WORD, zero);
        let length = self.imm(width.bytes.into());
        let read = self.read(to, addr, length);
        let short = self.b.ins().icmp(IntCC::SignedLessThan, read, length);
        self.when(short, |maker| {
            maker.warn(Warning::Unreadable);
            let zero = maker.imm(0);
            maker.put(frame::WORD, zero);
        });
        let value = self.word(frame::WORD);
        self.extend(value, width)
    }

    /// Reads a text of at most `most` bytes to `to`; its length, 0 where it can't be read. What lies
    /// behind it in the buffer is whatever was read.
    fn read_text(&mut self, to: Ssa, addr: Ssa, most: Ssa) -> Ssa {
        let read = self.read(to, addr, most);
        let length = self.until(read, |maker, index| {
            let byte = maker.byte(to, index);
            maker.b.ins().icmp_imm_s(IntCC::Equal, byte, 0)
        });
        let unended = self.b.ins().icmp(IntCC::Equal, length, read);
        let short = self.b.ins().icmp(IntCC::UnsignedLessThan, read, most);
        let unread = self.b.ins().band(unended, short);
        self.when(unread, |maker| maker.warn(Warning::Unreadable));
        let zero = self.imm(0);
        self.b.ins().select(unread, zero, length)
    }

    fn read_limited(&mut self, dst: Place, size: u32, addr: Ssa, limit: Ssa) {
        let to = self.place(dst);
        let whole = self.imm(size.into());
        let most = self.b.ins().umin(limit, whole);
        let (some, none, out) = (self.block(0), self.block(0), self.block(1));
        self.branch(most, some, none);
        self.enter(none);
        let zero = self.imm(0);
        self.jump_with(out, &[zero]);
        self.enter(some);
        let length = self.read_text(to, addr, most);
        // The limit counts the zero at the end.
        let cut = self.b.ins().iadd_imm_s(limit, -1);
        let shorter = self.b.ins().umin(length, cut);
        let limited = self.b.ins().icmp(IntCC::UnsignedLessThan, limit, whole);
        let length = self.b.ins().select(limited, shorter, length);
        self.jump_with(out, &[length]);
        self.enter(out);
        let length = self.b.block_params(out)[0];
        self.zero_from(to, length, size);
    }

    fn read_buffer(&mut self, dst: Place, size: u32, addr: Ssa, len: Ssa) {
        let to = self.place(dst);
        let bytes = self.b.ins().iadd_imm_s(to, 8);
        let (room, zero) = (self.imm(i64::from(size) - 8), self.imm(0));
        let most = self.b.ins().smax(len, zero);
        let most = self.b.ins().umin(most, room);
        let read = self.read(bytes, addr, most);
        let short = self.b.ins().icmp(IntCC::UnsignedLessThan, read, most);
        self.when(short, |maker| maker.warn(Warning::Unreadable));
        let length = self.b.ins().select(short, zero, most);
        self.b.ins().store(PLAIN, length, to, 0);
        self.zero_from(bytes, length, size - 8);
    }

    fn read_array(&mut self, dst: Place, size: u32, count: u32, addr: Ssa) -> Ssa {
        let to = self.place(dst);
        self.zero_words(to, size * count / 8);
        let count = self.imm(count.into());
        // In the slot, since what lives across a call is spilled to the target's stack.
        self.put(frame::ARRAY, addr);
        let pointer = Width {
            bytes: 8,
            signed: false,
        };
        self.until(count, |maker, index| {
            let addr = maker.word(frame::ARRAY);
            let at = maker.nth(addr, index);
            let text = maker.read_integer(at, pointer);
            maker.put(frame::TEXT, text);
            let (some, out) = (maker.block(0), maker.block(0));
            maker.branch(text, some, out);
            maker.enter(some);
            let into = |maker: &mut Self| {
                let to = maker.place(dst);
                let offset = maker.b.ins().imul_imm_s(index, i64::from(size));
                maker.b.ins().iadd(to, offset)
            };
            let (to, most) = (into(maker), maker.imm(size.into()));
            let length = maker.read_text(to, text, most);
            let to = into(maker);
            maker.zero_from(to, length, size);
            maker.jump(out);
            maker.enter(out);
            let text = maker.word(frame::TEXT);
            maker.b.ins().icmp_imm_s(IntCC::Equal, text, 0)
        })
    }

    fn length(&mut self, text: Ssa, size: u32) -> Ssa {
        let count = self.imm(size.into());
        self.until(count, |maker, index| {
            let byte = maker.byte(text, index);
            maker.b.ins().icmp_imm_s(IntCC::Equal, byte, 0)
        })
    }

    /// A text's byte, 0 where `size` ends it.
    fn byte_of(&mut self, (text, size): (Ssa, u32), index: Ssa, longest: u32) -> Ssa {
        if size >= longest {
            return self.byte(text, index);
        }
        let inside = self
            .b
            .ins()
            .icmp_imm_s(IntCC::UnsignedLessThan, index, i64::from(size));
        let zero = self.imm(0);
        let bounded = self.b.ins().select(inside, index, zero);
        let byte = self.byte(text, bounded);
        self.b.ins().select(inside, byte, zero)
    }

    /// The difference of the first bytes that are not equal.
    fn compare(&mut self, a: (Ssa, u32), b: (Ssa, u32), limit: u32) -> Ssa {
        let longest = a.1.max(b.1).min(limit);
        let count = self.imm(longest.into());
        let at = self.until(count, |maker, index| {
            let x = maker.byte_of(a, index, longest);
            let y = maker.byte_of(b, index, longest);
            let differ = maker.b.ins().icmp(IntCC::NotEqual, x, y);
            let ended = maker.b.ins().icmp_imm_s(IntCC::Equal, x, 0);
            maker.b.ins().bor(differ, ended)
        });
        let (some, none, out) = (self.block(0), self.block(0), self.block(1));
        let inside = self.b.ins().icmp(IntCC::UnsignedLessThan, at, count);
        self.branch(inside, some, none);
        self.enter(some);
        let x = self.byte_of(a, at, longest);
        let y = self.byte_of(b, at, longest);
        let difference = self.b.ins().isub(x, y);
        self.jump_with(out, &[difference]);
        self.enter(none);
        let zero = self.imm(0);
        self.jump_with(out, &[zero]);
        self.enter(out);
        self.b.block_params(out)[0]
    }

    /// Where the needle begins in the haystack; -1: nowhere.
    fn find_text(&mut self, hay: (Ssa, u32), needle: (Ssa, u32)) -> Ssa {
        let length = self.length(needle.0, needle.1);
        let all = self.length(hay.0, hay.1);
        // As many places as it can begin at: none where it is longer.
        let places = self.b.ins().isub(all, length);
        let places = self.b.ins().iadd_imm_s(places, 1);
        let zero = self.imm(0);
        let places = self.b.ins().smax(places, zero);
        let at = self.until(places, |maker, begin| {
            let matched = maker.until(length, |maker, index| {
                let from = maker.b.ins().iadd(hay.0, begin);
                let x = maker.byte(from, index);
                let y = maker.byte(needle.0, index);
                maker.b.ins().icmp(IntCC::NotEqual, x, y)
            });
            maker.b.ins().icmp(IntCC::Equal, matched, length)
        });
        let found = self.b.ins().icmp(IntCC::UnsignedLessThan, at, places);
        let nowhere = self.b.ins().iconst(types::I64, -1);
        self.b.ins().select(found, at, nowhere)
    }
}
