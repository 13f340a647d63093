//! `clean`: takes out what killed sessions have left.

use anyhow::Result;
use lancet_abi::units::Pid;

use crate::options::CleanOptions;
use crate::scope;

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
    for &pid in &report.locked {
        scope::say_locked(pid, "run `lancet clean` again later");
    }
    // Whose pid was given was to be cleaned; of the others most never had anything in them.
    let in_vain = report.locked.iter().any(|pid| only.contains(pid));
    Ok(u8::from(in_vain || !report.failed.is_empty()))
}
