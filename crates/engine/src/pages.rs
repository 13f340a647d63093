//! Gives pages of text that equal their file again back to it.
//!
//! A page stays a private copy after its bytes are restored, four kilobytes that the process did
//! not have before. What the file holds is read before the process is stopped for it.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;

use lancet_abi::units::{Pid, RuntimeAddr};
use lancet_procs::{self as procs, Mapping};
use lancet_remote::journal::StubRecord;
use lancet_remote::{Borrowed, Call, Memory, RemoteError, Stopped};

const PAGE: u64 = 4096;

/// What files hold where pages of a process may be private copies, by the pages' addresses.
pub(crate) struct Originals {
    pages: BTreeMap<u64, Vec<u8>>,
}

impl Originals {
    /// Reads the files behind these pages. Pages of no file are left out.
    pub(crate) fn read(pid: Pid, mappings: &[Mapping], pages: impl Iterator<Item = u64>) -> Self {
        let mut files: BTreeMap<u64, Option<File>> = BTreeMap::new();
        let mut read = BTreeMap::new();
        for page in pages {
            if read.contains_key(&page) {
                continue;
            }
            let at = mappings.partition_point(|m| m.end.0 <= page);
            let Some(mapping) = mappings.get(at).filter(|m| m.contains(RuntimeAddr(page))) else {
                continue;
            };
            let file = files
                .entry(mapping.start.0)
                .or_insert_with(|| file_of(pid, mapping));
            let offset = mapping.position_of(RuntimeAddr(page));
            if let (Some(file), Some(offset)) = (file, offset)
                && let Some(bytes) = page_of(file, offset.0)
            {
                read.insert(page, bytes);
            }
        }
        Self { pages: read }
    }

    /// Whether there are pages, and all of them hold what their file holds.
    pub(crate) fn all_equal(&self, memory: &Memory) -> bool {
        !self.pages.is_empty() && self.equal(memory).len() == self.pages.len()
    }

    /// Pages that hold what their file holds.
    fn equal(&self, memory: &Memory) -> Vec<u64> {
        let mut now = vec![0; PAGE as usize];
        self.pages
            .iter()
            .filter(|(page, file)| {
                memory.read(RuntimeAddr(**page), &mut now).is_ok() && now == **file
            })
            .map(|(page, _)| *page)
            .collect()
    }

    /// Drops the private copies among the pages that equal their file, from a stub at `at`.
    pub(crate) fn give_back(
        &self,
        memory: &Memory,
        mappings: &[Mapping],
        stopped: &Stopped,
        at: RuntimeAddr,
        stub: Option<&StubRecord>,
    ) -> Result<(), RemoteError> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for page in self.equal(memory) {
            match ranges.last_mut() {
                Some((_, end)) if *end == page => *end += PAGE,
                _ => ranges.push((page, page + PAGE)),
            }
        }
        if ranges.is_empty() {
            return Ok(());
        }
        let ranges = merge_over_clean(memory.pid(), mappings, ranges);
        let spare = StubRecord::default();
        let mut borrowed = Borrowed::from(stopped, memory, stub.unwrap_or(&spare))?;
        for chunk in ranges.chunks(lancet_remote::MOST_CALLS) {
            let calls: Vec<Call> = chunk
                .iter()
                .map(|&(start, end)| {
                    Call::new(
                        "madvise",
                        libc::SYS_madvise,
                        &[start, end - start, libc::MADV_DONTNEED as u64],
                    )
                })
                .collect();
            borrowed.run(at, &calls)?;
        }
        borrowed.give_back()
    }
}

/// The file of a mapping. Through the mapping itself where that is allowed: a path may name
/// another file by now.
fn file_of(pid: Pid, mapping: &Mapping) -> Option<File> {
    let exact = format!(
        "/proc/{}/map_files/{:x}-{:x}",
        procs::face(pid),
        mapping.start.0,
        mapping.end.0
    );
    File::open(exact).ok().or_else(|| {
        let path = std::str::from_utf8(&mapping.path).ok()?;
        let file = lancet_remote::open_as_seen(pid, std::path::Path::new(path)).ok()?;
        let id = procs::shown_id(&file).ok()?;
        (id.dev == mapping.dev && id.inode == mapping.inode).then_some(file)
    })
}

/// One page of a file, zeros behind its end.
fn page_of(file: &File, offset: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; PAGE as usize];
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(_) => return None,
        }
    }
    Some(bytes)
}

/// Joins ranges of one mapping when no page between them is a private copy: dropping a page
/// that shows the file costs one soft fault, a system call each costs more.
fn merge_over_clean(pid: Pid, mappings: &[Mapping], ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    const PRESENT: u64 = 1 << 63;
    const SWAPPED: u64 = 1 << 62;
    const FILE: u64 = 1 << 61;
    let Ok(pagemap) = File::open(format!("/proc/{}/pagemap", procs::face(pid))) else {
        return ranges;
    };
    let clean = |from: u64, to: u64| {
        let mut bytes = vec![0u8; ((to - from) / PAGE * 8) as usize];
        pagemap.read_exact_at(&mut bytes, from / PAGE * 8).is_ok()
            && bytes.chunks_exact(8).all(|entry| {
                let mut word = [0; 8];
                word.copy_from_slice(entry);
                let word = u64::from_le_bytes(word);
                word & SWAPPED == 0 && (word & PRESENT == 0 || word & FILE != 0)
            })
    };
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (start, end) in ranges {
        let joins = merged.last().is_some_and(|&(_, last)| {
            mappings
                .iter()
                .any(|m| m.contains(RuntimeAddr(last - 1)) && m.contains(RuntimeAddr(start)))
                && clean(last, start)
        });
        match merged.last_mut() {
            Some((_, last)) if joins => *last = end,
            _ => merged.push((start, end)),
        }
    }
    merged
}
