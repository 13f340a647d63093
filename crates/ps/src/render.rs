//! From rows to text.

use std::io::IsTerminal;

use lancet_procs::{Row, Table, Wanted};

use crate::{
    Asker, Listed, Machine, Names, Request, SortKey, What,
    cell::Cells,
    forest, json,
    layout::{LONGEST, Layout},
    sort,
    texts::arguments_of,
};

/// What was made of a table.
#[derive(Clone, Debug, Default)]
pub struct Rendered {
    /// The text.
    pub text: Vec<u8>,
    /// How many rows it has beside the header.
    pub rows: usize,
}

impl Request {
    /// What has to be read of each process.
    #[must_use]
    pub fn wanted(&self) -> Wanted {
        let mut wanted = Wanted {
            threads: self.threads,
            owner: self.choice.needs_owner(),
            status: self.choice.needs_status(),
            ..Wanted::default()
        };
        let columns = self.format.columns.iter().map(|column| column.spec.what);
        for what in columns.chain(self.sort.iter().map(|key| key.what)) {
            self.add(what, &mut wanted);
        }
        // Patterns look at what the row shows.
        wanted.arguments |= self.choice.pattern.is_some() && self.format.full;
        wanted
    }

    fn add(&self, what: What, wanted: &mut Wanted) {
        use crate::Id::{EffectiveGroup, EffectiveUser};
        match what {
            What::Arguments => {
                wanted.arguments |= !self.names_only;
                wanted.environment |= self.format.environment;
            }
            What::Name => {
                wanted.arguments |= self.format.full;
                wanted.environment |= self.format.environment;
            }
            What::Environment => wanted.environment = true,
            What::Executable => wanted.exe = true,
            What::ControlGroups | What::Container => wanted.cgroup = true,
            What::Id(EffectiveUser | EffectiveGroup)
            | What::IdName(EffectiveUser | EffectiveGroup) => wanted.owner = true,
            What::Id(_)
            | What::IdName(_)
            | What::Signals(_)
            | What::Resident
            | What::MemoryShare
            | What::LongState
            | What::Writable
            | What::Capabilities
            | What::Groups
            | What::GroupNames => wanted.status = true,
            What::SleepsIn => wanted.wchan = true,
            What::Data | What::Text | What::StackStart => wanted.addresses = true,
            _ => {}
        }
    }
}

/// Chooses, sorts and writes the rows.
#[must_use]
pub fn render(request: &Request, table: Table, names: &mut Names) -> Rendered {
    let asker = asker(request);
    let mut rows = table.rows;
    rows.retain(|row| request.choice.takes(row, asker) && matches(request, row));
    let machine = Machine::look();
    let mut cells = Cells::new(request, names, machine);
    let mut keys = request.sort.clone();
    if request.forest.is_some() && keys.is_empty() {
        keys.push(SortKey {
            what: What::Start,
            descending: false,
        });
    }
    sort::sort(&mut rows, &keys, &mut cells);
    in_given_order(request, &mut rows);
    let mut text = Vec::with_capacity(128 * (rows.len() + 1));
    if request.json {
        for row in &rows {
            json::row(&request.format, row, &mut cells, &mut text);
        }
    } else {
        let layout = Layout::new(&request.format, &machine, screen(request));
        if !request.no_header {
            layout.header(&mut text);
        }
        match request.forest {
            Some(style) => {
                for leaf in forest::forest(&rows, style) {
                    layout.row(&rows[leaf.index], &leaf.branch, &mut cells, &mut text);
                }
            }
            None => {
                for row in &rows {
                    layout.row(row, b"", &mut cells, &mut text);
                }
            }
        }
    }
    Rendered {
        text,
        rows: rows.len(),
    }
}

fn matches(request: &Request, row: &Row) -> bool {
    request.choice.pattern.as_ref().is_none_or(|pattern| {
        if request.format.full {
            pattern.is_in(&arguments_of(row))
        } else {
            pattern.is_in(row.stat.name.as_bytes())
        }
    })
}

fn in_given_order(request: &Request, rows: &mut [Row]) {
    let [list] = request.choice.lists.as_slice() else {
        return;
    };
    if list.listed == Listed::PidsInOrder && request.sort.is_empty() {
        let place = |row: &Row| list.numbers.iter().position(|&n| n == i64::from(row.pid.0));
        rows.sort_by_key(place);
    }
}

/// Who asks. The own `stat` is only looked at where it matters.
fn asker(request: &Request) -> Asker {
    let uid = rustix::process::geteuid().as_raw();
    let choice = &request.choice;
    if choice.all || (choice.by_lists && !choice.own_terminal) {
        return Asker { uid, tty: 0 };
    }
    let own = rustix::process::getpid().as_raw_nonzero().get();
    let root = lancet_procs::Proc::open();
    let rows = root.map(|root| {
        lancet_procs::of_pids(
            &root,
            &[(lancet_abi::units::Pid(own), 0)],
            Wanted::default(),
        )
        .rows
    });
    let tty = rows
        .ok()
        .and_then(|rows| rows.first().map(|row| row.stat.tty));
    Asker {
        uid,
        tty: tty.unwrap_or(0),
    }
}

/// Columns of the screen; a file or pipe has no end of line.
fn screen(request: &Request) -> usize {
    let given = || std::env::var("COLUMNS").ok()?.parse::<usize>().ok();
    let terminal = || {
        let out = std::io::stdout();
        let size = rustix::termios::tcgetwinsize(&out).ok()?;
        (out.is_terminal() && size.ws_col > 0).then_some(usize::from(size.ws_col))
    };
    let width = request
        .width
        .or_else(given)
        .or_else(terminal)
        .unwrap_or(LONGEST);
    match request.wide {
        0 => width,
        1 => width.max(132),
        _ => LONGEST,
    }
}
