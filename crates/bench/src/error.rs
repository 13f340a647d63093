//! What can go wrong while measuring.

use std::io;
use std::path::PathBuf;

use lancet_abi::units::Pid;

/// Why a measurement could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The trigger could not be started or no longer answers.
    #[error("trigger {}: {what}: {source}", exe.display())]
    Trigger {
        /// The binary that was started as the trigger.
        exe: PathBuf,
        /// What was being done.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
    /// The trigger answered with something else than the protocol.
    #[error(
        "trigger process {pid} answered {line:?}; is the binary started by a version of lancet that knows the trigger mode?"
    )]
    Protocol {
        /// The trigger.
        pid: Pid,
        /// The line that was not understood.
        line: String,
    },
    /// The trigger does not have this function.
    #[error("{function} is not a function of the trigger; it has {known}")]
    UnknownFunction {
        /// The name that was asked for.
        function: String,
        /// The names that exist.
        known: String,
    },
    /// A function of the trigger returned something else than without probes.
    #[error(
        "trigger process {pid}: {function} returned a wrong result: the probe on it damages the program"
    )]
    WrongResult {
        /// The trigger.
        pid: Pid,
        /// The function that was called.
        function: String,
    },
    /// A file could not be read or is not ELF.
    #[error("{}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The function is not in the file's symbol table.
    #[error("{}: no symbol {function}; benchmark a binary that is not stripped", path.display())]
    NoSymbol {
        /// The file.
        path: PathBuf,
        /// The missing function.
        function: String,
    },
    /// The kernel does not let this user place uprobes.
    #[error(
        "the kernel refused {call} (not permitted); the kernel's column needs root, or CAP_BPF and CAP_PERFMON"
    )]
    NotPermitted {
        /// The system call and what it was for.
        call: &'static str,
    },
    /// The kernel lacks a feature.
    #[error("this kernel has no {feature}; leave that column out")]
    Unsupported {
        /// What is missing.
        feature: &'static str,
    },
    /// A system call of the kernel engine failed.
    #[error("{call} failed for process {pid}: {source}")]
    Kernel {
        /// The system call and what it was for.
        call: &'static str,
        /// The process that was to be probed.
        pid: Pid,
        /// The system's reason.
        source: io::Error,
    },
    /// The engine is used in the wrong order.
    #[error("{engine} is not attached; attach it first")]
    NotAttached {
        /// The engine's name.
        engine: &'static str,
    },
    /// A program that is measured, or needed to measure, could not be run.
    #[error("{}: {source}", program.display())]
    Run {
        /// The program.
        program: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}
