//! Expressions to code.

use super::Lower;
use super::build::{At, Val};
use super::maps::Holds;
use crate::ast::{Expr, ExprKind};
use crate::diag::{Diagnostic, Span, nearest};
use crate::ir::{BinOp, Inst, MapValue, Term, Value, Width};
use crate::types::{I64, Ty, U64, resolve};

impl Lower<'_> {
    pub(super) fn expr(&mut self, expr: &Expr) -> Val {
        let val = if self.deeper(expr.span) {
            self.expr_at(expr)
        } else {
            Val::unknown()
        };
        self.depth -= 1;
        val
    }

    fn expr_at(&mut self, expr: &Expr) -> Val {
        let span = expr.span;
        match &expr.kind {
            ExprKind::Int(value) => Val::word(
                if i64::try_from(*value).is_ok() {
                    I64
                } else {
                    U64
                },
                Value::Imm(*value as i64),
            ),
            ExprKind::Bool(value) => Val::word(Ty::Bool, Value::Imm(i64::from(*value))),
            ExprKind::Str(text) => self.literal(text),
            ExprKind::Ident(name) => self.builtin(name, span),
            ExprKind::Var(name) => match self.b.var(name) {
                Some(var) => Val {
                    ty: self.learned.vars[var.id].clone().unwrap_or(Ty::Unknown),
                    at: var.at,
                },
                None => {
                    let known: Vec<String> = self
                        .b
                        .scopes
                        .iter()
                        .flat_map(|scope| scope.keys().cloned())
                        .collect();
                    let error = Diagnostic::error(span, format!("{name} is not assigned before"));
                    let near = nearest(name, known.iter().map(String::as_str));
                    self.tell(near.map_or(error.clone(), |near| {
                        error.hint(format!("did you mean {near}?"))
                    }));
                    Val::unknown()
                }
            },
            ExprKind::Param(number) => match self.param(*number).map(parse_param) {
                None | Some(Ok(None)) => Val::word(I64, Value::Imm(0)),
                Some(Ok(Some(value))) => Val::word(I64, Value::Imm(value)),
                Some(Err(text)) => {
                    let error = Diagnostic::error(
                        span,
                        format!("${number} is {text:?}, which is no number"),
                    );
                    self.tell(error.hint(format!("str(${number}) is its text")));
                    Val::unknown()
                }
            },
            ExprKind::ParamCount => Val::word(I64, Value::Imm(self.options.params.len() as i64)),
            ExprKind::Map(name, keys) => self.read_map(name, keys.as_deref(), span),
            ExprKind::Call(name, args) => self.call(name, args, span),
            ExprKind::Unary(op, inner) => self.unary(op, inner, span),
            ExprKind::Step { target, up, post } => self.step(target, *up, *post, span),
            ExprKind::Binary(op @ ("&&" | "||"), a, b) => self.logic(*op == "&&", a, b),
            ExprKind::Binary(op, a, b) => {
                let a = self.held(a, b);
                let b = self.expr(b);
                self.arithmetic(op, a, b, span)
            }
            ExprKind::Ternary(cond, a, b) => self.ternary(cond, a, b, span),
            ExprKind::Cast(ty, inner) => {
                let val = self.expr(inner);
                match resolve(ty) {
                    Ok(ty) => self.cast(val, ty, span),
                    Err(error) => {
                        self.tell(error);
                        Val::unknown()
                    }
                }
            }
            ExprKind::Element(inner, number) => {
                let val = self.expr(inner);
                self.part(&val, *number, span)
            }
            ExprKind::Index(inner, index) => {
                let val = self.expr(inner);
                if let Ty::Tuple(_) = val.ty {
                    let number = self
                        .constant(index, "the element's number is a constant")
                        .unwrap_or(0);
                    return self.part(&val, u32::try_from(number).unwrap_or(u32::MAX), span);
                }
                let index = self.number(index);
                let moved = self.arithmetic("+", val, index, span);
                self.deref(moved, span)
            }
            ExprKind::Tuple(parts) => {
                let vals: Vec<Val> = parts.iter().map(|part| self.expr(part)).collect();
                self.tuple(&vals, span)
            }
            ExprKind::Block(body, value) => {
                self.b.scopes.push(Default::default());
                self.b.nested += 1;
                self.stmts(body);
                let val = self.expr(value);
                self.b.nested -= 1;
                self.b.scopes.pop();
                val
            }
            ExprKind::SizeofType(ty) => match resolve(ty) {
                Ok(ty) => Val::word(U64, Value::Imm(i64::from(ty.sizeof()))),
                Err(error) => {
                    self.tell(error);
                    Val::unknown()
                }
            },
        }
    }

    /// An operand that what stands right of it may change is kept apart.
    fn held(&mut self, a: &Expr, b: &Expr) -> Val {
        let val = self.expr(a);
        let harmless = matches!(
            b.kind,
            ExprKind::Int(_)
                | ExprKind::Ident(_)
                | ExprKind::Str(_)
                | ExprKind::Var(_)
                | ExprKind::Map(_, None)
        );
        match (val.at, &a.kind) {
            (At::Word(src @ Value::Reg(_)), ExprKind::Var(_)) if !harmless => {
                Val::word(val.ty, self.b.def(|dst| Inst::Copy { dst, src }))
            }
            _ => val,
        }
    }

    /// A number, or an error.
    pub(super) fn number(&mut self, expr: &Expr) -> Val {
        let val = self.expr(expr);
        if !val.ty.is_number() {
            self.error(
                expr.span,
                format!("a number is needed, this is {}", val.ty.name()),
            );
            return Val::unknown();
        }
        val
    }

    /// A value that is zero or not.
    pub(super) fn condition(&mut self, expr: &Expr) -> Value {
        let val = self.expr(expr);
        if !val.ty.is_number() {
            let error = Diagnostic::error(
                expr.span,
                format!("a condition is a number or bool, this is {}", val.ty.name()),
            );
            self.tell(error.hint("compare it with == or !="));
        }
        val.value()
    }

    pub(super) fn constant(&mut self, expr: &Expr, rule: &str) -> Option<i64> {
        let val = self.number(expr);
        if val.constant().is_none() {
            self.error(expr.span, rule);
        }
        val.constant()
    }

    fn read_map(&mut self, name: &str, keys: Option<&[Expr]>, span: Span) -> Val {
        let map = self.map_id(name, span);
        if keys.is_none()
            && self
                .map_state(map)
                .key
                .as_ref()
                .is_some_and(|key| key.size() > 0)
        {
            self.error(span, format!("{name} has a key"));
            return Val::unknown();
        }
        let key = self.key(map, keys, span);
        match self.map_state(map).value.clone() {
            Holds::Unknown => Val::unknown(),
            Holds::Plain(ty) if ty.is_word() => {
                let value = self.b.def(|dst| Inst::MapGet { dst, map, key });
                Val::word(ty, value)
            }
            Holds::Plain(ty) => {
                let (dst, size) = (self.b.temp(ty.size()), ty.size());
                self.b.push(Inst::MapGetBytes {
                    dst,
                    size,
                    map,
                    key,
                });
                Val::bytes(ty, dst)
            }
            Holds::Agg { agg, signed } => {
                if !(MapValue::Agg { agg, signed }).is_word() {
                    self.error(
                        span,
                        format!("{name} holds histograms, which are no single values"),
                    );
                    return Val::unknown();
                }
                let value = self.b.def(|dst| Inst::MapGet { dst, map, key });
                Val::word(if signed { I64 } else { U64 }, value)
            }
        }
    }

    fn unary(&mut self, op: &str, inner: &Expr, span: Span) -> Val {
        if op == "&" {
            self.error(span, "addresses of variables are not supported yet");
            return Val::unknown();
        }
        let val = self.number(inner);
        match op {
            "!" => Val::word(Ty::Bool, self.b.bin(BinOp::Eq, val.value(), Value::Imm(0))),
            "-" => Val::word(I64, self.b.bin(BinOp::Sub, Value::Imm(0), val.value())),
            "~" => {
                let value = self.b.bin(BinOp::Xor, val.value(), Value::Imm(-1));
                let ty = if val.ty.signed() { I64 } else { U64 };
                Val::word(ty, value)
            }
            _ => self.deref(val, span),
        }
    }

    fn deref(&mut self, val: Val, span: Span) -> Val {
        let addr = val.value();
        match val.ty {
            Ty::Ptr(to) => {
                let width = match *to {
                    Ty::Int(width) => width,
                    Ty::Bool => Width {
                        bytes: 1,
                        signed: false,
                    },
                    _ => Width {
                        bytes: 8,
                        signed: false,
                    },
                };
                self.needs_target(span, "reading memory");
                Val::word(*to, self.b.def(|dst| Inst::ReadInt { dst, addr, width }))
            }
            Ty::Unknown => Val::unknown(),
            ty => {
                let error = Diagnostic::error(span, format!("{} is no pointer", ty.name()));
                self.tell(error.hint("cast it first: *(uint32*)arg0"));
                Val::unknown()
            }
        }
    }

    pub(super) fn needs_target(&mut self, span: Span, what: &str) {
        if !self.in_target {
            let error = Diagnostic::error(span, format!("{what} needs a uprobe"));
            self.tell(
                error.hint("BEGIN, END and interval run in the tracer, where there is no hit"),
            );
        }
    }

    /// Result in a register that both ways write.
    fn logic(&mut self, and: bool, a: &Expr, b: &Expr) -> Val {
        let first = self.condition(a);
        let dst = self.b.reg();
        let (more, end) = (self.b.block(), self.b.block());
        self.b.push(Inst::Copy {
            dst,
            src: Value::Imm(i64::from(!and)),
        });
        let (then, other) = if and { (more, end) } else { (end, more) };
        self.b.end(Term::Branch {
            cond: first,
            then,
            other,
        });
        self.b.enter(more);
        let second = self.condition(b);
        let second = self.b.bin(BinOp::Ne, second, Value::Imm(0));
        self.b.push(Inst::Copy { dst, src: second });
        self.b.end(Term::Jump(end));
        self.b.enter(end);
        Val::word(Ty::Bool, Value::Reg(dst))
    }

    fn ternary(&mut self, cond: &Expr, a: &Expr, b: &Expr, span: Span) -> Val {
        let cond = self.condition(cond);
        let (then, other, end) = (self.b.block(), self.b.block(), self.b.block());
        self.b.end(Term::Branch { cond, then, other });
        self.b.enter(then);
        let first = self.expr(a);
        // where the first way's code ends is known now; the result's type only after the second
        let hold = self.b.block();
        self.b.end(Term::Jump(hold));
        self.b.enter(other);
        let second = self.expr(b);
        let ty = match (&first.ty, &second.ty) {
            (Ty::Void, _) | (_, Ty::Void) => Ty::Void,
            // a constant that fits takes the other side's type
            (Ty::Int(width), _) if second.constant().is_some_and(|value| takes(*width, value)) => {
                first.ty.clone()
            }
            (_, Ty::Int(width)) if first.constant().is_some_and(|value| takes(*width, value)) => {
                second.ty.clone()
            }
            (x, y) => match x.join(y) {
                Some(ty) => ty,
                None => {
                    self.error(
                        span,
                        format!("the two sides are {} and {}", x.name(), y.name()),
                    );
                    Ty::Unknown
                }
            },
        };
        if ty == Ty::Void {
            self.b.end(Term::Jump(end));
            self.b.enter(hold);
            self.b.end(Term::Jump(end));
            self.b.enter(end);
            return Val::void();
        }
        if ty.is_word() {
            let dst = self.b.reg();
            self.b.push(Inst::Copy {
                dst,
                src: second.value(),
            });
            self.b.end(Term::Jump(end));
            self.b.enter(hold);
            self.b.push(Inst::Copy {
                dst,
                src: first.value(),
            });
            self.b.end(Term::Jump(end));
            self.b.enter(end);
            return Val::word(ty, Value::Reg(dst));
        }
        let dst = self.b.temp(ty.size());
        self.store(&second, dst, &ty);
        self.b.end(Term::Jump(end));
        self.b.enter(hold);
        self.store(&first, dst, &ty);
        self.b.end(Term::Jump(end));
        self.b.enter(end);
        Val::bytes(ty, dst)
    }

    fn cast(&mut self, val: Val, ty: Ty, span: Span) -> Val {
        let widens = matches!(
            &val.ty,
            Ty::Tuple(_) | Ty::Str(_) | Ty::Buf(_) | Ty::Void | Ty::Time(_)
        );
        if widens {
            self.error(
                span,
                format!("cannot cast {} to {}", val.ty.name(), ty.name()),
            );
            return Val::unknown();
        }
        let src = val.value();
        let value = match (&ty, src) {
            (Ty::Int(width), Value::Imm(value)) => Value::Imm(width.extend(value)),
            (Ty::Int(width), _) if width.bytes < 8 => {
                let width = *width;
                self.b.def(|dst| Inst::Extend { dst, src, width })
            }
            (Ty::Bool, _) => self.b.bin(BinOp::Ne, src, Value::Imm(0)),
            _ => src,
        };
        Val::word(ty, value)
    }

    /// The operation on these types, and the result's type.
    pub(super) fn operator(
        &self,
        op: &str,
        a: &Ty,
        b: &Ty,
        b_constant: Option<i64>,
    ) -> (BinOp, Ty) {
        let wide = |ty: &Ty| {
            matches!(ty, Ty::Int(width) if !width.signed && width.bytes == 8)
                || matches!(ty, Ty::Ptr(_))
        };
        // 64 unsigned bits win over everything but a negative constant
        let unsigned =
            (wide(a) || wide(b)) && !b_constant.is_some_and(|value| value < 0 && !wide(b));
        let number = if unsigned { U64 } else { I64 };
        let pick = |signed, plain| if unsigned { plain } else { signed };
        match op {
            "+" => (BinOp::Add, number),
            "-" => (BinOp::Sub, I64),
            "*" => (BinOp::Mul, number),
            "/" => (pick(BinOp::SDiv, BinOp::UDiv), number),
            "%" => (pick(BinOp::SRem, BinOp::URem), number),
            "&" => (BinOp::And, number),
            "|" => (BinOp::Or, number),
            "^" => (BinOp::Xor, number),
            "<<" => (BinOp::Shl, if wide(a) { U64 } else { I64 }),
            ">>" => (
                if wide(a) { BinOp::LShr } else { BinOp::AShr },
                if wide(a) { U64 } else { I64 },
            ),
            "==" => (BinOp::Eq, Ty::Bool),
            "!=" => (BinOp::Ne, Ty::Bool),
            "<" | ">" => (pick(BinOp::SLt, BinOp::ULt), Ty::Bool),
            _ => (pick(BinOp::SLe, BinOp::ULe), Ty::Bool),
        }
    }

    pub(super) fn arithmetic(&mut self, op: &str, a: Val, b: Val, span: Span) -> Val {
        let comparable = |val: &Val| {
            matches!(
                val.ty,
                Ty::Str(_) | Ty::Tuple(_) | Ty::Probe | Ty::Func | Ty::Buf(_)
            )
        };
        if matches!(op, "==" | "!=") && (comparable(&a) || comparable(&b)) {
            return self.equal(a, b, op == "!=", span);
        }
        if !a.ty.is_number() || !b.ty.is_number() {
            self.error(
                span,
                format!(
                    "`{op}` does not work on {} and {}",
                    a.ty.name(),
                    b.ty.name()
                ),
            );
            return Val::unknown();
        }
        let (code, mut ty) = self.operator(op, &a.ty, &b.ty, b.constant());
        let (mut x, mut y) = (a.value(), b.value());
        if let (Ty::Ptr(to), "+" | "-") = (&a.ty, op)
            && !matches!(b.ty, Ty::Ptr(_))
        {
            y = self
                .b
                .bin(BinOp::Mul, y, Value::Imm(i64::from(to.sizeof())));
            ty = a.ty.clone();
        }
        if matches!(op, ">" | ">=") {
            std::mem::swap(&mut x, &mut y);
        }
        Val::word(ty, self.b.bin(code, x, y))
    }

    /// The number that an aggregation takes, and whether it is signed.
    pub(super) fn agg_value(&mut self, expr: &Expr) -> (Value, bool) {
        let val = self.number(expr);
        (val.value(), val.ty.signed())
    }
}

/// Whether an unsigned type holds the constant.
pub(super) fn takes(width: Width, constant: i64) -> bool {
    !width.signed && constant >= 0 && width.extend(constant) == constant
}

/// A parameter as number: empty is 0.
fn parse_param(text: &str) -> Result<Option<i64>, &str> {
    if text.is_empty() {
        return Ok(None);
    }
    let (negative, digits) = text
        .strip_prefix('-')
        .map_or((false, text), |digits| (true, digits));
    let value = crate::parse::parse_number(digits).ok_or(text)? as i64;
    Ok(Some(if negative {
        value.wrapping_neg()
    } else {
        value
    }))
}
