//! Names of terminals.

use std::{collections::HashMap, os::unix::fs::MetadataExt};

use crate::PsError;

/// Names of terminals, each looked up once.
#[derive(Debug, Default)]
pub(crate) struct Terminals {
    known: HashMap<i32, Box<str>>,
}

impl Terminals {
    /// The name below `/dev`, `?` for none or one that is not there.
    pub(crate) fn name(&mut self, device: i32) -> &str {
        if device == 0 {
            return "?";
        }
        self.known.entry(device).or_insert_with(|| {
            let name = usual_name(device);
            let there = name.as_deref().is_some_and(|name| is_there(name, device));
            name.filter(|_| there).unwrap_or_else(|| "?".into()).into()
        })
    }
}

/// As the kernel packs it in `stat`: minor in bits 31-20 and 7-0, major in bits 19-8.
fn parts(device: i32) -> (u32, u32) {
    let device = device.cast_unsigned();
    (
        (device >> 8) & 0xfff,
        (device & 0xff) | ((device >> 12) & 0xf_ff00),
    )
}

fn pack(major: u32, minor: u32) -> i32 {
    ((minor & 0xff) | (major << 8) | ((minor & 0xf_ff00) << 12)).cast_signed()
}

/// By the kernel's list of devices.
fn usual_name(device: i32) -> Option<String> {
    let (major, minor) = parts(device);
    Some(match (major, minor) {
        (3, _) => {
            let letter = char::from(b"pqrstuvwxyzabcde"[(minor >> 4) as usize & 15]);
            format!("tty{letter}{:x}", minor & 15)
        }
        (4, 0..64) => format!("tty{minor}"),
        (4, _) => format!("ttyS{}", minor - 64),
        (5, 0) => "tty".into(),
        (5, 1) => "console".into(),
        (136..=143, _) => format!("pts/{}", minor + ((major - 136) << 8)),
        (188, _) => format!("ttyUSB{minor}"),
        (204, 64..80) => format!("ttyAMA{}", minor - 64),
        (229, _) => format!("hvc{minor}"),
        _ => return None,
    })
}

fn is_there(name: &str, device: i32) -> bool {
    let (major, minor) = parts(device);
    std::fs::metadata(format!("/dev/{name}")).is_ok_and(|m| m.rdev() == libc::makedev(major, minor))
}

/// The terminal that an option means: a path, a name below `/dev`, a number of `tty`, or `?` for none.
pub(crate) fn device(text: &str) -> Result<i64, PsError> {
    if matches!(text, "?" | "-") {
        return Ok(0);
    }
    let candidates = [
        text.to_owned(),
        format!("/dev/{text}"),
        format!("/dev/tty{text}"),
        format!("/dev/pts/{text}"),
    ];
    for path in candidates.iter().filter(|path| path.starts_with('/')) {
        if let Ok(found) = std::fs::metadata(path)
            && found.rdev() != 0
        {
            let rdev = found.rdev();
            return Ok(i64::from(pack(libc::major(rdev), libc::minor(rdev))));
        }
    }
    Err(PsError::Value {
        text: text.to_owned(),
        what: "a terminal",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_packed_as_in_stat() {
        assert_eq!(parts(34816), (136, 0));
        assert_eq!(parts(pack(136, 1)), (136, 1));
        assert_eq!(parts(pack(4, 70)), (4, 70));
        assert_eq!(parts(pack(5, 0xabcde)), (5, 0xabcde));
        assert_eq!(usual_name(pack(136, 300)).as_deref(), Some("pts/300"));
        assert_eq!(usual_name(pack(137, 2)).as_deref(), Some("pts/258"));
        assert_eq!(usual_name(pack(4, 65)).as_deref(), Some("ttyS1"));
    }
}
