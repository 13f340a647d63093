//! From actions to code: checks, choice of registers, order.

use iced_x86::code_asm::{AsmRegister64, byte_ptr, dword_ptr, ecx, edi, r11, rax, rcx, rdi, rdx};
use iced_x86::{Code as Op, IcedError, Instruction};
use lancet_abi::units::RuntimeAddr;
use lancet_abi::{MapLayout, histogram, map, private};

use crate::action::{Action, Code, Env, Form, Key, Mark, Update, Value};
use crate::checking;
use crate::counter::Addition;
use crate::emitter::{Emitter, Source, absolute, source};
use crate::error::JitError;
use crate::keyed;
use crate::script::{Compiled, Run};

/// Compiles the actions of one site, in order, for the address `at`
/// (32-aligned, where an rseq descriptor may lie first). `site` is what
/// [`crate::Register::Ip`] reads.
///
/// # Errors
/// An action that the layout or this compiler can't serve, or a region too far
/// from `at`.
pub fn emit(
    actions: &[Action],
    form: Form,
    env: &Env,
    at: RuntimeAddr,
    site: RuntimeAddr,
) -> Result<Code, JitError> {
    if !at.0.is_multiple_of(32) {
        return Err(JitError::Alignment { at, site });
    }
    let steps = actions
        .iter()
        .filter_map(|action| check(action, env, site).transpose())
        .collect::<Result<Vec<_>, _>>()?;
    let mark = actions
        .iter()
        .filter_map(|action| match action {
            Action::MarkUncertain { when } => Some(*when),
            _ => None,
        })
        .reduce(Mark::join);
    let mut steps = steps;
    let functions = lay_out(&mut steps, at);
    let behind = at.plus(functions.len() as u64);
    let assembled = assemble(&steps, mark, form, env, behind, site).map(|code| Code {
        entry: code.entry + functions.len() as u32,
        end: code.end + functions.len() as u32,
        functions: functions.len() as u32,
        bytes: [functions, code.bytes].concat(),
    });
    assembled.map_err(|error| JitError::Encode {
        site,
        at,
        region: env.region,
        reason: error.to_string(),
    })
}

/// Puts the functions of all steps, each once, and the names that they want before everything else.
fn lay_out(steps: &mut [Step<'_>], at: RuntimeAddr) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut placed: Vec<(*const Compiled, u64)> = Vec::new();
    for step in steps {
        let Step::Run(run) = step else { continue };
        let this: *const Compiled = run.compiled;
        let mut put = |wanted: bool, name: &str| {
            if !wanted {
                return 0;
            }
            let address = at.0 + bytes.len() as u64;
            bytes.extend((name.len() as u64).to_le_bytes());
            bytes.extend_from_slice(name.as_bytes());
            bytes.resize(bytes.len().next_multiple_of(32), 0);
            address
        };
        let (probe, func) = run.compiled.names;
        run.names_at = (put(probe, run.names.0), put(func, run.names.1));
        let known = placed.iter().find(|(other, _)| *other == this);
        run.function = match known {
            Some((_, address)) => *address,
            None => {
                let address = at.0 + bytes.len() as u64;
                bytes.extend_from_slice(&run.compiled.bytes);
                bytes.resize(bytes.len().next_multiple_of(32), 0xcc);
                placed.push((this, address));
                address
            }
        };
    }
    bytes
}

/// An action whose every part is known to be there.
enum Step<'e> {
    Plain {
        slot: lancet_abi::SlotId,
        update: Update,
    },
    Keyed {
        map: MapLayout,
        meta: u32,
        key: Key,
        update: Update,
    },
    Run(Run<'e>),
}

/// The step of an action; `None` for the mark, which comes before all steps.
fn check<'e>(
    action: &Action,
    env: &'e Env,
    site: RuntimeAddr,
) -> Result<Option<Step<'e>>, JitError> {
    let argument = |value| match value {
        Value::Arg(argument) if argument > Value::MAX_ARG => {
            Err(JitError::Argument { argument, site })
        }
        _ => Ok(()),
    };
    let needed = |update| match update {
        Update::Count => Ok(1),
        Update::Sum(value) => argument(value).map(|()| 1),
        Update::Hist(value) => argument(value).map(|()| histogram::BUCKETS),
    };
    match *action {
        Action::Plain { slot, update } => {
            let slots = env.layout.slots();
            if u64::from(slot.0) + u64::from(needed(update)?) > u64::from(slots) {
                return Err(JitError::Slot { slot, slots, site });
            }
            Ok(Some(Step::Plain { slot, update }))
        }
        Action::Keyed {
            map: id,
            function,
            key,
            update,
        } => {
            let map = *env.layout.map(id).ok_or(JitError::Map { map: id, site })?;
            if let Key::Value(value) = key {
                argument(value)?;
            }
            let needed = needed(update)?;
            if map.width != needed {
                return Err(JitError::Width {
                    map: id,
                    width: map.width,
                    needed,
                    site,
                });
            }
            let meta = map::meta(function).ok_or(JitError::Function {
                function: function.unwrap_or_default(),
                site,
            })?;
            Ok(Some(Step::Keyed {
                map,
                meta,
                key,
                update,
            }))
        }
        Action::Run {
            action,
            probe,
            func,
        } => {
            let missing = JitError::Action { action, site };
            let (script, scratch) = env.script.as_ref().ok_or(missing)?;
            let compiled = script.actions.get(action as usize).and_then(Option::as_ref);
            Ok(Some(Step::Run(Run {
                function: 0,
                names: script.names(probe, func),
                names_at: (0, 0),
                compiled: compiled.ok_or(JitError::Action { action, site })?,
                slot_size: script.slot_size,
                scratch: *scratch,
                skipped: script.shared.count(action as usize, Run::SKIPPED),
                probe,
                func,
            })))
        }
        Action::MarkUncertain { .. } => Ok(None),
    }
}

fn assemble(
    steps: &[Step<'_>],
    mark: Option<Mark>,
    form: Form,
    env: &Env,
    at: RuntimeAddr,
    site: RuntimeAddr,
) -> Result<Code, IcedError> {
    let mut emitter = Emitter::new(env, form, at, site)?;
    if steps.is_empty() && mark.is_none() {
        return Ok(Code {
            bytes: Vec::new(),
            entry: 0,
            end: 0,
            functions: 0,
        });
    }
    // What runs a function needs little stack beside it: it has a frame of its own.
    let alike = |a: &Step<'_>, b: &Step<'_>| {
        matches!((a, b), (Step::Run(_), Step::Run(_)))
            || !matches!(a, Step::Run(_)) && !matches!(b, Step::Run(_))
    };
    let mut groups: Vec<&[Step<'_>]> = steps.chunk_by(alike).collect();
    if groups.is_empty() {
        groups.push(&[]);
    }
    let mut mark = mark;
    for group in groups {
        assemble_group(&mut emitter, group, mark.take())?;
    }
    let (bytes, entry) = emitter.finish()?;
    let end = bytes.len() as u32;
    Ok(Code {
        bytes,
        entry,
        end,
        functions: 0,
    })
}

/// Steps that share a frame, after the mark.
fn assemble_group(
    emitter: &mut Emitter<'_>,
    steps: &[Step<'_>],
    mark: Option<Mark>,
) -> Result<(), IcedError> {
    let clobbers = |step: &Step<'_>| matches!(step, Step::Keyed { .. } | Step::Run(_));
    let conditional = matches!(mark, Some(Mark::CloneFlags { .. }));
    let flags = conditional
        || !steps.is_empty()
            && (steps.iter().any(clobbers) || emitter.env.check || emitter.rseq().is_none());
    let registers = registers(steps, mark, emitter);
    emitter.enter(&registers, flags)?;
    if let Some(when) = mark {
        mark_uncertain(emitter, when)?;
    }
    for step in steps {
        match *step {
            Step::Plain { slot, update } => plain(emitter, slot, update)?,
            Step::Keyed {
                map,
                meta,
                key,
                update,
            } => emitter.keyed(map, meta, key, update)?,
            Step::Run(run) => emitter.run(&run)?,
        }
    }
    emitter.leave(&registers)
}

/// What has to be saved for all steps together.
fn registers(steps: &[Step<'_>], mark: Option<Mark>, emitter: &Emitter<'_>) -> Vec<AsmRegister64> {
    let mut registers = Vec::new();
    let conditional = matches!(mark, Some(Mark::CloneFlags { .. }));
    let far_mark = mark.is_some() && !emitter.mode_is_near();
    if far_mark || conditional || !steps.is_empty() {
        registers.push(rcx);
    }
    if conditional || !steps.is_empty() {
        registers.push(rax);
    }
    if emitter.env.check && !steps.is_empty() {
        registers.extend(checking::SCRATCH);
    }
    for step in steps {
        match step {
            Step::Keyed { key, .. } => {
                registers.extend(keyed::REGISTERS);
                if *key == Key::Tid && emitter.tid_from_fs().is_none() {
                    registers.push(r11);
                }
            }
            Step::Plain {
                update: Update::Hist(_),
                ..
            } => registers.push(rdx),
            Step::Run(_) => registers.extend(Run::REGISTERS),
            Step::Plain { .. } => {}
        }
    }
    // A summand that stays in its own register needs no other.
    let copies = steps.iter().any(|step| match step {
        Step::Plain {
            update: Update::Sum(value),
            ..
        } => match source(*value) {
            Source::Register(register) => registers.contains(&register),
            Source::Stack(_) | Source::StackPointer | Source::Site => true,
        },
        _ => false,
    });
    if copies {
        registers.push(rdx);
    }
    let mut seen = Vec::new();
    registers.retain(|register| {
        !seen.contains(register) && {
            seen.push(*register);
            true
        }
    });
    registers
}

fn plain(
    emitter: &mut Emitter<'_>,
    slot: lancet_abi::SlotId,
    update: Update,
) -> Result<(), IcedError> {
    let mut addition = Addition {
        slot,
        index: None,
        addend: None,
    };
    match update {
        Update::Count => {}
        Update::Sum(value) => {
            addition.addend = Some(match source(value) {
                Source::Register(register) if !emitter.is_saved(register.into()) => register,
                _ => {
                    emitter.load(rdx, value)?;
                    rdx
                }
            });
        }
        Update::Hist(value) => {
            emitter.load(rdx, value)?;
            emitter.bucket()?;
            addition.index = Some(rdx);
        }
    }
    emitter.add(addition, false)
}

/// Sets the mode's byte for good; later hits, and the vfork child that shares
/// this memory, see it.
fn mark_uncertain(emitter: &mut Emitter<'_>, when: Mark) -> Result<(), IcedError> {
    let mut unmarked = emitter.asm.create_label();
    if let Mark::CloneFlags { in_memory } = when {
        // rdi is the site's: nothing has written to it yet.
        if in_memory {
            emitter.asm.mov(ecx, dword_ptr(rdi))?;
        } else {
            emitter.asm.mov(ecx, edi)?;
        }
        emitter.asm.test(ecx, Mark::SHARED_MEMORY)?;
        emitter.asm.je(unmarked)?;
        emitter.asm.cmp(ecx, Mark::LIBC_THREAD)?;
        emitter.asm.je(unmarked)?;
    }
    let byte = emitter.env.mode.plus(private::UNCERTAIN_BYTE);
    if emitter.mode_is_near() {
        let store = Instruction::with2(Op::Mov_rm8_imm8, absolute(byte), 1i32)?;
        emitter.asm.add_instruction(store)?;
    } else {
        emitter.asm.mov(rcx, byte.0)?;
        emitter.asm.mov(byte_ptr(rcx), 1)?;
    }
    emitter.asm.set_label(&mut unmarked)?;
    emitter.asm.zero_bytes()
}
