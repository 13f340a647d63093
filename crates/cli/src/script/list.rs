//! `-l`: the probes that a name or a program means.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::{Context, Result, bail};
use lancet_abi::units::Pid;
use lancet_script::ir::{Function, Point, Program};

use super::plan;

/// Lists what `uprobe:FILE:FUNCTION` means; both may have wildcards.
pub(super) fn named(probe: &str, pid: Option<i32>) -> Result<u8> {
    let mut parts = probe.splitn(3, ':');
    let (kind, file, name) = (parts.next(), parts.next(), parts.next());
    let (Some("uprobe" | "u"), Some(file)) = (kind, file.filter(|file| !file.is_empty())) else {
        bail!("`{probe}` names no probes: write uprobe:FILE:FUNCTION, where * stands for anything");
    };
    let function = Function::Symbol {
        name: name
            .filter(|name| !name.is_empty())
            .unwrap_or("*")
            .to_owned(),
        offset: 0,
        demangled: false,
    };
    print(&[(file.to_owned(), function)], pid)
}

/// Lists the probes of a program.
pub(super) fn of_program(program: &Program, pid: Option<i32>) -> Result<u8> {
    let points = program.points.iter().filter_map(|point| match point {
        Point::Uprobe { file, function, .. } => Some((file.clone(), function.clone())),
        _ => None,
    });
    print(&points.collect::<Vec<_>>(), pid)
}

fn print(points: &[(String, Function)], pid: Option<i32>) -> Result<u8> {
    let mut lines = BTreeSet::new();
    for (file, function) in points {
        let mut found = Vec::new();
        let sites = plan::find(file, function, pid.map(Pid), &mut found)
            .with_context(|| format!("cannot list uprobe:{file}"))?;
        for (place, sites) in sites {
            let path = found[place].binary.module.path().display();
            lines.extend(
                sites
                    .iter()
                    .map(|site| format!("uprobe:{path}:{}\n", site.name)),
            );
        }
    }
    let mut out = std::io::stdout().lock();
    for line in lines {
        if out.write_all(line.as_bytes()).is_err() {
            // The reader has seen enough.
            break;
        }
    }
    Ok(0)
}
