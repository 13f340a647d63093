//! Statements to code.

use std::collections::HashMap;

use super::Lower;
use super::build::{Loop, Val};
use super::maps::Holds;
use super::text::behind;
use crate::ast::{Stmt, StmtKind};
use crate::diag::Span;
use crate::ir::{BinOp, BlockId, Inst, Term, Value};
use crate::types::{I64, Ty, U64};

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
}
