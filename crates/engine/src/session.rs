//! Probes by processes.

use std::path::Path;
use std::sync::Arc;

use lancet_abi::units::{FileOffset, Pid};
use lancet_abi::{Layout, LayoutBuilder, MapId, SlotId};
use lancet_isa::Plan;
use lancet_jit::script::Scripts;
use lancet_procs::{self as procs, Mapping};
use lancet_remote::RemoteError;
use lancet_remote::journal::Journal;
use lancet_symbols::{Site, Target};

use crate::attach::{Attached, Hold};
use crate::catalog::Binary;
use crate::consumer::{Consumer, Kind, MapHandle, ProbeId, Total, action};
use crate::crew::Crew;
use crate::domain::{Domain, Domains};
use crate::error::{EngineError, Refused};
use crate::follow::Follow;
use crate::guardian::{Tracer, Watched};
use crate::process::Process;
use crate::recipe::{Ingredient, Recipe};
use crate::script::Script;
use crate::sys::exec_watch::ExecWatch;
use crate::tids::Tids;
use crate::verify::Watch;

pub(crate) struct Probe {
    pub(crate) site: Site,
    pub(crate) binary: usize,
    pub(crate) consumer: Consumer,
    pub(crate) slot: Option<SlotId>,
    pub(crate) plan: Plan,
    pub(crate) active: bool,
    /// Counters at the moment when it was unregistered.
    pub(crate) frozen: Option<Total>,
}

/// Slots for probes that are registered after the first attach.
const SPARE_SLOTS: u32 = 1024;

/// How often [`Session::wait`] returns while there are pending processes.
const NEWS: std::time::Duration = std::time::Duration::from_millis(20);

/// A set of probes, the processes they are in, and their counters.
///
/// See the [crate's example](crate). Dropping a session detaches it.
pub struct Session {
    pub(crate) tracer: Arc<Tracer>,
    pub(crate) binaries: Vec<Arc<Binary>>,
    pub(crate) probes: Vec<Probe>,
    pub(crate) maps: Vec<(MapId, Kind)>,
    builder: LayoutBuilder,
    layout: Option<Layout>,
    spare: Option<SlotId>,
    spare_used: u32,
    pub(crate) domains: Arc<Domains>,
    recipe: Option<Arc<Recipe>>,
    pub(crate) crew: Option<Crew>,
    pub(crate) processes: Vec<Process>,
    pub(crate) follow: Option<Follow>,
    pub(crate) tids: Tids,
    /// The pid namespace of this process; 0 where it can't be told.
    pub(crate) own_pids: u64,
    pub(crate) ended: usize,
    /// Whether the command becomes another program after its start.
    pub(crate) command_exec: Option<ExecWatch>,
    pub(crate) watch: Watch,
    check: bool,
    pub(crate) script: Option<Script>,
    /// Where the script's maps and rings are, once there is a process.
    pub(crate) script_domain: Option<Arc<Domain>>,
}

impl Session {
    /// An empty session.
    #[must_use]
    pub fn open(tracer: &Arc<Tracer>) -> Self {
        Self {
            tracer: Arc::clone(tracer),
            binaries: Vec::new(),
            probes: Vec::new(),
            maps: Vec::new(),
            builder: LayoutBuilder::new(),
            layout: None,
            spare: None,
            spare_used: 0,
            domains: Arc::default(),
            recipe: None,
            crew: None,
            processes: Vec::new(),
            follow: None,
            tids: Tids::default(),
            own_pids: procs::namespaces(Pid(std::process::id() as i32)).map_or(0, |n| n.pid),
            ended: 0,
            command_exec: None,
            watch: Watch::default(),
            check: false,
            script: None,
            script_domain: None,
        }
    }

    /// Takes the script whose actions [`Consumer::Run`] runs; before the first process is attached.
    pub fn load(&mut self, scripts: Arc<Scripts>) -> Result<(), EngineError> {
        if self.layout.is_some() || self.script.is_some() {
            return Err(EngineError::Usage(
                "a session takes one script, before the first process is attached",
            ));
        }
        self.builder.script(scripts.shared().size());
        self.script = Some(Script::new(scripts)?);
        self.recipe = None;
        Ok(())
    }

    /// Whether hits in processes that are attached from now on assert what the hit path relies
    /// on; [`broken`](Self::broken) tells what did not hold. For tests of lancet: a hit costs many
    /// times what it does else, and 152 bytes more of the stack.
    pub fn check(&mut self, check: bool) {
        self.check = check;
        self.recipe = None;
    }

    /// Declares a map for [`Consumer::Keyed`]; before the first process is attached.
    ///
    /// `keys` is rounded up to a power of two; further keys are counted as lost.
    pub fn map(&mut self, kind: Kind, keys: u32) -> Result<MapHandle, EngineError> {
        if self.layout.is_some() {
            return Err(EngineError::Usage(
                "declare maps before the first process is attached",
            ));
        }
        let id = self.builder.map(keys.next_power_of_two(), kind.width());
        self.maps.push((id, kind));
        Ok(MapHandle(self.maps.len() - 1))
    }

    fn binary_index(&mut self, binary: &Arc<Binary>) -> usize {
        match self.binaries.iter().position(|b| Arc::ptr_eq(b, binary)) {
            Some(index) => index,
            None => {
                self.binaries.push(Arc::clone(binary));
                self.binaries.len() - 1
            }
        }
    }

    /// Registers a consumer at a file offset, as the kernel's `uprobe_register` does.
    ///
    /// Processes that are attached already get it with the next [`attach`](Self::attach).
    pub fn register(
        &mut self,
        file: &Path,
        offset: FileOffset,
        consumer: Consumer,
    ) -> Result<Result<ProbeId, Refused>, EngineError> {
        let known = self.binaries.iter().find(|b| b.module.path() == file);
        let binary = match known {
            Some(binary) => Arc::clone(binary),
            None => Binary::open(file)?,
        };
        let site = binary
            .site_at(offset)
            .ok_or(EngineError::Usage("the offset is not in the file's code"))?;
        let mut results = self.register_sites(&binary, vec![site], consumer)?;
        Ok(results.pop().expect("one site gives one result"))
    }

    /// Registers a consumer at each of these sites. A site that cannot be patched is refused by
    /// name and does not fail the others.
    pub fn register_sites(
        &mut self,
        binary: &Arc<Binary>,
        sites: Vec<Site>,
        consumer: Consumer,
    ) -> Result<Vec<Result<ProbeId, Refused>>, EngineError> {
        self.recipe = None;
        let index = self.binary_index(binary);
        let plans = binary.plan(&sites);
        let mut results = Vec::with_capacity(sites.len());
        for (site, plan) in sites.into_iter().zip(plans) {
            let plan = match plan {
                Ok(plan) => plan,
                Err(refusal) => {
                    results.push(Err(Refused::by_plan(&site.name, &refusal)));
                    continue;
                }
            };
            let slot = match consumer.own() {
                Some(kind) => Some(self.slots(kind.width())?),
                None => None,
            };
            self.probes.push(Probe {
                site,
                binary: index,
                consumer,
                slot,
                plan,
                active: true,
                frozen: None,
            });
            results.push(Ok(ProbeId(self.probes.len() - 1)));
        }
        Ok(results)
    }

    fn slots(&mut self, width: u32) -> Result<SlotId, EngineError> {
        if self.layout.is_none() {
            return Ok(self.builder.plain(width));
        }
        let spare = self.spare.expect("made with the layout");
        if self.spare_used + width > SPARE_SLOTS {
            return Err(EngineError::Usage(
                "no room for more probes in this session; register them before the first process is attached",
            ));
        }
        let slot = SlotId(spare.0 + self.spare_used);
        self.spare_used += width;
        Ok(slot)
    }

    /// The name that a probe is shown by.
    #[must_use]
    pub fn name(&self, probe: ProbeId) -> &str {
        &self.probes[probe.0].site.name
    }

    /// The probe's file.
    #[must_use]
    pub fn file(&self, probe: ProbeId) -> &Path {
        self.binaries[self.probes[probe.0].binary].module.path()
    }

    fn layout(&mut self) -> Result<Layout, EngineError> {
        if self.layout.is_none() {
            self.spare = Some(self.builder.plain(SPARE_SLOTS));
            let builder = std::mem::take(&mut self.builder);
            self.layout = Some(builder.build(possible_cpus())?);
        }
        Ok(self.layout.clone().expect("made above"))
    }

    /// What is put into processes from now on, until a probe comes or goes.
    pub(crate) fn recipe(&mut self) -> Result<Arc<Recipe>, EngineError> {
        if let Some(recipe) = &self.recipe {
            return Ok(Arc::clone(recipe));
        }
        let layout = self.layout()?;
        let active = self.probes.iter().enumerate().filter(|(_, p)| p.active);
        let ingredients = active.map(|(id, probe)| Ingredient {
            site: probe.site.clone(),
            plan: probe.plan.clone(),
            binary: probe.binary,
            action: action(probe.consumer, ProbeId(id), probe.slot, &self.maps),
        });
        let recipe = Arc::new(Recipe {
            tracer: Arc::clone(&self.tracer),
            binaries: self.binaries.clone(),
            ingredients: ingredients.collect(),
            domains: Arc::clone(&self.domains),
            layout,
            check: self.check,
            script: self.script.clone(),
            own_pids: self.own_pids,
        });
        Ok(Arc::clone(self.recipe.insert(recipe)))
    }

    /// Whether there are probes in the dynamic loader.
    pub(crate) fn probes_loader(&self) -> bool {
        self.binaries.iter().any(|b| b.is_loader())
    }

    /// Whether all files with probes are mapped as code.
    pub(crate) fn all_mapped(&self, mappings: &[Mapping]) -> bool {
        self.binaries
            .iter()
            .all(|b| !b.instances(mappings).is_empty())
    }

    /// Files with probes that these mappings lack.
    pub(crate) fn unmapped(&self, mappings: &[Mapping]) -> Vec<std::path::PathBuf> {
        self.binaries
            .iter()
            .filter(|b| b.instances(mappings).is_empty())
            .map(|b| b.module.path().to_owned())
            .collect()
    }

    /// All files with probes.
    #[must_use]
    pub fn files(&self) -> Vec<std::path::PathBuf> {
        self.unmapped(&[])
    }

    /// Waits for a signal, the end of command or targets, or a time.
    pub fn wait(&self, deadline: Option<std::time::Instant>) -> crate::guardian::Event {
        if self.has_news() {
            return crate::guardian::Event::Time;
        }
        let is_pending = !self.pending().is_empty();
        // Whoever waits shall ask for news.
        let soon = is_pending.then(|| std::time::Instant::now() + NEWS);
        if let Some(follow) = &self.follow {
            let watched = Watched {
                // Those that have ended since wake it up, and are forgotten.
                pidfds: self.processes.iter().map(Process::pidfd).collect(),
                wakers: follow.wakers().collect(),
                endless: true,
            };
            let deadlines = [deadline, soon, follow.due()].into_iter().flatten();
            return self.tracer.wait(deadlines.min(), &watched);
        }
        if is_pending {
            let deadline = [deadline, soon].into_iter().flatten().min();
            return self.tracer.wait(deadline, &Watched::default());
        }
        let alive = self.pidfds();
        // Those that were pending may have ended before there was a probe in them.
        let some = !self.processes.is_empty() || self.crew.is_some();
        if alive.is_empty() && some && self.tracer.command().is_none() {
            return crate::guardian::Event::TargetsEnded;
        }
        let watched = Watched {
            pidfds: alive,
            ..Watched::default()
        };
        self.tracer.wait(deadline, &watched)
    }

    /// Puts all registered probes into a running process; into one that is attached already,
    /// those that it lacks. A site that has a jump for other consumers gets a pad for all of them;
    /// the old pad stays mapped, so the room of a process for probes is used up a little by each.
    pub fn attach(&mut self, pid: Pid) -> Result<Attached, EngineError> {
        let known = self
            .processes
            .iter()
            .position(|p| p.pid == pid && !p.has_ended());
        let process = match known {
            Some(index) => self.processes.swap_remove(index),
            None => open_process(pid, self.tracer.journal())?,
        };
        self.attach_process(process, Hold::All)
    }

    /// Attaches to a process whose only thread is stopped under this thread.
    pub(crate) fn attach_held(
        &mut self,
        pid: Pid,
        tid: lancet_abi::units::Tid,
        rseq: Option<i32>,
    ) -> Result<Attached, EngineError> {
        let known = self.processes.iter().position(|p| p.pid == pid);
        let process = match known {
            Some(index) => self.processes.swap_remove(index),
            None => Process::open_started(pid, self.tracer.journal())?,
        };
        self.attach_process(process, Hold::Held(tid, rseq))
    }

    /// Forgets a process: it has become another program.
    pub(crate) fn forget(&mut self, pid: Pid) {
        if let Some(index) = self.processes.iter().position(|p| p.pid == pid) {
            self.processes.swap_remove(index).record().finish();
        }
    }

    /// The process stands apart from the session while it is worked on, and comes (back) into it
    /// unless nothing of ours is in it.
    fn attach_process(
        &mut self,
        mut process: Process,
        hold: Hold,
    ) -> Result<Attached, EngineError> {
        let result = self
            .recipe()
            .and_then(|recipe| recipe.attach(&mut process, hold));
        self.settle(&process);
        if leaves_nothing(&process, &result) {
            process.record().finish();
        } else {
            self.processes.push(process);
        }
        result
    }

    /// What there is to do after each attach: its threads' ids are learned, where its pid namespace
    /// is not ours, and the script's memory is where it counts.
    pub(crate) fn settle(&mut self, process: &Process) {
        self.script_domain = self.domains.first();
        if process.domain.pids != self.own_pids {
            self.tids.learn(process.domain.pids, process.pid);
        }
    }

    /// Processes that are attached and alive.
    pub fn alive(&self) -> impl Iterator<Item = Pid> {
        self.processes
            .iter()
            .filter(|p| !p.has_ended())
            .map(|p| p.pid)
    }

    /// Probes have come or gone.
    pub(crate) fn forget_recipe(&mut self) {
        self.recipe = None;
    }

    pub(crate) fn pidfds(&self) -> Vec<&std::os::fd::OwnedFd> {
        self.processes
            .iter()
            .filter(|p| !p.has_ended())
            .map(Process::pidfd)
            .collect()
    }

    /// Switches the counting in all attached processes off or on; their text stays patched.
    /// Children that were forked before are not reached.
    pub fn switch(&mut self, on: bool) -> Result<(), EngineError> {
        use lancet_abi::private::OFF_BYTE;
        for process in self.processes.iter().filter(|p| !p.has_ended()) {
            if let Some(arena) = process.arenas.first() {
                let at = arena.mode.plus(OFF_BYTE);
                process.memory.write(at, &[u8::from(!on)])?;
            }
        }
        Ok(())
    }
}

/// Opens a process; another lancet that only looks at it is waited for.
fn open_process(pid: Pid, journal: &Arc<Journal>) -> Result<Process, EngineError> {
    let start = std::time::Instant::now();
    loop {
        match Process::open(pid, journal) {
            Err(EngineError::Remote(RemoteError::Traced { .. }))
                if start.elapsed() < std::time::Duration::from_millis(500) =>
            {
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
            other => return other,
        }
    }
}

/// Whether nothing of ours is in a process after an attach: it is none of the session's then.
pub(crate) fn leaves_nothing(process: &Process, result: &Result<Attached, EngineError>) -> bool {
    let gone = matches!(result, Err(EngineError::Remote(RemoteError::Gone { .. })));
    result.is_err() && (gone || process.arenas.is_empty())
}

/// CPUs that the kernel may ever bring online; the count that per-CPU data is made for.
#[must_use]
pub fn possible_cpus() -> u32 {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").unwrap_or_default();
    let last = text
        .trim()
        .rsplit([',', '-'])
        .next()
        .and_then(|n| n.parse::<u32>().ok());
    last.map_or_else(
        || std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        |last| last + 1,
    )
}

/// Finds the sites that a target names in a file.
pub fn sites(binary: &Binary, target: &Target) -> Result<Vec<Site>, EngineError> {
    Ok(lancet_symbols::select(&binary.module, target)?)
}
