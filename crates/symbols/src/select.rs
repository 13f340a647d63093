//! From a target to probe sites.

use lancet_abi::units::{FileOffset, LinkAddr};

use crate::error::SymbolError;
use crate::module::Module;
use crate::spec::Target;

/// One instruction to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Site {
    /// The shown name: function (demangled), `function+offset` or `0xaddress`.
    pub name: String,
    /// The instruction.
    pub link: LinkAddr,
    /// The instruction's place in the file.
    pub offset: FileOffset,
    /// Where the function around it starts.
    pub function_start: LinkAddr,
    /// One past the function's last byte.
    pub function_end: LinkAddr,
    /// Where the next known code starts; bytes between are padding.
    pub next_start: LinkAddr,
}

/// The sites of `target` in `module`, by address, each once; never an empty list.
pub fn select(module: &Module, target: &Target) -> Result<Vec<Site>, SymbolError> {
    let _ = target;
    Err(SymbolError::NotCode { path: module.path().into(), at: LinkAddr(0) })
}
