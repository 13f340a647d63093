//! Statements.

use super::{Parsed, Parser, Tok};
use crate::ast::{Expr, ExprKind, MAX_DEPTH, Stmt, StmtKind, TypeName};
use crate::diag::Diagnostic;

const ASSIGN: &[(&str, &str)] = &[
    ("=", ""),
    ("+=", "+"),
    ("-=", "-"),
    ("*=", "*"),
    ("/=", "/"),
    ("%=", "%"),
    ("&=", "&"),
    ("|=", "|"),
    ("^=", "^"),
    ("<<=", "<<"),
    (">>=", ">>"),
];

impl Parser<'_> {
    pub(super) fn deeper(&mut self) -> Parsed<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Diagnostic::error(
                self.span,
                format!("nested more than {MAX_DEPTH} deep"),
            ));
        }
        Ok(())
    }

    /// Statements up to the closing brace, which stays the current token.
    pub(super) fn block_rest(&mut self) -> Parsed<Vec<Stmt>> {
        match self.block_value()? {
            (body, None) => Ok(body),
            (mut body, Some(last)) => {
                let span = last.span;
                body.push(Stmt {
                    kind: StmtKind::Expr(last),
                    span,
                });
                Ok(body)
            }
        }
    }

    /// As `block_rest`; a last expression without semicolon is the block's value.
    pub(super) fn block_value(&mut self) -> Parsed<(Vec<Stmt>, Option<Expr>)> {
        self.deeper()?;
        let mut body = Vec::new();
        let mut value = None;
        loop {
            while self.eat(";")? {}
            if self.at("}") {
                break;
            }
            let stmt = self.stmt()?;
            let block_like = !matches!(
                stmt.kind,
                StmtKind::Expr(_)
                    | StmtKind::Assign(..)
                    | StmtKind::Let(..)
                    | StmtKind::Return(_)
                    | StmtKind::Break
                    | StmtKind::Continue
            );
            if self.at("}") {
                match stmt.kind {
                    StmtKind::Expr(expr) => value = Some(expr),
                    _ => body.push(stmt),
                }
                break;
            }
            if !block_like && !self.eat(";")? {
                return Err(self.unexpected("`;` or `}`"));
            }
            body.push(stmt);
        }
        self.depth -= 1;
        Ok((body, value))
    }

    fn braced(&mut self) -> Parsed<Vec<Stmt>> {
        self.expect("{")?;
        let body = self.block_rest()?;
        self.expect("}")?;
        Ok(body)
    }

    fn stmt(&mut self) -> Parsed<Stmt> {
        let start = self.span;
        let kind = self.stmt_kind()?;
        Ok(Stmt {
            kind,
            span: start.to(self.last),
        })
    }

    fn stmt_kind(&mut self) -> Parsed<StmtKind> {
        let word = match &self.tok {
            Tok::Ident(word) => word.clone(),
            Tok::Punct("{") => return self.block_stmt(),
            _ => String::new(),
        };
        match word.as_str() {
            "if" => self.if_stmt(),
            "while" => {
                self.advance()?;
                let cond = self.expr()?;
                Ok(StmtKind::While(cond, self.braced()?))
            }
            "unroll" => {
                self.advance()?;
                let count = self.expr()?;
                Ok(StmtKind::Unroll(count, self.braced()?))
            }
            "for" => self.for_stmt(),
            "let" => self.let_stmt(),
            "return" => {
                self.advance()?;
                let value = if self.at(";") || self.at("}") {
                    None
                } else {
                    Some(self.expr()?)
                };
                Ok(StmtKind::Return(value))
            }
            "break" => self.advance().map(|()| StmtKind::Break),
            "continue" => self.advance().map(|()| StmtKind::Continue),
            _ => {
                let target = self.expr()?;
                let op = ASSIGN
                    .iter()
                    .find(|(punct, _)| self.at(punct))
                    .map(|(_, op)| *op);
                let Some(op) = op else {
                    return Ok(StmtKind::Expr(target));
                };
                if !matches!(target.kind, ExprKind::Var(_) | ExprKind::Map(..))
                    && !matches!(&target.kind, ExprKind::Ident(name) if name == "_")
                {
                    return Err(Diagnostic::error(
                        target.span,
                        "only $variables and @maps can be assigned",
                    ));
                }
                self.advance()?;
                let value = self.expr()?;
                Ok(StmtKind::Assign(target, op, value))
            }
        }
    }

    fn block_stmt(&mut self) -> Parsed<StmtKind> {
        Ok(StmtKind::Block(self.braced()?))
    }

    fn if_stmt(&mut self) -> Parsed<StmtKind> {
        self.deeper()?;
        self.advance()?;
        let cond = self.expr()?;
        let then = self.braced()?;
        let mut other = Vec::new();
        if self.at_word("else") {
            self.advance()?;
            if self.at_word("if") {
                other.push(self.stmt()?);
            } else {
                other = self.braced()?;
            }
        }
        self.depth -= 1;
        Ok(StmtKind::If(cond, then, other))
    }

    fn for_stmt(&mut self) -> Parsed<StmtKind> {
        self.advance()?;
        let paren = self.eat("(")?;
        let Tok::Var(name) = self.tok.clone() else {
            return Err(self.unexpected("a $variable"));
        };
        self.advance()?;
        self.expect(":")?;
        let from = self.expr()?;
        let range = if self.eat("..")? {
            Some(self.expr()?)
        } else {
            None
        };
        if paren {
            self.expect(")")?;
        }
        let body = self.braced()?;
        match (range, from.kind) {
            (Some(to), kind) => Ok(StmtKind::ForRange(name, Expr { kind, ..from }, to, body)),
            (None, ExprKind::Map(map, None)) => Ok(StmtKind::ForMap(name, map, body)),
            (None, _) => Err(
                Diagnostic::error(from.span, "`for` goes over a map or a range")
                    .hint("for ($kv : @map) or for ($i : 0..10)"),
            ),
        }
    }

    fn let_stmt(&mut self) -> Parsed<StmtKind> {
        self.advance()?;
        let Tok::Var(name) = self.tok.clone() else {
            return Err(self.unexpected("a $variable"));
        };
        self.advance()?;
        let ty = if self.eat(":")? {
            Some(self.type_name()?)
        } else {
            None
        };
        let value = if self.eat("=")? {
            Some(self.expr()?)
        } else {
            None
        };
        Ok(StmtKind::Let(name, ty, value))
    }

    pub(super) fn type_name(&mut self) -> Parsed<TypeName> {
        let start = self.span;
        let mut name = self.ident("a type")?;
        while matches!(
            name.as_str(),
            "unsigned" | "signed" | "long" | "struct" | "union" | "enum" | "short"
        ) {
            let Tok::Ident(more) = self.tok.clone() else {
                break;
            };
            name = format!("{name} {more}");
            self.advance()?;
            if !matches!(more.as_str(), "long" | "short") {
                break;
            }
        }
        let mut stars = 0;
        while self.eat("*")? {
            stars += 1;
        }
        Ok(TypeName {
            name,
            stars,
            span: start.to(self.last),
        })
    }
}
