//! Shows how long opening takes; asserts only what can't depend on the machine's load.
#![allow(missing_docs)]

mod support;

use std::time::Instant;

#[test]
fn opening_libc_and_listing_its_functions() {
    let path = lancet_symbols::locate("libc", None).expect("libc");
    let start = Instant::now();
    let module = support::open(&path);
    let opened = start.elapsed();
    let count = module.functions().len();
    println!(
        "open {opened:?}, with {count} functions {:?}",
        start.elapsed()
    );
    let roots = module.roots();
    println!(
        "with {} starts and {} entries {:?}",
        roots.starts.len(),
        roots.entries.len(),
        start.elapsed()
    );
    assert!(count > 1000);
}
