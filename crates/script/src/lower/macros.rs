//! Macros: the body in place of the call, parameters replaced.
//!
//! Hygienic: a macro's own variables live in a scope of their own and cannot see the caller's, since their names get a mark that no text can have.

use std::collections::HashMap;

use super::Lower;
use super::build::Val;
use crate::ast::{Expr, ExprKind, Macro, Stmt, StmtKind};
use crate::diag::{Diagnostic, Span};

const MAX_EXPANSIONS: u32 = 500;
const MAX_NESTED: usize = 8;

struct Replace<'a> {
    names: HashMap<&'a str, &'a Expr>,
    mark: u32,
}

impl Lower<'_> {
    pub(super) fn check_macros(&mut self) {
        let tree = self.tree;
        for (at, found) in tree.macros.iter().enumerate() {
            if tree.macros[..at]
                .iter()
                .any(|other| other.name == found.name)
            {
                self.error(
                    found.span,
                    format!("macro `{}` is defined more than once", found.name),
                );
            }
        }
    }

    /// The value of the macro, if the name is one's.
    pub(super) fn expand(&mut self, name: &str, args: &[Expr], span: Span) -> Option<Val> {
        let tree = self.tree;
        let found: &Macro = tree.macros.iter().find(|found| found.name == name)?;
        if args.len() != found.params.len() {
            self.error(
                span,
                format!(
                    "macro `{name}` takes {} arguments, not {}",
                    found.params.len(),
                    args.len()
                ),
            );
            return Some(Val::unknown());
        }
        self.expansions += 1;
        if self.expanding.iter().any(|outer| outer == name)
            || self.expanding.len() >= MAX_NESTED
            || self.expansions > MAX_EXPANSIONS
        {
            let error = Diagnostic::error(
                span,
                format!("macro `{name}` expands too often or within itself"),
            );
            self.tell(error);
            return Some(Val::unknown());
        }
        let mut names = HashMap::new();
        for (param, arg) in found.params.iter().zip(args) {
            let (fits, key, wanted) = match &param.kind {
                ExprKind::Var(name) => (matches!(arg.kind, ExprKind::Var(_)), name, "a $variable"),
                ExprKind::Map(name, _) => {
                    (matches!(arg.kind, ExprKind::Map(_, None)), name, "a @map")
                }
                ExprKind::Ident(name) => (true, name, "a value"),
                _ => continue,
            };
            if !fits {
                self.error(
                    arg.span,
                    format!("macro `{}` takes {wanted} here", found.name),
                );
                return Some(Val::unknown());
            }
            names.insert(key.as_str(), arg);
        }
        let replace = Replace {
            names,
            mark: self.expansions,
        };
        let mut body = found.body.clone();
        let mut value = found.value.clone();
        body.iter_mut().for_each(|stmt| replace.stmt(stmt));
        value.iter_mut().for_each(|value| replace.expr(value));
        self.expanding.push(name.to_owned());
        self.b.scopes.push(HashMap::new());
        self.b.nested += 1;
        self.stmts(&body);
        let val = value.map_or(Val::void(), |value| self.expr(&value));
        self.b.nested -= 1;
        self.b.scopes.pop();
        self.expanding.pop();
        Some(val)
    }
}

impl Replace<'_> {
    fn var(&self, name: &mut String) {
        *name = match self.names.get(name.as_str()).map(|arg| &arg.kind) {
            Some(ExprKind::Var(given)) => given.clone(),
            _ => format!("{name}'{}", self.mark),
        };
    }

    fn map(&self, name: &mut String) {
        if let Some(ExprKind::Map(given, _)) = self.names.get(name.as_str()).map(|arg| &arg.kind) {
            *name = given.clone();
        }
    }

    fn expr(&self, expr: &mut Expr) {
        match &mut expr.kind {
            ExprKind::Ident(name) => {
                if let Some(given) = self.names.get(name.as_str()) {
                    *expr = (*given).clone();
                }
            }
            ExprKind::Var(name) => self.var(name),
            ExprKind::Map(name, keys) => {
                self.map(name);
                keys.iter_mut().flatten().for_each(|key| self.expr(key));
            }
            ExprKind::Call(_, parts) | ExprKind::Tuple(parts) => {
                parts.iter_mut().for_each(|part| self.expr(part))
            }
            ExprKind::Unary(_, inner)
            | ExprKind::Step { target: inner, .. }
            | ExprKind::Cast(_, inner)
            | ExprKind::Element(inner, _) => {
                self.expr(inner);
            }
            ExprKind::Binary(_, a, b) | ExprKind::Index(a, b) => {
                self.expr(a);
                self.expr(b);
            }
            ExprKind::Ternary(a, b, c) => [a, b, c].into_iter().for_each(|part| self.expr(part)),
            ExprKind::Block(body, value) => {
                self.stmts(body);
                self.expr(value);
            }
            ExprKind::Int(_)
            | ExprKind::Bool(_)
            | ExprKind::Str(_)
            | ExprKind::Param(_)
            | ExprKind::ParamCount
            | ExprKind::SizeofType(_) => {}
        }
    }

    fn stmts(&self, body: &mut [Stmt]) {
        body.iter_mut().for_each(|stmt| self.stmt(stmt));
    }

    fn stmt(&self, stmt: &mut Stmt) {
        match &mut stmt.kind {
            StmtKind::Expr(expr) => self.expr(expr),
            StmtKind::Assign(target, _, value) => {
                self.expr(target);
                self.expr(value);
            }
            StmtKind::Let(name, _, value) => {
                self.var(name);
                value.iter_mut().for_each(|value| self.expr(value));
            }
            StmtKind::If(cond, then, other) => {
                self.expr(cond);
                self.stmts(then);
                self.stmts(other);
            }
            StmtKind::While(cond, body) | StmtKind::Unroll(cond, body) => {
                self.expr(cond);
                self.stmts(body);
            }
            StmtKind::ForRange(name, from, to, body) => {
                self.var(name);
                self.expr(from);
                self.expr(to);
                self.stmts(body);
            }
            StmtKind::ForMap(name, map, body) => {
                self.var(name);
                self.map(map);
                self.stmts(body);
            }
            StmtKind::Return(value) => value.iter_mut().for_each(|value| self.expr(value)),
            StmtKind::Block(body) => self.stmts(body),
            StmtKind::Break | StmtKind::Continue => {}
        }
    }
}
