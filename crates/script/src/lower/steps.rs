//! What is refused while uprobe blocks are made of fused actions only.

use super::Lower;
use super::maps::Holds;
use crate::ast::{Expr, ExprKind, Probe, Stmt, StmtKind};
use crate::diag::{Diagnostic, Span};
use crate::ir::Agg;

const HINT: &str = "a uprobe block takes @x = count(), @x = sum(V) and @x = hist(V), keyed by [tid], [func], [V] or not at all; V is arg0 to arg9 or reg()";

type Refusal = (Span, String);

impl Lower<'_> {
    /// Tells all that the block has besides aggregation steps.
    pub(super) fn only_steps(&mut self, probe: &Probe) {
        let mut refused: Vec<Refusal> = Vec::new();
        if let Some(predicate) = &probe.predicate {
            refused.push((predicate.span, "a predicate".into()));
        }
        refused.extend(probe.body.iter().filter_map(|stmt| step(stmt).err()));
        if probe.body.is_empty() {
            let span = probe.points.first().map_or(Span::default(), |p| p.span);
            refused.push((span, "an empty block".into()));
        }
        for (span, what) in refused {
            let error = Diagnostic::error(span, format!("not yet in a uprobe: {what}"));
            self.tell(error.hint(HINT));
        }
    }

    /// Tells the maps that neither side can keep.
    pub(super) fn only_fused_maps(&mut self) {
        for map in self.learned.maps.clone() {
            let Holds::Agg { agg, .. } = map.value else {
                continue;
            };
            let what = match agg {
                Agg::Avg => "avg()",
                Agg::Stats => "stats()",
                Agg::Lhist { .. } => "lhist()",
                Agg::Hist { bits: 1.. } => "hist() with parts of powers of two",
                _ => continue,
            };
            self.error(map.first, format!("not yet: {what}"));
        }
        for decl in &self.tree.maps {
            if decl.kind.contains("lru") {
                self.error(decl.span, format!("not yet: maps of kind {}", decl.kind));
            }
        }
    }
}

fn step(stmt: &Stmt) -> Result<(), Refusal> {
    let (target, value) = match &stmt.kind {
        StmtKind::Assign(target, "", value) => (target, value),
        other => return Err((stmt.span, statement(other))),
    };
    let (ExprKind::Map(_, keys), ExprKind::Call(name, args)) = (&target.kind, &value.kind) else {
        return Err((stmt.span, statement(&stmt.kind)));
    };
    match keys.as_deref() {
        None | Some([]) => {}
        Some([key]) => {
            let known = matches!(&key.kind, ExprKind::Ident(name) if matches!(name.as_str(), "tid" | "func"));
            if !known {
                number(key).map_err(|(span, what)| (span, format!("{what} as a key")))?;
            }
        }
        Some([_, second, ..]) => return Err((second.span, "several keys".into())),
    }
    match (name.as_str(), args.as_slice()) {
        ("count", _) => Ok(()),
        ("sum" | "hist", [value, ..]) => number(value),
        ("sum" | "hist", []) => Ok(()), // told by the checker
        _ => Err((value.span, format!("{name}()"))),
    }
}

/// An argument or a register.
fn number(expr: &Expr) -> Result<(), Refusal> {
    let fits = match &expr.kind {
        ExprKind::Ident(name) => name
            .strip_prefix("arg")
            .is_some_and(|number| number.parse::<u8>().is_ok()),
        ExprKind::Call(name, args) => {
            let flags = matches!(args.first().map(|arg| &arg.kind), Some(ExprKind::Str(name)) if name == "flags");
            name == "reg" && !flags
        }
        _ => false,
    };
    if fits {
        Ok(())
    } else {
        Err((expr.span, expression(&expr.kind)))
    }
}

fn statement(kind: &StmtKind) -> String {
    match kind {
        StmtKind::Expr(expr) => expression(&expr.kind),
        StmtKind::Assign(target, ..) if matches!(target.kind, ExprKind::Var(_)) => {
            "a variable".into()
        }
        StmtKind::Assign(..) => "storing a value in a map".into(),
        StmtKind::Let(..) => "a variable".into(),
        StmtKind::If(..) => "if".into(),
        StmtKind::While(..) => "while".into(),
        StmtKind::Unroll(..) => "unroll".into(),
        StmtKind::ForRange(..) | StmtKind::ForMap(..) => "for".into(),
        StmtKind::Return(_) => "return".into(),
        StmtKind::Break => "break".into(),
        StmtKind::Continue => "continue".into(),
        StmtKind::Block(_) => "a block in the block".into(),
    }
}

fn expression(kind: &ExprKind) -> String {
    match kind {
        ExprKind::Ident(name) => name.clone(),
        ExprKind::Call(name, _) => format!("{name}()"),
        ExprKind::Int(_) | ExprKind::Bool(_) | ExprKind::Param(_) | ExprKind::ParamCount => {
            "a constant".into()
        }
        ExprKind::Str(_) => "a text".into(),
        ExprKind::Var(_) => "a variable".into(),
        ExprKind::Map(..) => "reading a map".into(),
        ExprKind::Step { up: true, .. } => "`++`".into(),
        ExprKind::Step { .. } => "`--`".into(),
        ExprKind::Unary(op, _) | ExprKind::Binary(op, ..) => format!("`{op}`"),
        ExprKind::Ternary(..) => "`?:`".into(),
        ExprKind::Cast(..) => "a cast".into(),
        ExprKind::Tuple(_) => "a tuple".into(),
        ExprKind::Element(..) | ExprKind::Index(..) => "an element".into(),
        ExprKind::Block(..) => "a block with a value".into(),
        ExprKind::SizeofType(_) => "sizeof".into(),
    }
}
