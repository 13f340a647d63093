//! Looks at all patched sites again and again: somebody else may write there.
//!
//! A kernel uprobe that is registered over our jump puts a trap on its first byte, and writes the
//! file's first byte there at its end. Both times our displacement lies behind it, and a thread
//! that goes on behind a first instruction of less than five bytes runs into it. So the site gets
//! the file's bytes back as soon as this is seen, the trap excepted: with the file's other bytes
//! behind it the kernel's probe is safe. The probe is lost in this process, and that is reported.
//!
//! What a debugger writes is its own affair while it holds the process: nobody else may stop that.

use std::sync::Arc;
use std::thread::JoinHandle;

use lancet_abi::private::UNCERTAIN_BYTE;
use lancet_abi::units::{Pid, RuntimeAddr};
use lancet_jit::Action;
use lancet_procs as procs;
use lancet_remote::Memory;
use lancet_remote::arena::{Found, PATCH};

use crate::children::patiently;
use crate::process::Process;
use crate::session::Session;
use crate::undo;

/// Sites of one look; those of further processes are for the next one.
const AT_ONCE: usize = 1 << 16;

/// Sites that lie no farther apart are read together.
const SPAN: u64 = 4096;

/// What somebody else did to a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// A trap lies on it, as a kernel uprobe puts one.
    Trap,
    /// A trap lay on it and was taken away, together with a part of the jump.
    Torn,
    /// The file's bytes are back.
    Removed,
    /// Other bytes, which are left alone.
    Foreign,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Trap => "somebody else put a trap on it, such as a kernel uprobe",
            Self::Torn => "somebody else put a trap on it and took it away",
            Self::Removed => "somebody else wrote the file's bytes back",
            Self::Foreign => "somebody else wrote other bytes there, which stay",
        })
    }
}

/// A probe that counts no more in one process.
#[derive(Clone, Debug)]
pub struct Lost {
    /// The process.
    pub pid: Pid,
    /// Where the probe was.
    pub site: RuntimeAddr,
    /// The probe's name; none where lancet watched a system call for itself.
    pub probe: Option<String>,
    /// Why.
    pub loss: Loss,
}

/// The looks of a session.
#[derive(Default)]
pub(crate) struct Watch {
    /// One that is not done, or whose findings were not taken.
    look: Option<JoinHandle<Vec<(Pid, RuntimeAddr)>>>,
    /// The process that the next one begins with.
    next: usize,
}

/// What one look reads of one process.
struct Part {
    memory: Arc<Memory>,
    sites: Vec<(RuntimeAddr, [u8; PATCH])>,
}

impl Part {
    fn of(process: &Process) -> Self {
        let sites = process.patched.iter();
        Self {
            memory: Arc::clone(&process.memory),
            sites: sites.map(|(&at, its)| (at, its.record.new)).collect(),
        }
    }

    /// Sites whose bytes are not the jump. What can't be read is no site any more.
    fn changed(&self) -> Vec<RuntimeAddr> {
        let mut changed = Vec::new();
        let mut bytes = Vec::new();
        let mut rest = &self.sites[..];
        while let Some(&(first, _)) = rest.first() {
            let count = rest.partition_point(|s| s.0.offset_from(first) < SPAN);
            let last = rest[count - 1].0;
            bytes.resize(last.offset_from(first) as usize + PATCH, 0);
            let length = self.memory.read_some(first, &mut bytes);
            for (at, jump) in &rest[..count] {
                let from = at.offset_from(first) as usize;
                if from + PATCH <= length && bytes[from..from + PATCH] != *jump {
                    changed.push(*at);
                }
            }
            rest = &rest[count..];
        }
        changed
    }
}

impl Session {
    /// Takes what the last look at the patched sites has found, gives those sites back, and
    /// begins the next look. Call it about twice a second: what happens is seen within one then.
    ///
    /// The look runs in a thread of its own: reading a process whose address space is busy waits.
    pub fn verify(&mut self) -> Vec<Lost> {
        if self.watch.look.as_ref().is_some_and(|l| !l.is_finished()) {
            return Vec::new();
        }
        let found = self.watch.look.take().and_then(|look| look.join().ok());
        let mut lost = Vec::new();
        for (pid, site) in found.unwrap_or_default() {
            lost.extend(self.withdraw(pid, site));
        }
        self.look();
        lost
    }

    fn look(&mut self) {
        let count = self.processes.len();
        let (mut parts, mut sites) = (Vec::new(), 0);
        while parts.len() < count && sites < AT_ONCE {
            let process = &self.processes[self.watch.next % count];
            self.watch.next = (self.watch.next + 1) % count;
            sites += process.patched.len();
            parts.push(Part::of(process));
        }
        // Without a thread there is no look this time.
        let look = std::thread::Builder::new().name("lancet-verify".into());
        let all = move || {
            let mut found = Vec::new();
            for part in &parts {
                let pid = part.memory.pid();
                found.extend(part.changed().into_iter().map(|site| (pid, site)));
            }
            found
        };
        self.watch.look = look.spawn(all).ok();
    }

    /// Gives one site back. None when it is as it should be, or nobody may stop the process now:
    /// the next look tells again.
    fn withdraw(&mut self, pid: Pid, site: RuntimeAddr) -> Option<Lost> {
        let index = self.processes.iter().position(|p| p.pid == pid)?;
        let process = &mut self.processes[index];
        let its = process.patched.get(&site)?;
        let mut now = [0; PATCH];
        if process.memory.read(site, &mut now).is_err() || now == its.record.new {
            return None;
        }
        let loss = match its.record.judge(&now, &[]) {
            Found::UnderTrap => Loss::Trap,
            Found::Ours => Loss::Torn,
            Found::File => Loss::Removed,
            Found::Foreign => Loss::Foreign,
        };
        let watched_call = |a: &Action| matches!(a, Action::MarkUncertain { .. });
        if its.actions.iter().any(watched_call) {
            // Children that it would have told of come unseen from now on.
            let word = process.arenas.first()?.mode.plus(UNCERTAIN_BYTE);
            process.memory.write(word, &[1]).ok()?;
        }
        let places = process.places();
        let restore = || undo::restore_only(pid, &process.memory, &places, &[site]);
        let restored = patiently(restore).ok()?;
        process.patched.remove(&site);
        if restored.sites == 0 && restored.foreign.is_empty() {
            // The file is mapped there no more.
            return None;
        }
        Some(Lost {
            pid,
            site,
            probe: self.probe_at(pid, site),
            loss,
        })
    }

    /// The name of the probe that lies there.
    fn probe_at(&self, pid: Pid, site: RuntimeAddr) -> Option<String> {
        let mappings = procs::mappings(pid).ok()?;
        let probe = self.probes.iter().find(|probe| {
            let instances = self.binaries[probe.binary].instances(&mappings);
            let lies = |bias| probe.site.link.0.wrapping_add(bias) == site.0;
            probe.active && instances.iter().any(|i| lies(i.bias))
        })?;
        Some(probe.site.name.clone())
    }
}
