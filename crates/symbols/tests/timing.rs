//! Shows how long opening takes; asserts only what can't depend on the machine's load.
#![allow(missing_docs)]

mod support;

use std::path::Path;
use std::time::Instant;

fn show(path: &Path) -> usize {
    let mut best = [f64::MAX; 4];
    let mut count = 0;
    for _ in 0..5 {
        let start = Instant::now();
        let module = support::open(path);
        let mut took =
            |index: usize| best[index] = best[index].min(start.elapsed().as_secs_f64() * 1e3);
        took(0);
        count = module.functions().len();
        took(1);
        let roots = module.roots().starts.len();
        took(2);
        assert!(roots > 0);
        let found = support::sites(&module, "ns::nosuch*");
        took(3);
        assert!(found.is_err());
    }
    println!(
        "{}: {count} functions; open, functions, roots, no match: {best:.2?} ms",
        path.display()
    );
    count
}

#[test]
fn opening_and_listing() {
    assert!(show(&lancet_symbols::locate("libc", None).expect("libc")) > 1000);
    // Slow without optimisation.
    if cfg!(not(debug_assertions)) {
        for name in ["node", "gdb"] {
            if let Ok(path) = lancet_symbols::locate(name, None) {
                show(&path);
            }
        }
    }
}
