//! From an action to the bytes of its function.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::ExternalName;
use cranelift_codegen::isa::{self, OwnedTargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{Context, FinalizedRelocTarget, binemit::Reloc};
use iced_x86::code_asm::{CodeAssembler, eax, qword_ptr, r8, r9, r10, rax, rdi, rdx, rsi};
use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};
use lancet_script::ir::{Action, Fact, Inst, Program, StrSource};

use super::frame::{self, Frame};
use super::function::{self, Surroundings};
use super::shared::Shared;
use super::{facts, verify};
use crate::error::JitError;

/// What is left of 256 bytes when the entry has saved what it must.
const MOST_STACK: u32 = 256 - 168;

/// One action's function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// The bytes: they refer to nothing outside and may lie anywhere.
    pub(crate) bytes: Vec<u8>,
    /// Bytes of stack that a call of it takes, with the return address.
    pub(crate) stack: u32,
    /// Registers of the site that it reads, by number.
    pub(crate) reads: Vec<usize>,
    /// Registers that it may change.
    pub(crate) clobbers: Vec<usize>,
    /// Whether it wants the time, as records do.
    pub(crate) time: bool,
    /// Whether it asks for the time itself.
    pub(crate) nsecs: bool,
    /// Whether it wants the thread's id.
    pub(crate) tid: bool,
    /// Whether it wants the flags.
    pub(crate) flags: bool,
    /// Whether it wants the names of attach point and function as texts.
    pub(crate) names: (bool, bool),
}

/// A program's actions as machine code, and where their data lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scripts {
    pub(crate) actions: Vec<Option<Compiled>>,
    /// Bytes of one scratch slot.
    pub(crate) slot_size: u32,
    pub(crate) shared: Shared,
    /// Names of attach points and functions by their ids.
    names: OnceLock<(Vec<String>, Vec<String>)>,
}

impl Scripts {
    /// Compiles the actions that `wanted` names, by their number.
    ///
    /// # Errors
    /// [`JitError::Script`] says what this compiler can't do.
    pub fn compile(
        program: &Program,
        wanted: impl Fn(usize) -> bool,
        shared: Shared,
        cpus: u32,
    ) -> Result<Arc<Self>, JitError> {
        let refuse = |what: String| JitError::Script { what };
        let slot_size = frame::slot_size(program)
            .ok_or_else(|| refuse("the scratch memory of an action is over 1 MiB".into()))?;
        let isa = machine().map_err(refuse)?;
        let mut actions = Vec::new();
        for (number, action) in program.actions.iter().enumerate() {
            let compiled = if wanted(number) {
                let around = Surroundings {
                    program,
                    number,
                    shared: &shared,
                    cpus,
                };
                Some(compile(around, action, &isa)?)
            } else {
                None
            };
            actions.push(compiled);
        }
        Ok(Arc::new(Self {
            actions,
            slot_size,
            shared,
            names: OnceLock::new(),
        }))
    }

    /// Gives the ids of attach points and functions their names, once, before the first site.
    pub fn name(&self, probes: Vec<String>, functions: Vec<String>) {
        let _ = self.names.set((probes, functions));
    }

    /// The names with these ids; empty for one that has none.
    pub(crate) fn names(&self, probe: u32, func: u32) -> (&str, &str) {
        let Some((probes, functions)) = self.names.get() else {
            return ("", "");
        };
        let probe = probes.get(probe as usize).map_or("", String::as_str);
        let func = functions.get(func as usize).map_or("", String::as_str);
        (probe, func)
    }

    /// Whether any action asks for the time.
    #[must_use]
    pub fn tells_time(&self) -> bool {
        self.actions.iter().flatten().any(|one| one.nsecs)
    }

    /// Bytes of private memory that a process needs for its scratch slots.
    #[must_use]
    pub fn scratch_size(&self) -> u64 {
        if self.actions.iter().all(Option::is_none) {
            return 0;
        }
        u64::from(self.slot_size) * u64::from(frame::SLOTS)
    }

    /// Where the program's data lies in the region.
    #[must_use]
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Bytes that a pad takes with this action, at most.
    #[must_use]
    pub fn room(&self, action: usize) -> u64 {
        // With names of some hundred bytes.
        const ENTRY: u64 = 1024;
        let bytes = self.actions.get(action).and_then(Option::as_ref);
        bytes.map_or(0, |compiled| compiled.bytes.len() as u64 + ENTRY)
    }

    /// The machine code of an action, for people to read; `None` for one that was not compiled.
    #[must_use]
    pub fn listing(&self, action: usize) -> Option<String> {
        let one = self.actions.get(action)?.as_ref()?;
        let mut formatter = IntelFormatter::new();
        let mut text = String::new();
        for instruction in &mut Decoder::new(64, &one.bytes, DecoderOptions::NONE) {
            let mut line = String::new();
            formatter.format(&instruction, &mut line);
            text.push_str(&format!("{:6x}  {line}\n", instruction.ip()));
        }
        Some(text)
    }
}

fn machine() -> Result<OwnedTargetIsa, String> {
    let mut flags = settings::builder();
    for (name, value) in [
        ("opt_level", "speed"),
        ("is_pic", "true"),
        ("unwind_info", "false"),
        ("enable_probestack", "false"),
        (
            "enable_verifier",
            if cfg!(debug_assertions) {
                "true"
            } else {
                "false"
            },
        ),
    ] {
        flags.set(name, value).map_err(|error| error.to_string())?;
    }
    isa::lookup_by_name("x86_64-unknown-linux-gnu")
        .map_err(|error| error.to_string())?
        .finish(settings::Flags::new(flags))
        .map_err(|error| error.to_string())
}

fn compile(
    around: Surroundings<'_>,
    action: &Action,
    isa: &OwnedTargetIsa,
) -> Result<Compiled, JitError> {
    let refuse = |what: String| JitError::Script { what };
    let frame = Frame::new(action)
        .ok_or_else(|| refuse("the scratch memory of an action is over 2 GiB".into()))?;
    let mut context = Context::for_function(function::build(around, frame, isa.frontend_config()));
    let code = context
        .compile(&**isa, &mut ControlPlane::default())
        .map_err(|error| refuse(format!("the code generator fails: {:?}", error.inner)))?;
    let mut bytes = code.code_buffer().to_vec();
    let relocs = code.buffer.relocs().to_vec();
    let names = context.func.params.user_named_funcs();
    let mut thunks: BTreeMap<u32, usize> = BTreeMap::new();
    for reloc in &relocs {
        let FinalizedRelocTarget::ExternalName(ExternalName::User(name)) = reloc.target else {
            return Err(refuse(
                "the code generator refers to something unknown".into(),
            ));
        };
        if !matches!(reloc.kind, Reloc::X86CallPCRel4 | Reloc::X86PCRel4) {
            let kind = reloc.kind;
            return Err(refuse(format!(
                "the code generator wants a {kind} relocation"
            )));
        }
        let number = names[name].index;
        let thunk = match thunks.get(&number) {
            Some(known) => *known,
            None => {
                bytes.resize(bytes.len().next_multiple_of(16), 0xcc);
                let at = bytes.len();
                bytes.extend(system_call(number).map_err(|error| refuse(error.to_string()))?);
                thunks.insert(number, at);
                at
            }
        };
        let at = reloc.offset as usize;
        let distance = thunk as i64 - at as i64 + reloc.addend;
        bytes[at..at + 4].copy_from_slice(&(distance as i32).to_le_bytes());
    }
    let thunks: Vec<usize> = thunks.into_values().collect();
    let proven = verify::function(&bytes, &thunks, &facts::CALLS)?;
    if proven.stack > MOST_STACK {
        return Err(refuse(format!(
            "a block needs {} bytes of the target's stack, {MOST_STACK} are there: split it",
            proven.stack
        )));
    }
    let facts = || {
        let insts = action.blocks.iter().flat_map(|block| &block.insts);
        insts.filter_map(|inst| match inst {
            Inst::Fact { fact, .. } => Some(*fact),
            _ => None,
        })
    };
    let has_text = |wanted: StrSource| {
        let mut insts = action.blocks.iter().flat_map(|block| &block.insts);
        insts.any(|inst| matches!(inst, Inst::Str { source, .. } if *source == wanted))
    };
    let mut reads: Vec<usize> = facts().filter_map(facts::register_of).collect();
    reads.sort_unstable();
    reads.dedup();
    Ok(Compiled {
        stack: proven.stack,
        clobbers: proven.clobbers,
        reads,
        time: action.formats().next().is_some() || facts().any(|f| matches!(f, Fact::Nsecs(_))),
        nsecs: facts().any(|fact| matches!(fact, Fact::Nsecs(_))),
        // It is also who holds a bucket's lock.
        tid: facts().any(|fact| fact == Fact::Tid) || action.maps().next().is_some(),
        flags: facts().any(|fact| fact == facts::FLAGS),
        names: (has_text(StrSource::Probe), has_text(StrSource::Func)),
        bytes,
    })
}

/// Makes a system call with the arguments in the slot at rdi, and leaves its result there.
fn system_call(number: u32) -> Result<Vec<u8>, iced_x86::IcedError> {
    let mut asm = CodeAssembler::new(64)?;
    let word = |at: i32| frame::CALL + 8 * at;
    asm.push(rdi)?;
    asm.mov(rsi, qword_ptr(rdi + word(2)))?;
    asm.mov(rdx, qword_ptr(rdi + word(3)))?;
    asm.mov(r10, qword_ptr(rdi + word(4)))?;
    asm.mov(r8, qword_ptr(rdi + word(5)))?;
    asm.mov(r9, qword_ptr(rdi + word(6)))?;
    asm.mov(rdi, qword_ptr(rdi + word(1)))?;
    asm.mov(eax, number)?;
    asm.syscall()?;
    asm.pop(rdi)?;
    asm.mov(qword_ptr(rdi + word(0)), rax)?;
    asm.ret()?;
    asm.assemble(0)
}
