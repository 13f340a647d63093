//! A session's script: its code, and the memory of its maps and rings.

use std::io;
use std::sync::Arc;

use lancet_abi::memory::{Memory, SharedMut};
use lancet_abi::units::Pid;
use lancet_jit::script::{Scripts, Shared};
use lancet_procs as procs;
use lancet_remote::RegionFile;
use memmap2::MmapRaw;

use crate::attach::Attached;
use crate::domain::DomainKey;
use crate::error::EngineError;
use crate::recipe::Recipe;
use crate::session::Session;

/// What was loaded.
#[derive(Clone)]
pub(crate) struct Script {
    code: Arc<Scripts>,
    initial: Arc<Initial>,
}

/// The script's memory until there is a region, which then begins with a copy of it.
pub(crate) struct Initial(MmapRaw);

/// The memory of a script's maps and rings.
#[derive(Clone, Copy)]
pub struct ScriptMemory<'s> {
    /// Memory that others change at the same time.
    pub memory: SharedMut<'s>,
    /// Where the script's part begins in it: what [`Shared`]'s offsets count from.
    pub base: u64,
}

impl Script {
    pub(crate) fn new(code: Arc<Scripts>) -> Result<Self, EngineError> {
        let length = code.shared().size() as usize;
        let initial = memmap2::MmapOptions::new().len(length).map_anon();
        let initial = initial.map_err(|source| EngineError::System {
            what: "no memory for the script's maps",
            source,
        })?;
        Ok(Self {
            code,
            initial: Arc::new(Initial(MmapRaw::from(initial))),
        })
    }

    pub(crate) fn code(&self) -> &Arc<Scripts> {
        &self.code
    }

    /// Whether its parts in several processes need the same memory.
    pub(crate) fn shares(&self) -> bool {
        self.code.scratch_size() > 0
    }

    pub(crate) fn initial(&self) -> Arc<Initial> {
        Arc::clone(&self.initial)
    }
}

impl Initial {
    fn memory(&self) -> SharedMut<'_> {
        // SAFETY: mapped writable for its whole length as long as `self` lives, and only used as
        // atomics.
        unsafe { SharedMut::new(self.0.as_mut_ptr(), self.0.len()) }
    }

    /// Copies what is not zero into a file that is.
    pub(crate) fn copy_to(&self, file: &RegionFile, at: u64) -> io::Result<()> {
        const CHUNK: u64 = 4096;
        let memory = self.memory();
        for start in (0..memory.len()).step_by(CHUNK as usize) {
            let words = (start..(start + CHUNK).min(memory.len())).step_by(8);
            let bytes: Vec<u8> = words
                .filter_map(|offset| memory.load(offset))
                .flat_map(u64::to_ne_bytes)
                .collect();
            if bytes.iter().any(|byte| *byte != 0) {
                file.write_at(at + start, &bytes)?;
            }
        }
        Ok(())
    }
}

impl Session {
    /// The memory of the script's maps and rings: the tracer's own before the first process is
    /// attached, then the region that the processes share.
    #[must_use]
    pub fn script_memory(&self) -> Option<ScriptMemory<'_>> {
        let script = self.script.as_ref()?;
        let domain = self.script_domain.as_ref();
        let of_domain = domain.and_then(|domain| domain.script_memory());
        Some(of_domain.unwrap_or_else(|| ScriptMemory {
            memory: script.initial.memory(),
            base: 0,
        }))
    }

    /// Makes the memory that the script's parts share, before threads attach to these processes:
    /// what the tracer writes from then on must not be lost. Where the first process makes the
    /// memory itself, it is attached here.
    pub(crate) fn share_script(
        &mut self,
        recipe: &Recipe,
        pids: &[Pid],
    ) -> Option<(Pid, Result<Attached, EngineError>)> {
        if !self.script.as_ref().is_some_and(Script::shares) || self.script_domain.is_some() {
            return None;
        }
        let domain_of = |pid: Pid| {
            let key = DomainKey::of(pid, &procs::status(pid)?)?;
            recipe.domain(key, pid)
        };
        let (pid, domain) = pids
            .iter()
            .find_map(|&pid| Some((pid, domain_of(pid).ok()?)))?;
        if domain.is_made_by_target() {
            return Some((pid, self.attach(pid)));
        }
        self.script_domain = Some(domain);
        None
    }

    /// Where the script's maps and rings lie in their memory.
    #[must_use]
    pub fn script_layout(&self) -> Option<&Shared> {
        Some(self.script.as_ref()?.code.shared())
    }
}
