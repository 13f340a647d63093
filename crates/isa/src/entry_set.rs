//! The set of addresses that control may enter: one bit for each byte of text.
//!
//! A bitmap is filled without sorting, is merged by `or`, and answers "is anything in this window" with one or two
//! words. It costs a quarter of a byte for each byte of text.

use core::ops::Range;

use lancet_abi::units::LinkAddr;

use crate::Text;

/// Every address of a module's text that control may enter other than by falling through.
#[derive(Clone, Debug, Default)]
pub struct Entries {
    maps: Vec<Map>,
}

#[derive(Clone, Debug)]
struct Map {
    start: u64,
    len: u64,
    /// Entered at least once.
    entered: Vec<u64>,
    /// Entered from two branches or more, or in a way whose origin is unknown.
    shared: Vec<u64>,
}

impl Entries {
    pub(crate) fn empty(text: &[Text<'_>]) -> Self {
        let maps = text
            .iter()
            .map(|t| {
                let words = t.bytes.len().div_ceil(64);
                Map {
                    start: t.start.0,
                    len: t.bytes.len() as u64,
                    entered: vec![0; words],
                    shared: vec![0; words],
                }
            })
            .collect();
        Self { maps }
    }

    /// Notes one direct branch to `target`; an address outside of the text is ignored.
    #[inline]
    pub(crate) fn add_branch(&mut self, target: u64) {
        if let Some((map, word, bit)) = self.slot(target) {
            map.shared[word] |= map.entered[word] & bit;
            map.entered[word] |= bit;
        }
    }

    /// Notes an entry whose origin can't be named. Returns whether it lies in the text.
    #[inline]
    pub(crate) fn add(&mut self, target: u64) -> bool {
        let Some((map, word, bit)) = self.slot(target) else {
            return false;
        };
        map.shared[word] |= bit;
        map.entered[word] |= bit;
        true
    }

    /// Takes over what another scan of the same text found.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.maps.iter_mut().zip(&other.maps) {
            for (i, (entered, shared)) in theirs.entered.iter().zip(&theirs.shared).enumerate() {
                mine.shared[i] |= shared | (mine.entered[i] & entered);
                mine.entered[i] |= entered;
            }
        }
    }

    /// The lowest entry in `range`.
    #[must_use]
    pub fn within(&self, range: Range<LinkAddr>) -> Option<LinkAddr> {
        self.maps.iter().filter_map(|m| m.first(&range)).min()
    }

    /// Whether exactly one branch, and nothing else, enters `at`.
    #[must_use]
    pub fn has_one_origin(&self, at: LinkAddr) -> bool {
        self.maps.iter().any(|m| {
            let offset = at.0.wrapping_sub(m.start);
            let (word, bit) = ((offset / 64) as usize, 1 << (offset % 64));
            offset < m.len && m.entered[word] & bit != 0 && m.shared[word] & bit == 0
        })
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.maps
            .iter()
            .flat_map(|m| &m.entered)
            .map(|w| w.count_ones() as usize)
            .sum()
    }

    /// Whether there is no entry at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.maps.iter().flat_map(|m| &m.entered).all(|w| *w == 0)
    }

    #[inline]
    fn slot(&mut self, target: u64) -> Option<(&mut Map, usize, u64)> {
        let map = self
            .maps
            .iter_mut()
            .find(|m| target.wrapping_sub(m.start) < m.len)?;
        let offset = target - map.start;
        Some((map, (offset / 64) as usize, 1 << (offset % 64)))
    }
}

impl Map {
    fn first(&self, range: &Range<LinkAddr>) -> Option<LinkAddr> {
        let end = range.end.0.saturating_sub(self.start).min(self.len);
        let mut at = range.start.0.saturating_sub(self.start);
        while at < end {
            let rest = self.entered[(at / 64) as usize] >> (at % 64);
            if rest != 0 {
                let hit = at + u64::from(rest.trailing_zeros());
                return (hit < end).then(|| LinkAddr(self.start + hit));
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(targets: &[u64]) -> Entries {
        let bytes = [0; 200];
        let mut entries = Entries::empty(&[Text {
            start: LinkAddr(0x1000),
            bytes: &bytes,
        }]);
        targets.iter().for_each(|t| entries.add_branch(*t));
        entries
    }

    #[test]
    fn finds_the_lowest_entry_in_a_range_across_words() {
        let entries = set(&[0x1000, 0x103f, 0x1080, 0x10c7, 0x10c8, 0xfff]);
        let first = |from: u64, to: u64| entries.within(LinkAddr(from)..LinkAddr(to)).map(|a| a.0);
        assert_eq!(entries.len(), 4);
        assert_eq!(first(0, u64::MAX), Some(0x1000));
        assert_eq!(first(0x1001, 0x103f), None);
        assert_eq!(first(0x1001, 0x1040), Some(0x103f));
        assert_eq!(first(0x1040, 0x1080), None);
        assert_eq!(first(0x1040, 0x1081), Some(0x1080));
        assert_eq!(first(0x1081, 0x2000), Some(0x10c7));
        assert_eq!(first(0x10c8, 0x2000), None);
    }

    #[test]
    fn counts_origins_within_and_across_scans() {
        let mut entries = set(&[0x1001, 0x1002, 0x1002, 0x1004]);
        entries.merge(&set(&[0x1003, 0x1004]));
        entries.add(0x1005);
        let one = |at| entries.has_one_origin(LinkAddr(at));
        assert_eq!(
            [0x1000, 0x1001, 0x1002, 0x1003, 0x1004, 0x1005].map(one),
            [false, true, false, true, false, false]
        );
    }
}
