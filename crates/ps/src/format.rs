//! Which columns are shown: by name, or those of a style.

use crate::{
    PsError,
    spec::{self, Spec},
};

/// The columns of a list, from left to right.
#[derive(Clone, Debug, Default)]
pub struct Format {
    /// At least one.
    pub columns: Vec<Column>,
    /// Names are shown with arguments (`-f`).
    pub full: bool,
    /// The environment behind the arguments (`e`).
    pub environment: bool,
}

/// One column of a list.
#[derive(Clone, Debug)]
pub struct Column {
    /// What it is.
    pub spec: &'static Spec,
    /// Above it.
    pub header: String,
    /// A width that was given.
    pub width: Option<usize>,
}

/// The styles of BSD.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bsd {
    User,
    Long,
    Jobs,
    Signals,
    Memory,
}

/// Collects what was asked for.
#[derive(Debug, Default)]
pub(crate) struct Builder {
    /// Something was asked for in the BSD style.
    pub(crate) bsd: bool,
    pub(crate) environment: bool,
    style: Option<Bsd>,
    /// Letters of POSIX style: f, l, j, F, y, c, P, L, T.
    letters: Vec<char>,
    named: Vec<Column>,
    inserted: Vec<Column>,
    inserted_bsd: bool,
}

impl Builder {
    pub(crate) fn is_posix_default(&self) -> bool {
        !self.bsd
    }

    pub(crate) fn posix(&mut self, letter: char) {
        self.letters.push(letter);
    }

    pub(crate) fn style(&mut self, style: Bsd) -> Result<(), PsError> {
        if self
            .style
            .replace(style)
            .is_some_and(|other| other != style)
        {
            return Err(CONFLICT);
        }
        Ok(())
    }

    pub(crate) fn columns(&mut self, list: &str) -> Result<(), PsError> {
        self.named.extend(columns(list)?);
        Ok(())
    }

    pub(crate) fn inserted(&mut self, list: &str, bsd: bool) -> Result<(), PsError> {
        self.inserted = columns(list)?;
        self.inserted_bsd = bsd;
        Ok(())
    }

    fn has(&self, letter: char) -> bool {
        self.letters.contains(&letter)
    }

    /// The columns, and whether rows are threads.
    pub(crate) fn build(&self) -> Result<(Format, bool), PsError> {
        let threads = self.has('L') || self.has('T');
        let format = |columns| Format {
            columns,
            full: self.has('f') || self.has('F'),
            environment: self.environment,
        };
        let layout = self.letters.iter().any(|c| !matches!(c, 'L' | 'T'));
        if !self.named.is_empty() || !self.inserted.is_empty() {
            if layout || self.style.is_some() {
                return Err(CONFLICT);
            }
            return Ok((format(self.by_name()?), threads));
        }
        if let Some(style) = self.style {
            if layout {
                return Err(CONFLICT);
            }
            return Ok((format(self.of_style(style)?), threads));
        }
        Ok((format(columns(&self.of_letters().join(","))?), threads))
    }

    fn by_name(&self) -> Result<Vec<Column>, PsError> {
        if self.inserted.is_empty() {
            return Ok(self.named.clone());
        }
        let mut all = columns("pid")?;
        all.extend(self.inserted.iter().cloned());
        all.extend(columns(if self.inserted_bsd {
            "state,tname,cputime,comm"
        } else {
            "state,tname,time,command"
        })?);
        all.extend(self.named.iter().cloned());
        Ok(all)
    }

    fn of_style(&self, style: Bsd) -> Result<Vec<Column>, PsError> {
        let mut names: Vec<&str> = match style {
            Bsd::User => "user,pid,pcpu,pmem,vsz,rss,tname,stat,start_time,bsdtime,args",
            Bsd::Long => "flags,uid,pid,ppid,priority,nice,vsz,rss,wchan,stat,tname,bsdtime,args",
            Bsd::Jobs => "ppid,pid,pgid,sid,tname,tpgid,stat,uid,bsdtime,args",
            Bsd::Signals => "uid,pid,pending,sig_block,sig_ignore,caught,stat,tname,bsdtime,args",
            Bsd::Memory => "pid,tname,stat,bsdtime,maj_flt,m_trs,m_drs,rss,pmem,args",
        }
        .split(',')
        .collect();
        if self.has('T') {
            insert_behind(&mut names, &["pid"], "spid");
        }
        if self.has('L') {
            insert_behind(&mut names, &["sid", "pgid", "ppid", "pid"], "lwp");
            insert_behind(&mut names, &["pcpu"], "nlwp");
        }
        columns(&names.join(","))
    }

    /// The columns of POSIX style, or of no style.
    fn of_letters(&self) -> Vec<&'static str> {
        let (full, long) = (self.has('f') || self.has('F'), self.has('l'));
        let (extra, size, class) = (self.has('F'), self.has('y'), self.has('c'));
        let mut names = Vec::new();
        let mut add = |on: bool, name| {
            if on {
                names.push(name);
            }
        };
        add(long && !size, "f");
        add(long, "s");
        add(full, "uid_hack");
        add(long && !full, "uid");
        add(true, "pid");
        add(self.has('T'), "spid");
        add(full || long, "ppid");
        add(self.has('j'), "pgid");
        add(self.has('j'), "sid");
        add(self.has('L'), "lwp");
        add(self.has('P'), "psr");
        add((full || long) && !class, "c");
        add(self.has('L') && full, "nlwp");
        add(class, "class");
        add(class, "pri");
        add(long && !class, "opri");
        add(long && !class, "ni");
        add(long && size, "rss");
        add(long && !size, "addr_1");
        add(extra || long, "sz");
        add(long, "wchan");
        add(extra && !(long && size), "rss");
        add(extra && !self.has('P'), "psr");
        add(full, "stime");
        add(true, "tname");
        add(self.bsd && !long, "stat");
        add(self.bsd, "bsdtime");
        add(!self.bsd, "time");
        let layout = full || long || self.has('j');
        add(
            true,
            match (self.bsd, full, layout) {
                (false, true, _) | (true, _, true) => "cmd",
                (false, false, _) => "ucmd",
                (true, _, false) => "args",
            },
        );
        names
    }
}

const CONFLICT: PsError = PsError::Conflict {
    one: "one format",
    other: "another",
};

fn insert_behind(names: &mut Vec<&str>, behind: &[&str], name: &'static str) {
    let at = behind
        .iter()
        .find_map(|one| names.iter().position(|name| name == one));
    if let Some(at) = at {
        names.insert(at + 1, name);
    }
}

/// `NAME`, `NAME:WIDTH`, `NAME=HEADER`, separated by commas or blanks.
fn columns(list: &str) -> Result<Vec<Column>, PsError> {
    let mut columns = Vec::new();
    for item in list.split([',', ' ']).filter(|item| !item.is_empty()) {
        let (name, header) = match item.split_once('=') {
            Some((name, header)) => (name, Some(header)),
            None => (item, None),
        };
        let (name, width) = match name.split_once(':') {
            Some((name, width)) => {
                let width = crate::choice::number::<usize>(width, "a width")?;
                (name, Some(width))
            }
            None => (name, None),
        };
        let spec = spec::find(name).ok_or(PsError::Column {
            name: name.to_owned(),
        })?;
        columns.push(Column {
            spec,
            header: header.unwrap_or(spec.header).to_owned(),
            width,
        });
    }
    if columns.is_empty() {
        return Err(PsError::Value {
            text: list.to_owned(),
            what: "a list of columns",
        });
    }
    Ok(columns)
}
