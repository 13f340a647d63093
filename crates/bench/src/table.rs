//! What the tables of several engines have in common.

use std::io::Write;

use serde_json::json;

use crate::stats::Range;

/// Tells that an engine is left out of a test, and why.
pub(crate) fn left_out(
    engine: &str,
    test: &str,
    error: &anyhow::Error,
    json: bool,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    if json {
        let note = json!({ "engine": engine, "test": test, "left_out": format!("{error:#}") });
        writeln!(out, "{note}")?;
    } else {
        writeln!(out, "# {engine} is left out of {test}: {error:#}")?;
    }
    Ok(())
}

/// `12.3 (10.1-20.9)`.
pub(crate) fn range(range: Range, digits: usize) -> String {
    let Range {
        median,
        least,
        most,
    } = range;
    format!("{median:.digits$} ({least:.digits$}-{most:.digits$})")
}
