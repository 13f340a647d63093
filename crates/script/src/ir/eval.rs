//! What operators and widths amount to; the code generator, the interpreter and constant folding agree on it.

use super::{BinOp, Width};

impl BinOp {
    /// The result, by the rules of each operator's documentation.
    pub fn eval(self, a: i64, b: i64) -> i64 {
        let (ua, ub) = (a as u64, b as u64);
        match self {
            BinOp::Add => a.wrapping_add(b),
            BinOp::Sub => a.wrapping_sub(b),
            BinOp::Mul => a.wrapping_mul(b),
            BinOp::SDiv | BinOp::UDiv | BinOp::SRem | BinOp::URem if b == 0 => 1,
            BinOp::SDiv => a.wrapping_div(b),
            BinOp::UDiv => (ua / ub) as i64,
            BinOp::SRem => a.wrapping_rem(b),
            BinOp::URem => (ua % ub) as i64,
            BinOp::And => a & b,
            BinOp::Or => a | b,
            BinOp::Xor => a ^ b,
            BinOp::Shl => a << (b & 63),
            BinOp::LShr => (ua >> (b & 63)) as i64,
            BinOp::AShr => a >> (b & 63),
            BinOp::Eq => i64::from(a == b),
            BinOp::Ne => i64::from(a != b),
            BinOp::SLt => i64::from(a < b),
            BinOp::SLe => i64::from(a <= b),
            BinOp::ULt => i64::from(ua < ub),
            BinOp::ULe => i64::from(ua <= ub),
        }
    }

    /// Whether a zero divisor is counted.
    pub fn divides(self) -> bool {
        matches!(self, BinOp::SDiv | BinOp::UDiv | BinOp::SRem | BinOp::URem)
    }
}

impl Width {
    /// The low bytes of the value, extended.
    pub fn extend(self, value: i64) -> i64 {
        match (self.bytes, self.signed) {
            (1, true) => i64::from(value as i8),
            (1, false) => i64::from(value as u8),
            (2, true) => i64::from(value as i16),
            (2, false) => i64::from(value as u16),
            (4, true) => i64::from(value as i32),
            (4, false) => i64::from(value as u32),
            _ => value,
        }
    }
}
