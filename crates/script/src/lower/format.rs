//! printf formats.

use crate::ir::Piece;
use crate::types::Ty;

/// Pieces of the format, or what is wrong with it.
pub(super) fn parse(text: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut plain = String::new();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            plain.push(c);
            continue;
        }
        if chars.next_if_eq(&'%').is_some() {
            plain.push('%');
            continue;
        }
        if !plain.is_empty() {
            pieces.push(Piece::Text(std::mem::take(&mut plain)));
        }
        let mut flags = String::new();
        while let Some(flag) = chars.next_if(|c| "-+ #0".contains(*c)) {
            flags.push(flag);
        }
        let mut width = 0u32;
        while let Some(digit) = chars.next_if(char::is_ascii_digit) {
            width = width * 10 + digit.to_digit(10).unwrap_or(0);
            if width > 4096 {
                return Err("a width is at most 4096".into());
            }
        }
        if chars.peek() == Some(&'.') {
            return Err("a precision (`.`) is not supported".into());
        }
        let mut modifier = String::new();
        while let Some(c) = chars.next_if(|c| "hljzt".contains(*c)) {
            modifier.push(c);
        }
        let bytes = match modifier.as_str() {
            "" => 4,
            "hh" => 1,
            "h" => 2,
            "l" | "ll" | "j" | "z" | "t" => 8,
            _ => return Err(format!("invalid length `{modifier}`")),
        };
        let conversion = chars.next().ok_or("the format ends within a conversion")?;
        let buffer = if conversion == 'r' {
            chars.next_if(|c| "xh".contains(*c))
        } else {
            None
        };
        match conversion {
            'd' | 'i' | 'u' | 'x' | 'X' | 'o' => {}
            'c' | 's' | 'p' | 'r' if modifier.is_empty() => {}
            'f' | 'e' | 'g' | 'a' => {
                return Err(format!(
                    "`%{conversion}`: there are no floating-point numbers"
                ));
            }
            other => return Err(format!("unknown conversion `%{modifier}{other}`")),
        }
        let bytes = if conversion == 'p' { 8 } else { bytes };
        pieces.push(Piece::Conversion {
            flags,
            width,
            bytes,
            conversion,
            buffer,
        });
    }
    if !plain.is_empty() {
        pieces.push(Piece::Text(plain));
    }
    Ok(pieces)
}

/// Whether a conversion takes a value; else what it takes.
pub(super) fn takes(conversion: char, ty: &Ty) -> Result<(), &'static str> {
    let (ok, wanted) = match conversion {
        's' => (!matches!(ty, Ty::Void), "a value"),
        'r' => (matches!(ty, Ty::Buf(_) | Ty::Unknown), "a buf()"),
        _ => (ty.is_number(), "a number"),
    };
    if ok { Ok(()) } else { Err(wanted) }
}
