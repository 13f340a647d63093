//! Builds tiny programs with the system's compilers.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use lancet_symbols::{Module, ProbeSpec, Site, SymbolError, select};

/// A folder that vanishes with its files.
pub struct Folder(tempfile::TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes `source` (its name's ending says the language) and builds it; `None` and a
    /// printed line when the compiler is not installed.
    pub fn build(
        &self,
        compiler: &str,
        source: (&str, &str),
        output: &str,
        flags: &[&str],
    ) -> Option<PathBuf> {
        let (input, output) = (self.path(source.0), self.path(output));
        fs::write(&input, source.1).expect("the source is written");
        let mut command = Command::new(compiler);
        command.arg(&input).arg("-o").arg(&output).args(flags);
        run(command).then_some(output)
    }
}

/// Runs a tool that must succeed when it is there.
pub fn run(mut command: Command) -> bool {
    match command.output() {
        Err(_) => {
            eprintln!("skipped: no {}", command.get_program().display());
            false
        }
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{command:?}: {text}");
            true
        }
    }
}

/// What a tool prints; `None` when it is not installed.
pub fn output(program: &str, arguments: &[&str], path: &Path) -> Option<String> {
    let Ok(output) = Command::new(program).args(arguments).arg(path).output() else {
        eprintln!("skipped: no {program}");
        return None;
    };
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

pub fn open(path: &Path) -> Module {
    Module::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The sites of a probe whose file is already open.
pub fn sites(module: &Module, target: &str) -> Result<Vec<Site>, SymbolError> {
    let spec: ProbeSpec = format!("f:{target}").parse()?;
    select(module, &spec.target)
}

pub fn names(sites: &[Site]) -> Vec<&str> {
    sites.iter().map(|site| site.name.as_str()).collect()
}
