//! A row as a JSON object.

use lancet_output::quoted;
use lancet_procs::{Reading, Row};

use crate::{
    Align, Format, What,
    cell::{Cells, Room},
};

/// Writes one object, a member a column under the column's name. Columns of numbers are numbers, or null where there is
/// nothing to say. A row whose arguments were not to be had in time has `"late": true`.
pub(crate) fn row(format: &Format, row: &Row, cells: &mut Cells<'_>, out: &mut Vec<u8>) {
    out.push(b'{');
    for (at, column) in format.columns.iter().enumerate() {
        if at > 0 {
            out.extend_from_slice(b", ");
        }
        let room = Room {
            columns: crate::layout::LONGEST,
            wide_signals: true,
            branch: b"",
        };
        let mut text = Vec::new();
        cells.write(column.spec.what, row, room, &mut text);
        let text = String::from_utf8_lossy(&text);
        out.extend_from_slice(quoted(column.spec.name).as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value(column.spec.align, column.spec.what, &text).as_bytes());
    }
    if row.arguments == Reading::Late {
        out.extend_from_slice(b", \"late\": true");
    }
    out.extend_from_slice(b"}\n");
}

fn value(align: Align, what: What, text: &str) -> String {
    if !matches!(align, Align::Right | Align::Pid) {
        return quoted(text);
    }
    let text = text.trim();
    let plain =
        text.parse::<i64>().is_ok() || what == What::ShareDecimal || what == What::MemoryShare;
    match text {
        "-" => "null".into(),
        _ if plain && !has_leading_zero(text) => text.to_owned(),
        _ => quoted(text),
    }
}

/// JSON has no such numbers.
fn has_leading_zero(text: &str) -> bool {
    let digits = text.trim_start_matches('-').as_bytes();
    matches!(digits, [b'0', second, ..] if second.is_ascii_digit())
}
