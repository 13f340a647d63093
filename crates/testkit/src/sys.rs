//! The one thing here that needs `unsafe`: code between fork and exec.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};

/// Has the kernel kill the program when the thread that starts it ends.
///
/// A test whose process is killed must not leave its targets behind.
pub(crate) fn dies_with_its_parent(command: &mut Command) -> &mut Command {
    // SAFETY: the closure makes one system call: it allocates nothing, takes no lock and touches
    // no memory of the parent, as code between fork and exec must.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
    command
}
