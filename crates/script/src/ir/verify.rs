//! Whether a program keeps the rules of the IR. Nothing is taken from the way it was made.

use std::fmt;

use super::{
    Action, Arg, BlockId, BufId, Fact, Field, FieldType, Inst, Key, MapId, MapValue, Place,
    Program, Reg, StrSource, Term, Value,
};

/// Most bytes of scratch buffers in one action.
const SCRATCH_LIMIT: u64 = 256 * 1024;

/// The rule that is broken, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerifyError {
    /// Number of the action, if it is in one.
    pub action: Option<usize>,
    /// What is wrong.
    pub rule: String,
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.action {
            Some(action) => write!(f, "action {action}: {}", self.rule),
            None => f.write_str(&self.rule),
        }
    }
}

impl std::error::Error for VerifyError {}

type Checked = Result<(), String>;

/// Accepts a program that keeps every rule of the [module](super)'s documentation.
pub fn verify(program: &Program) -> Result<(), VerifyError> {
    let tables = || -> Checked {
        for map in &program.maps {
            let end = fields(program, &map.key)?;
            ensure(end == map.key_size, || {
                format!("{}: key is {end} bytes, not {}", map.name, map.key_size)
            })?;
            if let MapValue::Field(field) = &map.value {
                fields(program, std::slice::from_ref(field))?;
            }
            ensure(map.capacity > 0, || format!("{}: no capacity", map.name))?;
        }
        program
            .formats
            .iter()
            .try_for_each(|format| fields(program, format.fields()).map(drop))
    };
    tables().map_err(|rule| VerifyError { action: None, rule })?;
    for (number, action) in program.actions.iter().enumerate() {
        check_action(program, action).map_err(|rule| VerifyError {
            action: Some(number),
            rule,
        })?;
    }
    Ok(())
}

fn ensure(holds: bool, rule: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(rule()) }
}

/// Fields follow each other without gap; returns their end.
fn fields(program: &Program, list: &[Field]) -> Result<u32, String> {
    let mut end = 0u32;
    for field in list {
        ensure(field.offset == end && field.size % 8 == 0, || {
            format!("field {field:?} does not follow byte {end}")
        })?;
        match &field.ty {
            FieldType::Tuple(inner) => {
                ensure(fields(program, inner)? == field.size, || {
                    format!("tuple {field:?} has another size")
                })?;
            }
            FieldType::Str | FieldType::Buf => {
                ensure(field.size >= 8, || format!("{field:?} is too small"))?
            }
            FieldType::Time(id) => ensure(id.index() < program.strings.len(), || {
                format!("{id:?} is not there")
            })?,
            _ => ensure(field.size == 8, || format!("{field:?} is not 8 bytes"))?,
        }
        end = end.checked_add(field.size).ok_or("fields too large")?;
    }
    Ok(end)
}

/// What is assigned at a point of the code.
#[derive(Clone, PartialEq)]
struct State {
    regs: Vec<bool>,
    bufs: Vec<bool>,
}

struct Checker<'a> {
    program: &'a Program,
    action: &'a Action,
    in_target: bool,
    state: State,
}

fn check_action(program: &Program, action: &Action) -> Checked {
    ensure(!action.blocks.is_empty(), || "no block".into())?;
    ensure(!action.points.is_empty(), || "no attach point".into())?;
    ensure(action.buffers.iter().all(|size| size % 8 == 0), || {
        "a buffer's size is no multiple of 8".into()
    })?;
    let scratch: u64 = action.buffers.iter().map(|size| u64::from(*size)).sum();
    ensure(scratch <= SCRATCH_LIMIT, || {
        format!("{scratch} bytes of scratch")
    })?;
    for id in &action.points {
        ensure(id.index() < program.points.len(), || {
            format!("{id:?} is not there")
        })?;
    }
    let in_target = program.points[action.points[0].index()].in_target();
    ensure(
        action
            .points
            .iter()
            .all(|id| program.points[id.index()].in_target() == in_target),
        || "points of both sides in one action".into(),
    )?;
    for block in &action.blocks {
        for to in successors(block.term) {
            ensure(to.index() < action.blocks.len(), || {
                format!("{to} is not there")
            })?;
            ensure(to.index() != 0, || "a jump to the entry".into())?;
        }
    }
    bounded(action)?;
    flow(program, action, in_target)
}

fn successors(term: Term) -> impl Iterator<Item = BlockId> {
    let (first, second) = match term {
        Term::Return => (None, None),
        Term::Jump(to) | Term::Loop(to) => (Some(to), None),
        Term::Branch { then, other, .. } => (Some(then), Some(other)),
    };
    first.into_iter().chain(second)
}

/// Without the loop terminators there is no cycle (Kahn's count of edges).
fn bounded(action: &Action) -> Checked {
    let edges = |at: usize| {
        let term = action.blocks[at].term;
        successors(term).filter(move |_| !matches!(term, Term::Loop(_)))
    };
    let mut incoming = vec![0usize; action.blocks.len()];
    for at in 0..action.blocks.len() {
        edges(at).for_each(|to| incoming[to.index()] += 1);
    }
    let mut ready: Vec<usize> = (0..incoming.len())
        .filter(|at| incoming[*at] == 0)
        .collect();
    let mut seen = 0;
    while let Some(at) = ready.pop() {
        seen += 1;
        for to in edges(at) {
            incoming[to.index()] -= 1;
            if incoming[to.index()] == 0 {
                ready.push(to.index());
            }
        }
    }
    ensure(seen == incoming.len(), || {
        "a cycle without loop bound".into()
    })
}

/// Assignment before use, and every instruction by itself, until nothing changes.
fn flow(program: &Program, action: &Action, in_target: bool) -> Checked {
    let none = State {
        regs: vec![false; action.regs as usize],
        bufs: vec![false; action.buffers.len()],
    };
    let mut entry: Vec<Option<State>> = vec![None; action.blocks.len()];
    entry[0] = Some(none);
    let mut work = vec![0usize];
    while let Some(at) = work.pop() {
        let Some(state) = entry[at].clone() else {
            continue;
        };
        let mut checker = Checker {
            program,
            action,
            in_target,
            state,
        };
        let block = &action.blocks[at];
        for inst in &block.insts {
            checker
                .inst(inst)
                .map_err(|rule| format!("b{at}: `{inst}`: {rule}"))?;
        }
        if let Term::Branch { cond, .. } = block.term {
            checker
                .read(cond)
                .map_err(|rule| format!("b{at}: branch: {rule}"))?;
        }
        for to in successors(block.term) {
            let slot = &mut entry[to.index()];
            let merged = match slot {
                None => checker.state.clone(),
                Some(old) => State {
                    regs: both(&old.regs, &checker.state.regs),
                    bufs: both(&old.bufs, &checker.state.bufs),
                },
            };
            if slot.as_ref() != Some(&merged) {
                *slot = Some(merged);
                work.push(to.index());
            }
        }
    }
    Ok(())
}

fn both(a: &[bool], b: &[bool]) -> Vec<bool> {
    a.iter().zip(b).map(|(a, b)| *a && *b).collect()
}

impl Checker<'_> {
    fn read(&self, value: Value) -> Checked {
        match value {
            Value::Imm(_) => Ok(()),
            Value::Reg(reg) => ensure(self.state.regs.get(reg.index()) == Some(&true), || {
                format!("{reg} is read before it is assigned")
            }),
        }
    }

    fn write(&mut self, reg: Reg) -> Checked {
        let slot = self
            .state
            .regs
            .get_mut(reg.index())
            .ok_or_else(|| format!("{reg} is not there"))?;
        *slot = true;
        Ok(())
    }

    fn bounds(&self, place: Place, size: u32) -> Checked {
        let BufId(number) = place.buf;
        let have = *self
            .action
            .buffers
            .get(number as usize)
            .ok_or_else(|| format!("{} is not there", place.buf))?;
        let end = u64::from(place.offset) + u64::from(size);
        ensure(
            place.offset.is_multiple_of(8) && end <= u64::from(have),
            || format!("{place}:{size} is outside {have} bytes"),
        )
    }

    fn bytes_in(&self, place: Place, size: u32) -> Checked {
        self.bounds(place, size)?;
        ensure(self.state.bufs[place.buf.index()], || {
            format!("{} is read before it is filled", place.buf)
        })
    }

    fn bytes_out(&mut self, place: Place, size: u32) -> Checked {
        self.bounds(place, size)?;
        self.state.bufs[place.buf.index()] = true;
        Ok(())
    }

    fn map(&self, map: MapId, key: Key) -> Result<&MapValue, String> {
        let info = self
            .program
            .maps
            .get(map.index())
            .ok_or_else(|| format!("{map} is not there"))?;
        match key {
            Key::None => ensure(info.key_size == 0, || "a key is missing".into())?,
            Key::Word(value) => {
                ensure(info.key_size == 8, || {
                    format!("the key has {} bytes", info.key_size)
                })?;
                self.read(value)?;
            }
            Key::Bytes(place) => {
                ensure(info.key_size > 0, || "the map has no key".into())?;
                self.bytes_in(place, info.key_size)?;
            }
        }
        Ok(&info.value)
    }

    fn word(&self, map: MapId, key: Key) -> Checked {
        ensure(self.map(map, key)?.is_word(), || {
            "the value is no integer".into()
        })
    }

    fn plain_word(&self, map: MapId, key: Key) -> Checked {
        let value = self.map(map, key)?;
        ensure(
            matches!(value, MapValue::Field(_)) && value.is_word(),
            || "the value is no plain integer".into(),
        )
    }

    fn plain_bytes(&self, map: MapId, key: Key, size: u32) -> Checked {
        match self.map(map, key)? {
            MapValue::Field(field) if !field.ty.is_word() && field.size == size => Ok(()),
            other => Err(format!("the value is {other:?}, not {size} bytes")),
        }
    }

    fn inst(&mut self, inst: &Inst) -> Checked {
        match *inst {
            Inst::Copy { dst, src } | Inst::Extend { dst, src, .. } => {
                self.read(src)?;
                self.write(dst)
            }
            Inst::Bin { dst, a, b, .. } => {
                self.read(a)?;
                self.read(b)?;
                self.write(dst)
            }
            Inst::Fact { dst, fact } => {
                let of_hit = matches!(fact, Fact::Arg(_) | Fact::Register(_) | Fact::Func);
                ensure(self.in_target || !of_hit, || {
                    "a fact of a hit outside the target".into()
                })?;
                ensure(!matches!(fact, Fact::Arg(10..)), || {
                    "no such argument".into()
                })?;
                self.write(dst)
            }
            Inst::Str { dst, size, source } => {
                if let StrSource::Const(id) = source {
                    ensure(id.index() < self.program.strings.len(), || {
                        format!("{id:?} is not there")
                    })?;
                }
                ensure(self.in_target || source != StrSource::Func, || {
                    "func outside the target".into()
                })?;
                self.bytes_out(dst, size)
            }
            Inst::Zero { dst, size } => self.bytes_out(dst, size),
            Inst::CopyBytes { dst, src, size } => {
                let apart = dst.buf != src.buf || dst.offset.abs_diff(src.offset) >= size;
                ensure(apart, || "source and destination overlap".into())?;
                self.bytes_in(src, size)?;
                self.bytes_out(dst, size)
            }
            Inst::CopyStr {
                dst,
                dst_size,
                src,
                src_size,
            } => {
                ensure(dst.buf != src.buf, || "text copied within a buffer".into())?;
                self.bytes_in(src, src_size)?;
                self.bytes_out(dst, dst_size)
            }
            Inst::Load { dst, src } => {
                self.bytes_in(src, 8)?;
                self.write(dst)
            }
            Inst::Store { dst, src } => {
                self.read(src)?;
                self.bytes_out(dst, 8)
            }
            Inst::ReadInt { dst, addr, width } => {
                ensure(matches!(width.bytes, 1 | 2 | 4 | 8), || {
                    "no such width".into()
                })?;
                self.read(addr)?;
                self.write(dst)
            }
            Inst::ReadStr {
                dst,
                size,
                addr,
                limit: count,
            }
            | Inst::ReadBuf {
                dst,
                size,
                addr,
                len: count,
            } => {
                self.read(addr)?;
                self.read(count)?;
                ensure(size >= 8, || "no room".into())?;
                self.bytes_out(dst, size)
            }
            Inst::ReadStrArray {
                found,
                dst,
                size,
                count,
                addr,
            } => {
                self.read(addr)?;
                self.bytes_out(dst, size.checked_mul(count).ok_or("too large")?)?;
                self.write(found)
            }
            Inst::StrLen { dst, src, size } => {
                self.bytes_in(src, size)?;
                self.write(dst)
            }
            Inst::StrCmp {
                dst,
                a,
                a_size,
                b,
                b_size,
                ..
            }
            | Inst::StrFind {
                dst,
                hay: a,
                hay_size: a_size,
                needle: b,
                needle_size: b_size,
            } => {
                self.bytes_in(a, a_size)?;
                self.bytes_in(b, b_size)?;
                self.write(dst)
            }
            Inst::BytesEq { dst, a, b, size } => {
                self.bytes_in(a, size)?;
                self.bytes_in(b, size)?;
                self.write(dst)
            }
            Inst::MapGet { dst, map, key } => {
                self.word(map, key)?;
                self.write(dst)
            }
            Inst::MapGetBytes {
                dst,
                size,
                map,
                key,
            } => {
                self.plain_bytes(map, key, size)?;
                self.bytes_out(dst, size)
            }
            Inst::MapSet { map, key, src } => {
                self.read(src)?;
                self.plain_word(map, key)
            }
            Inst::MapSetBytes {
                map,
                key,
                src,
                size,
            } => {
                self.bytes_in(src, size)?;
                self.plain_bytes(map, key, size)
            }
            Inst::MapUpdate {
                dst,
                map,
                key,
                operand,
                ..
            } => {
                self.read(operand)?;
                self.plain_word(map, key)?;
                self.write(dst)
            }
            Inst::Aggregate {
                map,
                key,
                agg,
                value,
            } => {
                self.read(value)?;
                match self.map(map, key)? {
                    MapValue::Agg { agg: of_map, .. } if *of_map == agg => Ok(()),
                    other => Err(format!("the map holds {other:?}")),
                }
            }
            Inst::MapDelete { dst, map, key } | Inst::MapHas { dst, map, key } => {
                self.map(map, key)?;
                self.write(dst)
            }
            Inst::MapLen { dst, map } => {
                ensure(map.index() < self.program.maps.len(), || {
                    format!("{map} is not there")
                })?;
                self.write(dst)
            }
            Inst::MapNext {
                dst,
                map,
                cursor,
                key,
            } => {
                self.read(cursor)?;
                let info = self
                    .program
                    .maps
                    .get(map.index())
                    .ok_or_else(|| format!("{map} is not there"))?;
                ensure(info.key_size > 0, || "the map has no key".into())?;
                self.bytes_out(key, info.key_size)?;
                self.write(dst)
            }
            Inst::Emit { format, ref args } => {
                let format = self
                    .program
                    .formats
                    .get(format.index())
                    .ok_or_else(|| format!("{format} is not there"))?;
                ensure(format.fields().len() == args.len(), || {
                    "another number of arguments".into()
                })?;
                for (field, arg) in format.fields().iter().zip(args) {
                    match *arg {
                        Arg::Value(value) => {
                            ensure(field.ty.is_word(), || {
                                format!("{field:?} is not one integer")
                            })?;
                            self.read(value)?;
                        }
                        Arg::Bytes(place) => {
                            ensure(!field.ty.is_word(), || format!("{field:?} is one integer"))?;
                            self.bytes_in(place, field.size)?;
                        }
                    }
                }
                Ok(())
            }
        }
    }
}
