//! Names of users and groups, each asked for once.

use std::collections::HashMap;

use crate::sys;

/// Names that were asked for.
#[derive(Debug, Default)]
pub struct Names {
    users: Side,
    groups: Side,
}

#[derive(Debug, Default)]
struct Side {
    known: HashMap<u32, Option<Box<[u8]>>>,
    /// What the machine's own file says, read when the first name is asked for.
    file: Option<HashMap<u32, Box<[u8]>>>,
}

impl Side {
    /// The file is read first: it names nearly everybody, and the C library would read it once a name.
    fn name(
        &mut self,
        id: u32,
        path: &str,
        ask: impl FnOnce(u32) -> Option<Vec<u8>>,
    ) -> Option<&[u8]> {
        let file = self.file.get_or_insert_with(|| read(path));
        self.known
            .entry(id)
            .or_insert_with(|| file.get(&id).cloned().or_else(|| ask(id).map(Into::into)))
            .as_deref()
    }
}

impl Names {
    /// The name of a user.
    pub fn user(&mut self, uid: u32) -> Option<&[u8]> {
        self.users.name(uid, "/etc/passwd", sys::user_name)
    }

    /// The name of a group.
    pub fn group(&mut self, gid: u32) -> Option<&[u8]> {
        self.groups.name(gid, "/etc/group", sys::group_name)
    }

    /// The id of a user.
    pub fn user_id(&mut self, name: &str) -> Option<u32> {
        sys::user_id(name)
    }

    /// The id of a group.
    pub fn group_id(&mut self, name: &str) -> Option<u32> {
        sys::group_id(name)
    }
}

/// `NAME:PASSWORD:ID:...`; the first entry of an id counts.
fn read(path: &str) -> HashMap<u32, Box<[u8]>> {
    let text = std::fs::read(path).unwrap_or_default();
    let mut names = HashMap::new();
    for line in text.split(|&b| b == b'\n') {
        let mut fields = line.split(|&b| b == b':');
        let (Some(name), Some(id)) = (fields.next(), fields.nth(1)) else {
            continue;
        };
        if let Some(id) = std::str::from_utf8(id).ok().and_then(|id| id.parse().ok()) {
            names.entry(id).or_insert_with(|| name.into());
        }
    }
    names
}
