//! Types and code in one walk over the tree.
//!
//! What maps and variables hold follows from their uses, which may come later in the text than a read. So the walk is repeated, with what was
//! learned, until nothing new is learned (types only widen, so it ends); the last walk's messages and code count.

mod assign;
mod build;
mod builtins;
mod call;
mod expr;
mod format;
mod macros;
mod maps;
mod output;
mod points;
mod settings;
mod stmt;
mod text;

pub use settings::is_setting;

use std::collections::HashSet;

use crate::ast::{Expr, ExprKind, Probe, Tree};
use crate::diag::{Diagnostic, Span};
use crate::ir::{Format, FormatId, Hoist, PointId, Program, StrId, StrSource};
use crate::types::{Ty, fields};
use build::{At, Builder, Val};
use maps::MapState;

/// Loop passes of one run in the target, where a program waits, and in the tracer.
const FUEL_TARGET: u32 = 1 << 16;
const FUEL_TRACER: u32 = 1 << 20;
/// Walks; each widens a type at least, and there are few steps of widening.
const MAX_WALKS: usize = 24;
/// Bytes of scratch in one action.
const SCRATCH: u64 = 256 * 1024;

/// What stands in for `$1`, `$2` ...
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Positional parameters.
    pub params: Vec<String>,
    /// Names and values of settings from outside the program: they win over its `config` block.
    pub settings: Vec<(String, String)>,
}

#[derive(Default)]
struct Learned {
    maps: Vec<MapState>,
    vars: Vec<Option<Ty>>,
    changed: bool,
}

pub(crate) struct Lower<'a> {
    tree: &'a Tree,
    options: &'a Options,
    learned: Learned,
    program: Program,
    diags: Vec<Diagnostic>,
    b: Builder,
    next_var: usize,
    depth: u32,
    expansions: u32,
    /// Names of the macros that are being expanded.
    expanding: Vec<String>,
    /// Whether the block runs at a hit.
    in_target: bool,
    /// Part of the text could not be parsed.
    broken: bool,
    /// Maps that something was assigned to, rightly or not.
    tried: HashSet<String>,
}

pub(crate) fn lower(tree: &Tree, options: &Options, broken: bool) -> (Program, Vec<Diagnostic>) {
    let mut learned = Learned::default();
    for walk in 0.. {
        learned.changed = false;
        let mut lower = Lower {
            tree,
            options,
            learned,
            program: Program::default(),
            diags: Vec::new(),
            b: Builder::default(),
            next_var: 0,
            depth: 0,
            expansions: 0,
            expanding: Vec::new(),
            in_target: false,
            broken,
            tried: HashSet::new(),
        };
        lower.program();
        if !lower.learned.changed || walk == MAX_WALKS {
            if lower.learned.changed {
                lower.diags.push(Diagnostic::error(
                    Span::default(),
                    "types of maps and variables depend on each other without end",
                ));
            }
            lower.finish_maps();
            return (lower.program, lower.diags);
        }
        learned = lower.learned;
    }
    unreachable!("the loop has no end but the return")
}

impl Lower<'_> {
    fn error(&mut self, span: Span, message: impl Into<String>) {
        self.tell(Diagnostic::error(span, message));
    }

    fn tell(&mut self, diagnostic: Diagnostic) {
        if !self.diags.contains(&diagnostic) {
            self.diags.push(diagnostic);
        }
    }

    fn program(&mut self) {
        let tree = self.tree;
        for setting in &tree.settings {
            if let Err(error) = settings::apply(&mut self.program.config, setting) {
                self.tell(error);
            }
        }
        for (key, value) in &self.options.settings {
            if let Err(error) = settings::apply_text(&mut self.program.config, key, value) {
                self.tell(error);
            }
        }
        self.declare_maps();
        self.check_macros();
        for probe in &tree.probes {
            self.probe(probe);
        }
        if tree.probes.is_empty() && !self.broken {
            self.error(Span::default(), "the program has no probe");
        }
    }

    /// One action for the points in the target and one for those in the tracer.
    fn probe(&mut self, probe: &Probe) {
        let (mut target, mut tracer) = (Vec::new(), Vec::new());
        for point in &probe.points {
            match points::parse(point, &self.options.params) {
                Ok(parsed) => {
                    let list = if parsed.in_target() {
                        &mut target
                    } else {
                        &mut tracer
                    };
                    let known = self
                        .program
                        .points
                        .iter()
                        .position(|known| *known == parsed);
                    let id = known.unwrap_or_else(|| {
                        self.program.points.push(parsed);
                        self.program.points.len() - 1
                    });
                    let id = PointId(id as u32);
                    if !list.contains(&id) {
                        list.push(id);
                    }
                }
                Err(error) => self.tell(error),
            }
        }
        let all_wrong = target.is_empty() && tracer.is_empty();
        for (points, in_target) in [(target, true), (tracer, false)] {
            // with no point that could be read the body is still checked, as if in the target
            if !points.is_empty() || (all_wrong && in_target) {
                self.action(probe, points, in_target);
            }
        }
    }

    fn action(&mut self, probe: &Probe, points: Vec<PointId>, in_target: bool) {
        self.b = Builder::new();
        self.in_target = in_target;
        let mut hoist = Vec::new();
        if let Some(predicate) = &probe.predicate {
            self.hoist(predicate, &mut hoist);
            let cond = self.condition(predicate);
            let (then, other) = (self.b.block(), self.b.block());
            self.b.end(crate::ir::Term::Branch { cond, then, other });
            self.b.enter(other);
            self.b.end(crate::ir::Term::Return);
            self.b.enter(then);
        }
        self.stmts(&probe.body);
        let fuel = if in_target { FUEL_TARGET } else { FUEL_TRACER };
        let mut action = std::mem::take(&mut self.b).finish(fuel);
        action.points = points;
        action.hoist = hoist;
        let scratch: u64 = action.buffers.iter().map(|size| u64::from(*size)).sum();
        if scratch > SCRATCH {
            let span = probe
                .points
                .first()
                .map_or(Span::default(), |point| point.span);
            let error = Diagnostic::error(
                span,
                format!(
                    "this block needs {scratch} bytes for texts and tuples, {SCRATCH} are the most"
                ),
            );
            self.tell(error.hint("set max_strlen to less in the config block"));
        }
        self.program.actions.push(action);
    }

    /// Parts of the predicate that choose processes.
    fn hoist(&mut self, predicate: &Expr, found: &mut Vec<Hoist>) {
        let ExprKind::Binary(op, a, b) = &predicate.kind else {
            return;
        };
        match (*op, &a.kind, &b.kind) {
            ("&&", ..) => {
                self.hoist(a, found);
                self.hoist(b, found);
            }
            ("==", ExprKind::Ident(name), _) => self.hoist_one(name, b, found),
            ("==", _, ExprKind::Ident(name)) => self.hoist_one(name, a, found),
            _ => {}
        }
    }

    fn hoist_one(&mut self, name: &str, to: &Expr, found: &mut Vec<Hoist>) {
        let number = match &to.kind {
            ExprKind::Int(value) => i64::try_from(*value).ok(),
            ExprKind::Param(number) => self.param(*number).and_then(|text| text.parse().ok()),
            _ => None,
        };
        match (name, &to.kind, number) {
            ("pid", _, Some(value)) => found.push(Hoist::Pid(value)),
            ("uid", _, Some(value)) => found.push(Hoist::Uid(value)),
            ("gid", _, Some(value)) => found.push(Hoist::Gid(value)),
            ("comm", ExprKind::Str(text), _) => found.push(Hoist::Comm(self.string(text))),
            _ => {}
        }
    }

    fn param(&self, number: u32) -> Option<&str> {
        self.options
            .params
            .get(number as usize - 1)
            .map(String::as_str)
    }

    fn string(&mut self, text: &str) -> StrId {
        // a text ends at its first zero
        let text = text.split('\0').next().unwrap_or("");
        let known = self.program.strings.iter().position(|known| known == text);
        let at = known.unwrap_or_else(|| {
            self.program.strings.push(text.to_owned());
            self.program.strings.len() - 1
        });
        StrId(at as u32)
    }

    fn format(&mut self, format: Format) -> FormatId {
        let known = self
            .program
            .formats
            .iter()
            .position(|known| *known == format);
        let at = known.unwrap_or_else(|| {
            self.program.formats.push(format);
            self.program.formats.len() - 1
        });
        FormatId(at as u32)
    }

    fn literal(&mut self, text: &str) -> Val {
        let id = self.string(text);
        let size = (self.program.strings[id.index()].len() as u32 + 1)
            .next_multiple_of(8)
            .min(self.max_text());
        self.text(size, StrSource::Const(id))
    }

    /// Bytes of the longest text.
    fn max_text(&self) -> u32 {
        self.program.config.max_strlen.next_multiple_of(8)
    }

    /// The record of these values.
    fn emit(&mut self, vals: Vec<Val>, format: impl FnOnce(Vec<crate::ir::Field>) -> Format) {
        let tys: Vec<Ty> = vals.iter().map(|val| val.ty.clone()).collect();
        let format = self.format(format(fields(&tys)));
        let args = vals
            .iter()
            .map(|val| match val.at {
                At::Bytes(place) => crate::ir::Arg::Bytes(place),
                _ => crate::ir::Arg::Value(val.value()),
            })
            .collect();
        self.b.push(crate::ir::Inst::Emit { format, args });
    }
}
