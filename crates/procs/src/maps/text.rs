//! The text form, `/proc/PID/maps`.

use std::{
    fs::File,
    io::{self, Read},
};

use lancet_abi::units::{FileOffset, RuntimeAddr};

use super::{Mapping, source::Seen};
use crate::FileId;

pub(super) fn read(file: &File) -> io::Result<Seen> {
    let mut bytes = Vec::with_capacity(1 << 14);
    (&mut &*file).read_to_end(&mut bytes)?;
    let mappings = parse(&bytes);
    Ok(Seen {
        complete: looks_complete(&mappings),
        mappings,
    })
}

pub(super) fn of_file(file: &File, id: FileId, executable_only: bool) -> io::Result<Seen> {
    let mut seen = read(file)?;
    seen.mappings
        .retain(|m| m.shows(id) && (m.execute || !executable_only));
    // A find is a find, however little else is there.
    seen.complete |= !seen.mappings.is_empty();
    Ok(seen)
}

/// In `exec` the memory holds at most the program and its interpreter; whoever shows more code has left it.
fn looks_complete(mappings: &[Mapping]) -> bool {
    mappings
        .iter()
        .filter(|m| m.execute && m.has_file())
        .count()
        > super::source::CODE_IN_EXEC
}

/// Parses the text form of a memory map. Lines that are not understood are left out. Where the map changed between two
/// reads, so that a mapping appears in an older and a newer form, the newer one stays.
#[must_use]
pub fn parse(bytes: &[u8]) -> Vec<Mapping> {
    let mut mappings: Vec<Mapping> = Vec::new();
    for mapping in bytes.split(|&b| b == b'\n').filter_map(line) {
        while mappings.last().is_some_and(|last| last.end > mapping.start) {
            mappings.pop();
        }
        mappings.push(mapping);
    }
    mappings
}

fn line(line: &[u8]) -> Option<Mapping> {
    let mut rest = line;
    let mut word = || {
        let length = rest.iter().position(|&b| b == b' ').unwrap_or(rest.len());
        let (word, after) = rest.split_at(length);
        rest = after.get(1..).unwrap_or_default();
        std::str::from_utf8(word).ok()
    };
    let (start, end) = word()?.split_once('-')?;
    let &[read, write, execute, shared] = word()?.as_bytes() else {
        return None;
    };
    let offset = hex(word()?)?;
    let (major, minor) = word()?.split_once(':')?;
    let inode = word()?.parse().ok()?;
    let (start, end) = (hex(start)?, hex(end)?);
    let path = rest.trim_ascii_start();
    (start < end).then(|| Mapping {
        start: RuntimeAddr(start),
        end: RuntimeAddr(end),
        offset: FileOffset(offset),
        read: read == b'r',
        write: write == b'w',
        execute: execute == b'x',
        shared: shared == b's',
        dev: libc::makedev(
            hex(major).unwrap_or(0) as u32,
            hex(minor).unwrap_or(0) as u32,
        ),
        inode,
        path: unescape(path),
    })
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

/// Only a newline is escaped by the kernel, not even the backslash: a name that holds the four characters `\012` can't be
/// told from one that holds a newline.
fn unescape(path: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.windows(4).position(|w| w == b"\\012") {
        plain.extend_from_slice(&rest[..at]);
        plain.push(b'\n');
        rest = &rest[at + 4..];
    }
    plain.extend_from_slice(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Mapping {
        let all = parse(text.as_bytes());
        assert_eq!(all.len(), 1, "{text}");
        all.into_iter().next().unwrap()
    }

    #[test]
    fn b072_names_with_blanks_newlines_and_deleted() {
        let m =
            one("7f00-7f10 r-xp 00001000 103:0a 77                    /tmp/a b\\012c (deleted)\n");
        assert_eq!(m.path, b"/tmp/a b\nc (deleted)");
        assert_eq!(
            (m.dev, m.inode, m.offset),
            (libc::makedev(0x103, 0xa), 77, FileOffset(0x1000))
        );
        assert!(m.read && !m.write && m.execute && !m.shared);
    }

    #[test]
    fn names_are_bytes() {
        let all = parse(b"1000-2000 rw-s 00000000 00:01 5  /x\xff\xfe\n");
        assert_eq!(all[0].path, b"/x\xff\xfe");
        assert!(all[0].shared && all[0].write);
    }

    #[test]
    fn the_highest_address_and_no_name() {
        let m = one("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 ");
        assert_eq!(
            (m.end, m.path.as_slice()),
            (RuntimeAddr(0xffff_ffff_ff60_1000), &b""[..])
        );
        assert!(!m.has_file());
    }

    #[test]
    fn nonsense_is_left_out() {
        for bad in [
            "",
            "x",
            "1-2",
            "1-2 r-xp",
            "1-2 r-x 0 0:0 0",
            "2-1 r-xp 0 0:0 0",
            "1-2 r-xp z 0:0 0",
            "1-2 r-xp 0 00 0",
        ] {
            assert!(parse(bad.as_bytes()).is_empty(), "{bad}");
        }
    }

    #[test]
    fn the_newer_form_of_a_grown_mapping_stays() {
        let all = parse(b"1000-2000 r--p 0 0:0 0\n2000-3000 r--p 0 0:0 0\n2000-5000 rw-p 0 0:0 0\n6000-7000 r--p 0 0:0 0\n");
        let ranges: Vec<_> = all.iter().map(|m| (m.start.0, m.end.0)).collect();
        assert_eq!(
            ranges,
            [(0x1000, 0x2000), (0x2000, 0x5000), (0x6000, 0x7000)]
        );
    }

    #[test]
    fn positions_and_addresses() {
        let m = one("10000-12000 r-xp 00003000 8:1 9 /f");
        assert_eq!(m.address_of(FileOffset(0x3010)), Some(RuntimeAddr(0x10010)));
        assert_eq!(m.address_of(FileOffset(0x2fff)), None);
        assert_eq!(m.address_of(FileOffset(0x5000)), None);
        assert_eq!(
            m.position_of(RuntimeAddr(0x11fff)),
            Some(FileOffset(0x4fff))
        );
        assert_eq!(m.position_of(RuntimeAddr(0x12000)), None);
    }
}
