//! The command line of ps: POSIX options, BSD options without a dash, long options.

use crate::{
    Forest, Id, PsError, Request, SortKey,
    choice::{List, Listed, Simple, number, user_or_group},
    format::{Bsd, Builder},
    names::Names,
    sys::Pattern,
};

/// Options whose letters are followed by a list.
const POSIX_LISTS: &str = "CGOUgopqstu";
const BSD_LISTS: &str = "Okopqtu U";

/// Reads what follows `lancet ps`.
///
/// As ps does, words of POSIX style that make no sense are tried again as BSD style: `-aux` is `aux` unless there is a
/// user `x`.
///
/// # Errors
/// [`PsError`] with what is wrong.
pub fn parse(words: &[String], names: &mut Names) -> Result<Request, PsError> {
    match Parser::new(names, false).run(words) {
        Err(conflict @ PsError::Conflict { .. }) => Err(conflict),
        Err(error) if words.iter().any(|word| is_posix(word)) => {
            Parser::new(names, true).run(words).map_err(|_| error)
        }
        result => result,
    }
}

fn is_posix(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-') && !word.starts_with("--")
}

struct Parser<'a> {
    names: &'a mut Names,
    /// Read words with one dash as if it were not there.
    all_bsd: bool,
    request: Request,
    builder: Builder,
}

/// The rest of a word and the words behind it, from which a list may be taken.
struct Rest<'a> {
    words: std::slice::Iter<'a, String>,
}

impl<'a> Parser<'a> {
    fn new(names: &'a mut Names, all_bsd: bool) -> Self {
        Self {
            names,
            all_bsd,
            request: Request::default(),
            builder: Builder::default(),
        }
    }

    fn run(mut self, words: &[String]) -> Result<Request, PsError> {
        let mut rest = Rest {
            words: words.iter(),
        };
        while let Some(word) = rest.words.next() {
            if let Some(long) = word.strip_prefix("--") {
                self.long(long, &mut rest)?;
            } else if let Some(letters) = word.strip_prefix('-') {
                if self.all_bsd {
                    self.bsd(letters, &mut rest)?;
                } else {
                    self.posix(letters, &mut rest)?;
                }
            } else if word.starts_with(|c: char| c.is_ascii_digit()) {
                self.add_list(word, Listed::Pids, true)?;
            } else {
                self.bsd(word, &mut rest)?;
            }
        }
        self.request.choice.no_option = self.builder.is_posix_default();
        if self.builder.bsd && self.request.choice.simple == Simple::default() {
            self.request.choice.simple.bsd_default = true;
        }
        let (format, threads) = self.builder.build()?;
        self.request.format = format;
        self.request.threads |= threads;
        Ok(self.request)
    }

    fn posix(&mut self, letters: &str, rest: &mut Rest<'_>) -> Result<(), PsError> {
        if letters.is_empty() {
            return Err(unknown("-"));
        }
        for (at, letter) in letters.char_indices() {
            if POSIX_LISTS.contains(letter) {
                let list = rest.list(&letters[at + 1..], letter)?;
                return self.posix_list(letter, &list);
            }
            self.posix_letter(letter)?;
        }
        Ok(())
    }

    fn posix_letter(&mut self, letter: char) -> Result<(), PsError> {
        let simple = &mut self.request.choice.simple;
        match letter {
            'A' | 'e' => self.request.choice.all = true,
            'a' => simple.with_terminal = true,
            'd' => simple.no_leaders = true,
            'N' => self.request.choice.negate = !self.request.choice.negate,
            'w' => self.request.wide += 1,
            'H' => self.request.forest = Some(Forest::Indented),
            'f' | 'l' | 'j' | 'F' | 'y' | 'c' | 'P' | 'L' | 'T' => self.builder.posix(letter),
            _ => return Err(unknown(&format!("-{letter}"))),
        }
        Ok(())
    }

    fn posix_list(&mut self, letter: char, list: &str) -> Result<(), PsError> {
        match letter {
            'o' => self.builder.columns(list),
            'O' => self.builder.inserted(list, false),
            'p' => self.add_list(list, Listed::Pids, false),
            'q' => self.add_list(list, Listed::PidsInOrder, false),
            'C' => self.add_list(list, Listed::Names, false),
            's' => self.add_list(list, Listed::Sessions, false),
            't' => self.add_list(list, Listed::Terminals, false),
            'u' => self.add_list(list, Listed::Ids(Id::EffectiveUser), false),
            'U' => self.add_list(list, Listed::Ids(Id::RealUser), false),
            'G' => self.add_list(list, Listed::Ids(Id::RealGroup), false),
            // Sessions; what can't be a list of those is one of effective groups.
            _ => self
                .add_list(list, Listed::Sessions, false)
                .or_else(|_| self.add_list(list, Listed::Ids(Id::EffectiveGroup), false)),
        }
    }

    fn bsd(&mut self, letters: &str, rest: &mut Rest<'_>) -> Result<(), PsError> {
        self.builder.bsd = true;
        for (at, letter) in letters.char_indices() {
            let behind = &letters[at + 1..];
            // `u` and `o`, `O` are formats unless a list can follow.
            if letter != 'u' && BSD_LISTS.contains(letter) {
                let list = rest.list(behind, letter)?;
                return self.bsd_list(letter, &list);
            }
            self.bsd_letter(letter)?;
        }
        Ok(())
    }

    fn bsd_letter(&mut self, letter: char) -> Result<(), PsError> {
        let simple = &mut self.request.choice.simple;
        match letter {
            'a' => simple.bsd_all = true,
            'x' => simple.bsd_without_terminal = true,
            'g' => simple.bsd_leaders = true,
            'r' => self.request.choice.running = true,
            'T' => self.request.choice.own_terminal = true,
            'c' => self.request.names_only = true,
            'e' => self.builder.environment = true,
            'f' => self.request.forest = Some(Forest::Lines),
            'h' => self.request.no_header = true,
            'n' => self.request.numeric = true,
            'w' => self.request.wide += 1,
            'S' => self.request.with_children = true,
            'H' => self.request.threads = true,
            'u' => self.builder.style(Bsd::User)?,
            'l' => self.builder.style(Bsd::Long)?,
            'j' => self.builder.style(Bsd::Jobs)?,
            's' => self.builder.style(Bsd::Signals)?,
            'v' => self.builder.style(Bsd::Memory)?,
            _ => return Err(unknown(&letter.to_string())),
        }
        Ok(())
    }

    fn bsd_list(&mut self, letter: char, list: &str) -> Result<(), PsError> {
        match letter {
            'o' => self.builder.columns(list),
            'O' => self.builder.inserted(list, true),
            'k' => self.add_sort(list),
            'p' => self.add_list(list, Listed::Pids, true),
            'q' => self.add_list(list, Listed::PidsInOrder, true),
            't' => self.add_list(list, Listed::Terminals, true),
            _ => self.add_list(list, Listed::Ids(Id::EffectiveUser), true),
        }
    }

    fn long(&mut self, word: &str, rest: &mut Rest<'_>) -> Result<(), PsError> {
        let (name, given) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (word, None),
        };
        let mut value = |what: &'static str| match given {
            Some(value) => Ok(value.to_owned()),
            None => rest.words.next().cloned().ok_or(PsError::Missing {
                option: format!("--{name}"),
                what,
            }),
        };
        const LIST: &str = "a list";
        match name {
            "pid" => self.add_list(&value(LIST)?, Listed::Pids, false)?,
            "quick-pid" => self.add_list(&value(LIST)?, Listed::PidsInOrder, false)?,
            "ppid" => self.add_list(&value(LIST)?, Listed::Parents, false)?,
            "sid" => self.add_list(&value(LIST)?, Listed::Sessions, false)?,
            "tty" => self.add_list(&value(LIST)?, Listed::Terminals, false)?,
            "user" => self.add_list(&value(LIST)?, Listed::Ids(Id::EffectiveUser), false)?,
            "User" => self.add_list(&value(LIST)?, Listed::Ids(Id::RealUser), false)?,
            "group" => self.add_list(&value(LIST)?, Listed::Ids(Id::EffectiveGroup), false)?,
            "Group" => self.add_list(&value(LIST)?, Listed::Ids(Id::RealGroup), false)?,
            "format" => self.builder.columns(&value(LIST)?)?,
            "sort" => self.add_sort(&value(LIST)?)?,
            "forest" => self.request.forest = Some(Forest::Lines),
            "no-heading" | "no-headings" | "no-header" | "no-headers" | "noheader"
            | "noheaders" | "noheading" | "noheadings" => self.request.no_header = true,
            "headers" | "heading" | "headings" | "header" => {}
            "cols" | "columns" | "width" => {
                self.request.width = Some(number::<usize>(&value("a number")?, "a width")?);
            }
            "deselect" => self.request.choice.negate = !self.request.choice.negate,
            "cumulative" => self.request.with_children = true,
            "json" => self.request.json = true,
            "probed" => self.request.probed = true,
            "alone" => self.request.alone = true,
            "maps" => self.request.maps = Some(value("a file")?),
            "match" => {
                let pattern = Pattern::new(&value("a regular expression")?)?;
                self.request.choice.pattern = Some(std::sync::Arc::new(pattern));
            }
            "max-age" => {
                let text = value("a number of milliseconds")?;
                self.request.max_age = Some(number(&text, "a number of milliseconds")?);
            }
            "watch" => {
                let seconds = given.map_or(Ok(2.0), |text| number::<f64>(text, "seconds"))?;
                if !(0.05..=86_400.0).contains(&seconds) {
                    return Err(PsError::Value {
                        text: seconds.to_string(),
                        what: "between 0.05 and 86400 seconds",
                    });
                }
                self.request.watch = Some(seconds);
            }
            "help" => {
                self.request.help = Some(rest.words.next().cloned().unwrap_or_default());
            }
            _ => return Err(unknown(&format!("--{name}"))),
        }
        Ok(())
    }

    fn add_sort(&mut self, list: &str) -> Result<(), PsError> {
        for item in list.split([',', ' ']).filter(|item| !item.is_empty()) {
            self.request.sort.push(SortKey::new(item)?);
        }
        Ok(())
    }

    fn add_list(&mut self, text: &str, listed: Listed, bsd: bool) -> Result<(), PsError> {
        let mut list = List {
            listed,
            numbers: Vec::new(),
            texts: Vec::new(),
        };
        for item in text.split([',', ' ']).filter(|item| !item.is_empty()) {
            match listed {
                Listed::Names => list.texts.push(item.as_bytes().to_vec()),
                Listed::Terminals => list.numbers.push(crate::terminal::device(item)?),
                Listed::Ids(id) => list.numbers.push(user_or_group(self.names, id, item)?),
                _ => list.numbers.push(process_id(item)?),
            }
        }
        if list.numbers.is_empty() && list.texts.is_empty() {
            return Err(PsError::Value {
                text: text.to_owned(),
                what: "a list",
            });
        }
        self.request.choice.by_lists = true;
        self.request.choice.lists.push(list);
        self.builder.bsd |= bsd;
        Ok(())
    }
}

impl Rest<'_> {
    /// The list of an option: what is left of its word, else the next word.
    fn list(&mut self, behind: &str, letter: char) -> Result<String, PsError> {
        if !behind.is_empty() {
            return Ok(behind.to_owned());
        }
        self.words.next().cloned().ok_or(PsError::Missing {
            option: format!("{letter:?}"),
            what: "a list",
        })
    }
}

/// A process id as `ps` takes it; what is too small or too large for one is an error.
fn process_id(text: &str) -> Result<i64, PsError> {
    let pid: i32 = number(text, "a process id")?;
    if pid < 1 {
        return Err(PsError::Value {
            text: text.to_owned(),
            what: "a process id: those begin at 1",
        });
    }
    Ok(i64::from(pid))
}

fn unknown(option: &str) -> PsError {
    PsError::Option {
        option: option.to_owned(),
    }
}
