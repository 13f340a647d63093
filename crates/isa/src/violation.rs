//! What the checker found wrong with a copy.

use lancet_abi::units::RuntimeAddr;
use thiserror::Error;

/// A copy does not do what the original does. This is a bug of this crate; the copy must not be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the out-of-line copy is wrong at {at} (runtime address), for the instruction at window offset {offset}: {what}; please report this as a bug"
)]
pub struct Violation {
    /// Where in the copy.
    pub at: RuntimeAddr,
    /// Which instruction of the window.
    pub offset: u8,
    /// What differs.
    pub what: &'static str,
}
