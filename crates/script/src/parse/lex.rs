//! Text to tokens, one at a time: attach points are not made of tokens, so the parser says where to go on.

use crate::diag::{Diagnostic, Span};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Tok {
    Ident(String),
    Var(String),
    Param(u32),
    ParamCount,
    Map(String),
    Int(u64),
    Str(String),
    Punct(&'static str),
    End,
}

/// Longest first.
const PUNCTS: &[&str] = &[
    "<<=", ">>=", "++", "--", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<", ">>", "&&",
    "||", "==", "!=", "<=", ">=", "->", "..", "?:", "{", "}", "(", ")", "[", "]", ";", ",", "?",
    ":", ".", "+", "-", "*", "/", "%", "&", "|", "^", "~", "!", "<", ">", "=", "#",
];

pub(crate) struct Lexer<'a> {
    pub(crate) text: &'a str,
    pub(crate) at: usize,
}

impl<'a> Lexer<'a> {
    pub(crate) fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Past blanks and comments. A comment without end is an error.
    pub(crate) fn skip(&mut self) -> Result<(), Diagnostic> {
        loop {
            let rest = self.rest();
            self.at += rest.len() - rest.trim_start().len();
            let rest = self.rest();
            if rest.starts_with("//") || (self.at == 0 && rest.starts_with("#!")) {
                self.at += rest.find('\n').unwrap_or(rest.len());
            } else if let Some(comment) = rest.strip_prefix("/*") {
                let Some(end) = comment.find("*/") else {
                    let span = Span {
                        start: self.at,
                        end: self.at + 2,
                    };
                    self.at = self.text.len();
                    return Err(
                        Diagnostic::error(span, "comment without end").hint("close it with */")
                    );
                };
                self.at += end + 4;
            } else {
                return Ok(());
            }
        }
    }

    fn word(&mut self, more: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let len = rest.find(|c| !more(c)).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    /// The next token; always goes on, so that the caller can recover.
    pub(crate) fn next(&mut self) -> Result<(Tok, Span), Diagnostic> {
        self.skip()?;
        let start = self.at;
        let name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let Some(first) = self.rest().chars().next() else {
            return Ok((Tok::End, Span { start, end: start }));
        };
        let tok = match first {
            '"' => Tok::Str(self.string()?),
            '0'..='9' => Tok::Int(self.number()?),
            '@' => {
                self.at += 1;
                Tok::Map(format!("@{}", self.word(name)))
            }
            '$' => {
                self.at += 1;
                if self.rest().starts_with('#') {
                    self.at += 1;
                    Tok::ParamCount
                } else {
                    let word = self.word(name);
                    let span = Span {
                        start,
                        end: self.at,
                    };
                    match word.chars().next() {
                        None => {
                            return Err(Diagnostic::error(
                                Span {
                                    start,
                                    end: start + 1,
                                },
                                "`$` without a name",
                            ));
                        }
                        Some('0'..='9') => match word.parse() {
                            Ok(number @ 1..) => Tok::Param(number),
                            _ => {
                                return Err(Diagnostic::error(
                                    span,
                                    format!("invalid parameter ${word}"),
                                )
                                .hint("parameters are $1, $2 ..."));
                            }
                        },
                        Some(_) => Tok::Var(format!("${word}")),
                    }
                }
            }
            c if c.is_ascii_alphabetic() || c == '_' => Tok::Ident(self.word(name).to_owned()),
            c => match PUNCTS.iter().find(|punct| self.rest().starts_with(**punct)) {
                Some(punct) => {
                    self.at += punct.len();
                    Tok::Punct(punct)
                }
                None => {
                    self.at += c.len_utf8();
                    return Err(Diagnostic::error(
                        Span {
                            start,
                            end: self.at,
                        },
                        format!("invalid character {c:?}"),
                    ));
                }
            },
        };
        Ok((
            tok,
            Span {
                start,
                end: self.at,
            },
        ))
    }

    fn string(&mut self) -> Result<String, Diagnostic> {
        let start = self.at;
        let mut bytes = Vec::new();
        self.at += 1;
        loop {
            let Some(c) = self.rest().chars().next() else {
                return Err(Diagnostic::error(
                    Span {
                        start,
                        end: start + 1,
                    },
                    "string without end",
                )
                .hint("close it with \""));
            };
            self.at += c.len_utf8();
            match c {
                '"' => break,
                '\\' => self.escape(&mut bytes)?,
                c => bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
            }
        }
        String::from_utf8(bytes).map_err(|_| {
            Diagnostic::error(
                Span {
                    start,
                    end: self.at,
                },
                "string is not UTF-8 text",
            )
            .hint("escapes above \\x7f must form UTF-8")
        })
    }

    fn escape(&mut self, bytes: &mut Vec<u8>) -> Result<(), Diagnostic> {
        let start = self.at - 1;
        let Some(c) = self.rest().chars().next() else {
            return Ok(());
        };
        self.at += c.len_utf8();
        let mut digits = |radix: u32, most: usize| {
            let rest = self.rest();
            let len = rest
                .chars()
                .take(most)
                .take_while(|c| c.is_digit(radix))
                .count();
            self.at += len;
            u32::from_str_radix(&rest[..len], radix)
                .ok()
                .and_then(|value| u8::try_from(value).ok())
        };
        let byte = match c {
            'n' => Some(b'\n'),
            't' => Some(b'\t'),
            'r' => Some(b'\r'),
            '\\' | '"' => Some(c as u8),
            'x' => digits(16, 2),
            '0'..='7' => {
                self.at -= 1;
                let rest = self.rest();
                let len = rest.chars().take(3).take_while(|c| c.is_digit(8)).count();
                self.at += len;
                u32::from_str_radix(&rest[..len], 8)
                    .ok()
                    .and_then(|value| u8::try_from(value).ok())
            }
            _ => None,
        };
        let byte = byte.ok_or_else(|| {
            Diagnostic::error(
                Span {
                    start,
                    end: self.at,
                },
                format!("invalid escape \\{c}"),
            )
            .hint("known: \\n \\t \\r \\\\ \\\" \\xNN \\NNN")
        })?;
        bytes.push(byte);
        Ok(())
    }

    fn number(&mut self) -> Result<u64, Diagnostic> {
        let start = self.at;
        let word = self.word(|c| c.is_ascii_alphanumeric() || c == '_');
        let span = Span {
            start,
            end: self.at,
        };
        let plain: String = word.chars().filter(|c| *c != '_').collect();
        parse_number(&plain).ok_or_else(|| {
            Diagnostic::error(span, format!("invalid number {word}"))
                .hint("up to 64 bits; 10, 0x0a, 012, 1e6, 1_000, suffixes u l ul ll ull, units ns us ms s m h d")
        })
    }
}

/// A literal without `_`.
pub(crate) fn parse_number(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    if let Some(hex) = lower.strip_prefix("0x") {
        return u64::from_str_radix(hex.trim_end_matches(['u', 'l']), 16).ok();
    }
    let len = lower
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(lower.len());
    let (digits, tail) = lower.split_at(len);
    let radix = if digits.len() > 1 && digits.starts_with('0') {
        8
    } else {
        10
    };
    let value = u64::from_str_radix(digits, radix).ok()?;
    let unit = match tail {
        "" | "u" | "l" | "ul" | "ll" | "ull" | "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        tail => 10u64.checked_pow(tail.strip_prefix('e')?.parse().ok()?)?,
    };
    value.checked_mul(unit)
}
