//! The program as it is written.

use crate::diag::Span;

/// Deepest tree of expressions or statements.
pub(crate) const MAX_DEPTH: u32 = 64;

#[derive(Clone, Debug)]
pub(crate) struct Expr {
    pub(crate) kind: ExprKind,
    pub(crate) span: Span,
    pub(crate) depth: u32,
}

#[derive(Clone, Debug)]
pub(crate) enum ExprKind {
    Int(u64),
    Bool(bool),
    Str(String),
    Ident(String),
    Var(String),
    Param(u32),
    ParamCount,
    Map(String, Option<Vec<Expr>>),
    Call(String, Vec<Expr>),
    Unary(&'static str, Box<Expr>),
    Step {
        target: Box<Expr>,
        up: bool,
        post: bool,
    },
    Binary(&'static str, Box<Expr>, Box<Expr>),
    Ternary(Box<Expr>, Box<Expr>, Box<Expr>),
    Cast(TypeName, Box<Expr>),
    Element(Box<Expr>, u32),
    Index(Box<Expr>, Box<Expr>),
    Tuple(Vec<Expr>),
    Block(Vec<Stmt>, Box<Expr>),
    SizeofType(TypeName),
}

/// A type as written: name and number of `*`.
#[derive(Clone, Debug)]
pub(crate) struct TypeName {
    pub(crate) name: String,
    pub(crate) stars: u32,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) struct Stmt {
    pub(crate) kind: StmtKind,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) enum StmtKind {
    Expr(Expr),
    /// `op` is empty for a plain assignment.
    Assign(Expr, &'static str, Expr),
    Let(String, Option<TypeName>, Option<Expr>),
    If(Expr, Vec<Stmt>, Vec<Stmt>),
    While(Expr, Vec<Stmt>),
    Unroll(Expr, Vec<Stmt>),
    ForRange(String, Expr, Expr, Vec<Stmt>),
    ForMap(String, String, Vec<Stmt>),
    Return(Option<Expr>),
    Break,
    Continue,
    Block(Vec<Stmt>),
}

#[derive(Clone, Debug)]
pub(crate) struct AttachPoint {
    pub(crate) text: String,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) struct Probe {
    pub(crate) points: Vec<AttachPoint>,
    pub(crate) predicate: Option<Expr>,
    pub(crate) body: Vec<Stmt>,
}

#[derive(Clone, Debug)]
pub(crate) struct Macro {
    pub(crate) name: String,
    pub(crate) params: Vec<Expr>,
    pub(crate) body: Vec<Stmt>,
    pub(crate) value: Option<Expr>,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) struct MapDecl {
    pub(crate) name: String,
    pub(crate) kind: String,
    pub(crate) entries: u64,
    pub(crate) span: Span,
}

#[derive(Clone, Debug)]
pub(crate) struct Setting {
    pub(crate) key: String,
    pub(crate) value: Expr,
    pub(crate) span: Span,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    pub(crate) probes: Vec<Probe>,
    pub(crate) macros: Vec<Macro>,
    pub(crate) maps: Vec<MapDecl>,
    pub(crate) settings: Vec<Setting>,
}
