//! Registers, instructions and terminators.

macro_rules! id {
    ($($(#[$doc:meta])* $name:ident)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub u32);
        impl $name {
            /// The number as an index into its table.
            pub fn index(self) -> usize { self.0 as usize }
        }
    )* };
}

id! {
    /// A virtual register of the action; `0..Action::regs`.
    Reg
    /// A block of the action.
    BlockId
    /// A scratch buffer of the action.
    BufId
    /// An entry of `Program::maps`.
    MapId
    /// An entry of `Program::formats`.
    FormatId
    /// An entry of `Program::strings`.
    StrId
    /// An entry of `Program::points`.
    PointId
}

/// An operand: a register, or a constant of 64 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// What the register holds.
    Reg(Reg),
    /// The constant.
    Imm(i64),
}

/// Bytes in a scratch buffer, from `offset` on; how many is said by the user of the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The buffer.
    pub buf: BufId,
    /// Bytes from its begin, a multiple of 8.
    pub offset: u32,
}

/// How an integer narrower than 64 bits is read or extended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Width {
    /// 1, 2, 4 or 8.
    pub bytes: u8,
    /// Whether the top bit is copied upwards.
    pub signed: bool,
}

/// `dst = a op b` over 64 bits, wrapping. Comparisons give 0 or 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BinOp {
    /// Sum.
    Add,
    /// Difference.
    Sub,
    /// Product.
    Mul,
    /// Signed quotient. By zero: 1, counts as `Warning::DivisionByZero`. The least integer by -1 is itself.
    SDiv,
    /// Unsigned quotient. By zero: 1, counted.
    UDiv,
    /// Signed remainder, sign of the dividend. By zero: 1, counted. By -1: 0.
    SRem,
    /// Unsigned remainder. By zero: 1, counted.
    URem,
    /// Bitwise and.
    And,
    /// Bitwise or.
    Or,
    /// Bitwise exclusive or.
    Xor,
    /// Shift left by `b & 63`.
    Shl,
    /// Shift right by `b & 63`, zeros from above.
    LShr,
    /// Shift right by `b & 63`, copies of the top bit from above.
    AShr,
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Signed less.
    SLt,
    /// Signed less or equal.
    SLe,
    /// Unsigned less.
    ULt,
    /// Unsigned less or equal.
    ULe,
}

/// A clock, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Clock {
    /// CLOCK_BOOTTIME: what `nsecs` is.
    Boot,
    /// CLOCK_MONOTONIC.
    Monotonic,
    /// CLOCK_TAI.
    Tai,
    /// Boot time since the program began: `elapsed`.
    Elapsed,
}

/// An integer that the surroundings of a hit give. All are zero-extended. Facts of a tracer-side action are the tracer's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fact {
    /// Process id in the tracer's namespace.
    Pid,
    /// Thread id in the tracer's namespace.
    Tid,
    /// Real user id.
    Uid,
    /// Real group id.
    Gid,
    /// Number of the CPU.
    Cpu,
    /// Number of CPUs that are online.
    Ncpus,
    /// A random number of 32 bits.
    Rand,
    /// A clock.
    Nsecs(Clock),
    /// Argument `n` (0..=9) by the calling convention, at the function's entry. Uprobe actions only.
    Arg(u8),
    /// Register of the architecture by the kernel's name (`ax`, `ip`, `r10` ...), an entry of [`crate::REGISTERS`]. Uprobe actions only.
    Register(&'static str),
    /// Id of the attach point that was hit: the point's number in the session, printed by `FieldType::ProbeName`.
    Probe,
    /// Id of the function that was hit, printed by `FieldType::FuncName`. Uprobe actions only.
    Func,
}

/// A text that [`Inst::Str`] puts into a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StrSource {
    /// A constant.
    Const(StrId),
    /// Name of the thread (16 bytes with the zero).
    Comm,
    /// Spelling of the attach point.
    Probe,
    /// Name of the function.
    Func,
}

/// Which entry of a map is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// The only one: the map has no key.
    None,
    /// The key is one integer (`Map::key_size` is 8).
    Word(Value),
    /// `Map::key_size` bytes from the place on.
    Bytes(Place),
}

/// What one step of an aggregation does. What it needs besides the value (buckets) is in the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Agg {
    /// One more.
    Count,
    /// Sum.
    Sum,
    /// Sum and number, shown as average.
    Avg,
    /// Least; signedness is the map's.
    Min,
    /// Greatest; signedness is the map's.
    Max,
    /// Number, average, total.
    Stats,
    /// Powers of two, each cut in 2^bits parts (0..=5).
    Hist {
        /// Log2 of the parts.
        bits: u8,
    },
    /// Equal buckets, one below and one above.
    Lhist {
        /// Begin of the first bucket.
        min: i64,
        /// End of the last bucket.
        max: i64,
        /// Width of a bucket, positive.
        step: i64,
    },
}

/// An argument of [`Inst::Emit`]; which of the two follows from the field's type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arg {
    /// An integer.
    Value(Value),
    /// `Field::size` bytes from the place on.
    Bytes(Place),
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are what the variant's text names
pub enum Inst {
    /// `dst = src`.
    Copy { dst: Reg, src: Value },
    /// `dst = a op b`.
    Bin {
        dst: Reg,
        op: BinOp,
        a: Value,
        b: Value,
    },
    /// `dst` = the low `width` of `src`, extended.
    Extend { dst: Reg, src: Value, width: Width },
    /// `dst` = what the surroundings say.
    Fact { dst: Reg, fact: Fact },
    /// `size` bytes at `dst` become the text, cut or zero-padded.
    Str {
        dst: Place,
        size: u32,
        source: StrSource,
    },
    /// `size` bytes at `dst` become zero.
    Zero { dst: Place, size: u32 },
    /// `size` bytes from `src` to `dst`, which do not overlap.
    CopyBytes { dst: Place, src: Place, size: u32 },
    /// A text of `src_size` bytes becomes one of `dst_size` bytes: cut or zero-padded.
    CopyStr {
        dst: Place,
        dst_size: u32,
        src: Place,
        src_size: u32,
    },
    /// `dst` = the 8 bytes at `src`.
    Load { dst: Reg, src: Place },
    /// The 8 bytes at `dst` = `src`.
    Store { dst: Place, src: Value },
    /// `dst` = the integer at `addr` in the target.
    ReadInt { dst: Reg, addr: Value, width: Width },
    /// At most `min(limit, size)` bytes of a text at `addr` in the target, up to its zero. `limit` counts the zero as the language does: a text that
    /// reaches the limit is cut to `limit - 1` bytes, one that fills `size` stays without zero. Unsigned; 0 gives the empty text.
    ReadStr {
        dst: Place,
        size: u32,
        addr: Value,
        limit: Value,
    },
    /// A `FieldType::Buf` of `min(len, size - 8)` bytes from `addr` in the target. Unread: length 0.
    ReadBuf {
        dst: Place,
        size: u32,
        addr: Value,
        len: Value,
    },
    /// Texts of the target by an array of pointers that a null pointer ends: at most `count` texts of `size` bytes each at `dst`, the rest empty.
    /// `found` = how many.
    ReadStrArray {
        found: Reg,
        dst: Place,
        size: u32,
        count: u32,
        addr: Value,
    },
    /// `dst` = length of the text of `size` bytes.
    StrLen { dst: Reg, src: Place, size: u32 },
    /// `dst` = 0 if the first `limit` bytes are equal or both texts end earlier alike, else the difference of the first unequal bytes.
    StrCmp {
        dst: Reg,
        a: Place,
        a_size: u32,
        b: Place,
        b_size: u32,
        limit: u32,
    },
    /// `dst` = offset of the needle in the haystack, -1 when it is not there.
    StrFind {
        dst: Reg,
        hay: Place,
        hay_size: u32,
        needle: Place,
        needle_size: u32,
    },
    /// `dst` = 1 if the `size` bytes are equal, else 0.
    BytesEq {
        dst: Reg,
        a: Place,
        b: Place,
        size: u32,
    },
    /// `dst` = the integer value, or what the aggregation amounts to (count, sum, average, least, greatest). Missing: 0.
    MapGet { dst: Reg, map: MapId, key: Key },
    /// The value's `size` bytes at `dst`. Missing: zeros.
    MapGetBytes {
        dst: Place,
        size: u32,
        map: MapId,
        key: Key,
    },
    /// The value becomes `src`. A full map drops it, counted.
    MapSet { map: MapId, key: Key, src: Value },
    /// The value's `size` bytes become those at `src`.
    MapSetBytes {
        map: MapId,
        key: Key,
        src: Place,
        size: u32,
    },
    /// `value = extend(value op operand)` as **one atomic step**; a missing value is 0. `dst` = the old value if `old`, else the new one.
    /// `@x++`, `@x += n` and all the other assignment operators.
    MapUpdate {
        dst: Reg,
        old: bool,
        map: MapId,
        key: Key,
        op: BinOp,
        operand: Value,
        width: Width,
    },
    /// One step of the aggregation; `value` is 1 for count.
    Aggregate {
        map: MapId,
        key: Key,
        agg: Agg,
        value: Value,
    },
    /// Takes the entry away. `dst` = 1 if it was there.
    MapDelete { dst: Reg, map: MapId, key: Key },
    /// `dst` = 1 if the entry is there.
    MapHas { dst: Reg, map: MapId, key: Key },
    /// `dst` = number of entries; of a map without key 1 or 0.
    MapLen { dst: Reg, map: MapId },
    /// The first entry at or behind position `cursor` (from 0): its key to `key`, `dst` = the position behind it, or 0 when there is none.
    /// Positions are table slots, fewer than `Map::capacity * 4`, in no order; what is inserted or deleted meanwhile may be seen or not.
    MapNext {
        dst: Reg,
        map: MapId,
        cursor: Value,
        key: Place,
    },
    /// A record of the format's fields. Lost when there is no room, counted.
    Emit { format: FormatId, args: Vec<Arg> },
}

/// How a block ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Term {
    /// The action is done.
    Return,
    /// On to the block.
    Jump(BlockId),
    /// `then` if `cond` is not zero, else `other`.
    Branch {
        cond: Value,
        then: BlockId,
        other: BlockId,
    },
    /// Takes one of the action's fuel and goes to the loop's head; none left ends the action, counted. Every cycle passes one of these.
    Loop(BlockId),
}
