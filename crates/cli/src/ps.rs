//! `ps`: lists processes, never waiting behind one of them.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result};
use lancet_abi::units::Pid;
use lancet_procs::served::Query;
use lancet_procs::{self as procs, Proc, Table};
use lancet_ps::{Names, Request, parse, render};
use rustix::io::Errno;

use crate::scope;

const HELP: &str = "\
Lists processes as ps does, in the same three styles, without waiting behind a process whose memory is locked.

Usage: lancet ps [OPTIONS]

Which:   -e -A -a -d -N -p PIDS -q PIDS -u USERS -U USERS -g -G GROUPS -s SESSIONS -t TERMINALS -C NAMES --ppid PIDS
         a x r T p t U, PIDS
Columns: -f -F -l -j -y -c -P -L -T -o FORMAT -O FORMAT;  u l j s v o O e c
Order:   --sort [-]NAME,...  k NAMES  --forest f  -H
Form:    w ww --width N --no-headers h n S

Beyond ps:
  --json           one object a line, a member a column
  --watch[=SECS]   again every 2 seconds, or as often as told
  --match REGEX    only names that match, with -f arguments
  --maps FILE      only processes that map this file as code
  --probed         only processes that lancet has something in
  --max-age MS     take a snapshot of a served index that is at most so old, instead of one made for this list
  --alone          don't ask a served index
  -o container     the container's id, from its control group

`lancet ps --help columns` lists the columns. Arguments that can't be read in time show as <busy>.
";

pub(crate) fn ps(words: impl IntoIterator<Item = OsString>) -> Result<u8> {
    let words: Vec<String> = words
        .into_iter()
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let mut names = Names::default();
    let request = parse(&words, &mut names)?;
    if let Some(topic) = &request.help {
        return help(topic);
    }
    loop {
        let table = look(&request)?;
        let (late, denied, hidden) = (table.late, table.denied, table.hidden);
        let rendered = render(&request, table, &mut names);
        if !print(&rendered.text)? {
            return Ok(0);
        }
        say_what_is_missing(late, denied, hidden);
        let Some(seconds) = request.watch else {
            return Ok(u8::from(rendered.rows == 0));
        };
        std::thread::sleep(Duration::from_secs_f64(seconds));
        if std::io::IsTerminal::is_terminal(&std::io::stdout()) {
            // To the corner, and everything behind it erased.
            print(b"\x1b[H\x1b[2J")?;
        }
    }
}

fn look(request: &Request) -> Result<Table> {
    let wanted = request.wanted();
    let only = match (&request.maps, request.probed) {
        (None, false) => request.choice.only_pids(),
        (maps, probed) => Some(only(maps.as_deref(), probed)?),
    };
    match only {
        None => match served(request) {
            Some(table) => Ok(table),
            None => Ok(procs::table(&Proc::open()?, wanted)?),
        },
        Some(only) => {
            let mut pids: Vec<i32> = only
                .into_iter()
                .filter_map(|n| i32::try_from(n).ok())
                .collect();
            pids.sort_unstable();
            pids.dedup();
            let pids: Vec<(Pid, u64)> = pids.into_iter().map(|pid| (Pid(pid), 0)).collect();
            Ok(procs::of_pids(&Proc::open()?, &pids, wanted))
        }
    }
}

/// What the index has, where one is served to this user and has all that is asked for.
fn served(request: &Request) -> Option<Table> {
    if request.alone {
        return None;
    }
    let query = Query {
        wanted: request.wanted(),
        max_age: Duration::from_millis(request.max_age.unwrap_or(0)),
    };
    procs::served::ask(&query).ok()
}

/// The processes that map a file, or have something of lancet in them, or both.
fn only(maps: Option<&str>, probed: bool) -> Result<Vec<i64>> {
    let mapping: Option<HashSet<i32>> = match maps {
        Some(path) => {
            let file = File::open(path).with_context(|| path.to_owned())?;
            let id = procs::shown_id(&file).with_context(|| path.to_owned())?;
            let scan = procs::who_maps(id.dev, id.inode)?;
            let missing = scan.denied.len() + scan.unknown.len();
            if missing > 0 {
                eprintln!("lancet: {missing} processes could not be asked what they map");
            }
            Some(scan.mappers.iter().map(|m| m.identity.pid.0).collect())
        }
        None => None,
    };
    let in_use: Option<HashSet<i32>> = match probed {
        true => Some(probed_now()?.iter().map(|one| one.pid.0).collect()),
        false => None,
    };
    let pids = match (mapping, in_use) {
        (Some(one), Some(other)) => one.intersection(&other).copied().collect(),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => HashSet::new(),
    };
    Ok(pids.into_iter().map(i64::from).collect())
}

fn probed_now() -> Result<Vec<lancet_engine::Leftover>> {
    let looked = lancet_engine::status()?;
    for &pid in &looked.locked {
        scope::say_locked(pid, "it is left out");
    }
    Ok(looked.leftovers)
}

/// False when nobody reads any more.
fn print(text: &[u8]) -> Result<bool> {
    let out = std::io::stdout();
    let mut rest = text;
    while !rest.is_empty() {
        match rustix::io::write(out.as_fd(), rest) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::INTR) => {}
            Err(Errno::PIPE) => return Ok(false),
            Err(error) => return Err(error).context("the list can't be written"),
        }
    }
    Ok(true)
}

fn say_what_is_missing(late: usize, denied: usize, hidden: bool) {
    if late > 0 {
        eprintln!(
            "lancet: arguments that could not be read in time, since the memory is locked, of {late} shown as <busy>"
        );
    }
    if denied > 0 {
        eprintln!("lancet: of other users' processes, {denied} may not be looked at");
    }
    if hidden {
        eprintln!("lancet: processes of other users are hidden by the way /proc is mounted");
    }
}

fn help(topic: &str) -> Result<u8> {
    if topic.starts_with("col") {
        let mut text = String::new();
        for spec in lancet_ps::SPECS {
            text.push_str(&format!("{:<12} {}\n", spec.name, spec.header));
        }
        print(text.as_bytes())?;
    } else {
        print(HELP.as_bytes())?;
    }
    Ok(0)
}
