//! Whoever puts probes on the trigger's functions.

use std::path::Path;

use lancet_abi::units::Pid;

/// One column of the table: something that counts the calls of functions in one process.
///
/// Calls come in this order: `attach`, any number of `hits`, perhaps `set_off` and more `hits`,
/// `detach`; then `attach` may follow again, with another process.
pub trait Engine {
    /// Short name of the column.
    fn name(&self) -> &str;

    /// Puts one counting probe on the entry of each of `functions` (symbols of `exe`) in the
    /// process `pid`.
    ///
    /// # Errors
    /// When a function can't be found or probed; then nothing stays attached.
    fn attach(&mut self, pid: Pid, exe: &Path, functions: &[&str]) -> anyhow::Result<()>;

    /// Leaves the probes in place but switches them off. `false` when the engine can't do so.
    ///
    /// # Errors
    /// When nothing is attached.
    fn set_off(&mut self) -> anyhow::Result<bool>;

    /// Hits since `attach`, summed over all functions and threads.
    ///
    /// # Errors
    /// When nothing is attached or the count can't be read.
    fn hits(&mut self) -> anyhow::Result<u64>;

    /// Takes every probe out again.
    ///
    /// # Errors
    /// When a probe can't be removed.
    fn detach(&mut self) -> anyhow::Result<()>;

    /// Whether the engine counts at all; only [`Bare`] does not.
    fn counts(&self) -> bool {
        true
    }

    /// Whether a thousand functions can be attached in a reasonable time.
    fn attaches_many(&self) -> bool {
        true
    }
}

/// No probe at all: what the calls cost by themselves.
#[derive(Debug, Default, Clone, Copy)]
pub struct Bare;

impl Engine for Bare {
    fn name(&self) -> &str {
        "bare"
    }

    fn attach(&mut self, _pid: Pid, _exe: &Path, _functions: &[&str]) -> anyhow::Result<()> {
        Ok(())
    }

    fn set_off(&mut self) -> anyhow::Result<bool> {
        Ok(false)
    }

    fn hits(&mut self) -> anyhow::Result<u64> {
        Ok(0)
    }

    fn detach(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn counts(&self) -> bool {
        false
    }
}
