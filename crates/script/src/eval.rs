//! The IR, run one instruction after the other: how BEGIN, END and interval blocks run in the tracer.
//!
//! What an action touches is behind [`Host`]; registers, buffers, texts, loops and fuel are here. The program must be one that
//! [`verify`](crate::ir::verify) accepts: on others it panics.

use crate::ir::{
    Action, Agg, Arg, BlockId, Fact, FormatId, Inst, Key, MapId, Place, Program, Reg, StrSource,
    Term, Value, Warning, Width,
};

/// What surrounds an action. Keys and values are bytes in the layout of the program's tables.
pub trait Host {
    /// The fact's value.
    fn fact(&mut self, fact: Fact) -> i64;
    /// The text, except constants, which are not asked for.
    fn text(&mut self, source: StrSource) -> Vec<u8>;
    /// Memory at the address into the buffer, as much as can be read; how many bytes from its begin that is. Never faults.
    fn read(&mut self, addr: u64, into: &mut [u8]) -> usize;
    /// The entry as an integer, of an aggregation what it amounts to; 0 if there is none.
    fn map_word(&mut self, map: MapId, key: &[u8]) -> i64;
    /// The entry's bytes.
    fn map_bytes(&mut self, map: MapId, key: &[u8]) -> Option<Vec<u8>>;
    /// The entry becomes these bytes (8 for an integer).
    fn map_set(&mut self, map: MapId, key: &[u8], value: &[u8]);
    /// The integer entry becomes what the function makes of it, as one step; the old and the new value.
    fn map_update(&mut self, map: MapId, key: &[u8], change: &dyn Fn(i64) -> i64) -> (i64, i64);
    /// One step of an aggregation.
    fn aggregate(&mut self, map: MapId, key: &[u8], agg: Agg, value: i64);
    /// Takes the entry away; whether it was there.
    fn map_delete(&mut self, map: MapId, key: &[u8]) -> bool;
    /// Whether the entry is there.
    fn map_has(&mut self, map: MapId, key: &[u8]) -> bool;
    /// Number of entries.
    fn map_len(&mut self, map: MapId) -> u64;
    /// The first entry at or behind the position: the position behind it and its key.
    fn map_next(&mut self, map: MapId, cursor: u64) -> Option<(u64, Vec<u8>)>;
    /// A record.
    fn emit(&mut self, format: FormatId, record: &[u8]);
    /// Something went less than well.
    fn warn(&mut self, warning: Warning);
}

/// Runs the action to its end.
pub fn run(program: &Program, action: &Action, host: &mut dyn Host) {
    let mut machine = Machine {
        program,
        host,
        regs: vec![0; action.regs as usize],
        buffers: action
            .buffers
            .iter()
            .map(|size| vec![0; *size as usize])
            .collect(),
    };
    let mut fuel = action.fuel;
    let mut at = BlockId(0);
    loop {
        let block = action.block(at);
        block.insts.iter().for_each(|inst| machine.inst(inst));
        at = match block.term {
            Term::Return => return,
            Term::Jump(to) => to,
            Term::Branch { cond, then, other } => {
                if machine.value(cond) != 0 {
                    then
                } else {
                    other
                }
            }
            Term::Loop(_) if fuel == 0 => return machine.host.warn(Warning::Fuel),
            Term::Loop(to) => {
                fuel -= 1;
                to
            }
        };
    }
}

struct Machine<'a> {
    program: &'a Program,
    host: &'a mut dyn Host,
    regs: Vec<i64>,
    buffers: Vec<Vec<u8>>,
}

fn text_of(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len())]
}

impl Machine<'_> {
    fn value(&self, value: Value) -> i64 {
        match value {
            Value::Imm(value) => value,
            Value::Reg(reg) => self.regs[reg.index()],
        }
    }

    fn set(&mut self, reg: Reg, value: i64) {
        self.regs[reg.index()] = value;
    }

    fn bytes(&self, place: Place, size: u32) -> &[u8] {
        &self.buffers[place.buf.index()][place.offset as usize..][..size as usize]
    }

    /// The bytes, and zeros up to `size`.
    fn fill(&mut self, place: Place, size: u32, bytes: &[u8]) {
        let dst = &mut self.buffers[place.buf.index()][place.offset as usize..][..size as usize];
        let len = bytes.len().min(dst.len());
        dst[..len].copy_from_slice(&bytes[..len]);
        dst[len..].fill(0);
    }

    fn key(&self, map: MapId, key: Key) -> Vec<u8> {
        match key {
            Key::None => Vec::new(),
            Key::Word(value) => self.value(value).to_ne_bytes().to_vec(),
            Key::Bytes(place) => self
                .bytes(place, self.program.maps[map.index()].key_size)
                .to_vec(),
        }
    }

    fn read_word(&mut self, addr: i64, width: Width) -> i64 {
        let mut bytes = [0; 8];
        let len = usize::from(width.bytes);
        if self.host.read(addr as u64, &mut bytes[..len]) < len {
            self.host.warn(Warning::Unreadable);
            return 0;
        }
        // the low bytes come first on every supported machine
        width.extend(i64::from_le_bytes(bytes))
    }

    /// The text at the address, of at most `size` bytes.
    fn read_text(&mut self, addr: i64, size: usize) -> Vec<u8> {
        let mut bytes = vec![0; size];
        let read = self.host.read(addr as u64, &mut bytes);
        let text = text_of(&bytes[..read]).to_vec();
        if text.len() == read && read < size {
            self.host.warn(Warning::Unreadable);
            return Vec::new();
        }
        text
    }

    fn inst(&mut self, inst: &Inst) {
        match *inst {
            Inst::Copy { dst, src } => self.set(dst, self.value(src)),
            Inst::Bin { dst, op, a, b } => {
                let (a, b) = (self.value(a), self.value(b));
                if op.divides() && b == 0 {
                    self.host.warn(Warning::DivisionByZero);
                }
                self.set(dst, op.eval(a, b));
            }
            Inst::Extend { dst, src, width } => self.set(dst, width.extend(self.value(src))),
            Inst::Fact { dst, fact } => {
                let value = self.host.fact(fact);
                self.set(dst, value);
            }
            Inst::Str { dst, size, source } => {
                let text = match source {
                    StrSource::Const(id) => self.program.strings[id.index()].clone().into_bytes(),
                    source => self.host.text(source),
                };
                self.fill(dst, size, &text);
            }
            Inst::Zero { dst, size } => self.fill(dst, size, &[]),
            Inst::CopyBytes { dst, src, size } => {
                let bytes = self.bytes(src, size).to_vec();
                self.fill(dst, size, &bytes);
            }
            Inst::CopyStr {
                dst,
                dst_size,
                src,
                src_size,
            } => {
                let text = text_of(self.bytes(src, src_size)).to_vec();
                self.fill(dst, dst_size, &text);
            }
            Inst::Load { dst, src } => {
                let bytes = self.bytes(src, 8).try_into().expect("eight bytes");
                self.set(dst, i64::from_ne_bytes(bytes));
            }
            Inst::Store { dst, src } => {
                let bytes = self.value(src).to_ne_bytes();
                self.fill(dst, 8, &bytes);
            }
            Inst::ReadInt { dst, addr, width } => {
                let value = self.read_word(self.value(addr), width);
                self.set(dst, value);
            }
            Inst::ReadStr {
                dst,
                size,
                addr,
                limit,
            } => {
                let limit = self.value(limit) as u64;
                let most = if limit > u64::from(size) {
                    u64::from(size)
                } else {
                    limit
                };
                let mut text = if most == 0 {
                    Vec::new()
                } else {
                    self.read_text(self.value(addr), most as usize)
                };
                if limit < u64::from(size) {
                    text.truncate((limit as usize).saturating_sub(1));
                }
                self.fill(dst, size, &text);
            }
            Inst::ReadBuf {
                dst,
                size,
                addr,
                len,
            } => {
                let most = (self.value(len).max(0) as u64).min(u64::from(size) - 8) as usize;
                let mut bytes = vec![0; 8 + most];
                let read = self.host.read(self.value(addr) as u64, &mut bytes[8..]);
                if read < most {
                    self.host.warn(Warning::Unreadable);
                    bytes.clear();
                } else {
                    bytes[..8].copy_from_slice(&(most as u64).to_ne_bytes());
                }
                self.fill(dst, size, &bytes);
            }
            Inst::ReadStrArray {
                found,
                dst,
                size,
                count,
                addr,
            } => {
                let addr = self.value(addr);
                let pointer = Width {
                    bytes: 8,
                    signed: false,
                };
                self.fill(dst, size * count, &[]);
                let mut number = 0;
                while number < count {
                    let text = self.read_word(addr.wrapping_add(i64::from(number) * 8), pointer);
                    if text == 0 {
                        break;
                    }
                    let text = self.read_text(text, size as usize);
                    self.fill(
                        Place {
                            offset: dst.offset + number * size,
                            ..dst
                        },
                        size,
                        &text,
                    );
                    number += 1;
                }
                self.set(found, i64::from(number));
            }
            Inst::StrLen { dst, src, size } => {
                self.set(dst, text_of(self.bytes(src, size)).len() as i64)
            }
            Inst::StrCmp {
                dst,
                a,
                a_size,
                b,
                b_size,
                limit,
            } => {
                let (a, b) = (
                    text_of(self.bytes(a, a_size)),
                    text_of(self.bytes(b, b_size)),
                );
                let byte = |text: &[u8], at: usize| text.get(at).copied().map_or(0, i64::from);
                let most = a.len().max(b.len()).min(limit as usize);
                let difference = (0..most)
                    .map(|at| byte(a, at) - byte(b, at))
                    .find(|difference| *difference != 0);
                self.set(dst, difference.unwrap_or(0));
            }
            Inst::StrFind {
                dst,
                hay,
                hay_size,
                needle,
                needle_size,
            } => {
                let (hay, needle) = (
                    text_of(self.bytes(hay, hay_size)),
                    text_of(self.bytes(needle, needle_size)),
                );
                let at = if needle.is_empty() {
                    Some(0)
                } else {
                    hay.windows(needle.len()).position(|part| part == needle)
                };
                self.set(dst, at.map_or(-1, |at| at as i64));
            }
            Inst::BytesEq { dst, a, b, size } => {
                let same = self.bytes(a, size) == self.bytes(b, size);
                self.set(dst, i64::from(same));
            }
            Inst::Emit { format, ref args } => {
                let fields = self.program.formats[format.index()].fields();
                let mut record = Vec::new();
                for (field, arg) in fields.iter().zip(args) {
                    match *arg {
                        Arg::Value(value) => record.extend(self.value(value).to_ne_bytes()),
                        Arg::Bytes(place) => {
                            record.extend_from_slice(self.bytes(place, field.size))
                        }
                    }
                }
                self.host.emit(format, &record);
            }
            _ => self.map_inst(inst),
        }
    }

    fn map_inst(&mut self, inst: &Inst) {
        match *inst {
            Inst::MapGet { dst, map, key } => {
                let value = self.host.map_word(map, &self.key(map, key));
                self.set(dst, value);
            }
            Inst::MapGetBytes {
                dst,
                size,
                map,
                key,
            } => {
                let bytes = self
                    .host
                    .map_bytes(map, &self.key(map, key))
                    .unwrap_or_default();
                self.fill(dst, size, &bytes);
            }
            Inst::MapSet { map, key, src } => {
                let value = self.value(src).to_ne_bytes();
                self.host.map_set(map, &self.key(map, key), &value);
            }
            Inst::MapSetBytes {
                map,
                key,
                src,
                size,
            } => {
                let value = self.bytes(src, size).to_vec();
                self.host.map_set(map, &self.key(map, key), &value);
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
                let operand = self.value(operand);
                if op.divides() && operand == 0 {
                    self.host.warn(Warning::DivisionByZero);
                }
                let change = |value| width.extend(op.eval(value, operand));
                let (before, after) = self.host.map_update(map, &self.key(map, key), &change);
                self.set(dst, if old { before } else { after });
            }
            Inst::Aggregate {
                map,
                key,
                agg,
                value,
            } => {
                let value = self.value(value);
                self.host.aggregate(map, &self.key(map, key), agg, value);
            }
            Inst::MapDelete { dst, map, key } => {
                let was = self.host.map_delete(map, &self.key(map, key));
                self.set(dst, i64::from(was));
            }
            Inst::MapHas { dst, map, key } => {
                let is = self.host.map_has(map, &self.key(map, key));
                self.set(dst, i64::from(is));
            }
            Inst::MapLen { dst, map } => {
                let len = self.host.map_len(map);
                self.set(dst, len as i64);
            }
            Inst::MapNext {
                dst,
                map,
                cursor,
                key,
            } => {
                let cursor = self.value(cursor) as u64;
                let size = self.program.maps[map.index()].key_size;
                let (next, bytes) = self.host.map_next(map, cursor).unwrap_or_default();
                if next != 0 {
                    self.fill(key, size, &bytes);
                }
                self.set(dst, next as i64);
            }
            // the others are no map's
            _ => {}
        }
    }
}
