//! Exception tables (`.gcc_except_table`): the landing pads of a function.
//!
//! An entry is: encoding of the landing pads' base (and the base), encoding of the type
//! table (and its distance), encoding of the call sites, their length in bytes, then for
//! each call site start, length, landing pad and action; pads are relative to the base,
//! which is the function's start when it is left out.

use crate::elf::Elf;
use crate::frames::Frame;

/// `DW_EH_PE_omit`.
const OMIT: u8 = 0xff;

/// The addresses of all landing pads of `frames`.
pub(crate) fn landing_pads(elf: &Elf, file: &[u8], frames: &[Frame]) -> Vec<u64> {
    let mut found = Vec::new();
    // Tables don't overlap in real files; in hostile ones all functions may share one.
    let mut budget = file.len();
    for frame in frames {
        let Some(table) = frame.lsda else { continue };
        let Some(bytes) = elf.bytes_at(file, table) else {
            continue;
        };
        let mut cursor = Cursor {
            bytes,
            address: table,
        };
        if call_sites(&mut cursor, frame, &mut budget, &mut found).is_none() && budget == 0 {
            break;
        }
    }
    found
}

/// Reads one table; nothing when it ends early or uses what no compiler writes.
fn call_sites(
    cursor: &mut Cursor<'_>,
    frame: &Frame,
    budget: &mut usize,
    found: &mut Vec<u64>,
) -> Option<()> {
    let base = match cursor.byte()? {
        OMIT => frame.start,
        encoding => cursor.encoded(encoding, frame.start)?,
    };
    if cursor.byte()? != OMIT {
        cursor.uleb()?;
    }
    let encoding = cursor.byte()?;
    let length = usize::try_from(cursor.uleb()?).ok()?;
    cursor.bytes = cursor.bytes.get(..length)?;
    while !cursor.bytes.is_empty() {
        let before = cursor.bytes.len();
        cursor.encoded(encoding, 0)?;
        cursor.encoded(encoding, 0)?;
        let pad = cursor.encoded(encoding, 0)?;
        cursor.uleb()?;
        *budget = budget.saturating_sub(before - cursor.bytes.len());
        if *budget == 0 {
            return None;
        }
        if pad != 0 {
            found.push(base.wrapping_add(pad));
        }
    }
    Some(())
}

/// Reads forward through one table.
struct Cursor<'a> {
    bytes: &'a [u8],
    /// The address of the next byte.
    address: u64,
}

impl Cursor<'_> {
    fn byte(&mut self) -> Option<u8> {
        self.fixed::<1>().map(|[byte]| byte)
    }

    fn fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        self.address = self.address.wrapping_add(N as u64);
        Some(*first)
    }

    fn leb(&mut self, signed: bool) -> Option<u64> {
        let (mut value, mut shift) = (0_u64, 0_u32);
        loop {
            let byte = self.byte()?;
            if shift < 64 {
                value |= u64::from(byte & 0x7f) << shift;
            }
            shift = shift.saturating_add(7);
            if byte & 0x80 == 0 {
                if signed && byte & 0x40 != 0 && shift < 64 {
                    value |= u64::MAX << shift;
                }
                return Some(value);
            }
        }
    }

    fn uleb(&mut self) -> Option<u64> {
        self.leb(false)
    }

    /// A value in one of the `DW_EH_PE` encodings.
    fn encoded(&mut self, encoding: u8, function: u64) -> Option<u64> {
        let here = self.address;
        let value = match encoding & 0xf {
            0x0 | 0x4 | 0xc => u64::from_le_bytes(self.fixed()?),
            0x1 => self.uleb()?,
            0x2 => u16::from_le_bytes(self.fixed()?).into(),
            0x3 => u32::from_le_bytes(self.fixed()?).into(),
            0x9 => self.leb(true)?,
            0xa => i64::from(i16::from_le_bytes(self.fixed()?)) as u64,
            0xb => i64::from(i32::from_le_bytes(self.fixed()?)) as u64,
            _ => return None,
        };
        match encoding & 0xf0 {
            0x00 => Some(value),
            0x10 => Some(here.wrapping_add(value)),
            0x40 => Some(function.wrapping_add(value)),
            _ => None,
        }
    }
}
