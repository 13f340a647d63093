//! Texts, tuples and other values in buffers.

use super::Lower;
use super::build::{At, Val};
use crate::diag::Span;
use crate::ir::{BinOp, Inst, Place, StrSource, Value};
use crate::types::Ty;

pub(super) fn behind(place: Place, bytes: u32) -> Place {
    Place {
        offset: place.offset + bytes,
        ..place
    }
}

impl Lower<'_> {
    pub(super) fn text(&mut self, size: u32, source: StrSource) -> Val {
        let dst = self.b.temp(size);
        self.b.push(Inst::Str { dst, size, source });
        Val::bytes(Ty::Str(size), dst)
    }

    /// The value into memory of a type that holds it (`Ty::join` of its own and another).
    pub(super) fn store(&mut self, val: &Val, dst: Place, ty: &Ty) {
        match (val.at, &val.ty, ty) {
            (At::Bytes(src), Ty::Str(src_size), Ty::Str(dst_size)) if src_size != dst_size => {
                self.b.push(Inst::CopyStr {
                    dst,
                    dst_size: *dst_size,
                    src,
                    src_size: *src_size,
                });
            }
            (At::Bytes(src), Ty::Tuple(parts), Ty::Tuple(wanted))
                if val.ty != *ty && parts.len() == wanted.len() =>
            {
                let (mut from, mut to) = (0, 0);
                for (part, wanted) in parts.iter().zip(wanted) {
                    let part_val = self.load(part, behind(src, from));
                    self.store(&part_val, behind(dst, to), wanted);
                    from += part.size();
                    to += wanted.size();
                }
            }
            (At::Bytes(src), have, wanted) => {
                let size = have.size().min(wanted.size());
                if size < wanted.size() {
                    self.b.push(Inst::Zero {
                        dst,
                        size: wanted.size(),
                    });
                }
                self.b.push(Inst::CopyBytes { dst, src, size });
            }
            (_, _, wanted) if wanted.is_word() || *wanted == Ty::Void => self.b.push(Inst::Store {
                dst,
                src: val.value(),
            }),
            // an error was told, or a later walk knows better
            (_, _, wanted) => self.b.push(Inst::Zero {
                dst,
                size: wanted.size(),
            }),
        }
    }

    /// Where the value lies as this type: where it is already, else a copy that lives as long as the statement.
    pub(super) fn fit(&mut self, val: &Val, ty: &Ty) -> Place {
        match val.at {
            At::Bytes(place) if val.ty == *ty => place,
            _ => {
                let dst = self.b.temp(ty.size());
                self.store(val, dst, ty);
                dst
            }
        }
    }

    /// The value of the type that lies at the place.
    pub(super) fn load(&mut self, ty: &Ty, src: Place) -> Val {
        if ty.is_word() {
            let value = self.b.def(|dst| Inst::Load { dst, src });
            Val::word(ty.clone(), value)
        } else {
            Val::bytes(ty.clone(), src)
        }
    }

    /// A tuple of the values.
    pub(super) fn tuple(&mut self, vals: &[Val], span: Span) -> Val {
        let ty = Ty::Tuple(vals.iter().map(|val| val.ty.clone()).collect());
        if !ty.is_modest() {
            self.error(
                span,
                "the tuple is too large: at most 256 elements, 12 deep, 32768 bytes",
            );
            return Val::unknown();
        }
        let dst = self.b.temp(ty.size());
        let mut offset = 0;
        for val in vals {
            self.store(val, behind(dst, offset), &val.ty);
            offset += val.ty.size();
        }
        if vals.is_empty() {
            self.b.push(Inst::Zero { dst, size: 0 });
        }
        Val::bytes(ty, dst)
    }

    /// Probe and func as texts, for comparisons and searches.
    pub(super) fn as_text(&mut self, val: Val) -> Val {
        let size = 256;
        match val.ty {
            Ty::Probe => self.text(size, StrSource::Probe),
            Ty::Func => self.text(size, StrSource::Func),
            _ => val,
        }
    }

    /// Text arguments: place and size.
    pub(super) fn text_arg(&mut self, val: Val, span: Span, of: &str) -> Option<(Place, u32)> {
        let val = self.as_text(val);
        match (&val.ty, val.at) {
            (Ty::Str(size), At::Bytes(place)) => Some((place, *size)),
            (Ty::Unknown, _) => None,
            (ty, _) => {
                self.error(span, format!("{of} takes a string, this is {}", ty.name()));
                None
            }
        }
    }

    /// 0 or 1 for `==` and `!=` of values in buffers.
    pub(super) fn equal(&mut self, a: Val, b: Val, negate: bool, span: Span) -> Val {
        let (a, b) = (self.as_text(a), self.as_text(b));
        let zero = match (&a.ty, a.at, &b.ty, b.at) {
            (Ty::Str(a_size), At::Bytes(pa), Ty::Str(b_size), At::Bytes(pb)) => {
                let (a_size, b_size) = (*a_size, *b_size);
                self.b.def(|dst| Inst::StrCmp {
                    dst,
                    a: pa,
                    a_size,
                    b: pb,
                    b_size,
                    limit: u32::MAX,
                })
            }
            (Ty::Unknown, ..) | (_, _, Ty::Unknown, _) => Value::Imm(0),
            _ => match (a.ty.join(&b.ty), a.at, b.at) {
                (Some(ty), At::Bytes(_), At::Bytes(_)) => {
                    let size = ty.size();
                    let (pa, pb) = (self.fit(&a, &ty), self.fit(&b, &ty));
                    let same = self.b.def(|dst| Inst::BytesEq {
                        dst,
                        a: pa,
                        b: pb,
                        size,
                    });
                    self.b.bin(BinOp::Xor, same, Value::Imm(1))
                }
                _ => {
                    self.error(
                        span,
                        format!("cannot compare {} with {}", a.ty.name(), b.ty.name()),
                    );
                    Value::Imm(0)
                }
            },
        };
        let op = if negate { BinOp::Ne } else { BinOp::Eq };
        Val::word(Ty::Bool, self.b.bin(op, zero, Value::Imm(0)))
    }
}
