//! Whoever puts probes on the trigger's functions.

use std::path::Path;
use std::time::Duration;

use lancet_abi::units::Pid;

/// What attaching took.
#[derive(Debug, Default, Clone, Copy)]
pub struct Attachment {
    /// From the first change to when all calls are counted. What is done once a file (reading its
    /// symbols, looking at its code) is not part of it.
    pub total: Duration,
    /// The longest that a thread of the targets stood still in one go, where the engine knows.
    pub longest_stop: Option<Duration>,
}

/// One column of the table: something that counts the calls of functions in processes.
///
/// Calls come in this order: `attach`, any number of `hits`, perhaps `set_off` and more `hits`,
/// `detach`; then `attach` may follow again, with another process.
pub trait Engine {
    /// Short name of the column.
    fn name(&self) -> &str;

    /// Puts one counting probe on the entry of each of `functions` (symbols of `exe`) in these
    /// processes. With more than one process, no others may map `exe`: an engine is free to probe
    /// the file instead.
    ///
    /// # Errors
    /// When a function can't be found or probed; then nothing stays attached.
    fn attach(
        &mut self,
        pids: &[Pid],
        exe: &Path,
        functions: &[&str],
    ) -> anyhow::Result<Attachment>;

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

    fn attach(
        &mut self,
        _pids: &[Pid],
        _exe: &Path,
        _functions: &[&str],
    ) -> anyhow::Result<Attachment> {
        Ok(Attachment::default())
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
