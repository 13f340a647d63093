//! What can go wrong while preparing or checking a target.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use lancet_abi::units::{Pid, RuntimeAddr};

/// Why a target could not be built, run or checked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no source for a target of this name.
    #[error("no source of target {name} in {}; add {name}.c, .S, .cpp, .rs or .go", folder.display())]
    NoSource {
        /// The target's name.
        name: String,
        /// The folder of sources.
        folder: PathBuf,
    },
    /// The compiler for the target's language is not installed.
    #[error("target {name} needs {compiler}, which is not installed; skip the test")]
    NoCompiler {
        /// The target's name.
        name: String,
        /// The program that was to compile it.
        compiler: String,
    },
    /// The compiler refused the source.
    #[error("target {name} does not compile ({command}):\n{output}")]
    Compile {
        /// The target's name.
        name: String,
        /// What was run.
        command: String,
        /// What it wrote.
        output: String,
    },
    /// A file or folder could not be used.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The target did not write a line in time.
    #[error("process {pid} wrote no line within {limit:?} after {after:?}")]
    Silent {
        /// The target.
        pid: Pid,
        /// What was sent to it last.
        after: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// The target ended its output.
    #[error("process {pid} closed its output after {after:?}; it has ended or crashed")]
    Ended {
        /// The target.
        pid: Pid,
        /// What was sent to it last.
        after: String,
    },
    /// A process holds no executable mapping of the module.
    #[error("process {pid} has no executable mapping of {module:?}")]
    NotMapped {
        /// The process.
        pid: Pid,
        /// The module that was asked for.
        module: String,
    },
    /// Text of a process differs from its file.
    #[error(
        "process {pid}, {}: text at {address} is {found:02x?}, the file has {expected:02x?}; {bytes} bytes differ in all", path.display()
    )]
    TextDiffers {
        /// The process.
        pid: Pid,
        /// The mapped file.
        path: PathBuf,
        /// Where the first difference is.
        address: RuntimeAddr,
        /// The first bytes that differ, in memory.
        found: Vec<u8>,
        /// The same bytes in the file.
        expected: Vec<u8>,
        /// How many bytes of this mapping differ.
        bytes: usize,
    },
}
