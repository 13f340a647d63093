//! From the name of a file as a user gives it to a path.

use std::env;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use lancet_abi::units::Pid;

use crate::error::SymbolError;
use crate::ldcache;

/// Where the loader looks when its cache knows nothing.
const FOLDERS: [&str; 6] = [
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
];

/// A path, and in whose file tree it is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The path.
    pub path: PathBuf,
    /// The path is as the process sees it: open it below `/proc/PID/root`.
    pub in_process: bool,
}

/// The path of `file`; see [`locate_for`], which also says whose path it is.
///
/// # Errors
/// No file by that name; the message says what was searched.
pub fn locate(file: &str, pid: Option<Pid>) -> Result<PathBuf, SymbolError> {
    locate_for(file, pid).map(|located| located.path)
}

/// Finds `file`: a path, a library that the process has mapped, a program in `$PATH`, or a
/// library by its short name (`libc`, `libz.so`, `libssl.so.3`).
///
/// An absolute path is the process's when a process is given, and is not looked at; a
/// relative path with a slash is the caller's.
///
/// # Errors
/// No file by that name; the message says what was searched.
pub fn locate_for(file: &str, pid: Option<Pid>) -> Result<Located, SymbolError> {
    let here = |path: PathBuf| Located {
        path,
        in_process: false,
    };
    let mut searched = Vec::new();
    if file.starts_with('/') && pid.is_some() {
        return Ok(Located {
            path: file.into(),
            in_process: true,
        });
    }
    if file.contains('/') {
        let path = PathBuf::from(file);
        if fs::symlink_metadata(&path).is_ok() {
            return Ok(here(path));
        }
        return Err(not_found(file, "that path only".to_owned()));
    }
    if file.is_empty() {
        return Err(not_found(file, "nothing: the name is empty".to_owned()));
    }
    if let Some(pid) = pid {
        if let Some(path) = mapped(file, pid) {
            return Ok(Located {
                path,
                in_process: true,
            });
        }
        searched.push(format!("what process {pid} has mapped"));
    }
    if let Some(path) = program(file) {
        return Ok(here(path));
    }
    searched.push("$PATH".to_owned());
    if let Some(path) = library(file) {
        return Ok(here(path));
    }
    searched.push(ldcache::PATH.to_owned());
    searched.push(FOLDERS.join(", "));
    Err(not_found(file, searched.join(", ")))
}

fn not_found(file: &str, searched: String) -> SymbolError {
    SymbolError::NotFound {
        name: file.to_owned(),
        searched,
    }
}

/// A file name answers to a short name: itself, or with `.so` and a version behind it.
fn answers(name: &str, wanted: &str) -> bool {
    match name.strip_prefix(wanted) {
        Some("") => true,
        Some(rest) if wanted.ends_with(".so") || wanted.contains(".so.") => version(rest),
        Some(rest) => rest.strip_prefix(".so").is_some_and(version),
        None => false,
    }
}

/// Nothing, or numbers with a dot before each.
fn version(text: &str) -> bool {
    text.is_empty()
        || text.strip_prefix('.').is_some_and(|rest| {
            rest.split('.')
                .all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
        })
}

/// The first mapped file of a process that answers to the name.
fn mapped(wanted: &str, pid: Pid) -> Option<PathBuf> {
    let maps = fs::read(format!("/proc/{pid}/maps")).ok()?;
    maps.split(|&byte| byte == b'\n').find_map(|line| {
        let at = line.iter().position(|&byte| byte == b'/')?;
        let path = std::str::from_utf8(&line[at..]).ok()?;
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        let name = path.rsplit_once('/')?.1;
        answers(name, wanted).then(|| path.into())
    })
}

/// The first program of that name in `$PATH`.
fn program(name: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH")?;
    env::split_paths(&folders)
        .filter(|folder| folder.is_absolute())
        .map(|folder| folder.join(name))
        .find(|path| {
            fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        })
}

/// A library by name, or by name without `lib`'s ending.
fn library(name: &str) -> Option<PathBuf> {
    let cache = fs::read(ldcache::PATH).unwrap_or_default();
    // `libc` is the C library, whatever else starts so; development links are no libraries.
    let usual = (name == "libc" || name == "libc.so").then_some("libc.so.6");
    let exact = usual.unwrap_or(name);
    ldcache::find(&cache, |known| known == exact)
        .or_else(|| ldcache::find(&cache, |known| answers(known, exact)))
        .filter(|path| is_elf(path))
        .or_else(|| {
            FOLDERS
                .iter()
                .find_map(|folder| in_folder(Path::new(folder), exact))
        })
}

/// The first library of a folder, by name, that answers.
fn in_folder(folder: &Path, wanted: &str) -> Option<PathBuf> {
    let names = fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| answers(name, wanted)).collect();
    names.sort_unstable();
    names
        .into_iter()
        .map(|name| folder.join(name))
        .find(|path| is_elf(path))
}

/// Linker scripts have library names too (`libc.so`).
fn is_elf(path: &Path) -> bool {
    use std::io::Read;
    let mut magic = [0; 4];
    crate::open::open(path).is_ok_and(|mut file| {
        file.metadata().is_ok_and(|m| m.is_file())
            && file.read_exact(&mut magic).is_ok()
            && magic == *b"\x7fELF"
    })
}

#[cfg(test)]
mod tests {
    use super::answers;

    #[test]
    fn short_names_are_not_prefixes() {
        for (name, wanted) in [
            ("libz.so.1", "libz"),
            ("libz.so.1.2.13", "libz.so"),
            ("libz.so.1.2.13", "libz.so.1"),
            ("libssl.so.3", "libssl.so.3"),
            ("libz.so", "libz"),
        ] {
            assert!(answers(name, wanted), "{name} {wanted}");
        }
        for (name, wanted) in [
            ("libzstd.so.1", "libz"),
            ("libz.so.10", "libz.so.1"),
            ("libz.so.1.py", "libz"),
            ("libcrypt.so.1", "libc"),
            ("libz.so.", "libz"),
        ] {
            assert!(!answers(name, wanted), "{name} {wanted}");
        }
    }
}
