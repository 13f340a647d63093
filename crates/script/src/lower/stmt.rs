//! Statements to code.

use std::collections::HashMap;

use super::Lower;
use super::build::{At, Loop, Val, Var};
use super::maps::Holds;
use super::text::behind;
use crate::ast::{Expr, ExprKind, Stmt, StmtKind};
use crate::diag::{Diagnostic, Span};
use crate::ir::{BinOp, BlockId, Inst, Reg, Term, Value};
use crate::types::{I64, Ty, U64, resolve};

/// Deepest walk, macros included.
const MAX_WALK: u32 = 150;

impl Lower<'_> {
    pub(super) fn deeper(&mut self, span: Span) -> bool {
        self.depth += 1;
        if self.depth > MAX_WALK {
            self.error(span, "nested too deep");
        }
        self.depth <= MAX_WALK
    }

    pub(super) fn stmts(&mut self, body: &[Stmt]) {
        for stmt in body {
            let mark = self.b.mark();
            if self.deeper(stmt.span) {
                self.stmt(stmt);
            }
            self.depth -= 1;
            self.b.release(mark);
        }
    }

    fn scoped(&mut self, body: &[Stmt]) {
        self.b.scopes.push(HashMap::new());
        self.b.nested += 1;
        self.stmts(body);
        self.b.nested -= 1;
        self.b.scopes.pop();
    }

    fn stmt(&mut self, stmt: &Stmt) {
        match &stmt.kind {
            StmtKind::Expr(expr) => self.expr_stmt(expr),
            StmtKind::Assign(target, op, value) => self.assign(target, op, value, stmt.span),
            StmtKind::Let(name, ty, value) => {
                self.let_stmt(name, ty.as_ref(), value.as_ref(), stmt.span)
            }
            StmtKind::Block(body) => self.scoped(body),
            StmtKind::If(cond, then_body, else_body) => {
                let cond = self.condition(cond);
                let (then, other, end) = (self.b.block(), self.b.block(), self.b.block());
                self.b.end(Term::Branch { cond, then, other });
                for (block, body) in [(then, then_body), (other, else_body)] {
                    self.b.enter(block);
                    self.scoped(body);
                    self.b.end(Term::Jump(end));
                }
                self.b.enter(end);
            }
            StmtKind::While(cond, body) => {
                let head = self.b.block();
                self.b.end(Term::Jump(head));
                self.b.enter(head);
                let cond = self.condition(cond);
                self.loop_body(head, cond, body, |_| {}, |_| {});
            }
            StmtKind::Unroll(count, body) => {
                let times = self.constant(count, "unroll takes a constant").unwrap_or(1);
                if !(1..=100).contains(&times) {
                    self.error(count.span, "unroll takes a number from 1 to 100");
                }
                self.count_loop(None, Value::Imm(0), Value::Imm(times), body, count.span);
            }
            StmtKind::ForRange(name, from, to, body) => {
                let (start, end) = (self.number(from), self.number(to));
                self.count_loop(Some(name), start.value(), end.value(), body, from.span);
            }
            StmtKind::ForMap(name, map, body) => self.for_map(name, map, body, stmt.span),
            StmtKind::Return(value) => {
                if let Some(value) = value {
                    self.expr(value);
                }
                self.b.end(Term::Return);
                self.b.unreachable();
            }
            StmtKind::Break | StmtKind::Continue => {
                let goes_on = matches!(stmt.kind, StmtKind::Continue);
                match self.b.loops.last() {
                    Some(Loop { next, end }) => {
                        let to = if goes_on { *next } else { *end };
                        self.b.end(Term::Jump(to));
                        self.b.unreachable();
                    }
                    None => self.error(stmt.span, "this is not in a loop"),
                }
            }
        }
    }

    /// Body, step and jump to the head of a loop whose condition is known; goes on behind it.
    fn loop_body(
        &mut self,
        head: BlockId,
        cond: Value,
        body: &[Stmt],
        first: impl FnOnce(&mut Self),
        step: impl FnOnce(&mut Self),
    ) {
        let (inside, next, end) = (self.b.block(), self.b.block(), self.b.block());
        self.b.end(Term::Branch {
            cond,
            then: inside,
            other: end,
        });
        self.b.enter(inside);
        self.b.scopes.push(HashMap::new());
        self.b.nested += 1;
        first(self);
        self.b.loops.push(Loop { next, end });
        self.stmts(body);
        self.b.loops.pop();
        self.b.nested -= 1;
        self.b.scopes.pop();
        self.b.end(Term::Jump(next));
        self.b.enter(next);
        step(self);
        self.b.end(Term::Loop(head));
        self.b.enter(end);
    }

    fn count_loop(
        &mut self,
        name: Option<&str>,
        from: Value,
        to: Value,
        body: &[Stmt],
        span: Span,
    ) {
        // both ends are taken once, before the first pass
        let (counter, last) = (self.b.reg(), self.b.reg());
        self.b.push(Inst::Copy {
            dst: counter,
            src: from,
        });
        self.b.push(Inst::Copy { dst: last, src: to });
        let head = self.b.block();
        self.b.end(Term::Jump(head));
        self.b.enter(head);
        let cond = self
            .b
            .bin(BinOp::SLt, Value::Reg(counter), Value::Reg(last));
        let bind = |lower: &mut Self| {
            if let Some(name) = name {
                lower.declare(name, Val::word(I64, Value::Reg(counter)), false, span);
            }
        };
        let step = |lower: &mut Self| {
            lower.b.push(Inst::Bin {
                dst: counter,
                op: BinOp::Add,
                a: Value::Reg(counter),
                b: Value::Imm(1),
            })
        };
        self.loop_body(head, cond, body, bind, step);
    }

    fn for_map(&mut self, name: &str, map_name: &str, body: &[Stmt], span: Span) {
        let map = self.map_id(map_name, span);
        let state = self.map_state(map).clone();
        let key = match state.key {
            Some(key) if key.size() > 0 => key,
            known => {
                if known.is_some() {
                    self.error(
                        span,
                        format!("{map_name} has no key, so there is nothing to go over"),
                    );
                }
                // not known yet: the body is walked for what it tells
                I64
            }
        };
        let value = match &state.value {
            Holds::Plain(ty) => ty.clone(),
            Holds::Agg { signed, .. } => {
                if *signed {
                    I64
                } else {
                    U64
                }
            }
            Holds::Unknown => Ty::Unknown,
        };
        if let Holds::Agg {
            agg: crate::ir::Agg::Hist { .. } | crate::ir::Agg::Lhist { .. },
            ..
        } = state.value
        {
            self.error(
                span,
                format!("{map_name} holds histograms, which are no single values"),
            );
        }
        let pair = Ty::Tuple(vec![key.clone(), value.clone()]);
        let place = self.b.buffer(pair.size());
        let (cursor, head) = (self.b.reg(), self.b.block());
        self.b.push(Inst::Copy {
            dst: cursor,
            src: Value::Imm(0),
        });
        self.b.end(Term::Jump(head));
        self.b.enter(head);
        let found = self.b.def(|dst| Inst::MapNext {
            dst,
            map,
            cursor: Value::Reg(cursor),
            key: place,
        });
        let bind = |lower: &mut Self| {
            let (at, entry) = (behind(place, key.size()), crate::ir::Key::Bytes(place));
            if value.is_word() {
                let got = lower.b.def(|dst| Inst::MapGet {
                    dst,
                    map,
                    key: entry,
                });
                lower.b.push(Inst::Store { dst: at, src: got });
            } else {
                lower.b.push(Inst::MapGetBytes {
                    dst: at,
                    size: value.size(),
                    map,
                    key: entry,
                });
            }
            lower.declare(name, Val::bytes(pair, place), false, span);
        };
        self.loop_body(head, found, body, bind, |lower| {
            lower.b.push(Inst::Copy {
                dst: cursor,
                src: found,
            })
        });
    }

    /// A new variable with a first value.
    fn declare(&mut self, name: &str, val: Val, declared: bool, span: Span) {
        if matches!(val.ty, Ty::Void) {
            self.error(span, "this has no value");
            return;
        }
        let id = self.next_var;
        self.next_var += 1;
        if self.learned.vars.len() <= id {
            self.learned.vars.resize(id + 1, None);
        }
        let ty = self
            .learn_var(id, &val.ty, val.constant(), span, name)
            .unwrap_or(Ty::Unknown);
        let at = if ty.is_word() {
            At::Word(Value::Reg(self.b.reg()))
        } else {
            At::Bytes(self.b.buffer(ty.size()))
        };
        if self.b.nested > 0 {
            match at {
                At::Word(Value::Reg(dst)) => self.b.at_entry(Inst::Copy {
                    dst,
                    src: Value::Imm(0),
                }),
                At::Bytes(dst) => self.b.at_entry(Inst::Zero {
                    dst,
                    size: ty.size(),
                }),
                _ => {}
            }
        }
        let var = Var { id, at, declared };
        self.put(&var, &ty, &val);
        self.b
            .scopes
            .last_mut()
            .expect("the action's scope")
            .insert(name.to_owned(), var);
    }

    fn learn_var(
        &mut self,
        id: usize,
        ty: &Ty,
        constant: Option<i64>,
        span: Span,
        name: &str,
    ) -> Option<Ty> {
        let joined = match &self.learned.vars[id] {
            None => Some(ty.clone()),
            Some(known @ Ty::Int(width))
                if !width.signed && constant.is_some_and(|value| width.extend(value) == value) =>
            {
                Some(known.clone())
            }
            Some(known) => known.join(ty),
        };
        let Some(joined) = joined else {
            let known = self.learned.vars[id]
                .as_ref()
                .map_or(String::new(), Ty::name);
            self.error(
                span,
                format!("{name} is {known} and cannot be assigned {}", ty.name()),
            );
            return None;
        };
        if self.learned.vars[id].as_ref() != Some(&joined) {
            self.learned.changed = true;
            self.learned.vars[id] = Some(joined.clone());
        }
        Some(joined)
    }

    fn put(&mut self, var: &Var, ty: &Ty, val: &Val) {
        match (var.at, ty) {
            (At::Word(Value::Reg(dst)), Ty::Int(width)) if var.declared && width.bytes < 8 => {
                self.b.push(Inst::Extend {
                    dst,
                    src: val.value(),
                    width: *width,
                });
            }
            (At::Word(Value::Reg(dst)), _) => self.b.push(Inst::Copy {
                dst,
                src: val.value(),
            }),
            (At::Bytes(dst), ty) => {
                // the value may be made of the variable itself
                let from_itself = matches!(val.at, At::Bytes(src) if src.buf == dst.buf);
                if from_itself {
                    let copy = self.b.temp(val.ty.size());
                    self.store(val, copy, &val.ty);
                    self.store(&Val::bytes(val.ty.clone(), copy), dst, ty);
                } else {
                    self.store(val, dst, ty);
                }
            }
            _ => {}
        }
    }

    fn let_stmt(
        &mut self,
        name: &str,
        ty: Option<&crate::ast::TypeName>,
        value: Option<&Expr>,
        span: Span,
    ) {
        if self
            .b
            .scopes
            .last()
            .is_some_and(|scope| scope.contains_key(name))
        {
            self.error(span, format!("{name} is declared already"));
        }
        let declared = ty.and_then(|ty| match resolve(ty) {
            Ok(ty) => Some(ty),
            Err(error) => {
                self.tell(error);
                None
            }
        });
        let val = value.map(|value| self.expr(value));
        let Some(wanted) = declared else {
            return self.declare(name, val.unwrap_or_else(Val::unknown), false, span);
        };
        let val = val.unwrap_or_else(|| Val::word(wanted.clone(), Value::Imm(0)));
        self.check_fits(&val, &wanted, span, name);
        let val = if val.ty.is_word() {
            Val { ty: wanted, ..val }
        } else {
            Val::word(wanted, Value::Imm(0))
        };
        self.declare(name, val, true, span);
    }

    fn check_fits(&mut self, val: &Val, wanted: &Ty, span: Span, name: &str) {
        match (wanted, val.constant()) {
            _ if val.ty != Ty::Unknown && !val.ty.is_number() => {
                self.error(
                    span,
                    format!(
                        "{name} is {} and cannot be assigned {}",
                        wanted.name(),
                        val.ty.name()
                    ),
                );
            }
            (Ty::Int(width), Some(value)) if width.bytes < 8 && width.extend(value) != value => {
                self.error(
                    span,
                    format!("{value} does not fit {}, the type of {name}", wanted.name()),
                );
            }
            _ => {}
        }
    }

    fn assign(&mut self, target: &Expr, op: &'static str, value: &Expr, span: Span) {
        match &target.kind {
            ExprKind::Ident(_) => {
                self.expr(value);
            }
            ExprKind::Var(name) => {
                let old = if op.is_empty() {
                    None
                } else {
                    Some(self.expr(target))
                };
                let val = self.expr(value);
                let val = match old {
                    // the variable keeps its type
                    Some(Val {
                        ty: ty @ Ty::Int(_),
                        at,
                    }) => Val {
                        ty: ty.clone(),
                        ..self.arithmetic(op, Val { ty, at }, val, span)
                    },
                    Some(old) => self.arithmetic(op, old, val, span),
                    None => val,
                };
                self.set_var(name, val, span);
            }
            ExprKind::Map(name, keys) => {
                self.assign_map(name, keys.as_deref(), op, value, target.span, span)
            }
            _ => {}
        }
    }

    pub(super) fn set_var(&mut self, name: &str, val: Val, span: Span) {
        let Some(var) = self.b.var(name).cloned() else {
            return self.declare_outer(name, val, span);
        };
        if val.ty == Ty::Void {
            return self.error(span, "this has no value");
        }
        if var.declared {
            let ty = self.learned.vars[var.id].clone().unwrap_or(Ty::Unknown);
            self.check_fits(&val, &ty, span, name);
            return self.put(&var, &ty, &val);
        }
        if let Some(ty) = self.learn_var(var.id, &val.ty, val.constant(), span, name) {
            self.put(&var, &ty, &val);
        }
    }

    /// Without `let` a variable lives in the whole block of the probe, as it always did.
    fn declare_outer(&mut self, name: &str, val: Val, span: Span) {
        self.declare(name, val, false, span);
        if let Some(var) = self
            .b
            .scopes
            .last_mut()
            .and_then(|scope| scope.remove(name))
        {
            self.b.scopes[0].insert(name.to_owned(), var);
        }
    }

    fn assign_map(
        &mut self,
        name: &str,
        keys: Option<&[Expr]>,
        op: &'static str,
        value: &Expr,
        target: Span,
        span: Span,
    ) {
        self.tried.insert(name.to_owned());
        let map = self.map_id(name, target);
        if let ExprKind::Call(function, args) = &value.kind
            && let Some(step) = self.agg_call(function, args, value.span)
        {
            if !op.is_empty() {
                return self.error(span, format!("{function}() is assigned with `=`"));
            }
            let Some((agg, val, signed)) = step else {
                return;
            };
            if self.aggregates(map, agg, signed, span) {
                let key = self.key(map, keys, target);
                self.b.push(Inst::Aggregate {
                    map,
                    key,
                    agg,
                    value: val,
                });
            }
            return;
        }
        let val = self.expr(value);
        if op.is_empty() {
            let key = self.key(map, keys, target);
            if let Some(ty) = self.holds(map, &val.ty, val.constant(), span) {
                if ty.is_word() {
                    self.b.push(Inst::MapSet {
                        map,
                        key,
                        src: val.value(),
                    });
                } else {
                    let src = self.b.temp(ty.size());
                    self.store(&val, src, &ty);
                    self.b.push(Inst::MapSetBytes {
                        map,
                        key,
                        src,
                        size: ty.size(),
                    });
                }
            }
        } else {
            self.update_map(map, keys, op, val, false, target, span);
        }
    }

    /// `@m[k] op= val` as one step; the new value, or the old one.
    #[allow(clippy::too_many_arguments)] // one instruction's worth
    pub(super) fn update_map(
        &mut self,
        map: crate::ir::MapId,
        keys: Option<&[Expr]>,
        op: &str,
        val: Val,
        old: bool,
        target: Span,
        span: Span,
    ) -> Val {
        if !val.ty.is_number() {
            self.error(
                span,
                format!("`{op}=` takes a number, this is {}", val.ty.name()),
            );
            return Val::unknown();
        }
        let constant = val.constant();
        let key = self.key(map, keys, target);
        let Some(ty) = self.holds(
            map,
            &if val.ty == Ty::Bool {
                I64
            } else {
                val.ty.clone()
            },
            constant,
            span,
        ) else {
            return Val::unknown();
        };
        if !ty.is_number() {
            self.error(
                span,
                format!("`{op}=` works on numbers, the map holds {}", ty.name()),
            );
            return Val::unknown();
        }
        let (op, _) = self.operator(op, &ty, &val.ty, constant);
        let width = crate::ir::Width {
            bytes: 8,
            signed: ty.signed(),
        };
        let value = self.b.def(|dst| Inst::MapUpdate {
            dst,
            old,
            map,
            key,
            op,
            operand: val.value(),
            width,
        });
        Val::word(ty, value)
    }

    /// `$x++` and `@m[k]++`, both sides, up and down.
    pub(super) fn step(&mut self, target: &Expr, up: bool, post: bool, span: Span) -> Val {
        let op = if up { "+" } else { "-" };
        match &target.kind {
            ExprKind::Map(name, keys) => {
                let map = self.map_id(name, target.span);
                self.update_map(
                    map,
                    keys.as_deref(),
                    op,
                    Val::word(I64, Value::Imm(1)),
                    post,
                    target.span,
                    span,
                )
            }
            ExprKind::Var(name) => {
                let before = self.expr(target);
                let kept: Reg = self.b.reg();
                self.b.push(Inst::Copy {
                    dst: kept,
                    src: before.value(),
                });
                let before = Val::word(before.ty, Value::Reg(kept));
                let ty = before.ty.clone();
                let after =
                    self.arithmetic(op, before.clone(), Val::word(I64, Value::Imm(1)), span);
                let after = if matches!(ty, Ty::Int(_)) {
                    Val { ty, ..after }
                } else {
                    after
                };
                self.set_var(name, after.clone(), span);
                if post { before } else { after }
            }
            _ => {
                let error =
                    Diagnostic::error(span, "only $variables and @maps can be counted up and down");
                self.tell(error);
                Val::unknown()
            }
        }
    }
}
