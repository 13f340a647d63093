//! The tables of a program: maps, records, strings, attach points, actions, configuration.

use super::{Agg, BlockId, BufId, FormatId, Inst, MapId, PointId, StrId, Term};

/// Everything that an engine needs to run a program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Maps in order of first appearance; printed in order of their names.
    pub maps: Vec<Map>,
    /// What records mean.
    pub formats: Vec<Format>,
    /// Constant texts, without a zero byte at their end.
    pub strings: Vec<String>,
    /// Attach points, as written; wildcards are not expanded.
    pub points: Vec<Point>,
    /// The blocks in source order. Blocks of one point run in this order.
    pub actions: Vec<Action>,
    /// Settings with defaults filled in.
    pub config: Config,
}

/// One attach point.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Point {
    /// Runs in the tracer before anything is attached.
    Begin,
    /// Runs in the tracer after everything is detached.
    End,
    /// Runs in the tracer every so many nanoseconds (positive).
    Interval { nanos: u64, spelling: String },
    /// Runs in the target.
    Uprobe {
        file: String,
        function: Function,
        spelling: String,
    },
}

/// Where in the file a uprobe lies.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Function {
    /// A symbol, maybe with `*`, and bytes behind it. `demangled`: the name is that of the source language (`cpp:"ns::f(int)"`).
    Symbol {
        name: String,
        offset: u64,
        demangled: bool,
    },
    /// An address as the file's symbol table has them.
    Address(u64),
}

/// The body of one block.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Action {
    /// Where it runs: points all of one side (all uprobes, or none).
    pub points: Vec<PointId>,
    /// Code; the entry is the first block.
    pub blocks: Vec<Block>,
    /// Number of registers.
    pub regs: u32,
    /// Sizes of the scratch buffers, multiples of 8.
    pub buffers: Vec<u32>,
    /// How many times [`Term::Loop`] may be passed in one run.
    pub fuel: u32,
    /// Conditions that hold whenever the action has an effect, so that processes may be chosen by them. The code tests them too.
    pub hoist: Vec<Hoist>,
}

/// Straight-line code and its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// In order.
    pub insts: Vec<Inst>,
    /// Where to go on.
    pub term: Term,
}

/// A condition on the process that the predicate implies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hoist {
    /// `pid` is this.
    Pid(i64),
    /// `uid` is this.
    Uid(i64),
    /// `gid` is this.
    Gid(i64),
    /// `comm` is this; comm is a thread's and may change, so it chooses threads only at the moment of a hit.
    Comm(StrId),
}

/// A value in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Field {
    /// Bytes from the begin of the key, value, tuple or record; a multiple of 8.
    pub offset: u32,
    /// Bytes, a multiple of 8.
    pub size: u32,
    /// What it is.
    pub ty: FieldType,
}

/// What a field is, and how it prints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum FieldType {
    /// An integer of `bytes` 1, 2, 4, 8, kept in 8.
    Int { bytes: u8, signed: bool },
    /// `true` or `false`.
    Bool,
    /// `0x...`.
    Pointer,
    /// A text.
    Str,
    /// Bytes with their length before them.
    Buf,
    /// Values, `(a, b)`; offsets from the tuple's begin.
    Tuple(Vec<Field>),
    /// Id of an attach point: prints its spelling.
    ProbeName,
    /// Id of a function: prints its name.
    FuncName,
    /// A user id: prints the user's name.
    Username,
    /// Boot time in nanoseconds: prints by the strftime format.
    Time(StrId),
}

/// A map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// With the `@`.
    pub name: String,
    /// The key's fields; none for a map without key. A tuple as only key is its fields.
    pub key: Vec<Field>,
    /// Bytes of the key.
    pub key_size: u32,
    /// What an entry holds.
    pub value: MapValue,
    /// Most entries.
    pub capacity: u32,
    /// As declared.
    pub kind: MapKind,
}

/// Kind of a declared map; all but the least-recently-used kinds behave alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MapKind {
    /// Refuses new keys when full.
    #[default]
    Hash,
    /// Replaces an old entry when full.
    LruHash,
}

/// What an entry holds.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum MapValue {
    /// A value; `Field::offset` is 0.
    Field(Field),
    /// An aggregation; the value's signedness matters for avg, min, max, sum, stats.
    Agg { agg: Agg, signed: bool },
}

/// What a record means; `fields` are the arguments of the `Emit` in order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Format {
    /// Text pieces and conversions; conversions take the fields in turn.
    Printf {
        pieces: Vec<Piece>,
        fields: Vec<Field>,
    },
    /// `print(x)`, also of one entry of a map: one field.
    Print { fields: Vec<Field> },
    /// `print(@m, top, div)`: no limit is 0, no division is 0 or 1.
    PrintMap { map: MapId, top: u32, div: u32 },
    /// Takes all entries away.
    Clear { map: MapId },
    /// Sets all values to zero, keeps the keys.
    Zero { map: MapId },
    /// The wall clock, by a strftime format, as it is now.
    Time { format: StrId },
    /// Texts with a separator between; fields are how many, then each text.
    Join {
        separator: StrId,
        fields: Vec<Field>,
    },
    /// Ends the program with the status of the only field.
    Exit { fields: Vec<Field> },
}

/// A piece of a printf format.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Piece {
    /// As it is.
    Text(String),
    /// The next field. `flags` of `-+ #0`, `width` 0 for none, `bytes` the integer's printed width (1, 2, 4, 8), `conversion` one of
    /// `d i u x X o c s p r`; `r` may be followed by `x` (all bytes as `\x..`) or `h` (hex with blanks), kept in `buffer`.
    Conversion {
        flags: String,
        width: u32,
        bytes: u8,
        conversion: char,
        buffer: Option<char>,
    },
}

/// What to do with an attach point that nothing matches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MissingProbes {
    /// The program does not start.
    #[default]
    Error,
    /// Say so and go on.
    Warn,
    /// Go on.
    Ignore,
}

/// Settings of the program's `config` block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // named as in the language
pub struct Config {
    pub missing_probes: MissingProbes,
    pub max_strlen: u32,
    pub str_trunc_trailer: String,
    pub max_map_keys: u32,
    pub print_maps_on_exit: bool,
    pub max_probes: u32,
    pub max_cat_bytes: u32,
    pub perf_rb_pages: u32,
    pub cpp_demangle: bool,
    pub show_debug_info: bool,
    pub lazy_symbolication: bool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            missing_probes: MissingProbes::Error,
            max_strlen: 1024,
            str_trunc_trailer: "..".into(),
            max_map_keys: 4096,
            print_maps_on_exit: true,
            max_probes: 1024,
            max_cat_bytes: 10240,
            perf_rb_pages: 64,
            cpp_demangle: true,
            show_debug_info: true,
            lazy_symbolication: false,
        }
    }
}

/// What went less than well at run time, counted per action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Warning {
    /// Memory of the target could not be read.
    Unreadable,
    /// Division or remainder by zero.
    DivisionByZero,
    /// A full map dropped an update.
    MapFull,
    /// The loops of one run went round too often.
    Fuel,
}

impl Format {
    /// The fields of its records.
    pub fn fields(&self) -> &[Field] {
        match self {
            Format::Printf { fields, .. }
            | Format::Print { fields }
            | Format::Join { fields, .. }
            | Format::Exit { fields } => fields,
            Format::PrintMap { .. }
            | Format::Clear { .. }
            | Format::Zero { .. }
            | Format::Time { .. } => &[],
        }
    }

    /// Bytes of a record's fields.
    pub fn size(&self) -> u32 {
        self.fields()
            .last()
            .map_or(0, |field| field.offset + field.size)
    }
}

impl MapValue {
    /// Whether the value is read and written as one integer.
    pub fn is_word(&self) -> bool {
        match self {
            MapValue::Field(field) => field.ty.is_word(),
            MapValue::Agg { agg, .. } => !matches!(agg, Agg::Hist { .. } | Agg::Lhist { .. }),
        }
    }
}

impl FieldType {
    /// Whether it is one integer of 8 bytes.
    pub fn is_word(&self) -> bool {
        !matches!(self, FieldType::Str | FieldType::Buf | FieldType::Tuple(_))
    }
}

impl Point {
    /// As the user wrote it, in the form that the `probe` builtin prints.
    pub fn spelling(&self) -> &str {
        match self {
            Point::Begin => "begin",
            Point::End => "end",
            Point::Interval { spelling, .. } | Point::Uprobe { spelling, .. } => spelling,
        }
    }

    /// Whether the point's actions run in the target.
    pub fn in_target(&self) -> bool {
        matches!(self, Point::Uprobe { .. })
    }
}

impl Action {
    /// The block with this id.
    pub fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id.index()]
    }

    /// Bytes of the buffer.
    pub fn buffer_size(&self, id: BufId) -> u32 {
        self.buffers[id.index()]
    }

    /// Whether it takes entries of this map away.
    pub fn deletes_from(&self, from: MapId) -> bool {
        let mut insts = self.blocks.iter().flat_map(|block| &block.insts);
        insts.any(|inst| matches!(inst, Inst::MapDelete { map, .. } if *map == from))
    }

    /// The maps that its code looks into or changes.
    pub fn maps(&self) -> impl Iterator<Item = MapId> + '_ {
        let insts = self.blocks.iter().flat_map(|block| &block.insts);
        insts.filter_map(|inst| match inst {
            Inst::MapGet { map, .. }
            | Inst::MapGetBytes { map, .. }
            | Inst::MapSet { map, .. }
            | Inst::MapSetBytes { map, .. }
            | Inst::MapUpdate { map, .. }
            | Inst::Aggregate { map, .. }
            | Inst::MapDelete { map, .. }
            | Inst::MapHas { map, .. }
            | Inst::MapLen { map, .. }
            | Inst::MapNext { map, .. } => Some(*map),
            _ => None,
        })
    }

    /// Ids of the formats whose records it may write.
    pub fn formats(&self) -> impl Iterator<Item = FormatId> + '_ {
        self.blocks
            .iter()
            .flat_map(|block| &block.insts)
            .filter_map(|inst| match inst {
                Inst::Emit { format, .. } => Some(*format),
                _ => None,
            })
    }
}
