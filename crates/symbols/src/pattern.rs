//! Patterns over function names.

use std::fmt;

use crate::names;

/// A function name in which `*` stands for any run of characters.
///
/// It is compared with the raw name and with the demangled one: whole, without its return
/// type, and without its argument list. So `ns::f` names every overload, `ns::f(int)` one
/// of them, and neither is a prefix of anything.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
    /// As compared with demangled names.
    tight: String,
    /// What a mangled name must contain to match, where that is certain.
    piece: Option<String>,
}

/// Identifiers that mangled names abbreviate.
const SHORT: [&str; 9] = [
    "std",
    "string",
    "basic_string",
    "allocator",
    "istream",
    "ostream",
    "iostream",
    "char",
    "operator",
];

impl Pattern {
    /// The pattern that `text` spells.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            tight: names::tight(text),
            piece: piece(text),
        }
    }

    /// The text it was made from.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// There is no `*`: it names functions exactly.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        !self.text.contains('*')
    }

    /// It matches the name as the file has it, or one of its demangled spellings.
    #[must_use]
    pub fn matches(&self, raw: &str) -> bool {
        if glob(self.text.as_bytes(), raw.as_bytes()) {
            return true;
        }
        if !names::is_mangled(raw)
            || self
                .piece
                .as_ref()
                .is_some_and(|piece| !raw.contains(piece))
        {
            return false;
        }
        names::spellings(raw)
            .iter()
            .any(|name| glob(self.tight.as_bytes(), name.as_bytes()))
    }
}

/// The longest identifier of the pattern that a mangled name spells out: demangling every
/// symbol of a large file takes a second, looking for it first does not.
fn piece(text: &str) -> Option<String> {
    // Behind these are types, which mangling shortens.
    let name = text.split(['(', '<', '{', '[', ' ']).next()?;
    if name.contains("operator") || name.contains("lambda") {
        return None;
    }
    name.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|piece| !SHORT.iter().any(|short| short.contains(piece)))
        .max_by_key(|piece| piece.len())
        .map(str::to_owned)
}

/// `*` stands for any run; linear in practice, at worst the product of the lengths.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            retry = Some((p + 1, t));
            p += 1;
        } else if pattern.get(p) == Some(&text[t]) {
            p += 1;
            t += 1;
        } else if let Some((after, from)) = retry {
            retry = Some((after, from + 1));
            p = after;
            t = from + 1;
        } else {
            return false;
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
