//! The text of a probe: `FILE:FUNCTION`, `FILE:FUNCTION+OFFSET`, `FILE:0xADDRESS`.

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
        Err(SymbolError::Spec { text: text.to_owned(), what: "not readable".into() })
    }
}
