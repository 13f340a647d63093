//! What a checked program is compiled to: a small instruction set that a code generator lowers into the target and an interpreter runs in the tracer.
//!
//! # Model
//! - An [`Action`] is the body of one probe block: basic blocks over virtual registers. A register holds 64 bits, may be assigned again, and is always
//!   assigned before it is read. Block 0 is the entry; it has no predecessor.
//! - Integers are kept **extended to 64 bits** by their own signedness; a narrower type shows as an [`Inst::Extend`] after the operation that made it.
//! - Strings, tuples and buffers live in numbered scratch [`Action::buffers`] of fixed size. A [`Place`] is a byte offset into one. Nothing else is memory:
//!   there are no addresses of buffers, so no instruction can reach outside.
//! - Memory of the target is read by `Read*` instructions only. They never fault: an unread value is zero or empty and counts as
//!   [`Warning::Unreadable`].
//! - Every cycle passes a [`Term::Loop`], and each pass takes one of the action's [`Action::fuel`]. None left: the action ends there and counts as
//!   [`Warning::Fuel`]. So an action always ends.
//! - Output and everything else that the tracer does is [`Inst::Emit`]: a record of typed fields whose [`Format`] says what to do with them.
//!
//! # Layout of values in buffers, keys, map values and records
//! A [`Field`] says where and what. All fields begin at a multiple of 8.
//! - Integers, booleans, pointers and ids: 8 bytes, native order, extended as above. Their printed width is in the type.
//! - [`FieldType::Str`]: `size` bytes, zero from the end of the text on. A text without a zero byte was cut, and prints with the trailer of the
//!   configuration. Zero padding makes equal texts equal bytes.
//! - [`FieldType::Buf`]: the length as 8 bytes, then `size - 8` bytes, zero behind the length.
//! - [`FieldType::Tuple`]: its fields, offsets from the tuple's begin.
//!
//! [`verify`](fn@verify) checks all of this; a code generator may rely on what it accepted.

mod cheap;
mod eval;
mod inst;
mod program;
mod text;
mod verify;

#[cfg(test)]
mod tests;

pub use cheap::{Cheap, CheapKey};
pub use inst::{
    Agg, Arg, BinOp, BlockId, BufId, Clock, Fact, FormatId, Inst, Key, MapId, Place, PointId, Reg,
    StrId, StrSource, Term, Value, Width,
};
pub use program::{
    Action, Block, Config, Field, FieldType, Format, Function, Hoist, Map, MapKind, MapValue,
    MissingProbes, Piece, Point, Program, Warning,
};
pub use verify::{VerifyError, verify};
