//! From the words of a probe to files and sites, and from values and keys to consumers.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use lancet_abi::units::Pid;
use lancet_engine::{Binary, Key, Register, Value, sites};
use lancet_symbols::{ProbeSpec, Site, locate_for};

/// One file with the sites that the probes name in it.
pub(crate) struct Found {
    pub(crate) binary: Arc<Binary>,
    pub(crate) sites: Vec<Site>,
}

/// The path of a probe's file, and the process in whose file tree it is meant, if not in ours.
fn path_for(spec: &ProbeSpec, pid: Option<Pid>) -> Result<(PathBuf, Option<Pid>)> {
    let located = locate_for(&spec.file, pid)?;
    let path = located.path;
    match pid {
        Some(pid) if located.in_process && !same_root(pid) => Ok((path, Some(pid))),
        _ => Ok((std::fs::canonicalize(&path).unwrap_or(path), None)),
    }
}

fn same_root(pid: Pid) -> bool {
    use std::os::unix::fs::MetadataExt;
    let of = |path: String| std::fs::metadata(path).map(|m| (m.dev(), m.ino())).ok();
    let mounts = |pid: &str| lancet_procs::namespaces(Pid(pid.parse().unwrap_or(0))).ok();
    let own = std::process::id().to_string();
    of(format!("/proc/{}/root", lancet_procs::face(pid))) == of("/".into())
        && mounts(&pid.to_string()).map(|n| n.mount) == mounts(&own).map(|n| n.mount)
}

/// All files and sites that the probes name.
pub(crate) fn find(probes: &[String], pid: Option<Pid>) -> Result<Vec<Found>> {
    let mut found: Vec<Found> = Vec::new();
    for text in probes {
        find_one(text, pid, &mut found)?;
    }
    Ok(found)
}

/// Adds what one probe names; the place of its file, and its sites.
pub(crate) fn find_one(
    text: &str,
    pid: Option<Pid>,
    found: &mut Vec<Found>,
) -> Result<(usize, Vec<Site>)> {
    let spec: ProbeSpec = text.parse()?;
    let (path, seen_by) = path_for(&spec, pid).with_context(|| format!("probe {text}"))?;
    let known = found.iter().position(|f| f.binary.module.path() == path);
    let place = match known {
        Some(place) => place,
        None => {
            let binary = match seen_by {
                Some(pid) => Binary::open_as_seen(pid, &path),
                None => Binary::open(&path),
            }
            .with_context(|| format!("probe {text}"))?;
            found.push(Found {
                binary,
                sites: Vec::new(),
            });
            found.len() - 1
        }
    };
    let named =
        sites(&found[place].binary, &spec.target).with_context(|| format!("probe {text}"))?;
    for site in &named {
        if !found[place].sites.iter().any(|s| s.link == site.link) {
            found[place].sites.push(site.clone());
        }
    }
    Ok((place, named))
}

/// `arg0` to `arg15`, or `reg(ax)`.
pub(crate) fn value(text: &str) -> Result<Value> {
    if let Some(number) = text.strip_prefix("arg") {
        return match number.parse::<u8>() {
            Ok(number) if number <= Value::MAX_ARG => Ok(Value::Arg(number)),
            _ => bail!(
                "'{text}' is no argument: arg0 to arg{} are there",
                Value::MAX_ARG
            ),
        };
    }
    let name = text
        .strip_prefix("reg(")
        .and_then(|t| t.strip_suffix(')'))
        .map(|t| t.trim_matches(['"', '\'']));
    match name.and_then(register) {
        Some(register) => Ok(Value::Register(register)),
        None => bail!(
            "'{text}' is no value: write arg0 to arg{} or a register such as reg(ax)",
            Value::MAX_ARG
        ),
    }
}

pub(crate) fn register(name: &str) -> Option<Register> {
    Some(match name {
        "ax" => Register::Ax,
        "bx" => Register::Bx,
        "cx" => Register::Cx,
        "dx" => Register::Dx,
        "si" => Register::Si,
        "di" => Register::Di,
        "bp" => Register::Bp,
        "sp" => Register::Sp,
        "r8" => Register::R8,
        "r9" => Register::R9,
        "r10" => Register::R10,
        "r11" => Register::R11,
        "r12" => Register::R12,
        "r13" => Register::R13,
        "r14" => Register::R14,
        "r15" => Register::R15,
        "ip" => Register::Ip,
        _ => return None,
    })
}

/// What rows are keyed by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct By {
    pub(crate) function: bool,
    pub(crate) key: Option<Key>,
}

/// `func`, `tid`, a value, or `func,` and one of the others.
pub(crate) fn by(text: &str) -> Result<By> {
    let mut by = By {
        function: false,
        key: None,
    };
    for part in text.split(',') {
        let part = part.trim();
        let again = match part {
            "func" => std::mem::replace(&mut by.function, true),
            "tid" => by.key.replace(Key::Tid).is_some(),
            _ => {
                let Ok(value) = value(part) else {
                    bail!(
                        "--by {text}: '{part}' is no key: write func, tid, arg0 to arg{}, a register such as reg(ax), or func, and one of the others",
                        Value::MAX_ARG
                    );
                };
                by.key.replace(Key::Value(value)).is_some()
            }
        };
        if again {
            bail!("--by {text}: one key beside func is supported, and each only once");
        }
    }
    Ok(by)
}
