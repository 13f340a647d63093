//! Every function of the system's libc.

mod common;
#[path = "common/library.rs"]
mod library;

use std::collections::BTreeMap;
use std::process::Command;

use common::BIAS;
use lancet_abi::units::{LinkAddr, RuntimeAddr};
use lancet_isa::{Entries, FaultPolicy, PlanRequest, check, plan};

#[test]
fn every_function_of_libc_is_planned_and_its_copy_is_right() {
    let Some(path) = library::path() else { return };
    let file = std::fs::read(&path).expect("libc is readable");
    let module = library::read(&file);
    let entries = Entries::scan(&module.text, &module.roots);
    assert!(
        module.functions.len() > 1000,
        "libc has thousands of functions"
    );

    let mut refused: BTreeMap<&str, usize> = BTreeMap::new();
    let mut planned = 0_usize;
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
            Ok(plan) => {
                let at = RuntimeAddr(BIAS - 0x10_0000 + planned as u64);
                let copy = plan.emit_copy(at, BIAS).expect("in reach");
                assert_eq!(
                    check(&plan, &copy, at, BIAS),
                    Ok(()),
                    "function at {}",
                    function.start
                );
                planned += 1;
            }
            Err(refusal) => *refused.entry(refusal.reason()).or_default() += 1,
        }
    }
    println!(
        "{path}: {planned} of {} planned, refused: {refused:?}",
        module.functions.len()
    );
    assert!(
        planned * 10 > module.functions.len() * 8,
        "most functions are patchable: {refused:?}"
    );
}

#[test]
fn every_instruction_of_libc_functions_is_planned_or_refused() {
    let Some(path) = library::path() else { return };
    let file = std::fs::read(&path).expect("libc is readable");
    let module = library::read(&file);
    let entries = Entries::scan(&module.text, &module.roots);
    let mut planned = 0_usize;
    for function in module.functions.iter().step_by(4) {
        let Some(text) = module
            .text
            .iter()
            .find(|t| !t.from(function.start).is_empty())
        else {
            continue;
        };
        let bytes = text.from(function.start);
        let len = (function.end.offset_from(function.start) as usize)
            .min(bytes.len())
            .min(400);
        for instruction in iced_x86::Decoder::with_ip(64, &bytes[..len], function.start.0, 0) {
            let request = PlanRequest {
                text,
                site: LinkAddr(instruction.ip()),
                function: *function,
                entries: &entries,
                roots: &module.roots,
                faults: FaultPolicy::Native,
            };
            if let Ok(plan) = plan(&request) {
                let at = RuntimeAddr(BIAS - 0x10_0000);
                let copy = plan.emit_copy(at, BIAS).expect("in reach");
                assert_eq!(check(&plan, &copy, at, BIAS), Ok(()), "{}", plan.site());
                planned += 1;
            }
        }
    }
    assert!(planned > 1000, "{planned}");
}

/// Another disassembler agrees about the length of every instruction that both know.
#[test]
fn b027_lengths_agree_with_objdump() {
    let Some(path) = library::path() else { return };
    let Ok(output) = Command::new("objdump")
        .args(["-d", "-w", "-j", ".text", &path])
        .output()
    else {
        return;
    };
    let listing = String::from_utf8_lossy(&output.stdout);
    let (mut compared, mut differ) = (0_usize, Vec::new());
    for line in listing.lines() {
        // "   26b00:\t48 83 ec 08          \tsub    $0x8,%rsp"
        let mut fields = line.split('\t');
        let (Some(_), Some(bytes), Some(meaning)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        let bytes: Vec<u8> = bytes
            .split_whitespace()
            .filter_map(|b| u8::from_str_radix(b, 16).ok())
            .collect();
        // A waiting x87 instruction is two instructions to the processor, and one line there.
        if meaning.contains("(bad)") || bytes.first() == Some(&0x9b) {
            continue;
        }
        compared += 1;
        let decoded = iced_x86::Decoder::new(64, &bytes, 0).decode();
        if decoded.is_invalid() || decoded.len() != bytes.len() {
            differ.push(line);
        }
    }
    assert!(
        compared > 100_000 || !output.status.success(),
        "only {compared} lines"
    );
    assert!(
        differ.is_empty(),
        "{} of {compared}: {:#?}",
        differ.len(),
        &differ[..differ.len().min(20)]
    );
}
