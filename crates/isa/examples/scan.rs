//! Measures the scan of a module for entries: `cargo run --release -p lancet-isa --example scan [FILE]`.
//!
//! Without a file it takes the libc that this process runs on.

#[path = "../tests/common/library.rs"]
mod library;

use std::collections::BTreeMap;
use std::time::Instant;

use lancet_abi::units::LinkAddr;
use lancet_isa::{Entries, FaultPolicy, Function, PlanRequest, Roots, Text, plan};

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

    let unranged = Roots {
        functions: Vec::new(),
        ..module.roots.clone()
    };
    let every_pattern = Entries::scan(&module.text, &unranged);
    count(
        "starts, if every pattern counted",
        &module,
        &every_pattern,
        |function, _| vec![function.start],
    );
    let entries = Entries::scan(&module.text, &module.roots);
    count("starts", &module, &entries, |function, _| {
        vec![function.start]
    });
    count("rets", &module, &entries, |function, text| {
        let bytes = text.from(function.start);
        let len = bytes
            .len()
            .min(function.end.offset_from(function.start) as usize);
        let decoder = iced_x86::Decoder::with_ip(64, &bytes[..len], function.start.0, 0);
        let rets = decoder
            .into_iter()
            .filter(|i| i.flow_control() == iced_x86::FlowControl::Return);
        rets.map(|i| LinkAddr(i.ip())).collect()
    });
}

/// Plans the sites that `sites` names in each function, and prints how many are refused, by reason.
fn count(
    what: &str,
    module: &library::Library<'_>,
    entries: &Entries,
    sites: impl Fn(&Function, &Text<'_>) -> Vec<LinkAddr>,
) {
    let start = Instant::now();
    let mut refused = BTreeMap::<_, usize>::new();
    let mut planned = 0_usize;
    for function in &module.functions {
        let Some(text) = module
            .text
            .iter()
            .find(|t| !t.from(function.start).is_empty())
        else {
            continue;
        };
        for site in sites(function, text) {
            let request = PlanRequest {
                text,
                site,
                function: *function,
                entries,
                roots: &module.roots,
                faults: FaultPolicy::Native,
            };
            match plan(&request) {
                Ok(_) => planned += 1,
                Err(refusal) => *refused.entry(refusal.reason()).or_default() += 1,
            }
        }
    }
    let all = planned + refused.values().sum::<usize>();
    println!(
        "{what}: {planned} of {all} planned in {:?}, refused: {refused:?}",
        start.elapsed()
    );
}
