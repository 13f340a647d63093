//! What the standard library does not offer for starting processes.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};

/// Has the kernel end what is started by this command when the thread that starts it ends.
pub(super) fn ends_with_us(command: &mut Command) -> &mut Command {
    let ask = || {
        set_parent_process_death_signal(Some(Signal::TERM))?;
        Ok(())
    };
    // SAFETY: between fork and exec it makes one system call, and allocates nothing.
    unsafe { command.pre_exec(ask) }
}
