//! The `lancet` command: count calls in running programs, and leave no trace.

mod bench;
mod checks;
mod clean;
mod count;
mod index;
mod list;
mod options;
mod probes;
mod ps;
mod report;
mod run;
mod scope;
mod script;
mod status;
mod upkeep;
mod words;

use std::process::ExitCode;

use clap::Parser;

use options::{Arguments, Verb};

fn main() -> ExitCode {
    let words: Vec<std::ffi::OsString> = std::env::args_os().collect();
    if words
        .get(1)
        .is_some_and(|w| w == lancet_bench::trigger::TRIGGER_ARGUMENT)
    {
        return lancet_bench::trigger::run_trigger(words.into_iter().skip(2));
    }
    if words
        .get(1)
        .is_some_and(|w| w == lancet_bench::list::BUSY_ARGUMENT)
    {
        return lancet_bench::list::run_busy();
    }
    // Its words have a style of their own.
    if words.get(1).is_some_and(|w| w == "ps") {
        return ended(ps::ps(words.into_iter().skip(2)));
    }
    if script::is_meant(&words) {
        return ended(script::script(&words));
    }
    ended(match Arguments::parse().verb {
        Verb::Count(options) => count::count(options),
        Verb::Sum(options) => count::sum(options),
        Verb::Hist(options) => count::hist(options),
        Verb::List(options) => list::list(&options),
        Verb::Status => status::status(),
        Verb::Clean(options) => clean::clean(&options),
        Verb::Bench(options) => bench::bench(options),
        Verb::Index(options) => index::index(&options),
        Verb::Ps(options) => ps::ps(options.words),
    })
}

fn ended(result: anyhow::Result<u8>) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("lancet: {}", report::sentence(&error));
            ExitCode::from(1)
        }
    }
}
