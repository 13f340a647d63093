//! The readable form, as `-d` shows it.

use std::fmt::{Display, Formatter, Result};

use super::{
    Action, Arg, BlockId, BufId, FormatId, Inst, Key, MapId, Place, Program, Reg, StrSource, Term,
    Value,
};

macro_rules! prefixed {
    ($($name:ident $prefix:literal)*) => { $(
        impl Display for $name {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result { write!(f, concat!($prefix, "{}"), self.0) }
        }
    )* };
}
prefixed!(Reg "%" BlockId "b" BufId "buf" MapId "map" FormatId "fmt");

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Value::Reg(reg) => reg.fmt(f),
            Value::Imm(constant) => constant.fmt(f),
        }
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}+{}", self.buf, self.offset)
    }
}

impl Display for Key {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Key::None => Ok(()),
            Key::Word(value) => write!(f, "[{value}]"),
            Key::Bytes(place) => write!(f, "[{place}]"),
        }
    }
}

impl Display for Arg {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Arg::Value(value) => value.fmt(f),
            Arg::Bytes(place) => place.fmt(f),
        }
    }
}

impl Display for Inst {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Inst::Copy { dst, src } => write!(f, "{dst} = {src}"),
            Inst::Bin { dst, op, a, b } => {
                write!(f, "{dst} = {} {a}, {b}", format!("{op:?}").to_lowercase())
            }
            Inst::Extend { dst, src, width } => {
                write!(
                    f,
                    "{dst} = {}{} {src}",
                    if width.signed { "sext" } else { "zext" },
                    width.bytes * 8
                )
            }
            Inst::Fact { dst, fact } => write!(f, "{dst} = fact {fact:?}"),
            Inst::Str {
                dst,
                size,
                source: StrSource::Const(id),
            } => write!(f, "{dst}:{size} = str #{}", id.0),
            Inst::Str { dst, size, source } => write!(f, "{dst}:{size} = str {source:?}"),
            Inst::Zero { dst, size } => write!(f, "{dst}:{size} = zero"),
            Inst::CopyBytes { dst, src, size } => write!(f, "{dst}:{size} = bytes {src}"),
            Inst::CopyStr {
                dst,
                dst_size,
                src,
                src_size,
            } => write!(f, "{dst}:{dst_size} = text {src}:{src_size}"),
            Inst::Load { dst, src } => write!(f, "{dst} = load {src}"),
            Inst::Store { dst, src } => write!(f, "store {dst}, {src}"),
            Inst::ReadInt { dst, addr, width } => {
                write!(
                    f,
                    "{dst} = read {}{} [{addr}]",
                    if width.signed { "i" } else { "u" },
                    width.bytes * 8
                )
            }
            Inst::ReadStr {
                dst,
                size,
                addr,
                limit,
            } => write!(f, "{dst}:{size} = readstr [{addr}], {limit}"),
            Inst::ReadBuf {
                dst,
                size,
                addr,
                len,
            } => write!(f, "{dst}:{size} = readbuf [{addr}], {len}"),
            Inst::ReadStrArray {
                found,
                dst,
                size,
                count,
                addr,
            } => {
                write!(f, "{found}, {dst}:{size}x{count} = readargv [{addr}]")
            }
            Inst::StrLen { dst, src, size } => write!(f, "{dst} = strlen {src}:{size}"),
            Inst::StrCmp {
                dst,
                a,
                a_size,
                b,
                b_size,
                limit,
            } => {
                write!(f, "{dst} = strcmp {a}:{a_size}, {b}:{b_size}, {limit}")
            }
            Inst::StrFind {
                dst,
                hay,
                hay_size,
                needle,
                needle_size,
            } => {
                write!(
                    f,
                    "{dst} = strfind {hay}:{hay_size}, {needle}:{needle_size}"
                )
            }
            Inst::BytesEq { dst, a, b, size } => write!(f, "{dst} = byteseq {a}, {b}, {size}"),
            Inst::MapGet { dst, map, key } => write!(f, "{dst} = get {map}{key}"),
            Inst::MapGetBytes {
                dst,
                size,
                map,
                key,
            } => write!(f, "{dst}:{size} = get {map}{key}"),
            Inst::MapSet { map, key, src } => write!(f, "set {map}{key}, {src}"),
            Inst::MapSetBytes {
                map,
                key,
                src,
                size,
            } => write!(f, "set {map}{key}, {src}:{size}"),
            Inst::MapUpdate {
                dst,
                old,
                map,
                key,
                op,
                operand,
                width,
            } => write!(
                f,
                "{dst} = {} {map}{key} {} {operand} as {}{}",
                if *old { "update.old" } else { "update" },
                format!("{op:?}").to_lowercase(),
                if width.signed { "i" } else { "u" },
                width.bytes * 8
            ),
            Inst::Aggregate {
                map,
                key,
                agg,
                value,
            } => write!(f, "aggregate {map}{key}, {agg:?} {value}"),
            Inst::MapDelete { dst, map, key } => write!(f, "{dst} = delete {map}{key}"),
            Inst::MapHas { dst, map, key } => write!(f, "{dst} = has {map}{key}"),
            Inst::MapLen { dst, map } => write!(f, "{dst} = len {map}"),
            Inst::MapNext {
                dst,
                map,
                cursor,
                key,
            } => write!(f, "{dst}, {key} = next {map} from {cursor}"),
            Inst::Emit { format, args } => {
                write!(f, "emit {format}")?;
                for (at, arg) in args.iter().enumerate() {
                    write!(f, "{} {arg}", if at == 0 { "" } else { "," })?;
                }
                Ok(())
            }
        }
    }
}

impl Display for Term {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Term::Return => write!(f, "return"),
            Term::Jump(to) => write!(f, "jump {to}"),
            Term::Branch { cond, then, other } => write!(f, "branch {cond}, {then}, {other}"),
            Term::Loop(to) => write!(f, "loop {to}"),
        }
    }
}

impl Display for Action {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for condition in &self.hoist {
            writeln!(f, "  hoist {condition:?}")?;
        }
        for (at, size) in self.buffers.iter().enumerate() {
            writeln!(f, "  buf{at}: {size} bytes")?;
        }
        for (at, block) in self.blocks.iter().enumerate() {
            writeln!(f, "b{at}:")?;
            for inst in &block.insts {
                writeln!(f, "  {inst}")?;
            }
            writeln!(f, "  {}", block.term)?;
        }
        Ok(())
    }
}

impl Display for Program {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        for (at, map) in self.maps.iter().enumerate() {
            write!(
                f,
                "map{at} {}: {:?} key {} bytes (",
                map.name, map.kind, map.key_size
            )?;
            for (at, field) in map.key.iter().enumerate() {
                write!(f, "{}{:?}", if at == 0 { "" } else { ", " }, field.ty)?;
            }
            write!(f, "), up to {}: ", map.capacity)?;
            match &map.value {
                super::MapValue::Field(field) => {
                    writeln!(f, "{:?} {} bytes", field.ty, field.size)?
                }
                super::MapValue::Agg { agg, signed } => {
                    writeln!(f, "{agg:?}{}", if *signed { " signed" } else { "" })?
                }
            }
        }
        for (at, text) in self.strings.iter().enumerate() {
            writeln!(f, "#{at} {text:?}")?;
        }
        for (at, format) in self.formats.iter().enumerate() {
            writeln!(f, "fmt{at} {format:?}")?;
        }
        for action in &self.actions {
            let names: Vec<_> = action
                .points
                .iter()
                .map(|id| self.points[id.index()].spelling())
                .collect();
            writeln!(f, "{} (fuel {})", names.join(","), action.fuel)?;
            write!(f, "{action}")?;
        }
        Ok(())
    }
}
