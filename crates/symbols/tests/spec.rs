//! The text of probes.
#![allow(missing_docs)]

use lancet_abi::units::LinkAddr;
use lancet_symbols::{Pattern, ProbeSpec, Target};
use proptest::prelude::*;

fn parsed(text: &str) -> (String, Target) {
    let spec: ProbeSpec = text.parse().unwrap_or_else(|error| panic!("{error}"));
    (spec.file, spec.target)
}

fn function(name: &str) -> Target {
    Target::Functions(Pattern::new(name))
}

fn offset(name: &str, offset: u64) -> Target {
    Target::Offset {
        function: name.into(),
        offset,
    }
}

#[test]
fn forms() {
    for (text, file, target) in [
        ("libc:malloc", "libc", function("malloc")),
        ("/bin/sh:a*b", "/bin/sh", function("a*b")),
        ("./a:f+4", "./a", offset("f", 4)),
        ("./a:f+0x1F", "./a", offset("f", 31)),
        ("./a:0x401000", "./a", Target::Address(LinkAddr(0x40_1000))),
        ("a:ns::f", "a", function("ns::f")),
        ("a:operator+", "a", function("operator+")),
        ("a:operator+++2", "a", offset("operator++", 2)),
        ("a:\"f(int, char)\"", "a", function("f(int, char)")),
        ("a:\"f(int)\"+3", "a", offset("f(int)", 3)),
        (r"we\:ird:f", "we:ird", function("f")),
        (r"back\slash:f", r"back\slash", function("f")),
        ("\"/a b:c\":f", "/a b:c", function("f")),
    ] {
        assert_eq!(parsed(text), (file.to_owned(), target), "{text}");
    }
}

#[test]
fn refusals_say_what_is_wrong() {
    for (text, what) in [
        ("malloc", "no colon"),
        (":malloc", "file is missing"),
        ("libc:", "function is missing"),
        ("lib*:f", "in the function only"),
        ("a:f*+3", "pattern"),
        ("a:f+3x", "offset is not a number"),
        ("a:0x", "address is not a number"),
        ("a:0xzz", "address is not a number"),
        ("a:f+99999999999999999999", "offset is not a number"),
        ("\"a:f", "not closed"),
        ("a:\"f\"x", "follows"),
    ] {
        let error = text.parse::<ProbeSpec>().expect_err(text).to_string();
        assert!(
            error.contains(what) && error.contains(text),
            "{text}: {error}"
        );
    }
}

/// The definition of `*`, slowly.
fn slow(pattern: &[u8], text: &[u8]) -> bool {
    match pattern.split_first() {
        None => text.is_empty(),
        Some((b'*', rest)) => (0..=text.len()).any(|skip| slow(rest, &text[skip..])),
        Some((first, rest)) => text
            .split_first()
            .is_some_and(|(t, tail)| t == first && slow(rest, tail)),
    }
}

proptest! {
    #[test]
    fn stars_match_as_defined(pattern in "[ab*]{0,8}", text in "[ab]{0,10}") {
        prop_assert_eq!(Pattern::new(&pattern).matches(&text), slow(pattern.as_bytes(), text.as_bytes()));
    }

    #[test]
    fn any_text_is_parsed_or_refused(text in ".{0,40}") {
        let _ = text.parse::<ProbeSpec>();
    }
}
