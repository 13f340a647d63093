//! The system calls, one file each where there is more to say than its name.

mod ending;
pub(crate) mod entry;
mod map_page;
mod perf;
mod procmap_query;
mod shared;

use std::{ffi::OsStr, fs, io, os::unix::ffi::OsStrExt, os::unix::fs::MetadataExt};

use rustix::fs::{Dir, Mode, OFlags};

use crate::FileId;
pub(crate) use ending::ending;
pub(crate) use map_page::map_page;
pub(crate) use perf::{Ring, Stream};
pub(crate) use procmap_query::{Want, query};
pub(crate) use shared::{Readable, Written};

/// A whole file of /proc. Their sizes are not told, and each read costs; so most are read in one,
/// with one more that finds the end.
pub(crate) fn read(path: &str) -> io::Result<Vec<u8>> {
    use std::io::Read;
    let mut file = fs::File::open(path)?;
    let mut bytes = vec![0; 4096];
    let mut length = 0;
    loop {
        match file.read(&mut bytes[length..]) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if length == bytes.len() {
            bytes.resize(length * 2, 0);
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

pub(crate) fn inode(path: &str) -> io::Result<u64> {
    Ok(fs::metadata(path)?.ino())
}

pub(crate) fn file_id(path: &str) -> io::Result<FileId> {
    let metadata = fs::metadata(path)?;
    Ok(FileId {
        dev: metadata.dev(),
        inode: metadata.ino(),
    })
}

/// The entries of a folder whose names are numbers, with the inode of each as the listing has it.
pub(crate) fn numbers(path: &str) -> io::Result<Vec<(i32, u64)>> {
    let folder = rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let mut found = Vec::new();
    for entry in Dir::new(folder)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if let Some(number) = name.to_str().and_then(|name| name.parse().ok()) {
            found.push((number, entry.ino()));
        }
    }
    Ok(found)
}
