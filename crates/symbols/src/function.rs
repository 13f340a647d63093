//! One function of a module, and its names.

use std::borrow::Cow;

use lancet_abi::units::{FileOffset, LinkAddr};

use crate::names;

/// A named piece of code; aliases at one address are functions of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Function {
    /// The name as the file has it (mangled), without a symbol version.
    pub name: String,
    /// Where its first instruction is.
    pub link: LinkAddr,
    /// Bytes; for a symbol without a size, up to the end of its unwind entry or the next start.
    pub size: u64,
    /// Where its first instruction lies in the file.
    pub offset: FileOffset,
    /// The symbol is the resolver of an indirect function (`STT_GNU_IFUNC`).
    pub is_ifunc: bool,
    /// The symbol says nothing about being a function (`STT_NOTYPE`), as hand-written
    /// assembly leaves it; it may be data between code.
    pub is_untyped: bool,
}

impl Function {
    /// The name as in the source, or the raw name where it is not mangled.
    #[must_use]
    pub fn demangled(&self) -> Cow<'_, str> {
        names::demangle(&self.name)
    }

    /// One past its last byte.
    #[must_use]
    pub fn end(&self) -> LinkAddr {
        LinkAddr(self.link.0.saturating_add(self.size))
    }
}
