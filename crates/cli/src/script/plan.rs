//! From a program's uprobe blocks to sites and consumers.

use anyhow::{Context, Result, anyhow, bail};
use lancet_abi::units::Pid;
use lancet_engine::{Consumer, Key, Kind, MapHandle, ProbeId, Refused, Session, Value};
use lancet_script::ir::{
    Action, Agg, Cheap, CheapKey, Fact, Function, MissingProbes, Point, Program,
};
use lancet_symbols::Site;

use super::maps::{Source, State};
use crate::probes::{self, Found};

/// Where the uprobe blocks go.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) found: Vec<Found>,
    blocks: Vec<Block>,
}

struct Block {
    steps: Vec<Cheap>,
    /// A file's place in `found`, and sites in it.
    sites: Vec<(usize, Vec<Site>)>,
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
    handles: Vec<(usize, Kind, Key, MapHandle)>,
}

/// Finds all sites; what is missing is told as the program's configuration says.
pub(super) fn plan(program: &Program, pid: Option<Pid>) -> Result<Plan> {
    let mut plan = Plan::default();
    for action in program
        .actions
        .iter()
        .filter(|action| in_target(program, action))
    {
        let steps = action
            .steps()
            .ok_or_else(|| anyhow!("not yet in a uprobe: anything but aggregation steps"))?;
        let mut sites = Vec::new();
        for point in &action.points {
            let Point::Uprobe {
                file,
                function,
                spelling,
            } = &program.points[point.index()]
            else {
                continue;
            };
            let found = text(file, function)
                .and_then(|text| probes::find_one(&text, pid, &mut plan.found))
                .with_context(|| format!("cannot attach {spelling}"));
            match (found, program.config.missing_probes) {
                (Ok(found), _) => sites.push(found),
                (Err(error), MissingProbes::Error) => return Err(error),
                (Err(error), MissingProbes::Warn) => {
                    eprintln!("lancet: {}", crate::report::sentence(&error));
                }
                (Err(_), MissingProbes::Ignore) => {}
            }
        }
        plan.blocks.push(Block { steps, sites });
    }
    Ok(plan)
}

fn in_target(program: &Program, action: &Action) -> bool {
    action
        .points
        .iter()
        .any(|point| program.points[point.index()].in_target())
}

/// The point as the finder of sites takes it.
fn text(file: &str, function: &Function) -> Result<String> {
    let what = match function {
        Function::Symbol {
            demangled: true, ..
        } => bail!("names of the source language are not supported yet"),
        Function::Symbol {
            name, offset: 0, ..
        } => name.clone(),
        Function::Symbol { name, offset, .. } => format!("{name}+{offset}"),
        Function::Address(address) => format!("{address:#x}"),
    };
    Ok(format!("\"{file}\":{what}"))
}

impl Plan {
    /// Whether there is nothing to attach.
    pub(super) fn is_empty(&self) -> bool {
        self.found.iter().all(|file| file.sites.is_empty())
    }

    /// Registers every step at every site.
    pub(super) fn register(&self, program: &Program, session: &mut Session) -> Result<Registered> {
        let mut done = Registered::default();
        done.maps.resize_with(program.maps.len(), State::default);
        for block in &self.blocks {
            for (place, sites) in &block.sites {
                for (number, step) in block.steps.iter().enumerate() {
                    let consumer = done.consumer(program, session, step)?;
                    let binary = &self.found[*place].binary;
                    let results = session.register_sites(binary, sites.clone(), consumer)?;
                    let mut probes = Vec::new();
                    for (result, site) in results.into_iter().zip(sites) {
                        match result {
                            Ok(probe) => probes.push((probe, done.function(&site.name))),
                            Err(why) if number == 0 => done.refused.push(why),
                            Err(_) => {}
                        }
                    }
                    done.probes += if number == 0 { probes.len() } else { 0 };
                    done.counts(step, probes);
                }
            }
        }
        Ok(done)
    }
}

impl Registered {
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
