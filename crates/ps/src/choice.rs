//! Which processes are listed.

use std::{str::FromStr, sync::Arc};

use lancet_procs::{Row, Status};

use crate::{Id, PsError, names::Names, sys::Pattern};

/// Which processes are listed: any of the lists, or those of the simple options; all of that, or its opposite.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Every process.
    pub all: bool,
    /// Everything that would not be listed.
    pub negate: bool,
    /// Only those that run.
    pub running: bool,
    /// Those of the own terminal.
    pub own_terminal: bool,
    /// At least one list was given.
    pub by_lists: bool,
    /// The lists.
    pub lists: Vec<List>,
    /// `-a`, `-d`, `a`, `x`.
    pub simple: Simple,
    /// Of what is chosen otherwise, only names (or arguments) that match.
    pub pattern: Option<Arc<Pattern>>,
    /// Nothing was asked for in the BSD style.
    pub no_option: bool,
}

/// The options without a list.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Simple {
    /// `-a`: with a terminal, no session leaders.
    pub with_terminal: bool,
    /// `-d`: no session leaders.
    pub no_leaders: bool,
    /// `a`: of everybody.
    pub bsd_all: bool,
    /// `x`: without a terminal too.
    pub bsd_without_terminal: bool,
    /// `g`: changes nothing any more.
    pub bsd_leaders: bool,
    /// Asked for in the BSD style without any of these.
    pub bsd_default: bool,
}

/// What the values of a list are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// Processes.
    Pids,
    /// Processes, listed in this order.
    PidsInOrder,
    /// Parents.
    Parents,
    /// Sessions.
    Sessions,
    /// Terminals.
    Terminals,
    /// Names.
    Names,
    /// Users or groups.
    Ids(Id),
}

/// One list.
#[derive(Clone, Debug)]
pub struct List {
    /// What its values are.
    pub listed: Listed,
    /// Numbers.
    pub numbers: Vec<i64>,
    /// Names.
    pub texts: Vec<Vec<u8>>,
}

/// Who asks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asker {
    /// Effective user.
    pub uid: u32,
    /// Controlling terminal; 0 for none.
    pub tty: i32,
}

impl Choice {
    /// Whether ids other than the effective ones decide.
    #[must_use]
    pub fn needs_status(&self) -> bool {
        let other = |list: &List| matches!(list.listed, Listed::Ids(id) if !matches!(id, Id::EffectiveUser | Id::EffectiveGroup));
        self.lists.iter().any(other)
    }

    /// Whether effective ids decide.
    #[must_use]
    pub fn needs_owner(&self) -> bool {
        let ids = |list: &List| matches!(list.listed, Listed::Ids(_));
        !self.all
            && (!self.by_lists || self.simple != Simple::default() || self.lists.iter().any(ids))
    }

    /// The only processes that can be in the list, where it names them.
    #[must_use]
    pub fn only_pids(&self) -> Option<Vec<i64>> {
        let [list] = self.lists.as_slice() else {
            return None;
        };
        let named = matches!(list.listed, Listed::Pids | Listed::PidsInOrder);
        let simple = self.all || self.negate || self.own_terminal || self.uses_simple();
        (named && !simple).then(|| list.numbers.clone())
    }

    fn uses_simple(&self) -> bool {
        let simple = Simple {
            bsd_default: false,
            ..self.simple
        };
        simple != Simple::default()
    }

    /// Whether this process is listed.
    #[must_use]
    pub fn takes(&self, row: &Row, asker: Asker) -> bool {
        let chosen = self.all
            || ((self.uses_simple() || !(self.by_lists || self.own_terminal))
                && self.by_simple(row, asker))
            || self.lists.iter().any(|list| list.holds(row))
            || (self.own_terminal && row.stat.tty == asker.tty);
        let runs = !self.running || matches!(row.stat.state, b'R' | b'D');
        (chosen && runs) != self.negate
    }

    fn by_simple(&self, row: &Row, asker: Asker) -> bool {
        let own = row.owner.uid == asker.uid;
        let has_terminal = row.stat.tty != 0;
        let leader = row.stat.session == row.pid.0;
        let simple = self.simple;
        if simple.with_terminal || simple.no_leaders {
            return !leader && (has_terminal || simple.no_leaders);
        }
        match (simple.bsd_all, simple.bsd_without_terminal) {
            (true, true) => true,
            (true, false) => has_terminal,
            (false, true) => own,
            (false, false) if simple.bsd_default || simple.bsd_leaders => own && has_terminal,
            (false, false) => own && row.stat.tty == asker.tty,
        }
    }
}

impl List {
    fn holds(&self, row: &Row) -> bool {
        let number = match self.listed {
            Listed::Names => {
                // Names were cut to 15 bytes when they were set.
                return self.texts.iter().any(|text| {
                    let name = row.stat.name.as_bytes();
                    name == text || (name.len() == 15 && text.starts_with(name))
                });
            }
            Listed::Pids | Listed::PidsInOrder => row.pid.0,
            Listed::Parents => row.stat.parent.0,
            Listed::Sessions => row.stat.session,
            Listed::Terminals => row.stat.tty,
            Listed::Ids(id) => return self.numbers.contains(&i64::from(id_of(row, id))),
        };
        self.numbers.contains(&i64::from(number))
    }
}

/// One of the ids of a process; the effective ones are always there.
pub(crate) fn id_of(row: &Row, id: Id) -> u32 {
    let of = |status: &Status| match id {
        Id::RealUser => status.uids[0],
        Id::SavedUser => status.uids[2],
        Id::FileUser => status.uids[3],
        Id::RealGroup => status.gids[0],
        Id::SavedGroup => status.gids[2],
        Id::FileGroup => status.gids[3],
        Id::EffectiveUser => status.uids[1],
        Id::EffectiveGroup => status.gids[1],
    };
    match (id, &row.status) {
        (Id::EffectiveUser, _) => row.owner.uid,
        (Id::EffectiveGroup, _) => row.owner.gid,
        (_, Some(status)) => of(status),
        (_, None) => 0,
    }
}

pub(crate) fn is_user(id: Id) -> bool {
    matches!(
        id,
        Id::RealUser | Id::EffectiveUser | Id::SavedUser | Id::FileUser
    )
}

pub(crate) fn number<T: FromStr>(text: &str, what: &'static str) -> Result<T, PsError> {
    text.parse().map_err(|_| PsError::Value {
        text: text.to_owned(),
        what,
    })
}

pub(crate) fn user_or_group(names: &mut Names, id: Id, text: &str) -> Result<i64, PsError> {
    if let Ok(number) = text.parse::<u32>() {
        return Ok(i64::from(number));
    }
    let (found, what) = if is_user(id) {
        (names.user_id(text), "a user")
    } else {
        (names.group_id(text), "a group")
    };
    found.map(i64::from).ok_or(PsError::Value {
        text: text.to_owned(),
        what,
    })
}
