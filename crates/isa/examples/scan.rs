//! Measures the scan of a module for entries: `cargo run --release -p lancet-isa --example scan [FILE]`.
//!
//! Without a file it takes the libc that this process runs on.

#[path = "../tests/common/library.rs"]
mod library;

use std::time::Instant;

use lancet_isa::{Entries, FaultPolicy, PlanRequest, plan};

fn main() {
    let path = std::env::args()
        .nth(1)
        .or_else(library::path)
        .expect("a file, or a libc in this process");
    let file = std::fs::read(&path).expect("the file is readable");
    let module = library::read(&file);
    let size: usize = module.text.iter().map(|t| t.bytes.len()).sum();

    let mut times: Vec<_> = (0..21)
        .map(|_| {
            let start = Instant::now();
            let entries = Entries::scan(&module.text, &module.roots);
            (start.elapsed(), entries.len())
        })
        .collect();
    times.sort();
    let (median, entries) = times[times.len() / 2];
    println!(
        "{path}: {} KiB of text, {} starts",
        size >> 10,
        module.roots.starts.len()
    );
    println!(
        "scan: {median:?} median, {:?} best, {entries} entries",
        times[0].0
    );

    let entries = Entries::scan(&module.text, &module.roots);
    let start = Instant::now();
    let mut refused = std::collections::BTreeMap::<_, usize>::new();
    let mut planned = 0;
    for function in &module.functions {
        let Some(text) = module
            .text
            .iter()
            .find(|t| !t.from(function.start).is_empty())
        else {
            continue;
        };
        let request = PlanRequest {
            text,
            site: function.start,
            function: *function,
            entries: &entries,
            roots: &module.roots,
            faults: FaultPolicy::Native,
        };
        match plan(&request) {
            Ok(_) => planned += 1,
            Err(refusal) => *refused.entry(refusal.reason()).or_default() += 1,
        }
    }
    println!(
        "plan: {planned} of {} in {:?}, refused: {refused:?}",
        module.functions.len(),
        start.elapsed()
    );
}
