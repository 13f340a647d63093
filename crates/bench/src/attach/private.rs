//! A copy of the binary that only the benchmark's own processes map.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Error, Trigger};

/// The copy, in the folder for temporary files; dropping it removes it.
#[derive(Debug)]
pub struct PrivateCopy {
    path: PathBuf,
    /// Removes the copy should this process be killed.
    _keeper: Trigger,
}

impl PrivateCopy {
    /// Copies `exe`.
    ///
    /// # Errors
    /// When the copy can't be written.
    pub fn of(exe: &Path) -> Result<Self, Error> {
        static COPIES: AtomicU32 = AtomicU32::new(0);
        let number = COPIES.fetch_add(1, Ordering::Relaxed);
        let name = format!("lancet-bench-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let keeper = Trigger::spawn_keeper(exe, &path)?;
        let copy = Self {
            path,
            _keeper: keeper,
        };
        let unwritable = |error: io::Error| Error::File {
            path: copy.path.clone(),
            reason: format!("cannot copy {} there: {error}", exe.display()),
        };
        fs::copy(exe, &copy.path).map_err(unwritable)?;
        Ok(copy)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for PrivateCopy {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
