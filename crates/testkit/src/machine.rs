//! What this machine can do, and how a test says that it can't run here.

use std::env;
use std::path::Path;

use rustix::fs::{Access, access};

/// Whether a program of this name is on the search path.
#[must_use]
pub fn have(tool: &str) -> bool {
    env::var_os("PATH")
        .is_some_and(|path| env::split_paths(&path).any(|folder| runnable(&folder.join(tool))))
}

fn runnable(file: &Path) -> bool {
    file.is_file() && access(file, Access::EXEC_OK).is_ok()
}

/// Whether the tests run as root.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Says on standard error why the test can't run here, and returns from it.
///
/// ```
/// fn needs_a_tool() {
///     if !lancet_testkit::have("a-tool-that-does-not-exist") {
///         lancet_testkit::skip!("no a-tool-that-does-not-exist");
///     }
///     unreachable!("the tool is there");
/// }
/// needs_a_tool();
/// ```
#[macro_export]
macro_rules! skip {
    ($($reason:tt)+) => {{
        eprintln!("skipped: {}", format_args!($($reason)+));
        return;
    }};
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_shell_and_nothing_else() {
        assert!(have("sh"));
        assert!(!have("no-such-tool-anywhere"));
    }
}
