//! Messages about a program, with the place in its text.

use std::fmt::Write;

/// A program's text and the name it goes by in messages (`stdin` for `-e` and `-`).
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Name of the file.
    pub name: &'a str,
    /// Its text.
    pub text: &'a str,
}

/// Bytes `start..end` of the text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// First byte.
    pub start: usize,
    /// Behind the last byte.
    pub end: usize,
}

impl Span {
    pub(crate) fn to(self, end: Span) -> Span {
        Span {
            start: self.start,
            end: end.end.max(self.start),
        }
    }
}

/// Whether the program may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// It may not.
    Error,
    /// It may.
    Warning,
}

/// One message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// How bad.
    pub severity: Severity,
    /// Where.
    pub span: Span,
    /// What is wrong.
    pub message: String,
    /// What to write instead.
    pub hints: Vec<String>,
}

impl Diagnostic {
    pub(crate) fn error(span: Span, message: impl Into<String>) -> Diagnostic {
        Diagnostic {
            severity: Severity::Error,
            span,
            message: message.into(),
            hints: Vec::new(),
        }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Diagnostic {
        self.hints.push(hint.into());
        self
    }

    /// `file:line:col-col: ERROR: text`, the source line, `~~~` under the place, hints. Columns are characters from 1; a place over several lines
    /// is cut at its first line's end.
    pub fn render(&self, source: Source<'_>) -> String {
        let text = source.text;
        let start = floor(text, self.span.start);
        let end = floor(text, self.span.end).max(start);
        let line_start = text[..start].rfind('\n').map_or(0, |at| at + 1);
        let line_end = text[start..].find('\n').map_or(text.len(), |at| start + at);
        let line = text[line_start..line_end].trim_end_matches('\r');
        let number = text[..start].matches('\n').count() + 1;
        let first = text[line_start..start].chars().count() + 1;
        let width = text[start..end.min(line_end).max(start)]
            .chars()
            .count()
            .max(1);
        let severity = if self.severity == Severity::Error {
            "ERROR"
        } else {
            "WARNING"
        };
        let mut out = format!(
            "{}:{number}:{first}-{}: {severity}: {}\n",
            source.name,
            first + width - 1,
            self.message
        );
        let indent: String = line
            .chars()
            .take(first - 1)
            .map(|c| if c == '\t' { '\t' } else { ' ' })
            .collect();
        let _ = writeln!(out, "{line}\n{indent}{}", "~".repeat(width));
        for hint in &self.hints {
            let _ = writeln!(out, "HINT: {hint}");
        }
        out
    }
}

fn floor(text: &str, mut at: usize) -> usize {
    at = at.min(text.len());
    while !text.is_char_boundary(at) {
        at -= 1;
    }
    at
}

/// The candidate that is at most two changes away from the word.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let limit = if word.len() < 4 { 1 } else { 2 };
    let near = candidates
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate));
    near.filter(|(far, _)| (1..=limit).contains(far))
        .min_by_key(|(far, _)| *far)
        .map(|(_, candidate)| candidate)
}

fn distance(a: &str, b: &str) -> usize {
    if a.len().abs_diff(b.len()) > 2 {
        return usize::MAX;
    }
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
