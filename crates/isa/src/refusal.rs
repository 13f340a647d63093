//! Why a site can't be patched.

use lancet_abi::units::{LinkAddr, RuntimeAddr};
use thiserror::Error;

/// Why a site can't be patched. Addresses are link addresses of the module, unless they say otherwise.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The decoder does not know the bytes, so their length is unknown.
    #[error("unknown instruction at {at} ({}): its length can't be told; probe another offset of this function", hex(.bytes))]
    UnknownInstruction {
        /// Where it starts.
        at: LinkAddr,
        /// Its first bytes, at most 15.
        bytes: Vec<u8>,
    },
    /// The bytes up to the next function or data are fewer than the jump needs.
    #[error(
        "only {have} bytes at {site} before {limit}, where something else begins: a jump needs {need}"
    )]
    TooShort {
        /// The site.
        site: LinkAddr,
        /// Bytes that may be covered.
        have: u8,
        /// Bytes that are needed.
        need: u8,
        /// The first byte that may not be covered.
        limit: LinkAddr,
    },
    /// Control may enter the window behind its first instruction.
    #[error(
        "control may enter at {target}, inside the bytes that a jump at {at} would overwrite; probe {target} instead"
    )]
    BranchInto {
        /// The site.
        at: LinkAddr,
        /// The entry inside the window.
        target: LinkAddr,
    },
    /// The window touches bytes of a restartable sequence.
    #[error(
        "{at} belongs to a restartable sequence (rseq) of the program, which a patch would break; probe outside of it"
    )]
    Forbidden {
        /// The first such byte of the window.
        at: LinkAddr,
    },
    /// The site is no instruction start of the function.
    #[error(
        "{at} is not the start of an instruction of the function at {function}; take an offset from a disassembly"
    )]
    NotABoundary {
        /// The site.
        at: LinkAddr,
        /// The function's start.
        function: LinkAddr,
    },
    /// The file itself holds a trap where an instruction is needed.
    #[error(
        "{at} holds a trap byte (int3) in the file: padding, or a breakpoint that belongs to the program"
    )]
    TrapByte {
        /// Where it lies.
        at: LinkAddr,
    },
    /// The program's runtime handles faults by their address, and this instruction may fault.
    #[error(
        "the instruction at {at} may fault, and this program's runtime looks faults up by address, so it can't be moved"
    )]
    FaultByAddress {
        /// The instruction.
        at: LinkAddr,
    },
    /// A call or system call would not be the window's last instruction.
    #[error(
        "the {what} at {at} would not be the last of the bytes that a jump at {site} overwrites; {}", not_last_advice(.site, .at)
    )]
    NotLast {
        /// The site.
        site: LinkAddr,
        /// The call or system call.
        at: LinkAddr,
        /// What it is.
        what: &'static str,
    },
    /// The instruction can't do the same work at another address.
    #[error("the instruction at {at} can't be moved: {why}")]
    Unrelocatable {
        /// The instruction.
        at: LinkAddr,
        /// What stands against it.
        why: &'static str,
    },
    /// A 32-bit displacement does not reach.
    #[error(
        "{to} is out of reach of {from} (runtime addresses): place the copy within 2 GiB of both text and data"
    )]
    OutOfReach {
        /// The runtime address of the instruction that can't reach.
        from: RuntimeAddr,
        /// What it must reach.
        to: RuntimeAddr,
    },
    /// An indirect jump of the same function might enter the window.
    #[error(
        "the indirect jump at {jump} has no table that could be read, so it might enter behind {at}; probe the function's start"
    )]
    IndirectJumpInFunction {
        /// The site.
        at: LinkAddr,
        /// The indirect jump, or the bytes that may hide one.
        jump: LinkAddr,
    },
    /// The request contradicts itself.
    #[error("{at} does not lie in the text and function that were given for it")]
    Outside {
        /// The site.
        at: LinkAddr,
    },
}

impl Refusal {
    /// A short fixed name, by which refusals are grouped and counted.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Self::UnknownInstruction { .. } => "unknown instruction",
            Self::TooShort { .. } => "too short",
            Self::BranchInto { .. } => "branch into the window",
            Self::Forbidden { .. } => "restartable sequence",
            Self::NotABoundary { .. } => "not an instruction start",
            Self::TrapByte { .. } => "trap byte",
            Self::FaultByAddress { .. } => "faults are handled by address",
            Self::NotLast { .. } => "call or syscall inside the window",
            Self::Unrelocatable { .. } => "instruction can't be moved",
            Self::OutOfReach { .. } => "out of reach",
            Self::IndirectJumpInFunction { .. } => "indirect jump in the function",
            Self::Outside { .. } => "outside of the function",
        }
    }
}

fn not_last_advice(site: &LinkAddr, at: &LinkAddr) -> String {
    if site == at {
        "probe the instruction in front of it instead".to_owned()
    } else {
        format!("probe {at} instead")
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect::<Vec<_>>()
        .join(" ")
}
