//! `bench`: measures, beside the kernel where that is allowed.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use lancet_abi::units::Pid;
use lancet_bench::{Attachment, Bare, Engine, Kernel, Method, attach, fork, hit, list, script};
use lancet_engine::{Binary, Consumer, ProbeId, Session, State, Tracer, launch, sites};
use lancet_symbols::{Pattern, Target};

use crate::options::{Bench, BenchOptions};

pub(crate) fn bench(options: BenchOptions) -> Result<u8> {
    match options.what {
        Bench::Ps => return lists(&options),
        Bench::Script => return scripts(&options),
        Bench::Hit | Bench::Attach | Bench::Fork => {}
    }
    let code = launch(None, move |tracer| match run(&options, &tracer) {
        Ok(exact) => u8::from(!exact),
        Err(error) => {
            eprintln!("lancet: {}", crate::report::sentence(&error));
            1
        }
    })?;
    Ok(code)
}

/// Needs no tracer, and must not share its CPU time with one.
fn lists(options: &BenchOptions) -> Result<u8> {
    let exe = std::env::current_exe().context("lancet's own path")?;
    let mut settings = if options.quick {
        list::Options::quick(exe)
    } else {
        list::Options::new(exe)
    };
    settings.json = options.json;
    list::run(&settings, &mut std::io::stdout())?;
    Ok(0)
}

/// Starts its tools as a user does.
fn scripts(options: &BenchOptions) -> Result<u8> {
    let exe = std::env::current_exe().context("lancet's own path")?;
    let mut settings = if options.quick {
        script::Options::quick(exe)
    } else {
        script::Options::new(exe)
    };
    settings.json = options.json;
    let rows = script::run(&settings, &mut std::io::stdout())?;
    let ours = rows.iter().filter(|row| row.tool == "lancet");
    Ok(u8::from(!ours.into_iter().all(script::Row::exact)))
}

/// Measures; `false` when something was counted wrongly.
fn run(options: &BenchOptions, tracer: &Arc<Tracer>) -> Result<bool> {
    tracer.end_by_signals();
    let exe = std::env::current_exe().context("lancet's own path")?;
    let out = &mut std::io::stdout();
    let mut engines: Vec<Box<dyn Engine>> = vec![
        Box::new(Bare),
        Box::new(Lancet::new(tracer)),
        Box::new(Kernel::new(Method::Perf)),
        Box::new(Kernel::new(Method::Multi)),
    ];
    match options.what {
        Bench::Hit => {
            let mut settings = if options.quick {
                hit::Options::quick(exe)
            } else {
                hit::Options::new(exe)
            };
            settings.json = options.json;
            let rows = hit::run(&mut engines, &settings, out)?;
            Ok(rows.iter().all(hit::Row::exact))
        }
        Bench::Attach => {
            let mut settings = if options.quick {
                attach::Options::quick(exe)
            } else {
                attach::Options::new(exe)
            };
            settings.json = options.json;
            let rows = attach::run(&mut engines, &settings, out)?;
            Ok(rows.iter().all(attach::Row::exact))
        }
        Bench::Fork => {
            let mut settings = if options.quick {
                fork::Options::quick(exe)
            } else {
                fork::Options::new(exe)
            };
            settings.json = options.json;
            let rows = fork::run(&mut engines, &settings, out)?;
            Ok(rows.iter().all(fork::Row::exact))
        }
        Bench::Ps | Bench::Script => Ok(true),
    }
}

/// lancet's own column.
struct Lancet {
    tracer: Arc<Tracer>,
    session: Option<Session>,
    probes: Vec<ProbeId>,
}

impl Lancet {
    fn new(tracer: &Arc<Tracer>) -> Self {
        Self {
            tracer: Arc::clone(tracer),
            session: None,
            probes: Vec::new(),
        }
    }
}

impl Engine for Lancet {
    fn name(&self) -> &str {
        "lancet"
    }

    fn attach(&mut self, pids: &[Pid], exe: &Path, functions: &[&str]) -> Result<Attachment> {
        let binary = Binary::open(exe)?;
        let mut session = Session::open(&self.tracer);
        let mut named = Vec::new();
        for function in functions {
            named.extend(sites(&binary, &Target::Functions(Pattern::new(function)))?);
        }
        self.probes = session
            .register_sites(&binary, named, Consumer::Count)?
            .into_iter()
            .map(|r| r.map_err(|refused| anyhow!("{}: {}", refused.probe, refused.message)))
            .collect::<Result<_>>()?;
        let start = Instant::now();
        let mut longest = Duration::ZERO;
        let mut states = match *pids {
            [pid] => vec![(pid, State::Attached(session.attach(pid)?))],
            _ => session.attach_all(pids)?,
        };
        // Those that were late are part of it.
        while !session.pending().is_empty() {
            session.wait(Some(Instant::now() + Duration::from_millis(1)));
        }
        states.retain(|(_, state)| !matches!(state, State::Pending));
        states.extend(session.news());
        for (pid, state) in states {
            let attached = match state {
                State::Attached(attached) => attached,
                State::Failed(error) => return Err(error.into()),
                other => return Err(anyhow!("process {pid}: {other:?}")),
            };
            if let Some(refused) = attached.refused.first() {
                return Err(anyhow!("{}: {}", refused.probe, refused.message));
            }
            longest = longest.max(attached.longest_stop);
        }
        let total = start.elapsed();
        self.session = Some(session);
        Ok(Attachment {
            total,
            longest_stop: Some(longest),
        })
    }

    fn set_off(&mut self) -> Result<bool> {
        let session = self.session.as_mut().context("nothing is attached")?;
        session.switch(false)?;
        Ok(true)
    }

    fn hits(&mut self) -> Result<u64> {
        let session = self.session.as_ref().context("nothing is attached")?;
        let mut hits = 0;
        for &probe in &self.probes {
            if let Some(lancet_engine::Total::Count(n)) = session.read(probe)? {
                hits += n;
            }
        }
        Ok(hits)
    }

    fn detach(&mut self) -> Result<()> {
        if let Some(mut session) = self.session.take() {
            let report = session.detach();
            if let Some((pid, error)) = report.failed.first() {
                return Err(anyhow!("process {pid}: {error}"));
            }
        }
        Ok(())
    }
}
