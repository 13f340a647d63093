//! Texts of a row: joined, named, cut and cleaned.

use std::io::Write;

use lancet_procs::{Reading, Row};

use crate::{
    Signals,
    sys::{Character, Characters},
};

/// What a row's arguments are replaced by when they were not to be had in time, behind the name in brackets.
pub(crate) const BUSY: &[u8] = b" <busy>";

/// Copies a text so that it can't move the cursor or change the screen, cut to so many columns.
pub(crate) fn clean(
    characters: Characters,
    text: &[u8],
    columns: usize,
    out: &mut Vec<u8>,
) -> usize {
    let plain = text
        .iter()
        .take(columns)
        .take_while(|b| matches!(b, 0x20..=0x7e))
        .count();
    out.extend_from_slice(&text[..plain]);
    if plain == text.len() || plain == columns {
        return plain;
    }
    let mut used = plain;
    let mut at = plain;
    // What follows something that can't be UTF-8 is taken byte by byte.
    let corrupt = plain + characters.valid_up_to(&text[plain..]);
    while at < text.len() && used < columns {
        let byte = text[at];
        let first = match byte {
            0x20..=0x7e => Character::Printable {
                bytes: 1,
                columns: 1,
            },
            _ if at >= corrupt => {
                out.push(if byte < 0x80 { b'.' } else { b'?' });
                used += 1;
                at += 1;
                continue;
            }
            0..0x80 => Character::Other { bytes: 1 },
            _ => characters.first(&text[at..corrupt]),
        };
        match first {
            Character::Printable {
                bytes,
                columns: wide,
            } => {
                if wide > columns - used {
                    break;
                }
                out.extend_from_slice(&text[at..at + bytes]);
                used += wide;
                at += bytes;
            }
            Character::Other { bytes } => {
                out.push(b'?');
                used += 1;
                at += bytes;
            }
        }
    }
    used
}

/// The arguments with blanks between them; without any, the name in brackets.
pub(crate) fn arguments(row: &Row, out: &mut Vec<u8>) {
    let start = out.len();
    if let Reading::Read(bytes) = &row.arguments {
        joined(bytes, out);
        if !bytes.is_empty() && out.len() == start {
            out.push(b'?');
        }
    }
    if out.len() > start {
        return;
    }
    out.push(b'[');
    out.extend_from_slice(row.stat.name.as_bytes());
    out.push(b']');
    if row.stat.state == b'Z' {
        out.extend_from_slice(b" <defunct>");
    }
    if row.arguments == Reading::Late {
        out.extend_from_slice(BUSY);
    }
}

/// The arguments of a row as a text.
pub(crate) fn arguments_of(row: &Row) -> Vec<u8> {
    let mut text = Vec::new();
    arguments(row, &mut text);
    text
}

/// Strings that are each closed by a zero byte, with blanks between them.
pub(crate) fn joined(bytes: &[u8], out: &mut Vec<u8>) {
    let end = bytes.iter().rposition(|&b| b != 0).map_or(0, |at| at + 1);
    let closed = end < bytes.len();
    out.extend(bytes[..end].iter().map(|&b| match b {
        0 | b'\n' => b' ',
        other => other,
    }));
    // Titles that programs set by themselves may end in a blank instead of a zero byte.
    if !closed && out.last() == Some(&b' ') {
        out.pop();
    }
}

pub(crate) fn long_state(row: &Row, out: &mut Vec<u8>) {
    let stat = &row.stat;
    out.push(stat.state);
    let locked = row.status.as_ref().is_some_and(|s| s.locked_kib != 0);
    for (on, letter) in [
        (stat.nice < 0, b'<'),
        (stat.nice > 0, b'N'),
        (locked, b'L'),
        (stat.session == row.pid.0, b's'),
        (stat.threads > 1, b'l'),
        (stat.group == stat.tty_group, b'+'),
    ] {
        if on {
            out.push(letter);
        }
    }
}

pub(crate) fn policy(policy: u32) -> &'static str {
    match policy {
        0 => "TS",
        1 => "FF",
        2 => "RR",
        3 => "B",
        4 => "ISO",
        5 => "IDL",
        6 => "DLN",
        _ => "?",
    }
}

pub(crate) fn sleeps_in(wchan: &[u8]) -> &[u8] {
    let name = wchan.strip_prefix(b".").unwrap_or(wchan);
    let start = name.iter().position(|&b| b != b'_').unwrap_or(name.len());
    match &name[start..] {
        b"" | b"0" => b"-",
        name => name,
    }
}

pub(crate) fn signals(set: Signals, row: &Row, wide: bool, out: &mut Vec<u8>) {
    let of_thread = row.tid.0 != row.pid.0;
    let mask = row.status.as_ref().map_or(0, |status| match set {
        Signals::Pending if !of_thread => status.sig_shared_pending,
        Signals::Pending | Signals::ThreadPending => status.sig_pending,
        Signals::Blocked => status.sig_blocked,
        Signals::Ignored => status.sig_ignored,
        Signals::Caught => status.sig_caught,
    });
    let _ = if wide {
        write!(out, "{mask:016x}")
    } else if mask > u64::from(u32::MAX) {
        write!(out, "<{:08x}", mask as u32)
    } else {
        write!(out, "{mask:08x}")
    };
}

/// The control groups that are not the root of their hierarchy.
pub(crate) fn control_groups(lines: &[u8]) -> Vec<u8> {
    let groups: Vec<&[u8]> = lines
        .split(|&b| b == b'\n')
        .filter(|line| !line.is_empty() && !line.ends_with(b":/"))
        .collect();
    if groups.is_empty() {
        return b"-".to_vec();
    }
    groups.join(&b',')
}

/// The id of a container as runtimes put it into the names of control groups: at least 32 hexadecimal digits, of which
/// twelve are shown; or the name behind `lxc`.
pub(crate) fn container(lines: &[u8]) -> Vec<u8> {
    for part in lines.split(|b| matches!(b, b'\n' | b'/')) {
        let part = part.strip_suffix(b".scope").unwrap_or(part);
        let id = part
            .rsplit(|b| matches!(b, b'-' | b':'))
            .next()
            .unwrap_or(part);
        if id.len() >= 32 && id.iter().all(u8::is_ascii_hexdigit) {
            return id[..12].to_vec();
        }
        if let Some(name) = part.strip_prefix(b"lxc.payload.") {
            return name.to_vec();
        }
    }
    b"-".to_vec()
}

#[cfg(test)]
mod tests;
