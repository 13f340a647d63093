use super::*;
use std::vec;
use std::vec::Vec;

fn sample(ncpus: u32) -> Layout {
    let mut b = LayoutBuilder::new();
    assert_eq!(b.plain(3), SlotId(0));
    assert_eq!(b.map(16, 1), MapId(0));
    assert_eq!(b.map(8, 66), MapId(1));
    assert_eq!(b.plain(1), SlotId(3 + 17 + 1 + 8 * 66));
    b.build(ncpus).unwrap()
}

#[test]
fn no_two_cpus_share_a_line_and_halves_do_not_meet() {
    let layout = sample(5);
    let mut last_end = layout.header_len();
    let map_end = |id| {
        layout
            .map(MapId(id))
            .map(|m| m.entries + 16 * u64::from(m.capacity))
    };
    assert!(layout.map(MapId(0)).unwrap().entries >= last_end);
    assert!(layout.map(MapId(1)).unwrap().entries >= map_end(0).unwrap());
    last_end = last_end.max(map_end(1).unwrap());
    let last = SlotId(layout.slots() - 1);
    for cpu in 0..5 {
        let block = layout.block(cpu).unwrap();
        assert!(block.is_multiple_of(PAGE) && block >= last_end);
        let rseq_line = (block + layout.rseq_slot(last)) / LINE;
        let lock_line = (block + layout.lock_slot(SlotId(0))) / LINE;
        assert!(rseq_line < lock_line);
        last_end = block + layout.lock_slot(last) + 8;
    }
    assert!(last_end <= layout.size());
    assert_eq!(layout.block(5), None);
}

#[test]
fn header_round_trip() {
    let layout = sample(300);
    let mut region = vec![0u8; layout.size() as usize];
    layout.write_header(&mut region).unwrap();
    assert_eq!(Layout::decode(&region[..]).unwrap(), layout);
    assert_eq!(region[..].load(layout.cpu_table() - 8), Some(0));
    assert_eq!(
        region[..].load(layout.cpu_table() + 8 * 299),
        layout.block(299)
    );
    let short = &region[..region.len() - 1];
    assert!(matches!(
        Layout::decode(short),
        Err(LayoutError::Short { .. })
    ));
    let mut small = vec![0u8; layout.header_len() as usize - 1];
    assert!(layout.write_header(&mut small).is_err());
    assert!(small.iter().all(|b| *b == 0));
}

#[test]
fn off_switch_covers_on_and_every_entry() {
    let layout = sample(7);
    let mut header = vec![0u8; layout.header_len() as usize];
    layout.write_header(&mut header).unwrap();
    let before: Vec<u8> = header.clone();
    let (FileOffset(at), len) = layout.off_switch();
    header[at as usize..][..len].fill(0);
    assert_eq!(header[..].load(layout.on()), Some(0));
    for id in 0..7 {
        assert_eq!(header[..].load(layout.cpu_table() + 8 * id), Some(0));
    }
    assert_eq!(
        header[..at as usize],
        before[..at as usize],
        "nothing else changes"
    );
}

#[test]
fn limits_are_named() {
    let build = |f: &dyn Fn(&mut LayoutBuilder), n| {
        let mut b = LayoutBuilder::new();
        f(&mut b);
        b.build(n).unwrap_err()
    };
    assert_eq!(build(&|_| (), 0), LayoutError::Cpus(0));
    assert_eq!(build(&|_| (), MAX_CPUS + 1), LayoutError::Cpus(8193));
    let odd = |b: &mut LayoutBuilder| {
        b.map(3, 1);
    };
    assert_eq!(
        build(&odd, 1),
        LayoutError::Capacity {
            map: 0,
            capacity: 3
        }
    );
    assert_eq!(
        build(
            &|b| {
                b.map(4, 67);
            },
            1
        ),
        LayoutError::Width { map: 0, width: 67 }
    );
    let many = |b: &mut LayoutBuilder| {
        (0..65).for_each(|_| {
            b.map(2, 1);
        })
    };
    assert_eq!(build(&many, 1), LayoutError::Maps(65));
    let slots = |b: &mut LayoutBuilder| {
        (0..3).for_each(|_| {
            b.plain(u32::MAX);
        })
    };
    assert!(matches!(build(&slots, 1), LayoutError::Slots(_)));
    let large = |b: &mut LayoutBuilder| {
        b.map(1 << 19, 66);
    };
    assert!(matches!(build(&large, 64), LayoutError::TooLarge(_)));
}
