//! Opening a file without ever blocking on it.

use std::fs::File;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::bytes::Bytes;
use crate::error::SymbolError;
use crate::module::FileId;

/// Opens `path` for reading; a FIFO or device does not block or react.
pub(crate) fn open(path: &Path) -> Result<File, SymbolError> {
    File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC)
        .open(path)
        .map_err(|source| SymbolError::Io {
            path: path.into(),
            source,
        })
}

/// Reads a regular, non-empty file, and says which file it was.
pub(crate) fn read(file: &File, shown: &Path) -> Result<(Bytes, FileId), SymbolError> {
    let io = |source| SymbolError::Io {
        path: shown.into(),
        source,
    };
    let meta = file.metadata().map_err(io)?;
    let kind = meta.file_type();
    if !kind.is_file() {
        let what = if kind.is_dir() {
            "a directory"
        } else if kind.is_fifo() {
            "a FIFO"
        } else if kind.is_socket() {
            "a socket"
        } else {
            "a device"
        };
        return Err(SymbolError::NotRegular {
            path: shown.into(),
            what,
        });
    }
    // The size is only a hint for files of /proc and the like, which say zero.
    let bytes = Bytes::of(file, meta.len()).map_err(io)?;
    if bytes.is_empty() {
        return Err(SymbolError::Empty { path: shown.into() });
    }
    Ok((
        bytes,
        FileId {
            dev: meta.dev(),
            inode: meta.ino(),
        },
    ))
}
