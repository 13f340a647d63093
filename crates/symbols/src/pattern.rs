//! Patterns over function names.

use std::fmt;

/// A function name in which `*` stands for any run of characters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pattern {
    text: String,
}

impl Pattern {
    /// The pattern that `text` spells.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self { text: text.to_owned() }
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
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
