//! `count`, `sum` and `hist`: from options to a session.

use anyhow::{Result, bail};
use lancet_engine::Kind;

use crate::options::{CountOptions, SessionOptions, ValueOptions};
use crate::probes::{self, By};
use crate::run::{Job, run};

pub(crate) fn count(options: CountOptions) -> Result<u8> {
    let by = probes::by(&options.by)?;
    start(options.probes, Kind::Count, by, options.session)
}

pub(crate) fn sum(options: ValueOptions) -> Result<u8> {
    with_value(options, Kind::Sum)
}

pub(crate) fn hist(options: ValueOptions) -> Result<u8> {
    with_value(options, Kind::Hist)
}

fn with_value(options: ValueOptions, kind: fn(lancet_engine::Value) -> Kind) -> Result<u8> {
    let mut words = options.words;
    let Some(last) = words.pop() else {
        bail!("give a probe and a value");
    };
    let value = probes::value(&last)?;
    let by = probes::by(&options.by)?;
    start(words, kind(value), by, options.session)
}

fn start(probes: Vec<String>, kind: Kind, by: By, session: SessionOptions) -> Result<u8> {
    run(Job {
        probes,
        kind,
        by,
        options: session,
    })
}
