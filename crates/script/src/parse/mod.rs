//! Recursive descent over statements, precedence climbing over expressions. An error is noted and parsing goes on at the next block.

mod expr;
mod lex;
mod stmt;

use crate::ast::{AttachPoint, Expr, Macro, MapDecl, Probe, Setting, Tree};
use crate::diag::{Diagnostic, Span};
pub(crate) use lex::parse_number;
use lex::{Lexer, Tok};

pub(crate) type Parsed<T> = Result<T, Diagnostic>;

pub(crate) struct Parser<'a> {
    lexer: Lexer<'a>,
    tok: Tok,
    span: Span,
    last: Span,
    depth: u32,
    in_predicate: bool,
}

/// The tree of all that could be parsed, and the errors.
pub(crate) fn parse(text: &str) -> (Tree, Vec<Diagnostic>) {
    let mut parser = Parser {
        lexer: Lexer { text, at: 0 },
        tok: Tok::End,
        span: Span::default(),
        last: Span::default(),
        depth: 0,
        in_predicate: false,
    };
    let mut tree = Tree::default();
    let mut errors = Vec::new();
    loop {
        match parser.item(&mut tree) {
            Ok(true) => {}
            Ok(false) => return (tree, errors),
            Err(error) => {
                errors.push(error);
                parser.recover();
            }
        }
    }
}

impl Parser<'_> {
    fn advance(&mut self) -> Parsed<()> {
        self.last = self.span;
        (self.tok, self.span) = self.lexer.next()?;
        Ok(())
    }

    fn at(&self, punct: &str) -> bool {
        matches!(&self.tok, Tok::Punct(have) if *have == punct)
    }

    fn at_word(&self, word: &str) -> bool {
        matches!(&self.tok, Tok::Ident(have) if have == word)
    }

    fn eat(&mut self, punct: &str) -> Parsed<bool> {
        let found = self.at(punct);
        if found {
            self.advance()?;
        }
        Ok(found)
    }

    fn expect(&mut self, punct: &str) -> Parsed<()> {
        if self.eat(punct)? {
            Ok(())
        } else {
            Err(self.unexpected(&format!("`{punct}`")))
        }
    }

    fn unexpected(&self, wanted: &str) -> Diagnostic {
        let found = match &self.tok {
            Tok::End => "end of the program".to_owned(),
            Tok::Str(text) => format!("string {text:?}"),
            _ => format!("`{}`", &self.lexer.text[self.span.start..self.span.end]),
        };
        Diagnostic::error(self.span, format!("unexpected {found}, expected {wanted}"))
    }

    fn ident(&mut self, what: &str) -> Parsed<String> {
        match self.tok.clone() {
            Tok::Ident(name) => self.advance().map(|()| name),
            _ => Err(self.unexpected(what)),
        }
    }

    /// Goes on behind the next closing brace of a block that follows.
    fn recover(&mut self) {
        self.depth = 0;
        self.in_predicate = false;
        loop {
            match self.lexer.next() {
                Ok((Tok::End, _)) => return,
                Ok((Tok::Punct("}"), _)) => {
                    let mut ahead = Lexer {
                        text: self.lexer.text,
                        at: self.lexer.at,
                    };
                    // inside a block statements go on; between blocks a probe, a name or the end follows
                    match ahead.next() {
                        Ok((Tok::Punct("}" | ";" | "," | ")" | "++" | "--"), _)) => {}
                        Ok((Tok::Ident(word), _))
                            if matches!(
                                word.as_str(),
                                "else" | "if" | "for" | "while" | "unroll" | "let" | "return"
                            ) => {}
                        Ok((Tok::Var(_) | Tok::Map(_), _)) => {}
                        Ok((Tok::Ident(_), span))
                            if self.lexer.text[span.end..].trim_start().starts_with('(') => {}
                        _ => return,
                    }
                }
                _ => {}
            }
        }
    }

    fn item(&mut self, tree: &mut Tree) -> Parsed<bool> {
        self.lexer.skip()?;
        if self.lexer.rest().is_empty() {
            return Ok(false);
        }
        let start = self.lexer.at;
        self.advance()?;
        match &self.tok {
            Tok::Ident(word) if word == "config" => self.config(tree)?,
            Tok::Ident(word) if word == "macro" => {
                let found = self.macro_item()?;
                tree.macros.push(found);
            }
            Tok::Ident(word) if word == "let" => {
                let found = self.map_decl()?;
                tree.maps.push(found);
            }
            Tok::Ident(word)
                if matches!(
                    word.as_str(),
                    "struct" | "union" | "enum" | "typedef" | "fn" | "import" | "subprog"
                ) =>
            {
                return Err(Diagnostic::error(
                    self.span,
                    format!("`{word}` is not supported yet"),
                ));
            }
            Tok::Punct("#") => {
                return Err(Diagnostic::error(
                    self.span,
                    "preprocessor lines are not supported yet",
                )
                .hint("write constants where they are used, or in a macro"));
            }
            _ => {
                self.lexer.at = start;
                let probe = self.probe()?;
                tree.probes.push(probe);
            }
        }
        Ok(true)
    }

    fn probe(&mut self) -> Parsed<Probe> {
        let mut points = Vec::new();
        loop {
            self.lexer.skip()?;
            let rest = self.lexer.rest();
            if !points.is_empty() && rest.starts_with('{') {
                break; // a comma at the list's end
            }
            points.push(self.attach_point()?);
            self.lexer.skip()?;
            if !self.lexer.rest().starts_with(',') {
                break;
            }
            self.lexer.at += 1;
        }
        self.advance()?;
        let mut predicate = None;
        if self.eat("/")? {
            self.in_predicate = true;
            let found = self.expr()?;
            self.in_predicate = false;
            self.expect("/")?;
            predicate = Some(found);
        }
        if !self.at("{") {
            return Err(self.unexpected("`{` or a predicate"));
        }
        self.advance()?;
        let body = self.block_rest()?;
        // the closing brace is the current token; what follows may be an attach point
        Ok(Probe {
            points,
            predicate,
            body,
        })
    }

    fn attach_point(&mut self) -> Parsed<AttachPoint> {
        let start = self.lexer.at;
        let mut quoted = false;
        let mut end = self.lexer.text.len();
        let mut chars = self.lexer.rest().char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => quoted = !quoted,
                '\\' if quoted => {
                    chars.next();
                }
                _ if quoted => {}
                ',' | '{' | '}' | ';' => {
                    end = start + at;
                    break;
                }
                c if c.is_whitespace() => {
                    end = start + at;
                    break;
                }
                _ => {}
            }
        }
        self.lexer.at = end;
        let span = Span { start, end };
        if quoted {
            return Err(Diagnostic::error(
                span,
                "string without end in the attach point",
            ));
        }
        if end == start {
            self.advance()?;
            return Err(self.unexpected("an attach point"));
        }
        Ok(AttachPoint {
            text: self.lexer.text[start..end].to_owned(),
            span,
        })
    }

    fn config(&mut self, tree: &mut Tree) -> Parsed<()> {
        self.advance()?;
        self.eat("=")?;
        self.expect("{")?;
        while !self.at("}") {
            let start = self.span;
            let key = self.ident("a setting")?;
            self.expect("=")?;
            let value = self.expr()?;
            tree.settings.push(Setting {
                key,
                value,
                span: start.to(self.last),
            });
            if !self.at("}") && !self.eat(";")? && !self.eat(",")? {
                return Err(self.unexpected("`;` or `}`"));
            }
        }
        Ok(())
    }

    fn macro_item(&mut self) -> Parsed<Macro> {
        let start = self.span;
        self.advance()?;
        let name = self.ident("the macro's name")?;
        let span = start.to(self.last);
        self.expect("(")?;
        let mut params: Vec<Expr> = Vec::new();
        while !self.at(")") {
            params.push(self.macro_param()?);
            if !self.eat(",")? {
                break;
            }
        }
        self.expect(")")?;
        self.expect("{")?;
        let (body, value) = self.block_value()?;
        Ok(Macro {
            name,
            params,
            body,
            value,
            span,
        })
    }

    fn map_decl(&mut self) -> Parsed<MapDecl> {
        let start = self.span;
        self.advance()?;
        let Tok::Map(name) = self.tok.clone() else {
            return Err(self.unexpected("a map"));
        };
        self.advance()?;
        self.expect("=")?;
        let kind = self.ident("the map's kind: hash, lruhash, percpuhash or percpulruhash")?;
        self.expect("(")?;
        let Tok::Int(entries) = self.tok else {
            return Err(self.unexpected("the most entries"));
        };
        self.advance()?;
        self.expect(")")?;
        let span = start.to(self.last);
        // without a semicolon the next item begins at the current token
        if !self.at(";") {
            self.lexer.at = self.span.start;
        }
        Ok(MapDecl {
            name,
            kind,
            entries,
            span,
        })
    }
}
