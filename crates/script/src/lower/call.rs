//! Functions.

use super::Lower;
use super::build::{At, Val};
use crate::ast::{Expr, ExprKind};
use crate::diag::{Diagnostic, Span, nearest};
use crate::ir::{Agg, BinOp, Clock, Fact, Format, Inst, Value};
use crate::types::{I64, Ty, U64};

/// Name, least and most arguments, how it is written.
const FUNCTIONS: &[(&str, usize, usize, &str)] = &[
    ("printf", 1, usize::MAX, "printf(\"format\", values...)"),
    ("print", 1, 3, "print(value) or print(@map, top, div)"),
    ("clear", 1, 1, "clear(@map)"),
    ("zero", 1, 1, "zero(@map)"),
    ("delete", 1, 2, "delete(@map, key)"),
    ("has_key", 2, 2, "has_key(@map, key)"),
    ("len", 1, 1, "len(@map)"),
    ("exit", 0, 1, "exit() or exit(status)"),
    ("time", 0, 1, "time(\"%H:%M:%S\\n\")"),
    ("strftime", 2, 2, "strftime(\"%H:%M:%S\", nsecs)"),
    ("join", 1, 2, "join(argv, \" \")"),
    ("str", 1, 2, "str(pointer, length)"),
    ("buf", 1, 2, "buf(pointer, length)"),
    ("reg", 1, 1, "reg(\"ax\")"),
    ("nsecs", 0, 1, "nsecs(monotonic)"),
    ("strncmp", 3, 3, "strncmp(a, b, length)"),
    ("strcontains", 2, 2, "strcontains(text, part)"),
    ("strstr", 2, 2, "strstr(text, part)"),
    ("strlen", 1, 1, "strlen(text)"),
    ("sizeof", 1, 1, "sizeof(type or value)"),
    ("bswap", 1, 1, "bswap(number)"),
    ("uptr", 1, 1, "uptr(pointer)"),
];
const AGGREGATIONS: &[(&str, usize, usize, &str)] = &[
    ("count", 0, 0, "@x = count()"),
    ("sum", 1, 1, "@x = sum(n)"),
    ("avg", 1, 1, "@x = avg(n)"),
    ("min", 1, 1, "@x = min(n)"),
    ("max", 1, 1, "@x = max(n)"),
    ("stats", 1, 1, "@x = stats(n)"),
    ("hist", 1, 2, "@x = hist(n)"),
    ("lhist", 4, 4, "@x = lhist(n, min, max, step)"),
];
const LATER: &[&str] = &[
    "usym",
    "uaddr",
    "ustack",
    "ntop",
    "pton",
    "macaddr",
    "strerror",
    "signal_name",
    "syscall_name",
    "cat",
    "system",
    "signal",
    "signal_thread",
    "write_user",
    "errorf",
    "warnf",
    "fail",
    "assert",
    "static_assert",
    "find",
    "tseries",
    "getopt",
    "offsetof",
    "container_of",
    "str_concat",
    "strcap",
    "memcmp",
    "cgroup_path",
    "cgroupid",
    "pid",
    "tid",
    "typeof",
    "typeinfo",
    "is_ptr",
    "is_array",
    "comptime",
];
const KERNEL: &[&str] = &[
    "kstack",
    "ksym",
    "kaddr",
    "kptr",
    "percpu_kaddr",
    "override",
    "path",
    "skboutput",
    "socket_cookie",
    "debugf",
    "stack_len",
];

impl Lower<'_> {
    fn arity(&mut self, known: &(&str, usize, usize, &str), args: &[Expr], span: Span) -> bool {
        let (name, least, most, shape) = known;
        let ok = (*least..=*most).contains(&args.len());
        if !ok {
            let wanted = if least == most {
                least.to_string()
            } else if *most == usize::MAX {
                format!("{least} or more")
            } else {
                format!("{least} to {most}")
            };
            let error = Diagnostic::error(
                span,
                format!("{name}() takes {wanted} arguments, not {}", args.len()),
            );
            self.tell(error.hint(format!("write {shape}")));
        }
        ok
    }

    /// If the call is an aggregation: what it does, its value and whether that is signed; None inside after an error.
    pub(super) fn agg_call(
        &mut self,
        name: &str,
        args: &[Expr],
        span: Span,
    ) -> Option<Option<(Agg, Value, bool)>> {
        let known = AGGREGATIONS.iter().find(|known| known.0 == name)?;
        if self.tree.macros.iter().any(|found| found.name == name) {
            return None;
        }
        if !self.arity(known, args, span) {
            return Some(None);
        }
        let agg = match name {
            "count" => return Some(Some((Agg::Count, Value::Imm(1), true))),
            "sum" => Agg::Sum,
            "avg" => Agg::Avg,
            "min" => Agg::Min,
            "max" => Agg::Max,
            "stats" => Agg::Stats,
            "hist" => {
                let bits = args.get(1).map_or(Some(0), |bits| {
                    self.constant(bits, "hist: the number of bits is a constant")
                });
                match bits {
                    Some(bits @ 0..=5) => Agg::Hist { bits: bits as u8 },
                    Some(_) => {
                        self.error(args[1].span, "hist: the number of bits is 0 to 5");
                        return Some(None);
                    }
                    None => return Some(None),
                }
            }
            _ => {
                let mut number =
                    |at: usize| self.constant(&args[at], "lhist: min, max and step are constants");
                let (Some(min), Some(max), Some(step)) = (number(1), number(2), number(3)) else {
                    return Some(None);
                };
                let buckets = max
                    .checked_sub(min)
                    .filter(|range| *range > 0 && step > 0)
                    .map(|range| range / step);
                match buckets {
                    Some(buckets @ 1..=1000) if buckets * step + min <= max => {
                        Agg::Lhist { min, max, step }
                    }
                    Some(1001..) => {
                        self.error(span, "lhist: more than 1000 buckets");
                        return Some(None);
                    }
                    _ => {
                        self.error(span, "lhist: min is below max, and step is positive and at most their distance");
                        return Some(None);
                    }
                }
            }
        };
        let (value, signed) = self.agg_value(&args[0]);
        Some(Some((agg, value, signed)))
    }

    /// A call as a statement.
    pub(super) fn expr_stmt(&mut self, expr: &Expr) {
        let effect = matches!(
            expr.kind,
            ExprKind::Call(..)
                | ExprKind::Step { .. }
                | ExprKind::Ternary(..)
                | ExprKind::Block(..)
        );
        let is_macro = matches!(&expr.kind, ExprKind::Ident(name) if self.tree.macros.iter().any(|found| found.name == *name));
        self.expr(expr);
        if !effect && !is_macro {
            let error = Diagnostic::error(expr.span, "this has no effect");
            self.tell(error.hint("write `_ = ...` to drop a value"));
        }
    }

    pub(super) fn call(&mut self, name: &str, args: &[Expr], span: Span) -> Val {
        if let Some(val) = self.expand(name, args, span) {
            return val;
        }
        if let Some(known) = AGGREGATIONS.iter().find(|known| known.0 == name) {
            let error = Diagnostic::error(span, format!("{name}() has to be assigned to a map"));
            self.tell(error.hint(format!("write {}", known.3)));
            return Val::unknown();
        }
        let Some(known) = FUNCTIONS.iter().find(|known| known.0 == name) else {
            return self.unknown_function(name, span);
        };
        if !self.arity(known, args, span) {
            return Val::unknown();
        }
        match name {
            "printf" => self.printf(args, span),
            "print" => self.print(args, span),
            "clear" | "zero" => {
                if let Some(map) = self.map_arg(&args[0], name) {
                    let clear = name == "clear";
                    self.emit(vec![], |_| {
                        if clear {
                            Format::Clear { map }
                        } else {
                            Format::Zero { map }
                        }
                    });
                }
            }
            "exit" => self.exit(args),
            "time" => self.time(args),
            "join" => self.join(args, span),
            _ => return self.value_call(name, args, span),
        }
        Val::void()
    }

    fn value_call(&mut self, name: &str, args: &[Expr], span: Span) -> Val {
        match name {
            "delete" | "has_key" => self.entry_call(name == "delete", args, span),
            "len" => match self.map_arg(&args[0], name) {
                Some(map) => Val::word(I64, self.b.def(|dst| Inst::MapLen { dst, map })),
                None => Val::unknown(),
            },
            "strftime" => self.strftime(args),
            "str" => self.str_call(args, span),
            "buf" => {
                self.needs_target(span, name);
                let addr = self.number(&args[0]).value();
                let most = i64::from(self.max_text());
                let len = args
                    .get(1)
                    .map_or(Value::Imm(most), |len| self.number(len).value());
                let room = match len {
                    Value::Imm(len) => len.clamp(0, most) as u32,
                    Value::Reg(_) => most as u32,
                };
                let size = 8 + room.next_multiple_of(8);
                let dst = self.b.temp(size);
                self.b.push(Inst::ReadBuf {
                    dst,
                    size,
                    addr,
                    len,
                });
                Val::bytes(Ty::Buf(size), dst)
            }
            "reg" => {
                let wanted = self.known_text(args.first(), "", "reg");
                self.needs_target(span, name);
                match crate::REGISTERS
                    .iter()
                    .find(|known| **known == wanted || (wanted == "pc" && **known == "ip"))
                {
                    Some(register) => Val::word(
                        U64,
                        self.b.def(|dst| Inst::Fact {
                            dst,
                            fact: Fact::Register(register),
                        }),
                    ),
                    None => {
                        let error = Diagnostic::error(
                            args[0].span,
                            format!("there is no register {wanted:?}"),
                        );
                        self.tell(error.hint(format!("known: {}", crate::REGISTERS.join(" "))));
                        Val::unknown()
                    }
                }
            }
            "nsecs" => {
                let clock = match args.first().map(|arg| &arg.kind) {
                    None => Clock::Boot,
                    Some(ExprKind::Ident(clock)) if clock == "boot" => Clock::Boot,
                    Some(ExprKind::Ident(clock)) if clock == "monotonic" => Clock::Monotonic,
                    Some(ExprKind::Ident(clock)) if clock == "tai" || clock == "sw_tai" => {
                        Clock::Tai
                    }
                    Some(_) => {
                        self.error(args[0].span, "nsecs: the clock is boot, monotonic or tai");
                        return Val::unknown();
                    }
                };
                Val::word(
                    U64,
                    self.b.def(|dst| Inst::Fact {
                        dst,
                        fact: Fact::Nsecs(clock),
                    }),
                )
            }
            "sizeof" => {
                // only the type counts: the code goes where nothing leads
                let (here, aside) = (self.b.block(), self.b.block());
                self.b.end(crate::ir::Term::Jump(here));
                self.b.enter(aside);
                let ty = self.expr(&args[0]).ty;
                self.b.end(crate::ir::Term::Return);
                self.b.enter(here);
                Val::word(U64, Value::Imm(i64::from(ty.sizeof())))
            }
            "bswap" => self.bswap(&args[0]),
            "uptr" => self.number(&args[0]),
            _ => self.text_call(name, args),
        }
    }

    fn entry_call(&mut self, delete: bool, args: &[Expr], span: Span) -> Val {
        let (name, keys) = match (&args[0].kind, args.get(1)) {
            (ExprKind::Map(name, None), Some(key)) => (name, Some(std::slice::from_ref(key))),
            (ExprKind::Map(name, keys), None) => (name, keys.as_deref()),
            _ => {
                let error = Diagnostic::error(
                    args[0].span,
                    if delete {
                        "delete takes a map and a key"
                    } else {
                        "has_key takes a map and a key"
                    },
                );
                self.tell(error.hint("delete(@map, key), has_key(@map, key)"));
                return Val::unknown();
            }
        };
        let map = self.map_id(name, args[0].span);
        let key = match keys {
            // several keys as one tuple
            Some(
                [
                    Expr {
                        kind: ExprKind::Tuple(parts),
                        ..
                    },
                ],
            ) if !parts.is_empty() => self.key(map, Some(parts), span),
            keys => self.key(map, keys, span),
        };
        let dst = self.b.reg();
        self.b.push(if delete {
            Inst::MapDelete { dst, map, key }
        } else {
            Inst::MapHas { dst, map, key }
        });
        Val::word(Ty::Bool, Value::Reg(dst))
    }

    fn str_call(&mut self, args: &[Expr], span: Span) -> Val {
        if let ExprKind::Param(number) = args[0].kind {
            let text = self.param(number).unwrap_or("").to_owned();
            return self.literal(&text);
        }
        let val = self.expr(&args[0]);
        if let Ty::Str(_) = val.ty {
            return val;
        }
        if !val.ty.is_number() {
            self.error(
                args[0].span,
                format!("str takes a pointer, this is {}", val.ty.name()),
            );
            return Val::unknown();
        }
        self.needs_target(span, "str");
        let most = self.max_text();
        let limit = args.get(1).map_or(Value::Imm(i64::from(most)), |limit| {
            self.number(limit).value()
        });
        let size = match limit {
            Value::Imm(limit) => (limit.clamp(1, i64::from(most)) as u32).next_multiple_of(8),
            Value::Reg(_) => most,
        };
        let dst = self.b.temp(size);
        self.b.push(Inst::ReadStr {
            dst,
            size,
            addr: val.value(),
            limit,
        });
        Val::bytes(Ty::Str(size), dst)
    }

    fn bswap(&mut self, arg: &Expr) -> Val {
        let val = self.number(arg);
        let bytes = match val.ty {
            Ty::Int(width) => width.bytes,
            _ => 8,
        };
        let mut out = Value::Imm(0);
        for at in 0..bytes {
            let byte = self
                .b
                .bin(BinOp::LShr, val.value(), Value::Imm(i64::from(at) * 8));
            let byte = self.b.bin(BinOp::And, byte, Value::Imm(0xff));
            let byte = self
                .b
                .bin(BinOp::Shl, byte, Value::Imm(i64::from(bytes - 1 - at) * 8));
            out = self.b.bin(BinOp::Or, out, byte);
        }
        Val::word(crate::types::int(bytes, false), out)
    }

    fn text_call(&mut self, name: &str, args: &[Expr]) -> Val {
        let val = self.expr(&args[0]);
        if let ("strlen", Ty::Buf(_), At::Bytes(src)) = (name, &val.ty, val.at) {
            return Val::word(U64, self.b.def(|dst| Inst::Load { dst, src }));
        }
        let Some((a, a_size)) = self.text_arg(val, args[0].span, name) else {
            return Val::word(I64, Value::Imm(0));
        };
        if name == "strlen" {
            return Val::word(
                U64,
                self.b.def(|dst| Inst::StrLen {
                    dst,
                    src: a,
                    size: a_size,
                }),
            );
        }
        let val = self.expr(&args[1]);
        let Some((b, b_size)) = self.text_arg(val, args[1].span, name) else {
            return Val::word(I64, Value::Imm(0));
        };
        if name == "strncmp" {
            let limit = self
                .constant(&args[2], "strncmp: the length is a constant")
                .unwrap_or(0);
            let Ok(limit) = u32::try_from(limit) else {
                self.error(args[2].span, "strncmp: the length is not negative");
                return Val::unknown();
            };
            return Val::word(
                I64,
                self.b.def(|dst| Inst::StrCmp {
                    dst,
                    a,
                    a_size,
                    b,
                    b_size,
                    limit,
                }),
            );
        }
        let at = self.b.def(|dst| Inst::StrFind {
            dst,
            hay: a,
            hay_size: a_size,
            needle: b,
            needle_size: b_size,
        });
        if name == "strstr" {
            Val::word(I64, at)
        } else {
            Val::word(Ty::Bool, self.b.bin(BinOp::SLe, Value::Imm(0), at))
        }
    }

    fn unknown_function(&mut self, name: &str, span: Span) -> Val {
        let error = if LATER.contains(&name) {
            Diagnostic::error(span, format!("`{name}()` is not supported yet"))
        } else if KERNEL.contains(&name) {
            Diagnostic::error(
                span,
                format!("`{name}()` is of the kernel; this program probes user space only"),
            )
        } else {
            let error = Diagnostic::error(span, format!("unknown function `{name}`"));
            let macros: Vec<&str> = self
                .tree
                .macros
                .iter()
                .map(|found| found.name.as_str())
                .collect();
            let all = FUNCTIONS
                .iter()
                .chain(AGGREGATIONS)
                .map(|known| known.0)
                .chain(macros);
            match nearest(name, all) {
                Some(near) => error.hint(format!("did you mean {near}?")),
                None => error,
            }
        };
        self.tell(error);
        Val::unknown()
    }
}
