//! Types of values.

use crate::ast::TypeName;
use crate::diag::{Diagnostic, nearest};
use crate::ir::{Field, FieldType, StrId, Width};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ty {
    /// Not known (an error was told, or the first use comes later).
    Unknown,
    /// No value.
    Void,
    Int(Width),
    Bool,
    Ptr(Box<Ty>),
    /// Bytes of the text, a multiple of 8.
    Str(u32),
    Buf(u32),
    Tuple(Vec<Ty>),
    Probe,
    Func,
    Username,
    Time(StrId),
}

pub(crate) const I64: Ty = int(8, true);
pub(crate) const U64: Ty = int(8, false);
pub(crate) const U32: Ty = int(4, false);

pub(crate) const fn int(bytes: u8, signed: bool) -> Ty {
    Ty::Int(Width { bytes, signed })
}

const NAMES: &[(&str, u8, bool)] = &[
    ("int8", 1, true),
    ("int16", 2, true),
    ("int32", 4, true),
    ("int64", 8, true),
    ("uint8", 1, false),
    ("uint16", 2, false),
    ("uint32", 4, false),
    ("uint64", 8, false),
    ("int8_t", 1, true),
    ("int16_t", 2, true),
    ("int32_t", 4, true),
    ("int64_t", 8, true),
    ("uint8_t", 1, false),
    ("uint16_t", 2, false),
    ("uint32_t", 4, false),
    ("uint64_t", 8, false),
    ("char", 1, true),
    ("short", 2, true),
    ("int", 4, true),
    ("long", 8, true),
    ("long long", 8, true),
    ("unsigned", 4, false),
    ("unsigned char", 1, false),
    ("unsigned short", 2, false),
    ("unsigned int", 4, false),
    ("unsigned long", 8, false),
    ("unsigned long long", 8, false),
    ("size_t", 8, false),
    ("ssize_t", 8, true),
    ("uintptr_t", 8, false),
    ("pid_t", 4, true),
];

pub(crate) fn is_type_name(word: &str) -> bool {
    matches!(
        word,
        "struct" | "union" | "enum" | "void" | "bool" | "signed" | "string"
    ) || NAMES.iter().any(|(name, ..)| *name == word)
}

pub(crate) fn resolve(ty: &TypeName) -> Result<Ty, Diagnostic> {
    let plain = match ty.name.as_str() {
        "void" if ty.stars > 0 => int(1, false),
        "bool" => Ty::Bool,
        name => match NAMES.iter().find(|(known, ..)| *known == name) {
            Some((_, bytes, signed)) => int(*bytes, *signed),
            None => {
                let named = ["struct ", "union ", "enum "]
                    .iter()
                    .any(|word| name.starts_with(word));
                let error = match named {
                    true => Diagnostic::error(ty.span, format!("`{name}` is not supported yet")),
                    false => Diagnostic::error(ty.span, format!("unknown type `{name}`")),
                };
                let near = nearest(name, NAMES.iter().map(|(known, ..)| *known));
                return Err(near.map_or(error.clone(), |near| {
                    error.hint(format!("did you mean {near}?"))
                }));
            }
        },
    };
    Ok((0..ty.stars.min(8)).fold(plain, |ty, _| Ty::Ptr(Box::new(ty))))
}

impl Ty {
    /// Whether it is one integer in a register.
    pub(crate) fn is_word(&self) -> bool {
        !matches!(self, Ty::Str(_) | Ty::Buf(_) | Ty::Tuple(_) | Ty::Void)
    }

    /// Whether arithmetic takes it.
    pub(crate) fn is_number(&self) -> bool {
        matches!(self, Ty::Int(_) | Ty::Bool | Ty::Ptr(_) | Ty::Unknown)
    }

    pub(crate) fn signed(&self) -> bool {
        matches!(self, Ty::Int(width) if width.signed) || *self == Ty::Unknown
    }

    /// Bytes in a buffer.
    pub(crate) fn size(&self) -> u32 {
        match self {
            Ty::Str(size) | Ty::Buf(size) => *size,
            Ty::Tuple(parts) => parts.iter().map(Ty::size).fold(0, u32::saturating_add),
            _ => 8,
        }
    }

    /// Whether it is small enough to be kept: a tuple of tuples grows with every statement, or every walk, without bound.
    pub(crate) fn is_modest(&self) -> bool {
        fn weigh(ty: &Ty) -> (u32, u32) {
            let Ty::Tuple(parts) = ty else { return (1, 1) };
            let inner = parts.iter().map(weigh);
            inner.fold((1, 1), |(nodes, depth), part| {
                (nodes + part.0, depth.max(part.1 + 1))
            })
        }
        let (nodes, depth) = weigh(self);
        nodes <= 256 && depth <= 12 && self.size() <= 32 * 1024
    }

    /// Bytes as `sizeof` counts.
    pub(crate) fn sizeof(&self) -> u32 {
        match self {
            Ty::Int(width) => u32::from(width.bytes),
            Ty::Bool => 1,
            other => other.size(),
        }
    }

    pub(crate) fn field(&self, offset: u32) -> Field {
        let ty = match self {
            Ty::Int(width) => FieldType::Int {
                bytes: width.bytes,
                signed: width.signed,
            },
            Ty::Unknown | Ty::Void => FieldType::Int {
                bytes: 8,
                signed: true,
            },
            Ty::Bool => FieldType::Bool,
            Ty::Ptr(_) => FieldType::Pointer,
            Ty::Str(_) => FieldType::Str,
            Ty::Buf(_) => FieldType::Buf,
            Ty::Tuple(parts) => FieldType::Tuple(fields(parts)),
            Ty::Probe => FieldType::ProbeName,
            Ty::Func => FieldType::FuncName,
            Ty::Username => FieldType::Username,
            Ty::Time(id) => FieldType::Time(*id),
        };
        Field {
            offset,
            size: self.size(),
            ty,
        }
    }

    pub(crate) fn name(&self) -> String {
        match self {
            Ty::Unknown => "unknown".into(),
            Ty::Void => "none".into(),
            Ty::Int(width) => format!(
                "{}int{}",
                if width.signed { "" } else { "u" },
                width.bytes * 8
            ),
            Ty::Bool => "bool".into(),
            Ty::Ptr(to) => format!("{}*", to.name()),
            Ty::Str(_) => "string".into(),
            Ty::Buf(_) => "buffer".into(),
            Ty::Tuple(parts) => format!(
                "({})",
                parts.iter().map(Ty::name).collect::<Vec<_>>().join(",")
            ),
            Ty::Probe => "probe".into(),
            Ty::Func => "func".into(),
            Ty::Username => "username".into(),
            Ty::Time(_) => "timestamp".into(),
        }
    }

    /// The type that holds values of both, if there is one.
    pub(crate) fn join(&self, other: &Ty) -> Option<Ty> {
        Some(match (self, other) {
            (a, b) if a == b => a.clone(),
            (Ty::Unknown, known) | (known, Ty::Unknown) => known.clone(),
            (Ty::Int(a), Ty::Int(b)) if a.signed == b.signed => int(a.bytes.max(b.bytes), a.signed),
            (Ty::Int(a), Ty::Int(b)) => {
                // signed wide enough for both, and for literals beside uint64 its bits
                let (signed, unsigned) = if a.signed { (a, b) } else { (b, a) };
                int(
                    signed.bytes.max(unsigned.bytes.saturating_mul(2)).min(8),
                    true,
                )
            }
            (Ty::Int(_), Ty::Bool) | (Ty::Bool, Ty::Int(_)) => I64,
            (Ty::Ptr(_), Ty::Int(_)) => self.clone(),
            (Ty::Int(_), Ty::Ptr(_)) => other.clone(),
            (Ty::Ptr(_), Ty::Ptr(_)) => self.clone(),
            (Ty::Str(a), Ty::Str(b)) => Ty::Str(*a.max(b)),
            (Ty::Buf(a), Ty::Buf(b)) => Ty::Buf(*a.max(b)),
            (Ty::Tuple(a), Ty::Tuple(b)) if a.len() == b.len() => Ty::Tuple(
                a.iter()
                    .zip(b)
                    .map(|(a, b)| a.join(b))
                    .collect::<Option<_>>()?,
            ),
            _ => return None,
        })
    }
}

pub(crate) fn fields(parts: &[Ty]) -> Vec<Field> {
    let mut offset = 0;
    parts
        .iter()
        .map(|part| {
            let field = part.field(offset);
            offset += field.size;
            field
        })
        .collect()
}
