//! The text of a probe: `FILE:FUNCTION`, `FILE:FUNCTION+OFFSET`, `FILE:0xADDRESS`.
//!
//! The file ends at the first colon; one that belongs to its name is written `\:`, or the
//! name is put in double quotes. A function may be quoted too.

use std::str::FromStr;

use lancet_abi::units::LinkAddr;

use crate::error::SymbolError;
use crate::pattern::Pattern;

/// A probe as its text names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeSpec {
    /// The file, as [`crate::locate`] takes it.
    pub file: String,
    /// What to probe in it.
    pub target: Target,
}

/// What to probe in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// The first instruction of each function that matches.
    Functions(Pattern),
    /// An instruction inside a function.
    Offset {
        /// The function's name.
        function: String,
        /// Bytes from its start.
        offset: u64,
    },
    /// An instruction by its address in the file.
    Address(LinkAddr),
}

impl FromStr for ProbeSpec {
    type Err = SymbolError;

    fn from_str(text: &str) -> Result<Self, SymbolError> {
        parse(text).map_err(|what| SymbolError::Spec {
            text: text.to_owned(),
            what: what.to_owned(),
        })
    }
}

fn parse(text: &str) -> Result<ProbeSpec, &'static str> {
    let (file, rest) = file(text)?;
    if file.is_empty() {
        return Err("the file is missing");
    }
    if file.contains('*') {
        return Err("`*` is allowed in the function only, not in the file");
    }
    if file.contains('\0') || rest.contains('\0') {
        return Err("it contains a zero byte");
    }
    Ok(ProbeSpec {
        file,
        target: target(rest)?,
    })
}

/// The file, and what follows its colon.
fn file(text: &str) -> Result<(String, &str), &'static str> {
    if let Some(quoted) = text.strip_prefix('"') {
        let (file, rest) = quoted
            .split_once('"')
            .ok_or("the quote of the file is not closed")?;
        let rest = rest
            .strip_prefix(':')
            .ok_or("a colon must follow the quoted file")?;
        return Ok((file.to_owned(), rest));
    }
    let mut file = String::new();
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            ':' => return Ok((file, &text[at + 1..])),
            '\\' if matches!(chars.peek(), Some((_, ':' | '\\'))) => {
                file.extend(chars.next().map(|(_, c)| c));
            }
            other => file.push(other),
        }
    }
    Err("there is no colon between file and function")
}

fn target(text: &str) -> Result<Target, &'static str> {
    if let Some(quoted) = text.strip_prefix('"') {
        let (name, rest) = quoted
            .split_once('"')
            .ok_or("the quote of the function is not closed")?;
        return match rest.strip_prefix('+') {
            Some(offset) => at_offset(name, number(offset).ok_or("the offset is not a number")?),
            None if rest.is_empty() => functions(name),
            None => Err("something follows the quoted function"),
        };
    }
    if text.starts_with("0x") || text.starts_with("0X") {
        return number(text)
            .map(|n| Target::Address(LinkAddr(n)))
            .ok_or("the address is not a number");
    }
    match text.rsplit_once('+') {
        // `operator+` and `operator++` are names.
        Some((name, offset)) if offset.starts_with(|c: char| c.is_ascii_digit()) => {
            at_offset(name, number(offset).ok_or("the offset is not a number")?)
        }
        _ => functions(text),
    }
}

fn functions(name: &str) -> Result<Target, &'static str> {
    if name.is_empty() {
        return Err("the function is missing");
    }
    Ok(Target::Functions(Pattern::new(name)))
}

fn at_offset(name: &str, offset: u64) -> Result<Target, &'static str> {
    if name.is_empty() {
        return Err("the function is missing");
    }
    if name.contains('*') {
        return Err("an offset needs one function, not a pattern with `*`");
    }
    Ok(Target::Offset {
        function: name.to_owned(),
        offset,
    })
}

/// A decimal or `0x` number; no sign.
fn number(text: &str) -> Option<u64> {
    let hex = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    let (digits, radix) = hex.map_or((text, 10), |digits| (digits, 16));
    let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    if plain {
        u64::from_str_radix(digits, radix).ok()
    } else {
        None
    }
}
