//! The options of a script.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};

use crate::options::SessionOptions;

/// Runs a script in the language of bpftrace
#[derive(Parser)]
#[command(name = "lancet", version, disable_help_subcommand = true)]
pub(super) struct ScriptOptions {
    /// The program; without it the first word is a file, `-` standard input
    #[arg(short = 'e', value_name = "PROGRAM")]
    program: Option<String>,
    /// Only this process
    #[arg(short, long, value_name = "PID", conflicts_with = "command")]
    pid: Option<i32>,
    /// Start this command with the probes in place (split by shell quoting, run without a shell)
    #[arg(short, long = "cmd", value_name = "CMD")]
    command: Option<String>,
    /// Without -p and -c: also pid 1 and the processes that lancet was started from
    #[arg(long)]
    all: bool,
    /// Write everything that the script prints to a file
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "text")]
    format: Format,
    /// No banner and no warnings
    #[arg(short, long)]
    quiet: bool,
    /// Name every refused function, and show times
    #[arg(short, long)]
    verbose: bool,
    /// Show the program and its code, and do nothing
    #[arg(short)]
    pub(super) debug: bool,
    /// List the functions that a probe such as uprobe:FILE:FUN* means, or those of the program
    #[arg(short)]
    pub(super) list: bool,
    /// Known for the sake of scripts: probes at any address of a function are allowed
    #[arg(long = "unsafe")]
    unsafe_probes: bool,
    /// When to write: each line is written at once
    #[arg(short = 'B', value_name = "MODE", value_parser = ["none", "line", "full"])]
    buffering: Option<String>,
    /// Known for the sake of scripts: what went wrong at hits is always told
    #[arg(short = 'k', action = clap::ArgAction::Count)]
    warnings: u8,
    /// Assert at each hit what the hit path relies on
    #[arg(long, hide = true)]
    check: bool,
    /// FILE without -e, then what $1, $2 ... stand for
    #[arg(value_name = "WORD", required_unless_present_any = ["program", "list"])]
    words: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
}

/// A program's text, what messages call it, and its parameters.
pub(super) struct Text {
    pub(super) name: String,
    pub(super) text: String,
    pub(super) params: Vec<String>,
}

impl ScriptOptions {
    pub(super) fn read(&self) -> Result<Text> {
        let mut params = self.words.clone();
        let (name, text) = match &self.program {
            Some(text) => ("stdin".to_owned(), text.clone()),
            None => {
                let file = params.remove(0);
                if file == "-" {
                    let text = std::io::read_to_string(std::io::stdin());
                    ("stdin".to_owned(), text.context("cannot read the script")?)
                } else {
                    let text = std::fs::read_to_string(&file)
                        .with_context(|| format!("cannot read the script {file}"))?;
                    (file, text)
                }
            }
        };
        Ok(Text { name, text, params })
    }

    /// What `-l` lists: a probe, if one is named.
    pub(super) fn listed(&self) -> Option<&str> {
        let first = self.words.first().map(String::as_str);
        first
            .filter(|_| self.program.is_none())
            .or(Some("").filter(|_| self.program.is_none()))
    }

    pub(super) fn pid(&self) -> Option<i32> {
        self.pid
    }

    pub(super) fn session(self) -> SessionOptions {
        SessionOptions {
            pids: self.pid.into_iter().collect(),
            command: self.command,
            all: self.all,
            interval: None,
            duration: None,
            max_keys: 4096,
            json: self.format == Format::Json,
            output: self.output,
            quiet: self.quiet,
            check: self.check,
            verbose: self.verbose,
        }
    }
}
