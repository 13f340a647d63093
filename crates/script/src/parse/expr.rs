//! Expressions.

use super::{Parsed, Parser, Tok};
use crate::ast::{Expr, ExprKind, MAX_DEPTH};
use crate::diag::{Diagnostic, Span};
use crate::types::is_type_name;

/// Binary operators, loosest first.
const LEVELS: &[&[&str]] = &[
    &["||"],
    &["&&"],
    &["|"],
    &["^"],
    &["&"],
    &["==", "!="],
    &["<", "<=", ">", ">="],
    &["<<", ">>"],
    &["+", "-"],
    &["*", "/", "%"],
];

impl Parser<'_> {
    fn node(&self, kind: ExprKind, span: Span, below: u32) -> Parsed<Expr> {
        if below >= MAX_DEPTH {
            return Err(Diagnostic::error(
                span,
                format!("expression more than {MAX_DEPTH} operators deep"),
            )
            .hint("keep parts of it in variables"));
        }
        Ok(Expr {
            kind,
            span,
            depth: below + 1,
        })
    }

    pub(super) fn expr(&mut self) -> Parsed<Expr> {
        self.deeper()?;
        let cond = self.binary(0)?;
        let found = if self.at("?:") {
            return Err(
                Diagnostic::error(self.span, "`?:` without middle is not supported yet")
                    .hint("write a ? a : b"),
            );
        } else if self.eat("?")? {
            let then = self.expr()?;
            self.expect(":")?;
            let other = self.expr()?;
            let below = cond.depth.max(then.depth).max(other.depth);
            let span = cond.span.to(other.span);
            self.node(
                ExprKind::Ternary(Box::new(cond), Box::new(then), Box::new(other)),
                span,
                below,
            )?
        } else {
            cond
        };
        self.depth -= 1;
        Ok(found)
    }

    /// In a predicate `/` before `{` ends it.
    fn ends_predicate(&mut self) -> bool {
        if !self.in_predicate || !self.at("/") {
            return false;
        }
        let back = self.lexer.at;
        let _ = self.lexer.skip();
        let ends = self.lexer.rest().starts_with('{');
        self.lexer.at = back;
        ends
    }

    /// Operators of this level and tighter ones: one frame a level of nesting, not one a level of precedence.
    fn binary(&mut self, least: usize) -> Parsed<Expr> {
        let mut left = self.unary()?;
        loop {
            let found = LEVELS
                .iter()
                .enumerate()
                .skip(least)
                .find_map(|(level, ops)| Some((level, *ops.iter().find(|op| self.at(op))?)));
            let Some((level, op)) = found else {
                return Ok(left);
            };
            if op == "/" && self.ends_predicate() {
                return Ok(left);
            }
            self.advance()?;
            let right = self.binary(level + 1)?;
            let (span, below) = (left.span.to(right.span), left.depth.max(right.depth));
            left = self.node(
                ExprKind::Binary(op, Box::new(left), Box::new(right)),
                span,
                below,
            )?;
        }
    }

    fn unary(&mut self) -> Parsed<Expr> {
        let start = self.span;
        for op in ["!", "~", "-", "*", "&", "++", "--", "+"] {
            if self.at(op) {
                self.deeper()?;
                self.advance()?;
                let inner = self.unary()?;
                self.depth -= 1;
                let (span, below) = (start.to(inner.span), inner.depth);
                if op == "+" {
                    return Ok(inner);
                }
                let inner = Box::new(inner);
                let kind = match op {
                    "++" | "--" => ExprKind::Step {
                        target: inner,
                        up: op == "++",
                        post: false,
                    },
                    op => ExprKind::Unary(op, inner),
                };
                return self.node(kind, span, below);
            }
        }
        let first = self.primary()?;
        self.postfix(first)
    }

    fn postfix(&mut self, mut expr: Expr) -> Parsed<Expr> {
        loop {
            let below = expr.depth;
            if self.at("++") || self.at("--") {
                let up = self.at("++");
                self.advance()?;
                let span = expr.span.to(self.last);
                expr = self.node(
                    ExprKind::Step {
                        target: Box::new(expr),
                        up,
                        post: true,
                    },
                    span,
                    below,
                )?;
            } else if self.at(".") || self.at("->") {
                self.advance()?;
                let Tok::Int(number) = self.tok else {
                    return Err(Diagnostic::error(
                        self.span,
                        "struct fields are not supported yet",
                    )
                    .hint("tuple elements are .0, .1 ..."));
                };
                self.advance()?;
                let span = expr.span.to(self.last);
                let number = u32::try_from(number).unwrap_or(u32::MAX);
                expr = self.node(ExprKind::Element(Box::new(expr), number), span, below)?;
            } else if self.at("[") && !matches!(expr.kind, ExprKind::Map(_, None)) {
                self.advance()?;
                let index = self.expr()?;
                self.expect("]")?;
                let (span, below) = (expr.span.to(self.last), below.max(index.depth));
                expr = self.node(
                    ExprKind::Index(Box::new(expr), Box::new(index)),
                    span,
                    below,
                )?;
            } else {
                return Ok(expr);
            }
        }
    }

    /// Expressions up to the closing token, which is eaten. True if the last was followed by a comma.
    fn list(&mut self, close: &str) -> Parsed<(Vec<Expr>, bool)> {
        let predicate = std::mem::take(&mut self.in_predicate);
        let mut found = Vec::new();
        let mut comma = false;
        while !self.at(close) {
            found.push(self.expr()?);
            comma = self.eat(",")?;
            if !comma {
                break;
            }
        }
        self.in_predicate = predicate;
        self.expect(close)?;
        Ok((found, comma))
    }

    fn primary(&mut self) -> Parsed<Expr> {
        let start = self.span;
        let tok = self.tok.clone();
        match tok {
            Tok::Int(value) => self.leaf(ExprKind::Int(value)),
            Tok::Str(text) => self.leaf(ExprKind::Str(text)),
            Tok::Var(name) => self.leaf(ExprKind::Var(name)),
            Tok::Param(number) => self.leaf(ExprKind::Param(number)),
            Tok::ParamCount => self.leaf(ExprKind::ParamCount),
            Tok::Map(name) => {
                self.advance()?;
                if !self.eat("[")? {
                    return self.node(ExprKind::Map(name, None), start, 0);
                }
                let (keys, _) = self.list("]")?;
                let (span, below) = (
                    start.to(self.last),
                    keys.iter().map(|key| key.depth).max().unwrap_or(0),
                );
                self.node(ExprKind::Map(name, Some(keys)), span, below)
            }
            Tok::Ident(word) => self.word(word),
            Tok::Punct("(") => self.parenthesis(),
            Tok::Punct("{") => {
                self.advance()?;
                let (body, value) = self.block_value()?;
                self.expect("}")?;
                let span = start.to(self.last);
                let value = value.ok_or_else(|| {
                    Diagnostic::error(span, "this block has no value")
                        .hint("end it with an expression without semicolon")
                })?;
                self.node(ExprKind::Block(body, Box::new(value)), span, MAX_DEPTH / 4)
            }
            _ => Err(self.unexpected("an expression")),
        }
    }

    fn leaf(&mut self, kind: ExprKind) -> Parsed<Expr> {
        let span = self.span;
        self.advance()?;
        self.node(kind, span, 0)
    }

    pub(super) fn macro_param(&mut self) -> Parsed<Expr> {
        match self.tok.clone() {
            Tok::Ident(name) => self.leaf(ExprKind::Ident(name)),
            Tok::Var(name) => self.leaf(ExprKind::Var(name)),
            Tok::Map(name) => self.leaf(ExprKind::Map(name, None)),
            _ => Err(self.unexpected("a parameter: name, $name or @name")),
        }
    }

    fn word(&mut self, word: String) -> Parsed<Expr> {
        let start = self.span;
        if word == "true" || word == "false" {
            return self.leaf(ExprKind::Bool(word == "true"));
        }
        self.advance()?;
        if !self.at("(") {
            return self.node(ExprKind::Ident(word), start, 0);
        }
        self.advance()?;
        if word == "sizeof"
            && let Tok::Ident(name) = &self.tok
            && is_type_name(name)
        {
            let ty = self.type_name()?;
            self.expect(")")?;
            let span = start.to(self.last);
            return self.node(ExprKind::SizeofType(ty), span, 0);
        }
        let (args, _) = self.list(")")?;
        let (span, below) = (
            start.to(self.last),
            args.iter().map(|arg| arg.depth).max().unwrap_or(0),
        );
        self.node(ExprKind::Call(word, args), span, below)
    }

    /// A cast, a tuple or an expression in parentheses.
    fn parenthesis(&mut self) -> Parsed<Expr> {
        let start = self.span;
        self.advance()?;
        if let Tok::Ident(name) = &self.tok
            && is_type_name(name)
        {
            let ty = self.type_name()?;
            self.expect(")")?;
            self.deeper()?;
            let inner = self.unary()?;
            self.depth -= 1;
            let (span, below) = (start.to(inner.span), inner.depth);
            return self.node(ExprKind::Cast(ty, Box::new(inner)), span, below);
        }
        let (mut inner, comma) = self.list(")")?;
        let span = start.to(self.last);
        if inner.len() == 1 && !comma {
            let only = inner.remove(0);
            return Ok(Expr { span, ..only });
        }
        let below = inner.iter().map(|part| part.depth).max().unwrap_or(0);
        self.node(ExprKind::Tuple(inner), span, below)
    }
}
