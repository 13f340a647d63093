//! What a test asks about a process: is its text as in the file, does anything stay in it?

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use lancet_abi::units::{FileOffset, Pid, RuntimeAddr};

use crate::Error;

/// One executable mapping of a file.
struct TextMapping {
    start: RuntimeAddr,
    end: RuntimeAddr,
    offset: FileOffset,
    /// How `map_files` names it.
    range: String,
    path: PathBuf,
}

/// Compares every executable mapping of files whose path ends with `module` (all of them for an
/// empty one) with the file, byte by byte.
///
/// # Errors
/// [`Error::TextDiffers`] with the first difference; [`Error::NotMapped`] when there is no such
/// mapping; [`Error::Io`] when memory or file can't be read.
pub fn text_equals_file(pid: Pid, module: &str) -> Result<(), Error> {
    let mappings: Vec<TextMapping> = text_mappings(pid)?
        .into_iter()
        .filter(|mapping| mapping.path.to_string_lossy().ends_with(module))
        .collect();
    if mappings.is_empty() {
        return Err(Error::NotMapped {
            pid,
            module: module.to_owned(),
        });
    }
    let memory_path = proc_file(pid, "mem");
    let memory = File::open(&memory_path).map_err(|source| io_error(&memory_path, source))?;
    mappings
        .iter()
        .try_for_each(|mapping| compare(pid, &memory, mapping))
}

fn compare(pid: Pid, memory: &File, mapping: &TextMapping) -> Result<(), Error> {
    // The entry in map_files is the mapped file itself, even where its name is gone or lies in
    // another mount namespace; it needs a capability that not everybody has.
    let file = File::open(proc_file(pid, "map_files").join(&mapping.range))
        .or_else(|_| File::open(&mapping.path))
        .map_err(|source| io_error(&mapping.path, source))?;
    let size = usize::try_from(mapping.end.offset_from(mapping.start)).unwrap_or(usize::MAX);
    let mut found = vec![0; size];
    memory
        .read_exact_at(&mut found, mapping.start.0)
        .map_err(|source| io_error(&proc_file(pid, "mem"), source))?;
    // Behind the file's end the rest of the last page is zero, in memory as here.
    let mut expected = vec![0; size];
    let mut filled = 0;
    while filled < size {
        match file.read_at(&mut expected[filled..], mapping.offset.0 + filled as u64) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(source) => return Err(io_error(&mapping.path, source)),
        }
    }
    let differs = |&at: &usize| found[at] != expected[at];
    let Some(first) = (0..size).find(differs) else {
        return Ok(());
    };
    let shown = first..size.min(first + 16);
    Err(Error::TextDiffers {
        pid,
        path: mapping.path.clone(),
        address: mapping.start.plus(first as u64),
        found: found[shown.clone()].to_vec(),
        expected: expected[shown].to_vec(),
        bytes: (0..size).filter(differs).count(),
    })
}

fn text_mappings(pid: Pid) -> Result<Vec<TextMapping>, Error> {
    Ok(read(pid, "maps")?
        .lines()
        .filter_map(text_mapping)
        .collect())
}

fn text_mapping(line: &str) -> Option<TextMapping> {
    let mut words = line.splitn(6, ' ');
    let range = words.next()?;
    let permissions = words.next()?;
    let offset = u64::from_str_radix(words.next()?, 16).ok()?;
    let path = words.nth(2)?.trim_start();
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    let (start, end) = range.split_once('-')?;
    (permissions.contains('x') && path.starts_with('/')).then_some(TextMapping {
        start: RuntimeAddr(u64::from_str_radix(start, 16).ok()?),
        end: RuntimeAddr(u64::from_str_radix(end, 16).ok()?),
        offset: FileOffset(offset),
        range: range.to_owned(),
        path: PathBuf::from(path),
    })
}

/// How many descriptors the process has open.
///
/// # Errors
/// When the process is gone or may not be looked at.
pub fn fd_count(pid: Pid) -> Result<usize, Error> {
    entries(pid, "fd")
}

/// How many threads the process has.
///
/// # Errors
/// When the process is gone.
pub fn thread_count(pid: Pid) -> Result<usize, Error> {
    entries(pid, "task")
}

/// What the memory of a process consists of; equal before and after when nothing was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SmapsSummary {
    /// Number of mappings.
    pub mappings: usize,
    /// Resident memory, KiB.
    pub rss_kib: u64,
    /// Private copies of pages of executable file mappings, KiB: text that was written to.
    pub text_copied_kib: u64,
    /// Mappings that are writable and executable at the same time.
    pub writable_and_executable: usize,
    /// Executable mappings without a file, leaving out those the kernel makes.
    pub anonymous_executable: usize,
}

/// Sums up `/proc/PID/smaps`.
///
/// # Errors
/// When the process is gone or may not be looked at.
pub fn smaps_summary(pid: Pid) -> Result<SmapsSummary, Error> {
    Ok(summarise(&read(pid, "smaps")?))
}

fn summarise(smaps: &str) -> SmapsSummary {
    let mut summary = SmapsSummary::default();
    let mut in_text = false;
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [field, kib, "kB"] => {
                let kib: u64 = kib.parse().unwrap_or(0);
                match field {
                    "Rss:" => summary.rss_kib += kib,
                    "Private_Dirty:" if in_text => summary.text_copied_kib += kib,
                    _ => {}
                }
            }
            [range, permissions, _offset, _device, _inode, ref path @ ..]
                if range.contains('-') && permissions.len() == 4 =>
            {
                let path = path.first().copied().unwrap_or_default();
                let executable = permissions.contains('x');
                summary.mappings += 1;
                in_text = executable && path.starts_with('/');
                if executable && permissions.contains('w') {
                    summary.writable_and_executable += 1;
                }
                if executable && (path.is_empty() || path.starts_with("[anon")) {
                    summary.anonymous_executable += 1;
                }
            }
            _ => {}
        }
    }
    summary
}

fn entries(pid: Pid, folder: &str) -> Result<usize, Error> {
    let path = proc_file(pid, folder);
    let entries = fs::read_dir(&path).map_err(|source| io_error(&path, source))?;
    Ok(entries.filter(Result::is_ok).count())
}

fn read(pid: Pid, file: &str) -> Result<String, Error> {
    let path = proc_file(pid, file);
    fs::read_to_string(&path).map_err(|source| io_error(&path, source))
}

fn proc_file(pid: Pid, file: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{file}"))
}

fn io_error(path: &Path, source: io::Error) -> Error {
    Error::Io {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests;
