//! The table without lancet's own column: bare calls and the kernel's uprobes.
//!
//! Arguments: `--quick` for fewer rounds, `--json` for objects instead of lines.

use std::env;
use std::io;
use std::process::ExitCode;

use lancet_bench::hit::{self, Options};
use lancet_bench::trigger::TRIGGER_ARGUMENT;
use lancet_bench::{Bare, Engine, Kernel, Method, run_trigger};

fn main() -> anyhow::Result<ExitCode> {
    let mut args = env::args_os().skip(1);
    if args.next().is_some_and(|first| first == TRIGGER_ARGUMENT) {
        return Ok(run_trigger(args));
    }
    let given = |flag: &str| env::args().any(|arg| arg == flag);
    let exe = env::current_exe()?;
    let mut options = if given("--quick") {
        Options::quick(exe)
    } else {
        Options::new(exe)
    };
    options.json = given("--json");
    let mut engines: Vec<Box<dyn Engine>> = vec![
        Box::new(Bare),
        Box::new(Kernel::new(Method::Perf)),
        Box::new(Kernel::new(Method::Multi)),
    ];
    let rows = hit::run(&mut engines, &options, &mut io::stdout())?;
    Ok(if rows.iter().all(hit::Row::exact) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}
