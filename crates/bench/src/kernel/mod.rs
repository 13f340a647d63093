//! The kernel's own uprobes as an engine: a counting BPF program on each function.

mod program;
mod symbols;
mod sys;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use lancet_abi::units::Pid;

use crate::{Attachment, Engine, Error};
use program::Counter;

/// How the program is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// One perf event for each probe, the program set on it.
    Perf,
    /// One link for all probes (`uprobe_multi`).
    Multi,
}

/// The kernel's uprobes, counted by a BPF program in a per-CPU array.
#[derive(Debug)]
pub struct Kernel {
    method: Method,
    attached: Option<Attached>,
}

/// What exists in the kernel while probes are attached; closing the descriptors removes it.
#[derive(Debug)]
struct Attached {
    /// Closed before the counter's map and program.
    _probes: Vec<OwnedFd>,
    counter: Counter,
}

impl Kernel {
    /// An engine that attaches by `method`.
    #[must_use]
    pub fn new(method: Method) -> Self {
        Self {
            method,
            attached: None,
        }
    }
}

impl Engine for Kernel {
    fn name(&self) -> &str {
        match self.method {
            Method::Perf => "kernel-perf",
            Method::Multi => "kernel-multi",
        }
    }

    fn attach(
        &mut self,
        pids: &[Pid],
        exe: &Path,
        functions: &[&str],
    ) -> anyhow::Result<Attachment> {
        self.attached = None;
        let offsets = symbols::file_offsets(exe, functions)?;
        let process = match *pids {
            [pid] => Some(pid),
            _ => None,
        };
        let pid = pids.first().copied().unwrap_or(Pid(0));
        let counter = Counter::load(pid, self.method)?;
        let start = Instant::now();
        let probes = match self.method {
            Method::Perf => offsets
                .into_iter()
                .map(|offset| sys::attach_perf(process, exe, offset, counter.program()))
                .collect::<Result<_, _>>()?,
            Method::Multi => vec![sys::attach_multi(
                process,
                exe,
                &offsets,
                counter.program(),
            )?],
        };
        let total = start.elapsed();
        self.attached = Some(Attached {
            _probes: probes,
            counter,
        });
        Ok(Attachment {
            total,
            longest_stop: None,
        })
    }

    fn set_off(&mut self) -> anyhow::Result<bool> {
        Ok(false)
    }

    fn hits(&mut self) -> anyhow::Result<u64> {
        let attached = self.attached.as_ref().ok_or(Error::NotAttached {
            engine: "the kernel engine",
        })?;
        Ok(attached.counter.total()?)
    }

    fn detach(&mut self) -> anyhow::Result<()> {
        self.attached = None;
        Ok(())
    }

    // Each perf event waits for grace periods when it is closed: a thousand take minutes.
    fn attaches_many(&self) -> bool {
        self.method == Method::Multi
    }
}
