//! Compiles the pads of a process and writes them, and their records, while it runs.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

use lancet_abi::units::RuntimeAddr;
use lancet_jit::{Env, Form, Rseq};
use lancet_remote::arena::{self, SiteRecord};
use lancet_remote::rseq;

use crate::attach::{Context, Wanted};
use crate::catalog::Instance;
use crate::error::{EngineError, Refused};
use crate::process::{Facts, Patched, Process};

/// What a site's jump leads to.
pub(crate) struct Pad {
    pub(crate) name: String,
    /// Whether it watches a call that makes children.
    pub(crate) sentinel: bool,
    arena: usize,
    pub(crate) record: SiteRecord,
    /// The pad that the site's jump leads to so far: it lacks consumers that came later.
    pub(crate) replaces: Option<Patched>,
    /// Window offset of each moved instruction and its address in the copy.
    pub(crate) moves: Vec<(u8, RuntimeAddr)>,
}

/// Compiles the pads and writes them and their records, while the process runs.
pub(crate) fn write_pads(
    process: &mut Process,
    context: &Context<'_>,
    wanted: &[Wanted<'_>],
    refused: &mut Vec<Refused>,
) -> Result<Vec<Pad>, EngineError> {
    let facts = process.facts.unwrap_or(Facts {
        rseq: None,
        tid: None,
    });
    let per_cpu = Cell::new(facts.rseq);
    // Sentinels come first: where one of them has no place, nothing is per CPU.
    let (sentinels, others): (Vec<_>, Vec<_>) = wanted.iter().partition(|w| w.is_sentinel());
    let mut pads = Vec::new();
    let mut images: HashMap<usize, (u64, Vec<u8>)> = HashMap::new();
    for want in sentinels.into_iter().chain(others) {
        let binary = &context.binaries[want.binary];
        let places: Vec<&Instance> = context
            .instances
            .iter()
            .filter(|i| Arc::ptr_eq(&i.binary, binary))
            .filter(|i| {
                let at = RuntimeAddr(want.plan.site().0.wrapping_add(i.bias));
                i.span.contains(&at)
            })
            .collect();
        for instance in places {
            let site = RuntimeAddr(want.plan.site().0.wrapping_add(instance.bias));
            let replaces = process.patched.get(&site).cloned();
            let has = |action| {
                replaces
                    .as_ref()
                    .is_some_and(|p| p.actions.contains(action))
            };
            if replaces.is_some() && want.actions.iter().all(has) {
                continue;
            }
            let silent = want.is_sentinel() && want.actions.len() == 1;
            let mut refuse = |reason: &'static str, message: String| {
                if want.is_sentinel() {
                    per_cpu.set(None);
                }
                if silent {
                    return;
                }
                refused.push(Refused {
                    probe: want.name.to_owned(),
                    pid: Some(process.pid),
                    reason,
                    message,
                });
            };
            if want.plan.has_call() && process.shadow_stack {
                refuse(
                    "call under shadow stack",
                    "the moved bytes hold a call and the process has a shadow stack".into(),
                );
                continue;
            }
            if replaces.is_none()
                && let Some(other) = process.overlapping(site, want.plan.window_len())
            {
                refuse(
                    "overlaps another probe",
                    format!(
                        "a jump at {site} would overwrite bytes that belong to the probe at {other}"
                    ),
                );
                continue;
            }
            let now = process.memory.bytes(site, want.plan.original().len())?;
            let mut due = want.plan.original().to_vec();
            if let Some(before) = &replaces {
                due[..arena::PATCH].copy_from_slice(&before.record.new);
            }
            if now != due {
                refuse(
                    "foreign bytes",
                    format!(
                        "the bytes at {site} are neither those of the file nor a jump of this session: a breakpoint, a kernel uprobe or another tool's hook is there; remove it first"
                    ),
                );
                continue;
            }
            let Some(index) = process.arena_for(instance) else {
                refuse("out of reach", format!("no arena reaches {site}"));
                continue;
            };
            let arena = &mut process.arenas[index];
            let (base, image) = images.entry(index).or_insert((arena.next_pad, Vec::new()));
            let at = arena.start.plus(*base + image.len() as u64);
            let env = Env {
                rseq: per_cpu.get().map(|area_from_fs| Rseq {
                    area_from_fs,
                    signature: rseq::SIGNATURE,
                }),
                tid_from_fs: facts.tid,
                mode: arena.mode,
                region: arena.region,
                layout: context.layout.clone(),
                script: context.scratch(arena.mode),
                check: context.check,
            };
            let form = if want.lock_only {
                Form::LockOnly
            } else {
                Form::Fused
            };
            match compile(want, &env, form, at, site, instance.bias) {
                Ok((bytes, mut record, moves)) => {
                    let room = arena.code_length - (*base + image.len() as u64);
                    if bytes.len() as u64 > room || arena.sites + 1 > arena.capacity {
                        refuse(
                            "no room",
                            "the room for probes in this process is used up".into(),
                        );
                        continue;
                    }
                    record.site = site;
                    image.extend_from_slice(&bytes);
                    image.resize(image.len().next_multiple_of(32), 0xcc);
                    let patched = Patched {
                        actions: want.actions.clone(),
                        record,
                        arena: index,
                        index: arena.sites,
                    };
                    process.patched.insert(site, patched);
                    arena.sites += 1;
                    pads.push(Pad {
                        name: want.name.to_owned(),
                        sentinel: want.is_sentinel(),
                        arena: index,
                        record,
                        replaces,
                        moves,
                    });
                }
                Err((reason, message)) => refuse(reason, message),
            }
        }
    }
    process.facts = Some(Facts {
        rseq: per_cpu.get(),
        ..facts
    });
    for (index, (base, image)) in images {
        let arena = &mut process.arenas[index];
        process.memory.write(arena.start.plus(base), &image)?;
        arena.next_pad = base + image.len() as u64;
        let records: Vec<SiteRecord> = pads
            .iter()
            .filter(|p| p.arena == index)
            .map(|p| p.record)
            .collect();
        let have = arena.sites - records.len() as u32;
        arena::append_sites(&process.memory, arena.start, have, arena.capacity, &records)?;
    }
    Ok(pads)
}

type Compiled = (Vec<u8>, SiteRecord, Vec<(u8, RuntimeAddr)>);

fn compile(
    want: &Wanted<'_>,
    env: &Env,
    form: Form,
    at: RuntimeAddr,
    site: RuntimeAddr,
    bias: u64,
) -> Result<Compiled, (&'static str, String)> {
    let code = lancet_jit::emit(&want.actions, form, env, at, site)
        .map_err(|e| ("not compiled", e.to_string()))?;
    lancet_jit::verify(&code, env, at).map_err(|e| ("not verified", e.to_string()))?;
    let (Ok(before), Ok(action)) = (
        u16::try_from(code.entry),
        u16::try_from(code.end - code.entry),
    ) else {
        let bytes = code.bytes.len();
        let why = format!("the actions at {site} take {bytes} bytes of code: split the block");
        return Err(("not compiled", why));
    };
    let copy_at = at.plus(u64::from(code.end));
    let by_plan = |e: lancet_isa::Refusal| (e.reason(), e.to_string());
    let copy = want.plan.emit_copy(copy_at, bias).map_err(by_plan)?;
    lancet_isa::check(want.plan, &copy, copy_at, bias)
        .map_err(|e| ("not verified", e.to_string()))?;
    let entry = at.plus(u64::from(code.entry));
    let new = lancet_isa::jump(site, entry).map_err(by_plan)?;
    let mut old = [0; arena::PATCH];
    old.copy_from_slice(&want.plan.original()[..arena::PATCH]);
    let record = SiteRecord {
        site,
        pad: entry,
        old,
        new,
        window: want.plan.window_len(),
        live: true,
        before,
        action,
        copy: copy.bytes.len() as u16,
    };
    let moves = copy
        .boundaries
        .iter()
        .map(|&(window, offset)| (window, copy_at.plus(u64::from(offset))))
        .collect();
    let mut bytes = code.bytes;
    bytes.extend_from_slice(&copy.bytes);
    Ok((bytes, record, moves))
}
