//! What a session puts into a process: as it was when an attach began, so that threads can share
//! it while the session goes on.

use std::collections::HashMap;
use std::sync::Arc;

use lancet_abi::Layout;
use lancet_abi::units::Pid;
use lancet_isa::Plan;
use lancet_jit::Action;
use lancet_procs as procs;
use lancet_symbols::Site;

use crate::attach::{self, Attached, Context, Hold, Wanted};
use crate::catalog::Binary;
use crate::domain::{Domain, DomainKey, Domains};
use crate::error::EngineError;
use crate::guardian::Tracer;
use crate::process::Process;
use crate::script::Script;
use crate::sentinel;

/// One probe of it.
pub(crate) struct Ingredient {
    pub(crate) site: Site,
    pub(crate) plan: Plan,
    pub(crate) binary: usize,
    pub(crate) action: Option<Action>,
}

/// All that attaching to any process needs.
pub(crate) struct Recipe {
    pub(crate) tracer: Arc<Tracer>,
    pub(crate) binaries: Vec<Arc<Binary>>,
    pub(crate) ingredients: Vec<Ingredient>,
    pub(crate) domains: Arc<Domains>,
    pub(crate) layout: Layout,
    pub(crate) check: bool,
    pub(crate) script: Option<Script>,
    /// The pid namespace of the tracer; 0 where it can't be told.
    pub(crate) own_pids: u64,
}

impl Recipe {
    /// Puts it all into one process.
    pub(crate) fn attach(
        &self,
        process: &mut Process,
        hold: Hold,
    ) -> Result<Attached, EngineError> {
        let (pid, key) = (process.pid, process.domain);
        let mappings = procs::mappings(pid)?;
        let mut instances = self
            .binaries
            .iter()
            .flat_map(|binary| binary.instances(&mappings))
            .collect::<Vec<_>>();
        if process.early.is_some()
            && let Some(inherited) = process.inherited(&mappings)
        {
            // The search for children takes care of those.
            process.record().inherit();
            instances.retain(|of| !inherited.iter().any(|site| of.span.contains(site)));
        }
        if instances.is_empty() {
            return Err(EngineError::NotMapped {
                pid,
                name: process.name.clone(),
            });
        }
        let guards = sentinel::guards(&self.tracer, &mappings, pid);
        let mut binaries = self.binaries.clone();
        for guard in &guards.all {
            if !self.binaries.iter().any(|b| b.id == guard.binary.id) {
                instances.extend(guard.binary.instances(&mappings));
                binaries.push(Arc::clone(&guard.binary));
            }
        }
        let domain = self.domain(key, pid)?;
        let starting = matches!(hold, Hold::Held(..)) || process.early.is_some();
        let wanted = self.wanted(&binaries, &guards, starting);
        let context = Context {
            domain: &domain,
            session: self.tracer.journal().session(),
            guardian: self.tracer.guardian(),
            layout: &self.layout,
            mappings: &mappings,
            instances: &instances,
            binaries: &binaries,
            certain: guards.certain,
            check: self.check,
            script: self.script.as_ref().map(Script::code),
            shown_pid: (key.pids != self.own_pids).then_some(pid),
        };
        let attached = attach::attach(process, &context, &wanted, hold);
        if process.arenas.is_empty() {
            // What nobody has mapped can't be mapped later either: the next try makes it anew.
            self.domains.forget_own(pid);
        }
        attached
    }

    /// The domain of a process; it is made if need be.
    pub(crate) fn domain(&self, key: DomainKey, pid: Pid) -> Result<Arc<Domain>, EngineError> {
        let journal = self.tracer.journal();
        let script = self.script.as_ref();
        self.domains.of(key, pid, &self.layout, journal, script)
    }

    /// All active probes by site: consumers of one site share its pad.
    fn wanted<'a>(
        &'a self,
        binaries: &[Arc<Binary>],
        guards: &'a sentinel::Guards,
        starting: bool,
    ) -> Vec<Wanted<'a>> {
        let mut by_site: HashMap<(usize, u64), usize> = HashMap::new();
        let mut wanted: Vec<Wanted<'a>> = Vec::new();
        for probe in &self.ingredients {
            let binary = &binaries[probe.binary];
            let place = *by_site
                .entry((probe.binary, probe.site.link.0))
                .or_insert_with(|| {
                    wanted.push(Wanted {
                        name: &probe.site.name,
                        plan: &probe.plan,
                        binary: probe.binary,
                        actions: Vec::new(),
                        lock_only: binary.is_loader()
                            || starting && binary.is_static()
                            || guards.runs_unregistered(binary, &probe.site),
                    });
                    wanted.len() - 1
                });
            wanted[place].actions.extend(probe.action);
        }
        for guard in &guards.all {
            let Some(binary) = binaries.iter().position(|b| b.id == guard.binary.id) else {
                continue;
            };
            for sentinel::Sentinel { site, plan, when } in &guard.sentinels {
                // A probe whose window begins before the call's `mov` does its work.
                let around = wanted.iter_mut().find(|w| {
                    let start = w.plan.site();
                    w.binary == binary && start < site.link && site.link < w.plan.window_end()
                });
                if let Some(around) = around {
                    let when = lancet_jit::Mark::Always;
                    around.actions.insert(0, Action::MarkUncertain { when });
                    continue;
                }
                let place = *by_site.entry((binary, site.link.0)).or_insert_with(|| {
                    wanted.push(Wanted {
                        name: &site.name,
                        plan,
                        binary,
                        actions: Vec::new(),
                        lock_only: true,
                    });
                    wanted.len() - 1
                });
                wanted[place]
                    .actions
                    .insert(0, Action::MarkUncertain { when: *when });
            }
        }
        wanted
    }
}
