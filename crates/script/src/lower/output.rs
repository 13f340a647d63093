//! Functions whose work the tracer does: records.

use super::build::{At, Val};
use super::maps::Holds;
use super::text::behind;
use super::{Lower, format};
use crate::ast::{Expr, ExprKind};
use crate::diag::{Diagnostic, Span};
use crate::ir::{Format, Inst, Piece, Term};
use crate::types::{I64, Ty};

/// Texts of one `join`, and most bytes of each.
const JOINED: u32 = 16;
const JOINED_SIZE: u32 = 256;

impl Lower<'_> {
    /// A text that has to be known now.
    pub(super) fn known_text(&mut self, arg: Option<&Expr>, otherwise: &str, of: &str) -> String {
        match arg.map(|arg| (&arg.kind, arg.span)) {
            None => otherwise.to_owned(),
            Some((ExprKind::Str(text), _)) => text.clone(),
            Some((_, span)) => {
                self.error(span, format!("{of} takes a constant string here"));
                String::new()
            }
        }
    }

    pub(super) fn printf(&mut self, args: &[Expr], span: Span) {
        let text = self.known_text(args.first(), "", "printf");
        let pieces = match format::parse(&text) {
            Ok(pieces) => pieces,
            Err(wrong) => {
                self.error(args[0].span, format!("printf: {wrong}"));
                return;
            }
        };
        let conversions: Vec<char> = pieces
            .iter()
            .filter_map(|piece| match piece {
                Piece::Conversion { conversion, .. } => Some(*conversion),
                Piece::Text(_) => None,
            })
            .collect();
        let values = &args[1..];
        if conversions.len() != values.len() {
            self.error(
                span,
                format!(
                    "printf: the format has {} conversions, there are {} values",
                    conversions.len(),
                    values.len()
                ),
            );
            return;
        }
        let mut vals = Vec::new();
        for (conversion, arg) in conversions.iter().zip(values) {
            let val = self.expr(arg);
            if let Err(wanted) = format::takes(*conversion, &val.ty) {
                let error = Diagnostic::error(
                    arg.span,
                    format!(
                        "printf: %{conversion} takes {wanted}, this is {}",
                        val.ty.name()
                    ),
                );
                self.tell(if val.ty.is_word() || matches!(val.ty, Ty::Str(_)) {
                    error.hint("%s prints it")
                } else {
                    error
                });
            }
            vals.push(val);
        }
        self.emit(vals, |fields| Format::Printf { pieces, fields });
    }

    pub(super) fn print(&mut self, args: &[Expr], span: Span) {
        if let ExprKind::Map(name, keys) = &args[0].kind {
            let map = self.map_id(name, args[0].span);
            let state = self.map_state(map).clone();
            if keys.is_none() {
                let mut number = |at: usize, what: &str| match args.get(at) {
                    None => 0,
                    Some(arg) => {
                        let value = self
                            .constant(arg, &format!("print: {what} is a constant"))
                            .unwrap_or(0);
                        u32::try_from(value).unwrap_or_else(|_| {
                            self.error(
                                arg.span,
                                format!("print: {what} is a number from 0 to 4294967295"),
                            );
                            0
                        })
                    }
                };
                let (top, div) = (number(1, "top"), number(2, "div"));
                if args.len() > 1
                    && state.key.as_ref().is_some_and(|key| key.size() == 0)
                    && args.len() == 2
                {
                    self.error(
                        args[1].span,
                        format!("{name} has no key, so there is no top"),
                    );
                }
                return self.emit(vec![], |_| Format::PrintMap { map, top, div });
            }
            if let Holds::Agg {
                agg: crate::ir::Agg::Hist { .. } | crate::ir::Agg::Lhist { .. },
                ..
            } = state.value
            {
                let error = Diagnostic::error(
                    span,
                    format!("{name} holds histograms, whose entries cannot be printed alone"),
                );
                return self.tell(error.hint(format!("print({name})")));
            }
        }
        if let Some(more) = args.get(1) {
            self.error(more.span, "print: top and div are for whole maps");
        }
        let val = self.expr(&args[0]);
        if val.ty == Ty::Void {
            return self.error(args[0].span, "print: this has no value");
        }
        self.emit(vec![val], |fields| Format::Print { fields });
    }

    pub(super) fn time(&mut self, args: &[Expr]) {
        let text = self.known_text(args.first(), "%H:%M:%S\n", "time");
        let format = self.string(&text);
        self.emit(vec![], |_| Format::Time { format });
    }

    pub(super) fn exit(&mut self, args: &[Expr]) {
        let status = args
            .first()
            .map_or(Val::word(I64, crate::ir::Value::Imm(0)), |arg| {
                self.number(arg)
            });
        self.emit(vec![status], |fields| Format::Exit { fields });
        self.b.end(Term::Return);
        self.b.unreachable();
    }

    pub(super) fn join(&mut self, args: &[Expr], span: Span) {
        self.needs_target(span, "join");
        let addr = self.number(&args[0]).value();
        let text = self.known_text(args.get(1), " ", "join");
        let separator = self.string(&text);
        let size = self.max_text().min(JOINED_SIZE);
        let dst = self.b.temp(size * JOINED);
        let found = self.b.def(|found| Inst::ReadStrArray {
            found,
            dst,
            size,
            count: JOINED,
            addr,
        });
        let mut vals = vec![Val::word(I64, found)];
        vals.extend((0..JOINED).map(|at| Val::bytes(Ty::Str(size), behind(dst, at * size))));
        self.emit(vals, |fields| Format::Join { separator, fields });
    }

    /// The map that a function works on.
    pub(super) fn map_arg(&mut self, arg: &Expr, of: &str) -> Option<crate::ir::MapId> {
        match &arg.kind {
            ExprKind::Map(name, None) => Some(self.map_id(name, arg.span)),
            _ => {
                self.error(arg.span, format!("{of} takes a map"));
                None
            }
        }
    }

    pub(super) fn strftime(&mut self, args: &[Expr]) -> Val {
        let text = self.known_text(args.first(), "", "strftime");
        let id = self.string(&text);
        let val = self.number(&args[1]);
        Val {
            ty: Ty::Time(id),
            at: At::Word(val.value()),
        }
    }
}
