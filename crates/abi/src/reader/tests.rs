use super::*;
use crate::layout::{LayoutBuilder, MAX_MAPS};
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

fn region() -> (Layout, Vec<u8>) {
    let mut b = LayoutBuilder::new();
    b.plain(2);
    b.map(8, 1);
    b.map(4, 66);
    let layout = b.build(3).unwrap();
    let mut bytes = vec![0u8; layout.size() as usize];
    layout.write_header(&mut bytes).unwrap();
    (layout, bytes)
}

fn put(bytes: &mut [u8], at: u64, word: u64) {
    bytes[at as usize..][..8].copy_from_slice(&word.to_ne_bytes());
}

#[test]
fn totals_span_cpus_and_halves() {
    let (layout, mut bytes) = region();
    for cpu in 0..3 {
        let block = layout.block(cpu).unwrap();
        put(
            &mut bytes,
            block + layout.rseq_slot(SlotId(1)),
            1 << (8 * cpu),
        );
        put(
            &mut bytes,
            block + layout.lock_slot(SlotId(1)),
            2 << (8 * cpu),
        );
    }
    let region = Region::open(&bytes[..]).unwrap();
    assert!(region.is_on());
    assert_eq!(region.slot_total(SlotId(0), 1), Some(0x30303));
    assert_eq!(region.slot_total(SlotId(0), 0), Some(0));
    assert_eq!(region.slot_total(SlotId(layout.slots()), 0), None);
    assert_eq!(region.slot_total(SlotId(u32::MAX), u32::MAX), None);
}

#[test]
fn entries_carry_function_and_key() {
    let (layout, mut bytes) = region();
    let map = *layout.map(MapId(0)).unwrap();
    put(
        &mut bytes,
        map.entries + 32,
        map::meta(Some(6)).unwrap().into(),
    );
    put(&mut bytes, map.entries + 40, 99);
    put(&mut bytes, map.entries + 48, 4); // no action writes an even meta word
    put(
        &mut bytes,
        map.entries + 64,
        map::meta(None).unwrap().into(),
    );
    let value = layout.rseq_slot(SlotId(map.values.0 + 2));
    put(&mut bytes, layout.block(1).unwrap() + value, 5);
    let region = Region::open(&bytes[..]).unwrap();
    let found: Vec<_> = region.map_entries(MapId(0)).collect();
    let first = Entry {
        function: Some(6),
        key: 99,
        index: 2,
    };
    assert_eq!(
        found,
        [
            first,
            Entry {
                function: None,
                key: 0,
                index: 4
            }
        ]
    );
    assert_eq!(region.map_value(MapId(0), 2, 0), Some(5));
    assert_eq!(region.map_value(MapId(0), 2, 1), None);
    assert_eq!(region.map_value(MapId(0), 8, 0), None);
    assert_eq!(region.map_dropped(MapId(0)), Some(0));
    assert_eq!(region.map_dropped(MapId(2)), None);
    assert_eq!(region.map_entries(MapId(2)).count(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hostile_bytes_never_panic(
        edits in prop::collection::vec((0u64..200, prop_oneof![0u64..70, any::<u64>()]), 0..8),
        noise in any::<u64>(),
        cut in 0usize..20_000,
    ) {
        let (_, mut bytes) = region();
        let mut state = noise;
        for word in bytes[4096..].chunks_exact_mut(8) {
            state = state.wrapping_mul(map::HASH_MULTIPLIER).rotate_left(7) ^ noise;
            word.copy_from_slice(&state.to_ne_bytes());
        }
        for (word, value) in edits {
            put(&mut bytes, 8 * word, value);
        }
        bytes.truncate(bytes.len().saturating_sub(cut.saturating_sub(10_000)));
        if let Ok(region) = Region::open(&bytes[..]) {
            prop_assert!(region.layout().size() <= bytes.len() as u64);
            for id in (0..=MAX_MAPS as u32).map(MapId) {
                for entry in region.map_entries(id) {
                    prop_assert!(region.map_value(id, entry.index, 0).is_some());
                }
            }
            for slot in [0, 1, 5, u32::MAX] {
                let inside = slot < region.layout().slots();
                prop_assert_eq!(region.slot_total(SlotId(slot), 0).is_some(), inside);
            }
        }
    }
}
