use super::*;
use crate::{KeyPart, bucket_of};

#[test]
fn numbers_that_a_double_cannot_hold_are_strings() {
    assert_eq!(number(0), "0");
    assert_eq!(number(-5), "-5");
    assert_eq!(number(1 << 63), "9223372036854775808");
    assert_eq!(number((1 << 53) + 1), "\"9007199254740993\"");
    assert_eq!(number(i128::from(u64::MAX)), "\"18446744073709551615\"");
    assert_eq!(number(i128::from(i64::MIN)), "-9223372036854775808");
}

#[test]
fn every_text_is_read_back() {
    let all: String = (0..0x300).filter_map(char::from_u32).collect();
    assert_eq!(serde_json::from_str::<String>(&quoted(&all)).unwrap(), all);
    assert_eq!(quoted("\x01\"\\\n"), r#""\u0001\"\\\n""#);
}

#[test]
fn keys_and_histograms() {
    let mut buckets = Box::new([0; hist::BUCKETS]);
    for value in [-1, 0, 3] {
        buckets[bucket_of(value)] += 1;
    }
    assert_eq!(
        buckets_array(&buckets),
        r#"[{"max": -1, "count": 1},{"min": 0, "max": 0, "count": 1},{"min": 1, "max": 1, "count": 0},{"min": 2, "max": 3, "count": 1}]"#
    );
    let row = Row {
        key: vec![KeyPart::Name("a b".into()), KeyPart::Int(-4)],
        value: Value::Count(2),
    };
    assert_eq!(keyed(&[&row]), r#"{"a b,-4": 2}"#);
}
