//! `list`: what probes match.

use std::io::Write;

use anyhow::Result;
use lancet_abi::units::Pid;

use crate::options::ListOptions;
use crate::probes;

pub(crate) fn list(options: &ListOptions) -> Result<u8> {
    let found = probes::find(&options.probes, options.pid.map(Pid))?;
    let mut out = std::io::stdout().lock();
    for file in &found {
        for site in &file.sites {
            let line = format!("{}:{}\n", file.binary.module.path().display(), site.name);
            if out.write_all(line.as_bytes()).is_err() {
                // The reader has seen enough.
                return Ok(0);
            }
        }
    }
    Ok(0)
}
