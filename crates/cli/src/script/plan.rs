//! From a program's uprobe blocks to sites and consumers.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use lancet_abi::units::Pid;
use lancet_engine::scripts::{Scripts, Shared};
use lancet_engine::{
    Binary, Consumer, Key, Kind, MapHandle, ProbeId, Refused, Session, Value, possible_cpus,
};
use lancet_script::ir::{
    Action, Agg, Cheap, CheapKey, Fact, Function, MapId, MapKind, MissingProbes, Point, PointId,
    Program,
};
use lancet_symbols::{Pattern, Site};

use super::maps::{Source, State};
use crate::probes::{self, Found};

/// Where the uprobe blocks go.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) found: Vec<Found>,
    blocks: Vec<Block>,
    scripts: Option<Arc<Scripts>>,
}

struct Block {
    /// The action's number.
    number: usize,
    /// Hand-made code for all of it; none: the action is compiled.
    steps: Option<Vec<Cheap>>,
    /// A point, its file's place in `found`, and sites in it.
    sites: Vec<(PointId, usize, Vec<Site>)>,
}

/// What was registered.
#[derive(Default)]
pub(super) struct Registered {
    /// Blocks times sites.
    pub(super) probes: usize,
    pub(super) refused: Vec<Refused>,
    pub(super) maps: Vec<State>,
    /// Names that numbers in keys stand for.
    pub(super) functions: Vec<String>,
    /// Attach points by their ids; behind those of the program, what wildcards stand for.
    pub(super) points: Vec<String>,
    handles: Vec<(usize, Kind, Key, MapHandle)>,
}

/// Finds all sites and compiles all actions; what is missing is told as the program's
/// configuration says.
pub(super) fn plan(program: &Program, pid: Option<Pid>) -> Result<Plan> {
    let lru = program.maps.iter().find(|map| map.kind == MapKind::LruHash);
    if let Some(map) = lru {
        bail!(
            "not yet: {} is a map that replaces its oldest entries; declare it as a hash",
            map.name
        );
    }
    let mut plan = Plan::default();
    let steps = cheap_actions(program);
    for (number, action) in program.actions.iter().enumerate() {
        if !in_target(program, action) {
            continue;
        }
        let mut sites = Vec::new();
        for &point in &action.points {
            let Point::Uprobe {
                file,
                function,
                spelling,
            } = &program.points[point.index()]
            else {
                continue;
            };
            let found = find(file, function, pid, &mut plan.found)
                .with_context(|| format!("cannot attach {spelling}"));
            match (found, program.config.missing_probes) {
                (Ok(found), _) => {
                    sites.extend(
                        found
                            .into_iter()
                            .map(|(place, found)| (point, place, found)),
                    );
                }
                (Err(error), MissingProbes::Error) => return Err(error),
                (Err(error), MissingProbes::Warn) => {
                    eprintln!("lancet: {}", crate::report::sentence(&error));
                }
                (Err(_), MissingProbes::Ignore) => {}
            }
        }
        plan.blocks.push(Block {
            number,
            steps: steps[number].clone(),
            sites,
        });
    }
    let wanted: usize = plan
        .blocks
        .iter()
        .flat_map(|b| &b.sites)
        .map(|(.., s)| s.len())
        .sum();
    let most = program.config.max_probes as usize;
    if wanted > most && plan.blocks.iter().any(|block| block.steps.is_none()) {
        bail!(
            "{wanted} probes are more than max_probes, which is {most}: raise it in a config block or by BPFTRACE_MAX_PROBES"
        );
    }
    plan.scripts = Some(compile(program, &steps)?);
    Ok(plan)
}

/// The actions that are aggregation steps with hand-made code, as these; none for all others.
///
/// What a compiled action reads or changes lies in a table, so whoever else updates the same map
/// in a target is compiled too.
fn cheap_actions(program: &Program) -> Vec<Option<Vec<Cheap>>> {
    let mut steps: Vec<Option<Vec<Cheap>>> = program
        .actions
        .iter()
        .map(|action| {
            action
                .steps()
                .filter(|steps| !steps.is_empty() && steps.iter().all(has_code))
        })
        .collect();
    loop {
        let compiled =
            |number: usize, action: &Action| steps[number].is_none() && in_target(program, action);
        let tables: Vec<MapId> = program
            .actions
            .iter()
            .enumerate()
            .filter(|(number, action)| compiled(*number, action))
            .flat_map(|(_, action)| action.maps())
            .collect();
        let mixed = steps
            .iter()
            .position(|of| of.iter().flatten().any(|step| tables.contains(&step.map)));
        match mixed {
            Some(number) => steps[number] = None,
            None => return steps,
        }
    }
}

/// Whether there is hand-made code for a step.
fn has_code(step: &Cheap) -> bool {
    let is_value = |of| value(of).is_ok();
    let agg = match step.agg {
        Agg::Count => true,
        Agg::Sum | Agg::Hist { bits: 0 } => is_value(step.value),
        _ => false,
    };
    let key = match step.key {
        CheapKey::None | CheapKey::Fact(Fact::Func | Fact::Tid) => true,
        key => is_value(key),
    };
    agg && key
}

fn compile(program: &Program, steps: &[Option<Vec<Cheap>>]) -> Result<Arc<Scripts>> {
    let cpus = possible_cpus();
    let used: Vec<MapId> = program
        .actions
        .iter()
        .enumerate()
        .filter(|(number, action)| steps[*number].is_none() || !in_target(program, action))
        .flat_map(|(_, action)| action.maps())
        .collect();
    let compiled =
        |number: usize| steps[number].is_none() && in_target(program, &program.actions[number]);
    let shared =
        Shared::new(program, |map| used.contains(&map), compiled, cpus).ok_or_else(|| {
            anyhow!("the script's maps are too large: lower max_map_keys or max_strlen")
        })?;
    Ok(Scripts::compile(program, compiled, shared, cpus)?)
}

/// What a program is turned into, for people to read.
pub(super) fn listing(program: &Program) -> Result<String> {
    let steps = cheap_actions(program);
    let scripts = compile(program, &steps)?;
    let mut text = format!("{program}");
    for (number, action) in program.actions.iter().enumerate() {
        let point = action.points.first().map(|p| &program.points[p.index()]);
        let name = point.map_or("", Point::spelling);
        if let Some(code) = scripts.listing(number) {
            text.push_str(&format!("\n{name}: machine code\n{code}"));
        } else if steps[number].is_some() && in_target(program, action) {
            text.push_str(&format!("\n{name}: made at each site\n"));
        }
    }
    Ok(text)
}

fn in_target(program: &Program, action: &Action) -> bool {
    action
        .points
        .iter()
        .any(|point| program.points[point.index()].in_target())
}

/// The files that a point names and their sites. Where the file has wildcards one with the function
/// is enough.
pub(super) fn find(
    file: &str,
    function: &Function,
    pid: Option<Pid>,
    found: &mut Vec<Found>,
) -> Result<Vec<(usize, Vec<Site>)>> {
    let mut all = Vec::new();
    let mut failed = None;
    for file in files(file, pid)? {
        let mut last = None;
        for text in texts(&file, function) {
            match probes::find_one(&text, pid, found) {
                Ok(sites) => {
                    all.push(sites);
                    last = None;
                    break;
                }
                Err(error) => last = Some(error),
            }
        }
        failed = failed.or(last);
    }
    match failed {
        Some(error) if all.is_empty() => Err(error),
        _ => Ok(all),
    }
}

/// The files that a name with `*` means, in their order; any other name as it is. `*` alone: all code
/// that the process maps.
fn files(name: &str, pid: Option<Pid>) -> Result<Vec<String>> {
    if !name.contains('*') {
        return Ok(vec![name.to_owned()]);
    }
    if name == "*" {
        let pid = pid.ok_or_else(|| anyhow!("`*` for the file needs a process: add -p PID"))?;
        let mut mapped: Vec<String> = lancet_procs::mappings(pid)?
            .iter()
            .filter(|mapping| mapping.execute && mapping.path.starts_with(b"/"))
            .map(|mapping| String::from_utf8_lossy(&mapping.path).into_owned())
            .collect();
        mapped.sort();
        mapped.dedup();
        return Ok(mapped);
    }
    let mut places = vec![PathBuf::from(if name.starts_with('/') { "/" } else { "." })];
    for part in name.split('/').filter(|part| !part.is_empty()) {
        let pattern = Pattern::new(part);
        let mut next = Vec::new();
        for place in &places {
            if !part.contains('*') {
                next.push(place.join(part));
                continue;
            }
            let inside = std::fs::read_dir(place).into_iter().flatten().flatten();
            let named =
                inside.filter(|entry| pattern.matches(&entry.file_name().to_string_lossy()));
            next.extend(named.map(|entry| entry.path()));
        }
        places = next;
    }
    places.retain(|place| place.is_file());
    places.sort();
    if places.is_empty() {
        bail!("no file is named {name}");
    }
    Ok(places
        .iter()
        .map(|place| place.display().to_string())
        .collect())
}

/// The point as the finder of sites takes it; what is first found is meant.
fn texts(file: &str, function: &Function) -> Vec<String> {
    let with = |what: &str| format!("\"{file}\":{what}");
    match function {
        // All overloads, unless one is named by its arguments.
        Function::Symbol {
            name,
            demangled: true,
            ..
        } => vec![with(&format!("\"{name}(*\"")), with(&format!("\"{name}\""))],
        Function::Symbol {
            name, offset: 0, ..
        } => vec![with(name)],
        Function::Symbol { name, offset, .. } => vec![with(&format!("{name}+{offset}"))],
        Function::Address(address) => vec![with(&format!("{address:#x}"))],
    }
}

impl Plan {
    /// Whether any compiled action asks for the time.
    pub(super) fn tells_time(&self) -> bool {
        self.scripts
            .as_ref()
            .is_some_and(|scripts| scripts.tells_time())
    }

    /// Whether there is nothing to attach.
    pub(super) fn is_empty(&self) -> bool {
        self.found.iter().all(|file| file.sites.is_empty())
    }

    /// Registers every block at every site, in the order of the blocks.
    pub(super) fn register(&self, program: &Program, session: &mut Session) -> Result<Registered> {
        let mut done = Registered::default();
        done.maps.resize_with(program.maps.len(), State::default);
        done.points = program
            .points
            .iter()
            .map(|p| p.spelling().to_owned())
            .collect();
        if let Some(scripts) = &self.scripts {
            session.load(Arc::clone(scripts))?;
        }
        for block in &self.blocks {
            for (point, place, sites) in &block.sites {
                let binary = &self.found[*place].binary;
                match &block.steps {
                    Some(steps) => done.register_steps(program, session, steps, binary, sites)?,
                    None => {
                        let at = (block.number, *point);
                        done.register_action(program, session, at, binary, sites)?;
                    }
                }
            }
        }
        if let Some(scripts) = &self.scripts {
            scripts.name(done.points.clone(), done.functions.clone());
        }
        Ok(done)
    }
}

impl Registered {
    fn register_steps(
        &mut self,
        program: &Program,
        session: &mut Session,
        steps: &[Cheap],
        binary: &Arc<Binary>,
        sites: &[Site],
    ) -> Result<()> {
        for (number, step) in steps.iter().enumerate() {
            let consumer = self.consumer(program, session, step)?;
            let results = session.register_sites(binary, sites.to_vec(), consumer)?;
            let mut probes = Vec::new();
            for (result, site) in results.into_iter().zip(sites) {
                match result {
                    Ok(probe) => probes.push((probe, self.function(&site.name))),
                    Err(why) if number == 0 => self.refused.push(why),
                    Err(_) => {}
                }
            }
            self.probes += if number == 0 { probes.len() } else { 0 };
            self.counts(step, probes);
        }
        Ok(())
    }

    fn register_action(
        &mut self,
        program: &Program,
        session: &mut Session,
        (action, point): (usize, PointId),
        binary: &Arc<Binary>,
        sites: &[Site],
    ) -> Result<()> {
        for site in sites {
            let consumer = Consumer::Run {
                action: action as u32,
                probe: self.point(program, point, binary, site),
                func: self.function(&site.name) as u32,
            };
            let results = session.register_sites(binary, vec![site.clone()], consumer)?;
            for result in results {
                match result {
                    Ok(_) => self.probes += 1,
                    Err(why) => self.refused.push(why),
                }
            }
        }
        Ok(())
    }

    /// The id that stands for the point at this site: where the point has wildcards, or a file that
    /// is found by its name, one of its own.
    fn point(&mut self, program: &Program, point: PointId, binary: &Binary, site: &Site) -> u32 {
        let Point::Uprobe {
            file,
            function: Function::Symbol { name, .. },
            ..
        } = &program.points[point.index()]
        else {
            return point.0;
        };
        let named = file.contains('/') && !file.contains('*');
        if named && !name.contains('*') {
            return point.0;
        }
        let file = if named {
            file.clone()
        } else {
            binary.module.path().display().to_string()
        };
        let spelling = format!("uprobe:{file}:{}", site.name);
        let known = self.points.iter().position(|known| *known == spelling);
        let at = known.unwrap_or_else(|| {
            self.points.push(spelling);
            self.points.len() - 1
        });
        at as u32
    }

    fn function(&mut self, name: &str) -> i64 {
        let known = self.functions.iter().position(|known| known == name);
        let at = known.unwrap_or_else(|| {
            self.functions.push(name.to_owned());
            self.functions.len() - 1
        });
        at as i64
    }

    fn consumer(
        &mut self,
        program: &Program,
        session: &mut Session,
        step: &Cheap,
    ) -> Result<Consumer> {
        let kind = match step.agg {
            Agg::Count => Kind::Count,
            Agg::Sum => Kind::Sum(value(step.value)?),
            Agg::Hist { bits: 0 } => Kind::Hist(value(step.value)?),
            _ => bail!("not yet in a uprobe: this aggregation"),
        };
        let key = match step.key {
            CheapKey::None | CheapKey::Fact(Fact::Func) => {
                return Ok(match kind {
                    Kind::Count => Consumer::Count,
                    Kind::Sum(value) => Consumer::Sum(value),
                    Kind::Hist(value) => Consumer::Hist(value),
                });
            }
            CheapKey::Fact(Fact::Tid) => Key::Tid,
            key => Key::Value(value(key)?),
        };
        let at = step.map.index();
        let known = self
            .handles
            .iter()
            .find(|(map, of, by, _)| (*map, *of, *by) == (at, kind, key));
        let map = match known {
            Some((.., handle)) => *handle,
            None => {
                let handle = session.map(kind, program.maps[at].capacity.max(2))?;
                self.handles.push((at, kind, key, handle));
                self.maps[at].sources.push(Source::Map(handle));
                handle
            }
        };
        Ok(Consumer::Keyed {
            map,
            by_function: false,
            key,
        })
    }

    /// Notes that the map is what these probes count.
    fn counts(&mut self, step: &Cheap, probes: Vec<(ProbeId, i64)>) {
        let keyed = match step.key {
            CheapKey::None => false,
            CheapKey::Fact(Fact::Func) => true,
            _ => return,
        };
        self.maps[step.map.index()]
            .sources
            .push(Source::Probes { probes, keyed });
    }
}

fn value(of: CheapKey) -> Result<Value> {
    match of {
        CheapKey::Fact(Fact::Arg(number)) => Ok(Value::Arg(number)),
        CheapKey::Fact(Fact::Register(name)) => probes::register(name)
            .map(Value::Register)
            .ok_or_else(|| anyhow!("not yet in a uprobe: register {name}")),
        _ => bail!("not yet in a uprobe: this value"),
    }
}
