//! What the engine refuses, and what failed.

use lancet_abi::LayoutError;
use lancet_abi::units::Pid;
use lancet_isa::Refusal;
use lancet_jit::JitError;
use lancet_procs::ProcError;
use lancet_remote::RemoteError;
use lancet_symbols::SymbolError;

/// An error of a whole operation. One refused site is no such error: see
/// [`Refused`](crate::Refused).
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// A process that can't share the maps of a script.
    #[error(
        "process {pid} has another user or other namespaces than the processes before it and can't share the script's maps with them: run one lancet for each"
    )]
    SecondDomain {
        /// The process.
        pid: Pid,
    },
    /// A process could not be stopped, read or written.
    #[error(transparent)]
    Remote(#[from] RemoteError),
    /// A file or function could not be found or read.
    #[error(transparent)]
    Symbols(#[from] SymbolError),
    /// /proc did not answer.
    #[error(transparent)]
    Procs(#[from] ProcError),
    /// The region cannot be laid out.
    #[error(
        "the counters of this session do not fit: {0}; probe fewer functions or use a smaller map"
    )]
    Layout(#[from] LayoutError),
    /// An action cannot be compiled.
    #[error("an action cannot be compiled: {0}")]
    Jit(#[from] JitError),
    /// The process is of a kind that is not supported.
    #[error("process {pid} ({name}) cannot be probed: {why}")]
    Unsupported {
        /// The process.
        pid: Pid,
        /// Its name.
        name: String,
        /// Why, and what would help.
        why: String,
    },
    /// Nothing in the process matches.
    #[error(
        "process {pid} ({name}) maps none of the probed files as code; see /proc/{pid}/maps for those that it maps"
    )]
    NotMapped {
        /// The process.
        pid: Pid,
        /// Its name.
        name: String,
    },
    /// A file could not be opened.
    #[error("cannot open {}: {source}", path.display())]
    Open {
        /// The file.
        path: std::path::PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The address space has no fitting place.
    #[error("process {pid}: no free addresses within 2 GiB of {file} for {bytes} bytes")]
    NoRoom {
        /// The process.
        pid: Pid,
        /// The file whose text needs them.
        file: String,
        /// How many.
        bytes: u64,
    },
    /// Called in the wrong order.
    #[error("{0}")]
    Usage(&'static str),
    /// The command could not be started.
    #[error("cannot run {command}: {source}")]
    Command {
        /// The command.
        command: String,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The command ended before its program began.
    #[error(
        "the command ended before its program began: the file is no program of this machine, or the interpreter that it names is missing"
    )]
    NotBegun,
    /// A system call of the engine's own failed.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
}

/// Why one site has no probe. The others are not affected.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The probe's name.
    pub probe: String,
    /// The process, where the reason lies in one.
    pub pid: Option<Pid>,
    /// A short group key, such as `too short`.
    pub reason: &'static str,
    /// The whole sentence.
    pub message: String,
}

impl Refused {
    pub(crate) fn by_plan(probe: &str, refusal: &Refusal) -> Self {
        Self {
            probe: probe.to_owned(),
            pid: None,
            reason: refusal.reason(),
            message: refusal.to_string(),
        }
    }
}
