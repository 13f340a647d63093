//! Attach points: their text to what they mean.

use crate::ast::AttachPoint;
use crate::diag::{Diagnostic, nearest};
use crate::ir::{Function, Point};
use crate::parse::parse_number;

const KERNEL: &[&str] = &[
    "kprobe",
    "k",
    "kretprobe",
    "kr",
    "tracepoint",
    "t",
    "rawtracepoint",
    "rt",
    "fentry",
    "f",
    "kfunc",
    "fexit",
    "fr",
    "kretfunc",
    "software",
    "s",
    "hardware",
    "h",
    "iter",
    "it",
    "asyncwatchpoint",
    "aw",
];
const LATER: &[&str] = &[
    "uretprobe",
    "ur",
    "usdt",
    "U",
    "profile",
    "p",
    "watchpoint",
    "w",
    "self",
    "test",
    "bench",
];

/// The point; `params` replace `$1` and so on.
pub(super) fn parse(point: &AttachPoint, params: &[String]) -> Result<Point, Diagnostic> {
    let error = |text: String| Diagnostic::error(point.span, text);
    let text = substitute(&point.text, params);
    let parts = split(&text);
    let kind = parts[0].as_str();
    let rest = &parts[1..];
    match kind {
        _ if kind.eq_ignore_ascii_case("begin") || kind.eq_ignore_ascii_case("end") => match rest {
            [] if kind.eq_ignore_ascii_case("begin") => Ok(Point::Begin),
            [] => Ok(Point::End),
            _ => Err(error(format!("`{kind}` takes nothing behind it"))),
        },
        "interval" | "i" => interval(rest, &text).ok_or_else(|| {
            error(format!("invalid interval `{text}`"))
                .hint("interval:s:1, interval:ms:100, interval:hz:99 or interval:5s")
        }),
        "uprobe" | "u" => uprobe(rest).map_err(|(text, hint)| error(text).hint(hint)),
        _ if LATER.contains(&kind) => Err(error(format!("`{kind}` probes are not supported yet"))),
        _ if KERNEL.contains(&kind) => Err(error(format!(
            "`{kind}` probes lie in the kernel; this program probes user space only"
        ))
        .hint("use uprobe:FILE:FUNCTION")),
        _ => {
            let error = error(format!("unknown probe type `{kind}`"));
            Err(
                match nearest(kind, ["begin", "BEGIN", "end", "END", "uprobe", "interval"]) {
                    Some(near) => error.hint(format!("did you mean {near}?")),
                    None => error.hint("known: BEGIN, END, uprobe:FILE:FUNCTION, interval:UNIT:N"),
                },
            )
        }
    }
}

fn substitute(text: &str, params: &[String]) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        let digits = rest[at + 1..]
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(rest.len() - at - 1);
        let number: &str = &rest[at + 1..at + 1 + digits];
        match number.parse::<usize>() {
            Ok(number @ 1..) => out.push_str(params.get(number - 1).map_or("", String::as_str)),
            _ => out.push_str(&rest[at..at + 1 + digits]),
        }
        rest = &rest[at + 1 + digits..];
    }
    out + rest
}

/// Parts between colons outside quotes; quotes are kept.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut quoted = false;
    for c in text.chars() {
        quoted ^= c == '"';
        match c {
            ':' if !quoted => parts.push(String::new()),
            c => parts.last_mut().expect("never empty").push(c),
        }
    }
    parts
}

fn unquoted(text: &str) -> &str {
    text.strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .unwrap_or(text)
}

fn interval(rest: &[String], spelling: &str) -> Option<Point> {
    let nanos = match rest {
        [plain] => parse_number(plain)?,
        [unit, number] => {
            let number = parse_number(number)?;
            match unit.as_str() {
                "s" => number.checked_mul(1_000_000_000)?,
                "ms" => number.checked_mul(1_000_000)?,
                "us" => number.checked_mul(1_000)?,
                "hz" => 1_000_000_000u64.checked_div(number)?,
                _ => return None,
            }
        }
        _ => return None,
    };
    (nanos > 0).then(|| Point::Interval {
        nanos,
        spelling: format!("interval{}", &spelling[spelling.find(':').unwrap_or(0)..]),
    })
}

fn uprobe(rest: &[String]) -> Result<Point, (String, String)> {
    let shape =
        || "uprobe:FILE:FUNCTION, uprobe:FILE:FUNCTION+OFFSET or uprobe:FILE:ADDRESS".to_owned();
    let (file, name, demangled) = match rest {
        [file, line, ..] if file.contains('@') && line.bytes().all(|c| c.is_ascii_digit()) => {
            return Err(("source lines are not supported yet".into(), shape()));
        }
        [file, name] => (file, name, false),
        [file, language, name] if language == "cpp" => (file, name, true),
        _ => {
            return Err((
                format!(
                    "a uprobe has a file and a function, this has {} parts behind `uprobe`",
                    rest.len()
                ),
                shape(),
            ));
        }
    };
    let (file, name) = (unquoted(file), unquoted(name));
    if file.is_empty() || name.is_empty() {
        return Err((
            format!(
                "the {} is missing",
                if file.is_empty() { "file" } else { "function" }
            ),
            shape(),
        ));
    }
    let language = if demangled { "cpp:" } else { "" };
    let spelling = format!("uprobe:{file}:{language}{name}");
    let function = if !demangled && name.starts_with(|c: char| c.is_ascii_digit()) {
        Function::Address(
            parse_number(name).ok_or_else(|| (format!("invalid address `{name}`"), shape()))?,
        )
    } else {
        match name.rsplit_once('+').filter(|_| !demangled) {
            Some((name, offset)) => {
                let offset = parse_number(offset)
                    .filter(|_| !name.is_empty())
                    .ok_or_else(|| (format!("invalid offset `+{offset}`"), shape()))?;
                if name.contains('*') {
                    return Err((
                        "an offset needs one function, not a pattern".into(),
                        shape(),
                    ));
                }
                Function::Symbol {
                    name: name.to_owned(),
                    offset,
                    demangled,
                }
            }
            None => Function::Symbol {
                name: name.to_owned(),
                offset: 0,
                demangled,
            },
        }
    };
    Ok(Point::Uprobe {
        file: file.to_owned(),
        function,
        spelling,
    })
}
