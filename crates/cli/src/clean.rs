//! `clean`: takes out what killed sessions have left.

use anyhow::Result;
use lancet_abi::units::Pid;

use crate::options::CleanOptions;

pub(crate) fn clean(options: &CleanOptions) -> Result<u8> {
    let only: Vec<Pid> = options.pids.iter().map(|&pid| Pid(pid)).collect();
    let report = lancet_engine::clean(options.purge, &only)?;
    println!(
        "{} processes restored, {} sites",
        report.processes, report.sites
    );
    if report.files > 0 {
        println!("{} files of killed sessions removed", report.files);
    }
    if options.purge && report.kept > 0 {
        println!(
            "{} kB stay mapped, since threads refer to them",
            report.kept / 1024
        );
    }
    for (pid, site) in &report.foreign {
        println!("process {pid}: somebody else wrote at {site}; left as it is");
    }
    for (pid, error) in &report.failed {
        eprintln!("lancet: process {pid}: {error}");
    }
    Ok(u8::from(!report.failed.is_empty()))
}
