//! Buckets of a log2 histogram, as bpftrace draws them.

/// Slots that one histogram takes.
pub const BUCKETS: u32 = 66;
/// Bytes of the table that [`table`] makes.
pub const TABLE_LEN: usize = 8 * 256;

/// The bucket of a value: negative is 0, zero is 1, `2^k ..= 2^(k+1)-1` is `k + 2`.
#[must_use]
pub const fn bucket(value: i64) -> u32 {
    if value < 0 {
        0
    } else if value == 0 {
        1
    } else {
        65 - value.leading_zeros()
    }
}

/// The smallest value of a bucket, and the largest; `None` for no such bucket.
#[must_use]
pub const fn bounds(bucket: u32) -> Option<(i64, i64)> {
    match bucket {
        0 => Some((i64::MIN, -1)),
        1 => Some((0, 0)),
        2..=64 => {
            let low = 1i64 << (bucket - 2);
            Some((low, low.wrapping_mul(2).wrapping_sub(1)))
        }
        _ => None,
    }
}

/// The bucket by the position `p` of a value's highest non-zero byte and that
/// byte `b`: entry `p * 256 + b`. Actions find the byte by branches that test
/// no flag, then need one load instead of a flag-writing bit scan.
#[must_use]
pub const fn table() -> [u8; TABLE_LEN] {
    let mut table = [0; TABLE_LEN];
    let mut i = 0;
    while i < TABLE_LEN {
        let value = ((i % 256) as u64) << (8 * (i / 256));
        // At most 65: fits.
        table[i] = bucket(value.cast_signed()) as u8;
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_meet_without_gap() {
        for b in 0..64 {
            let (_, high) = bounds(b).unwrap();
            let (low, _) = bounds(b + 1).unwrap();
            assert_eq!(high.wrapping_add(1), low, "bucket {b}");
            assert_eq!((bucket(high), bucket(low)), (b, b + 1));
        }
        assert_eq!(bounds(64).unwrap().1, i64::MAX);
        assert_eq!((bucket(i64::MIN), bucket(i64::MAX)), (0, 64));
        assert!(bounds(65).is_none() && BUCKETS > 64);
    }

    #[test]
    fn table_agrees_with_formula() {
        let table = table();
        for shift in 0..64 {
            for value in [
                1u64 << shift,
                (1 << shift) + 1,
                (1u64 << shift) - 1,
                !0 >> shift,
            ] {
                let p = (0..8)
                    .rev()
                    .find(|p| value >> (8 * p) & 0xff != 0)
                    .unwrap_or(0);
                let b = (value >> (8 * p) & 0xff) as usize;
                assert_eq!(
                    u32::from(table[p * 256 + b]),
                    bucket(value as i64),
                    "{value:#x}"
                );
            }
        }
    }
}
