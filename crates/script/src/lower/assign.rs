//! Variables and maps that are declared, assigned and counted up and down.

use super::Lower;
use super::build::{At, Val, Var};
use super::expr::takes;
use crate::ast::{Expr, ExprKind};
use crate::diag::{Diagnostic, Span};
use crate::ir::{Inst, Reg, Value};
use crate::types::{I64, Ty, resolve};

impl Lower<'_> {
    /// A new variable with a first value.
    pub(super) fn declare(&mut self, name: &str, val: Val, declared: bool, span: Span) {
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
            Some(known @ Ty::Int(width)) if constant.is_some_and(|value| takes(*width, value)) => {
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

    pub(super) fn let_stmt(
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

    pub(super) fn assign(&mut self, target: &Expr, op: &'static str, value: &Expr, span: Span) {
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
                    let src = self.fit(&val, &ty);
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
