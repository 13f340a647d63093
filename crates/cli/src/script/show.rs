//! Values as people and programs read them.

use lancet_output::{KeyPart, number, quoted};
use lancet_script::ir::{Field, FieldType, Piece, Program};

use super::sys;

/// What values refer to.
pub(super) struct Names<'a> {
    pub(super) program: &'a Program,
    /// Functions by the number that stands for them in values.
    pub(super) functions: &'a [String],
    /// Attach points by their ids.
    pub(super) probes: &'a [String],
}

pub(super) fn word(bytes: &[u8]) -> i64 {
    let mut word = [0; 8];
    let len = bytes.len().min(8);
    word[..len].copy_from_slice(&bytes[..len]);
    i64::from_ne_bytes(word)
}

impl Names<'_> {
    /// A value of these bytes, for people.
    pub(super) fn text(&self, ty: &FieldType, bytes: &[u8]) -> String {
        let value = word(bytes);
        match ty {
            FieldType::Int { signed: true, .. } => value.to_string(),
            FieldType::Int { .. } => (value as u64).to_string(),
            FieldType::Bool => (value != 0).to_string(),
            FieldType::Pointer => format!("{value:#x}"),
            FieldType::Str => self.string(bytes),
            FieldType::Buf => escaped(buffer(bytes), false),
            FieldType::Tuple(fields) => {
                let parts: Vec<String> = fields
                    .iter()
                    .map(|f| self.text(&f.ty, of(f, bytes)))
                    .collect();
                format!("({})", parts.join(", "))
            }
            FieldType::ProbeName => self.probe(value),
            FieldType::FuncName => self.function(value),
            FieldType::Username => user_name(value),
            FieldType::Time(format) => {
                let format = &self.program.strings[format.index()];
                let since = sys::clock(libc::CLOCK_BOOTTIME).wrapping_sub(value);
                at(format, sys::clock(libc::CLOCK_REALTIME).wrapping_sub(since))
            }
        }
    }

    /// The same as JSON.
    pub(super) fn json(&self, ty: &FieldType, bytes: &[u8]) -> String {
        let value = word(bytes);
        match ty {
            FieldType::Int { signed: true, .. } => number(i128::from(value)),
            FieldType::Int { .. } | FieldType::Pointer => number(i128::from(value as u64)),
            FieldType::Bool => (value != 0).to_string(),
            FieldType::Tuple(fields) => {
                let parts: Vec<String> = fields
                    .iter()
                    .map(|f| self.json(&f.ty, of(f, bytes)))
                    .collect();
                format!("[{}]", parts.join(","))
            }
            _ => quoted(&self.text(ty, bytes)),
        }
    }

    /// The parts of a key.
    pub(super) fn key(&self, fields: &[Field], bytes: &[u8]) -> Vec<KeyPart> {
        let part = |field: &Field| {
            let bytes = of(field, bytes);
            match field.ty {
                FieldType::Int { signed: true, .. } => KeyPart::Int(word(bytes)),
                FieldType::Int { .. } => KeyPart::Uint(word(bytes) as u64),
                _ => KeyPart::Name(self.text(&field.ty, bytes)),
            }
        };
        fields.iter().map(part).collect()
    }

    fn probe(&self, id: i64) -> String {
        let name = usize::try_from(id).ok().and_then(|id| self.probes.get(id));
        name.cloned().unwrap_or_default()
    }

    fn function(&self, id: i64) -> String {
        let name = usize::try_from(id)
            .ok()
            .and_then(|id| self.functions.get(id));
        name.cloned().unwrap_or_default()
    }

    fn string(&self, bytes: &[u8]) -> String {
        let end = bytes.iter().position(|&byte| byte == 0);
        let mut text = String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned();
        if end.is_none() && bytes.len() as u32 >= self.program.config.max_strlen {
            text.push_str(&self.program.config.str_trunc_trailer);
        }
        text
    }

    /// The texts of a join: how many, then each.
    pub(super) fn join(&self, separator: &str, fields: &[Field], record: &[u8]) -> String {
        let Some((number, texts)) = fields.split_first() else {
            return String::new();
        };
        let number = word(of(number, record)).max(0) as usize;
        let texts: Vec<String> = texts
            .iter()
            .take(number)
            .map(|field| self.string(of(field, record)))
            .collect();
        texts.join(separator)
    }

    /// The text of a printf.
    pub(super) fn printf(&self, pieces: &[Piece], fields: &[Field], record: &[u8]) -> String {
        let mut out = String::new();
        let mut fields = fields.iter();
        for piece in pieces {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Conversion {
                    flags,
                    width,
                    bytes,
                    conversion,
                    buffer: form,
                } => {
                    let Some(field) = fields.next() else { continue };
                    let raw = of(field, record);
                    let value = word(raw);
                    let body = match conversion {
                        's' => self.text(&field.ty, raw),
                        'c' => char::from(value as u8).to_string(),
                        'p' => format!("{value:#x}"),
                        'r' => match form {
                            Some('h') => hex(buffer(raw)),
                            form => escaped(buffer(raw), form.is_some()),
                        },
                        _ => integer(*conversion, flags, *bytes, value),
                    };
                    out.push_str(&padded(body, flags, *width as usize, *conversion));
                }
            }
        }
        out
    }
}

fn of<'a>(field: &Field, bytes: &'a [u8]) -> &'a [u8] {
    let end = (field.offset + field.size) as usize;
    bytes.get(field.offset as usize..end).unwrap_or(&[])
}

fn buffer(bytes: &[u8]) -> &[u8] {
    let content = bytes.get(8..).unwrap_or(&[]);
    &content[..(word(bytes).max(0) as usize).min(content.len())]
}

fn escaped(bytes: &[u8], all: bool) -> String {
    let one = |&byte: &u8| match byte {
        b' '..=b'~' if !all => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    };
    bytes.iter().map(one).collect()
}

fn hex(bytes: &[u8]) -> String {
    let parts: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    parts.join(" ")
}

/// An integer as C prints it, without padding.
fn integer(conversion: char, flags: &str, bytes: u8, value: i64) -> String {
    let mask = u64::MAX >> (64 - 8 * u32::from(bytes.clamp(1, 8)));
    let low = value as u64 & mask;
    let alternate = flags.contains('#') && low != 0;
    match conversion {
        'd' | 'i' => {
            let unused = 64 - 8 * u32::from(bytes.clamp(1, 8));
            let value = value << unused >> unused;
            match flags {
                _ if value < 0 => value.to_string(),
                _ if flags.contains('+') => format!("+{value}"),
                _ if flags.contains(' ') => format!(" {value}"),
                _ => value.to_string(),
            }
        }
        'x' if alternate => format!("{low:#x}"),
        'X' if alternate => format!("0X{low:X}"),
        'o' if alternate => format!("0{low:o}"),
        'x' => format!("{low:x}"),
        'X' => format!("{low:X}"),
        'o' => format!("{low:o}"),
        _ => low.to_string(),
    }
}

/// The width of C: left with `-`, zeros behind the sign or `0x` with `0`, else blanks before it.
fn padded(body: String, flags: &str, width: usize, conversion: char) -> String {
    let missing = width.saturating_sub(body.chars().count());
    if flags.contains('-') {
        return body + &" ".repeat(missing);
    }
    if !flags.contains('0') || matches!(conversion, 's' | 'c' | 'r') {
        return " ".repeat(missing) + &body;
    }
    let sign = body
        .find(|c: char| !matches!(c, '+' | '-' | ' '))
        .unwrap_or(0);
    let prefix = if body[sign..].starts_with("0x") || body[sign..].starts_with("0X") {
        sign + 2
    } else {
        sign
    };
    format!(
        "{}{}{}",
        &body[..prefix],
        "0".repeat(missing),
        &body[prefix..]
    )
}

/// A wall-clock time by a strftime format, which may have `%f` for microseconds.
pub(super) fn at(format: &str, nanos: i64) -> String {
    let micros = format!("{:06}", nanos.rem_euclid(1_000_000_000) / 1000);
    sys::local_time(
        &format.replace("%f", &micros),
        nanos.div_euclid(1_000_000_000),
    )
}

fn user_name(uid: i64) -> String {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let user = users.lines().find_map(|line| {
        let mut parts = line.split(':');
        let name = parts.next()?;
        (parts.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    user.unwrap_or_else(|| uid.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_those_of_c() {
        let shown = |flags, width, conversion, value| {
            padded(
                integer(conversion, flags, 4, value),
                flags,
                width,
                conversion,
            )
        };
        assert_eq!(shown("-", 5, 'd', -3), "-3   ");
        assert_eq!(shown("0", 5, 'd', -42), "-0042");
        assert_eq!(shown("+", 0, 'd', 7), "+7");
        assert_eq!(shown("", 0, 'u', -1), "4294967295");
        assert_eq!(shown("#0", 8, 'x', 255), "0x0000ff");
        assert_eq!(shown("", 6, 'X', 255), "    FF");
        assert_eq!(shown("#", 0, 'o', 8), "010");
    }

    #[test]
    fn bytes_are_escaped() {
        assert_eq!(escaped(b"a\n\xff", false), "a\\x0a\\xff");
        assert_eq!(escaped(b"ab", true), "\\x61\\x62");
        assert_eq!(hex(b"\x01\xab"), "01 ab");
    }
}
