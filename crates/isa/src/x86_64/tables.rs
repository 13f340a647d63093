//! Jump tables in read-only data.

use lancet_abi::units::LinkAddr;

use crate::Entries;

/// What the sweep saw of tables: where they may start.
#[derive(Clone, Debug, Default)]
pub(super) struct Bases {
    /// Addresses that code takes; each may be a table of 32-bit distances from itself, or of addresses.
    pub(super) relative: Vec<u64>,
    /// Addresses that code indexes by eight bytes; each may be a table of addresses.
    pub(super) absolute: Vec<u64>,
}

impl Bases {
    pub(super) fn extend(&mut self, other: Self) {
        self.relative.extend(other.relative);
        self.absolute.extend(other.absolute);
    }

    /// Adds what every table names. A table ends at the next base or at the first word that does not name text. Tables
    /// may reach other functions (cold parts), so the whole text counts: that can add entries, never miss any.
    pub(super) fn read(mut self, data: &[(LinkAddr, &[u8])], entries: &mut Entries) {
        self.relative.sort_unstable();
        self.relative.dedup();
        self.absolute.sort_unstable();
        self.absolute.dedup();
        for (i, base) in self.relative.iter().enumerate() {
            let limit = self.relative.get(i + 1).copied().unwrap_or(u64::MAX);
            relative(data, *base, limit, |target| entries.add(target));
        }
        for base in self.absolute.iter().chain(&self.relative) {
            for word in bytes_at(data, *base).as_chunks::<8>().0 {
                if !entries.add(u64::from_le_bytes(*word)) {
                    break;
                }
            }
        }
    }
}

/// Calls `take` for each target of a table of distances at `base`, until it says no.
fn relative(data: &[(LinkAddr, &[u8])], base: u64, limit: u64, mut take: impl FnMut(u64) -> bool) {
    let bytes = bytes_at(data, base);
    let len = bytes.len().min(limit.saturating_sub(base) as usize);
    for word in bytes[..len].as_chunks::<4>().0 {
        if !take(base.wrapping_add_signed(i32::from_le_bytes(*word).into())) {
            break;
        }
    }
}

/// Whether a table of distances at `base` has at least one target that `is_code` accepts.
pub(super) fn is_relative(
    data: &[(LinkAddr, &[u8])],
    base: u64,
    is_code: impl Fn(u64) -> bool,
) -> bool {
    let mut any = false;
    relative(data, base, base.saturating_add(4), |target| {
        any = is_code(target);
        false
    });
    any
}

/// Whether a table of addresses at `base` has at least one target that `is_code` accepts.
pub(super) fn is_absolute(
    data: &[(LinkAddr, &[u8])],
    base: u64,
    is_code: impl Fn(u64) -> bool,
) -> bool {
    bytes_at(data, base)
        .first_chunk()
        .is_some_and(|word| is_code(u64::from_le_bytes(*word)))
}

/// The bytes of `data` from `at` on.
pub(super) fn bytes_at<'a>(data: &[(LinkAddr, &'a [u8])], at: u64) -> &'a [u8] {
    data.iter()
        .find_map(|(start, bytes)| {
            bytes
                .get(usize::try_from(at.wrapping_sub(start.0)).ok()?..)
                .filter(|b| !b.is_empty())
        })
        .unwrap_or(&[])
}
