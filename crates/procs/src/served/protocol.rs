//! What client and service say to each other: one message each.

use std::{path::PathBuf, time::Duration};

use crate::{Slots, Wanted};

/// Four snapshots of up to 64 MiB; memory is only taken for what is written.
pub(super) const SLOTS: Slots = Slots {
    count: 4,
    room: 64 << 20,
};

const MARK: u64 = 0x0001_7972_6575_716c;
pub(super) const QUERY_BYTES: usize = 24;
pub(super) const ANSWER_BYTES: usize = 16;

/// What a client asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// What is wanted of each process.
    pub wanted: Wanted,
    /// A snapshot may be this old; none older than the query by default.
    pub max_age: Duration,
}

impl Query {
    /// Whether snapshots have what is wanted: only what `/proc` shows to everybody, of whole processes.
    #[must_use]
    pub fn can_be_served(&self) -> bool {
        let wanted = self.wanted;
        !(wanted.environment || wanted.wchan || wanted.exe || wanted.addresses || wanted.threads)
    }

    pub(super) fn to_bytes(self) -> [u8; QUERY_BYTES] {
        let wanted = self.wanted;
        let flags = [wanted.owner, wanted.status, wanted.arguments, wanted.cgroup]
            .iter()
            .enumerate()
            .fold(0, |flags, (bit, &on)| flags | u64::from(on) << bit);
        let age = u64::try_from(self.max_age.as_millis()).unwrap_or(u64::MAX);
        let mut bytes = [0; QUERY_BYTES];
        for (at, number) in [MARK, flags, age].into_iter().enumerate() {
            bytes[8 * at..8 * at + 8].copy_from_slice(&number.to_ne_bytes());
        }
        bytes
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| {
            let bytes = bytes.get(8 * at..)?.first_chunk::<8>()?;
            Some(u64::from_ne_bytes(*bytes))
        };
        if bytes.len() != QUERY_BYTES || number(0)? != MARK {
            return None;
        }
        let flags = number(1)?;
        Some(Self {
            wanted: Wanted {
                owner: flags & 1 != 0,
                status: flags & 2 != 0,
                arguments: flags & 4 != 0,
                cgroup: flags & 8 != 0,
                ..Wanted::default()
            },
            max_age: Duration::from_millis(number(2)?),
        })
    }
}

/// Where a service is looked for: where `LANCET_INDEX` says; else that of the user, then that of the machine.
#[must_use]
pub fn socket_paths() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os("LANCET_INDEX") {
        return vec![path.into()];
    }
    let mut paths = Vec::new();
    if !rustix::process::geteuid().is_root()
        && let Some(folder) = std::env::var_os("XDG_RUNTIME_DIR")
    {
        paths.push(PathBuf::from(folder).join("lancet-index.sock"));
    }
    paths.push("/run/lancet/index.sock".into());
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_come_back_as_they_were() {
        let query = Query {
            wanted: Wanted {
                owner: true,
                arguments: true,
                ..Wanted::default()
            },
            max_age: Duration::from_millis(1500),
        };
        assert_eq!(Query::from_bytes(&query.to_bytes()), Some(query));
        assert_eq!(Query::from_bytes(&[0; QUERY_BYTES]), None);
        assert_eq!(Query::from_bytes(&query.to_bytes()[1..]), None);
    }
}
