//! Every option, defined once.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

const SCRIPTS: &str = "\
Scripts in the language of bpftrace:
  lancet [OPTIONS] -e PROGRAM [PARAMETER]...
  lancet [OPTIONS] FILE [PARAMETER]...          `-` is standard input; a file that is named like a command: ./FILE
  -p PID, -c CMD, -o FILE, -f text|json, -q, -v, -d (show the program and its code, do nothing)";

/// Counts calls in running programs without entering the kernel, and leaves no trace.
#[derive(Parser)]
#[command(version, propagate_version = true, after_help = SCRIPTS)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Count the hits of functions
    Count(CountOptions),
    /// Add up an argument or register at each hit
    Sum(ValueOptions),
    /// Histogram of an argument or register, by powers of two
    Hist(ValueOptions),
    /// List the functions that probes match
    List(ListOptions),
    /// Show what lancet has in processes
    Status,
    /// Take out what sessions that were killed have left
    Clean(CleanOptions),
    /// List processes as ps does (`lancet ps --help`)
    Ps(PsOptions),
    /// Serve the process index, so that many lists share one scan
    Index(IndexOptions),
    /// Measure
    Bench(BenchOptions),
}

#[derive(Args)]
pub(crate) struct CountOptions {
    /// FILE:FUNC (`*` matches anything), FILE:FUNC+OFF or FILE:0xADDR
    #[arg(required = true, value_name = "PROBE")]
    pub(crate) probes: Vec<String>,
    /// What rows are keyed by: func, tid, argN, a register such as reg(ax), or func,tid and the like
    #[arg(long, default_value = "func", value_name = "KEY")]
    pub(crate) by: String,
    #[command(flatten)]
    pub(crate) session: SessionOptions,
}

#[derive(Args)]
pub(crate) struct ValueOptions {
    /// Probes, then the value: arg0 to arg15, or a register such as reg(ax)
    #[arg(required = true, num_args = 2.., value_names = ["PROBE", "VALUE"])]
    pub(crate) words: Vec<String>,
    /// What rows are keyed by: func, tid, argN, a register such as reg(ax), or func,tid and the like
    #[arg(long, default_value = "func", value_name = "KEY")]
    pub(crate) by: String,
    #[command(flatten)]
    pub(crate) session: SessionOptions,
}

#[derive(Args)]
pub(crate) struct SessionOptions {
    /// Only this process; may be given several times
    #[arg(short, long = "pid", value_name = "PID", conflicts_with = "command")]
    pub(crate) pids: Vec<i32>,
    /// Start this command with the probes in place (split by shell quoting, run without a shell)
    #[arg(short, long, value_name = "CMD")]
    pub(crate) command: Option<String>,
    /// Without -p and -c: also pid 1 and the processes that lancet was started from
    #[arg(long)]
    pub(crate) all: bool,
    /// Print and clear every so many seconds
    #[arg(short, long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) interval: Option<f64>,
    /// End after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) duration: Option<f64>,
    /// Keys that a keyed map has room for
    #[arg(long, default_value_t = 4096, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=16_777_216))]
    pub(crate) max_keys: u32,
    /// One JSON object a line
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the report to a file
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// No banner and no warnings
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// Assert at each hit what the hit path relies on, and end with status 1 if it did not hold
    /// (for tests of lancet itself; also by LANCET_CHECK=1)
    #[arg(long, hide = true)]
    pub(crate) check: bool,
    /// Name every refused function, and show times
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

#[derive(Args)]
pub(crate) struct ListOptions {
    /// FILE:FUNC with `*`
    #[arg(required = true, value_name = "PROBE")]
    pub(crate) probes: Vec<String>,
    /// Look the file up as this process sees it
    #[arg(short, long = "pid", value_name = "PID")]
    pub(crate) pid: Option<i32>,
}

#[derive(Args)]
pub(crate) struct CleanOptions {
    /// Also unmap inert pads that nothing refers to any more
    #[arg(long)]
    pub(crate) purge: bool,
    /// Only this process; may be given several times
    #[arg(short, long = "pid", value_name = "PID")]
    pub(crate) pids: Vec<i32>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Bench {
    /// Cost of a hit, as the kernel's own benchmark shows it
    Hit,
    /// Attaching and detaching: many processes, many probes, many threads
    Attach,
    /// fork() on the host and in the target while probes come and go
    Fork,
    /// Lists of processes: ps, alone, served; one client and many
    Ps,
    /// Hits of scripts, beside bpftrace
    Script,
}

#[derive(Args)]
pub(crate) struct IndexOptions {
    /// Where clients connect [default: /run/lancet/index.sock, of an ordinary user lancet-index.sock in XDG_RUNTIME_DIR]
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Let this group use it too
    #[arg(long, value_name = "GROUP")]
    pub(crate) group: Option<String>,
}

#[derive(Args)]
#[command(disable_help_flag = true)]
pub(crate) struct PsOptions {
    /// Options of ps
    #[arg(
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "OPTIONS"
    )]
    pub(crate) words: Vec<std::ffi::OsString>,
}

#[derive(Args)]
pub(crate) struct BenchOptions {
    /// What to measure
    #[arg(value_enum)]
    pub(crate) what: Bench,
    /// Fewer rounds
    #[arg(long)]
    pub(crate) quick: bool,
    /// One JSON object a row
    #[arg(long)]
    pub(crate) json: bool,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 1e9 => Ok(value),
        _ => Err("not a positive number of seconds".into()),
    }
}
