//! What the instructions on maps do with an entry.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value as Ssa, types};
use lancet_abi::table::{LEN, LIVE};
use lancet_script::ir::{Agg, BinOp, Inst, MapId, MapValue, Place, Warning, Width};

use super::frame;
use super::function::{Maker, PLAIN};
use super::tables::Spot;

/// How often a change of a value is tried where others change it at the same moment.
const TRIES: i64 = 1 << 16;

impl Maker<'_> {
    pub(super) fn map_inst(&mut self, inst: &Inst) {
        match *inst {
            Inst::MapGet { dst, map, key } => {
                let of = self.program.maps[map.index()].value.clone();
                let result = self.with_entry(map, key, false, |maker, spot, entry| {
                    maker.where_live(entry, |maker| {
                        let values = maker.b.ins().iadd_imm_s(entry, spot.values() as i64);
                        let value = maker.amounts_to(&of, values);
                        maker.put(frame::RESULT, value);
                    });
                });
                self.set(dst, result);
            }
            Inst::MapGetBytes {
                dst,
                size,
                map,
                key,
            } => {
                let to = self.place(dst);
                self.zero_words(to, size / 8);
                self.with_entry(map, key, false, |maker, spot, entry| {
                    maker.whole(spot, |maker| {
                        maker.where_live(entry, |maker| {
                            let to = maker.place(dst);
                            let values = maker.b.ins().iadd_imm_s(entry, spot.values() as i64);
                            maker.copy_words(to, values, size / 8);
                        });
                    });
                });
            }
            Inst::MapSet { map, key, src } => {
                self.with_entry(map, key, true, |maker, spot, entry| {
                    maker.live_by(spot, entry, |maker, at| {
                        let value = maker.value(src);
                        maker.b.ins().atomic_store(PLAIN, value, at);
                    });
                });
            }
            Inst::MapSetBytes {
                map,
                key,
                src,
                size,
            } => {
                self.with_entry(map, key, true, |maker, spot, entry| {
                    maker.live_by(spot, entry, |maker, at| {
                        maker.whole(spot, |maker| {
                            let from = maker.place(src);
                            maker.copy_words(at, from, size / 8);
                        });
                    });
                });
            }
            Inst::MapUpdate {
                dst,
                old,
                map,
                key,
                op,
                operand,
                width,
            } => {
                if op.divides() {
                    let by = self.value(operand);
                    let zero = self.b.ins().icmp_imm_s(IntCC::Equal, by, 0);
                    self.when(zero, |maker| maker.warn(Warning::DivisionByZero));
                }
                let result = self.with_entry(map, key, true, |maker, spot, entry| {
                    maker.live_by(spot, entry, |maker, at| {
                        let operand = maker.value(operand);
                        let was = maker.change(at, op, operand, width);
                        let value = if old {
                            was
                        } else {
                            let new = maker.operate(op, was, operand);
                            maker.extend(new, width)
                        };
                        maker.put(frame::RESULT, value);
                    });
                });
                self.set(dst, result);
            }
            Inst::Aggregate {
                map,
                key,
                agg,
                value,
            } => {
                let signed = matches!(
                    self.program.maps[map.index()].value,
                    MapValue::Agg { signed: true, .. }
                );
                self.with_entry(map, key, true, |maker, spot, entry| {
                    maker.live_by(spot, entry, |maker, at| {
                        let value = maker.value(value);
                        maker.step(agg, signed, at, value);
                    });
                });
            }
            Inst::MapDelete { dst, map, key } => {
                let result = self.with_entry(map, key, false, |maker, spot, entry| {
                    maker.take_away(spot, entry);
                });
                self.set(dst, result);
            }
            Inst::MapHas { dst, map, key } => {
                let result = self.with_entry(map, key, false, |maker, _, entry| {
                    maker.where_live(entry, |maker| {
                        let one = maker.imm(1);
                        maker.put(frame::RESULT, one);
                    });
                });
                self.set(dst, result);
            }
            Inst::MapLen { dst, map } => {
                let at = self.region(self.shared.table(map).at + LEN);
                let length = self.load(at, 0);
                self.set(dst, length);
            }
            Inst::MapNext {
                dst,
                map,
                cursor,
                key,
            } => {
                let cursor = self.value(cursor);
                let next = self.next_entry(map, cursor, key);
                self.set(dst, next);
            }
            // The others are no map's.
            _ => {}
        }
    }

    /// Runs `part` with nobody else at a value of several words.
    fn whole(&mut self, spot: &Spot, part: impl FnOnce(&mut Self)) {
        if spot.table.locked && spot.table.key_words > 0 {
            part(self);
        } else {
            self.lock(spot);
            part(self);
            self.unlock();
        }
    }

    /// Changes a value as one step; what it was.
    fn change(&mut self, at: Ssa, op: BinOp, operand: Ssa, width: Width) -> Ssa {
        if width.bytes == 8 && op == BinOp::Add {
            return self.add(at, operand);
        }
        if width.bytes == 8 && op == BinOp::Sub {
            let negated = self.b.ins().ineg(operand);
            return self.add(at, negated);
        }
        self.replace(at, |maker, old| {
            let new = maker.operate(op, old, operand);
            maker.extend(new, width)
        })
    }

    /// Replaces a shared word by what `new` makes of it, as one step; what it was.
    fn replace(&mut self, at: Ssa, new: impl FnOnce(&mut Self, Ssa) -> Ssa) -> Ssa {
        let tries = self.imm(TRIES);
        self.until(tries, |maker, _| {
            let old = maker.load(at, 0);
            let new = new(maker, old);
            let was = maker.b.ins().atomic_cas(PLAIN, at, old, new);
            maker.put(frame::WORD, was);
            maker.b.ins().icmp(IntCC::Equal, was, old)
        });
        self.word(frame::WORD)
    }

    /// One step of an aggregation on the value words at `at`.
    fn step(&mut self, agg: Agg, signed: bool, at: Ssa, value: Ssa) {
        match agg {
            Agg::Count | Agg::Sum => {
                self.add(at, value);
            }
            Agg::Avg | Agg::Stats => {
                self.add(at, value);
                let number = self.b.ins().iadd_imm_s(at, 8);
                let one = self.imm(1);
                self.add(number, one);
            }
            Agg::Min | Agg::Max => {
                let encoded = self.encode(agg, signed, value);
                self.replace(at, |maker, old| maker.b.ins().umax(old, encoded));
            }
            Agg::Hist { bits } => {
                let bucket = self.power_bucket(value, bits);
                self.add_to_bucket(at, bucket);
            }
            Agg::Lhist { min, max, step } => {
                let bucket = self.linear_bucket(value, (min, max, step));
                self.add_to_bucket(at, bucket);
            }
        }
    }

    fn add_to_bucket(&mut self, at: Ssa, bucket: Ssa) {
        let (at, one) = (self.nth(at, bucket), self.imm(1));
        self.add(at, one);
    }

    /// Least and greatest are both kept as the greatest of words in unsigned order, which a fresh
    /// entry's 0 is below of.
    fn encode(&mut self, agg: Agg, signed: bool, value: Ssa) -> Ssa {
        let flipped = if signed {
            self.b.ins().bxor_imm_s(value, i64::MIN)
        } else {
            value
        };
        if agg == Agg::Min {
            self.b.ins().bnot(flipped)
        } else {
            flipped
        }
    }

    /// What an entry amounts to as one integer.
    fn amounts_to(&mut self, of: &MapValue, values: Ssa) -> Ssa {
        let first = self.load(values, 0);
        let MapValue::Agg { agg, signed } = of else {
            return first;
        };
        match agg {
            Agg::Count | Agg::Sum => first,
            Agg::Avg | Agg::Stats => {
                let number = self.load(values, 8);
                let op = if *signed { BinOp::SDiv } else { BinOp::UDiv };
                let average = self.operate(op, first, number);
                // Set to zero by the script.
                let none = self.b.ins().icmp_imm_s(IntCC::Equal, number, 0);
                let zero = self.imm(0);
                self.b.ins().select(none, zero, average)
            }
            // Both encodings are their own inverses.
            Agg::Min | Agg::Max => {
                let inverted = if *agg == Agg::Min {
                    self.b.ins().bnot(first)
                } else {
                    first
                };
                if *signed {
                    self.b.ins().bxor_imm_s(inverted, i64::MIN)
                } else {
                    inverted
                }
            }
            Agg::Hist { .. } | Agg::Lhist { .. } => self.imm(0),
        }
    }

    /// The bucket of a histogram of powers of two, each cut into `2^bits`: as `shared::hist_buckets`
    /// counts them.
    fn power_bucket(&mut self, value: Ssa, bits: u8) -> Ssa {
        let parts = 1i64 << bits;
        let small = self.b.ins().iadd_imm_s(value, 1);
        // Of a value below `parts` the formula for powers is not used: take one that it serves.
        let bounded = self.imm(parts);
        let large = self.b.ins().smax(value, bounded);
        let zeros = self.b.ins().clz(large);
        let top = self.imm(63);
        let power = self.b.ins().isub(top, zeros);
        let shift = self.b.ins().iadd_imm_s(power, -i64::from(bits));
        let part = self.b.ins().ushr(large, shift);
        let part = self.b.ins().band_imm_s(part, parts - 1);
        let rows = self.b.ins().ishl_imm_s(shift, i64::from(bits));
        let index = self.b.ins().iadd(rows, part);
        let index = self.b.ins().iadd_imm_s(index, 1 + parts);
        let is_small = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, value, parts);
        let index = self.b.ins().select(is_small, small, index);
        let negative = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, value, 0);
        let zero = self.imm(0);
        self.b.ins().select(negative, zero, index)
    }

    /// 0 below the range, then the steps, then one above.
    fn linear_bucket(&mut self, value: Ssa, (min, max, step): (i64, i64, i64)) -> Ssa {
        let last = 1 + (max - min) / step;
        let above_min = self.b.ins().iadd_imm_s(value, min.wrapping_neg());
        let by = self.imm(step);
        let index = self.b.ins().udiv(above_min, by);
        let index = self.b.ins().iadd_imm_s(index, 1);
        let above = self
            .b
            .ins()
            .icmp_imm_s(IntCC::SignedGreaterThanOrEqual, value, max);
        let end = self.imm(last);
        let index = self.b.ins().select(above, end, index);
        let below = self.b.ins().icmp_imm_s(IntCC::SignedLessThan, value, min);
        let zero = self.imm(0);
        self.b.ins().select(below, zero, index)
    }

    /// The position behind the first live entry at or behind `cursor`, whose key is copied; 0:
    /// there is none.
    fn next_entry(&mut self, map: MapId, cursor: Ssa, key: Place) -> Ssa {
        let table = *self.shared.table(map);
        let to = self.place(key);
        let zero = self.imm(0);
        self.put(frame::RESULT, zero);
        let total = self.imm(i64::from(table.buckets) * i64::from(table.entries));
        let left = self.b.ins().isub(total, cursor);
        let left = self.b.ins().smax(left, zero);
        let first = self.region(table.bucket(0));
        let stride = (table.bucket(1) - table.bucket(0)) as i64;
        self.until(left, |maker, index| {
            let position = maker.b.ins().iadd(cursor, index);
            let entries = maker.imm(table.entries.into());
            let bucket = maker.b.ins().udiv(position, entries);
            let entry = maker.b.ins().urem(position, entries);
            let bucket = maker.b.ins().imul_imm_s(bucket, stride);
            let entry = maker.b.ins().imul_imm_s(entry, table.stride() as i64);
            let at = maker.b.ins().iadd(first, bucket);
            let at = maker.b.ins().iadd(at, entry);
            let at = maker.b.ins().iadd_imm_s(at, 8);
            let state = maker.load(at, 0);
            let live = maker
                .b
                .ins()
                .icmp_imm_s(IntCC::Equal, state, LIVE.cast_signed());
            maker.when(live, |maker| {
                let from = maker.b.ins().iadd_imm_s(at, 8);
                maker.copy_words(to, from, table.key_words);
                let behind = maker.b.ins().iadd_imm_s(position, 1);
                maker.put(frame::RESULT, behind);
            });
            maker.b.ins().uextend(types::I64, live)
        });
        self.word(frame::RESULT)
    }
}
