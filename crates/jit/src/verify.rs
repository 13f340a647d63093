//! An independent look at emitted code: it decodes the bytes and follows every
//! path, knowing nothing of how they were made.
//!
//! The states of all paths are joined until nothing changes. A state says, for
//! each register, each word pushed and the flags, whether it is the site's.
//! From any instruction of an rseq section there is a path to the section's
//! abort handler.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess,
    OpKind, Register as R,
};
use lancet_abi::map::MAX_PROBES;
use lancet_abi::units::RuntimeAddr;

use crate::action::{Code, Env};
use crate::checking::FRAME;
use crate::error::JitError;
use crate::script::Compiled;

mod state;

use state::{FlagState, Holds, State};

/// Most bytes under the site's stack pointer, the red zone among them.
const MAX_DEPTH: i64 = 256;
/// As much, and the frame of copies, where the code checks itself.
const MAX_CHECKED_DEPTH: i64 = MAX_DEPTH + FRAME as i64;
const RED_ZONE: i64 = 128;
const GETTID: i64 = 186;

/// Proves of code that was made for `at` and `env`: it has no loop but a
/// counted one of at most [`MAX_PROBES`] rounds and the restart of an rseq
/// section; it uses no vector register; it never leaves its bytes but over
/// their end, and there every register, the flags and the stack pointer are
/// the site's; it takes at most 256 bytes of stack and leaves the red zone
/// alone; an rseq section stores once, at its end; its direct memory operands
/// lie in the region, the mode word and its own descriptors, or are the rseq
/// fields and the thread's id; the target's own registers are followed nowhere
/// but to the four bytes at rdi, a clone call's flags.
///
/// A function of a script's action, which was proven by itself, may be called where the stack
/// suffices for it; registers that it changes come back from the stack or the scratch slot.
///
/// Code that checks itself may also push the flags, and takes 152 bytes of stack more.
///
/// # Errors
/// [`JitError::Verify`] names the first instruction that breaks a rule.
pub fn verify(code: &Code, env: &Env, at: RuntimeAddr) -> Result<(), JitError> {
    if code.end as usize != code.bytes.len() || code.entry > code.end {
        return Err(JitError::Verify {
            at,
            rule: "entry or end is outside",
        });
    }
    let mut graph = Graph {
        code,
        env,
        at: at.0,
        nodes: BTreeMap::new(),
        sections: BTreeMap::new(),
    };
    graph.discover()?;
    let states = graph.flow()?;
    graph.loops(&states)
}

/// An rseq section as its descriptor gives it, in offsets.
#[derive(Clone, Copy)]
struct Section {
    start: u32,
    commit: u32,
    abort: u32,
}

struct Graph<'c> {
    code: &'c Code,
    env: &'c Env,
    at: u64,
    nodes: BTreeMap<u32, Instruction>,
    /// By the descriptor's offset.
    sections: BTreeMap<u32, Section>,
}

impl Graph<'_> {
    fn broken<T>(&self, offset: u32, rule: &'static str) -> Result<T, JitError> {
        Err(JitError::Verify {
            at: RuntimeAddr(self.at + u64::from(offset)),
            rule,
        })
    }

    /// Decodes all that can be reached.
    fn discover(&mut self) -> Result<(), JitError> {
        let mut todo = vec![self.code.entry];
        while let Some(offset) = todo.pop() {
            if offset == self.code.end || self.nodes.contains_key(&offset) {
                continue;
            }
            let rest = &self.code.bytes[offset as usize..];
            let ip = self.at + u64::from(offset);
            let instruction = Decoder::with_ip(64, rest, ip, DecoderOptions::NONE).decode();
            if instruction.is_invalid() {
                return self.broken(offset, "bytes that are no instruction");
            }
            self.check_operands(offset, &instruction, &mut todo)?;
            self.nodes.insert(offset, instruction);
            todo.extend(self.next(offset, &instruction)?);
        }
        let mut last = 0;
        for (&offset, instruction) in &self.nodes {
            if offset < last {
                return self.broken(offset, "instructions overlap");
            }
            last = offset + instruction.len() as u32;
        }
        self.sections
            .values()
            .try_for_each(|section| self.check_section(section))
    }

    /// Where control can go by itself.
    fn next(&self, offset: u32, instruction: &Instruction) -> Result<Vec<u32>, JitError> {
        let behind = offset + instruction.len() as u32;
        let target = || {
            let target = instruction.near_branch_target().wrapping_sub(self.at);
            match u32::try_from(target) {
                Ok(target) if target <= self.code.end => Ok(target),
                _ => self.broken(offset, "a branch leaves the code"),
            }
        };
        match instruction.flow_control() {
            FlowControl::Next => Ok(vec![behind]),
            FlowControl::UnconditionalBranch => Ok(vec![target()?]),
            FlowControl::ConditionalBranch => Ok(vec![behind, target()?]),
            FlowControl::Call if instruction.mnemonic() == Mnemonic::Syscall => Ok(vec![behind]),
            FlowControl::Call if self.called(instruction).is_some() => Ok(vec![behind]),
            _ => self.broken(offset, "a call, return, indirect branch or trap"),
        }
    }

    /// The script's function that a call goes to.
    fn called(&self, instruction: &Instruction) -> Option<&Compiled> {
        let target = instruction.near_branch_target().wrapping_sub(self.at);
        let functions = self.code.bytes.get(..self.code.functions as usize)?;
        let there = functions.get(usize::try_from(target).ok()?..)?;
        let (script, _) = self.env.script.as_ref()?;
        let mut actions = script.actions.iter().flatten();
        actions.find(|one| there.starts_with(&one.bytes))
    }

    /// The process's scratch slots.
    fn scratch(&self) -> std::ops::Range<u64> {
        self.env.script.as_ref().map_or(0..0, |(script, scratch)| {
            scratch.at.0..scratch.at.0 + script.scratch_size()
        })
    }

    fn check_operands(
        &mut self,
        offset: u32,
        instruction: &Instruction,
        todo: &mut Vec<u32>,
    ) -> Result<(), JitError> {
        let mut factory = InstructionInfoFactory::new();
        for used in factory.info(instruction).used_registers() {
            let r = used.register();
            if !r.is_gpr() && !r.is_segment_register() {
                return self.broken(offset, "a register that is not general");
            }
        }
        if instruction.memory_segment() == R::FS {
            let at = instruction.memory_displacement64().cast_signed();
            let known = |field: Option<i32>| field.is_some_and(|field| i64::from(field) == at);
            let rseq = |field: i32| self.env.rseq.map(|rseq| rseq.area_from_fs + field);
            let plain =
                instruction.memory_base() == R::None && instruction.memory_index() == R::None;
            let (id, cs) = (known(rseq(4)), known(rseq(8)));
            let tid = known(self.env.tid_from_fs);
            if !plain || !(cs || (id || tid) && !stores(instruction)) {
                return self.broken(
                    offset,
                    "an access through fs that is not the rseq area or tid",
                );
            }
            return Ok(());
        }
        if !instruction.is_ip_rel_memory_operand() {
            return Ok(());
        }
        let target = instruction.ip_rel_memory_address();
        let region = self.env.region.0..self.env.region.0 + self.env.layout.size();
        let mode = self.env.mode.0..self.env.mode.0 + 8;
        if region.contains(&target) || mode.contains(&target) {
            return Ok(());
        }
        let descriptor = target.wrapping_sub(self.at);
        if descriptor >= u64::from(self.code.end) || instruction.mnemonic() != Mnemonic::Lea {
            return self.broken(
                offset,
                "an operand outside region, mode word and descriptors",
            );
        }
        let descriptor = descriptor as u32;
        let Some(section) = self.read_section(descriptor) else {
            return self.broken(offset, "no rseq descriptor where one is named");
        };
        self.sections.insert(descriptor, section);
        todo.push(section.abort);
        Ok(())
    }

    fn read_section(&self, descriptor: u32) -> Option<Section> {
        let bytes = self.code.bytes.get(descriptor as usize..)?.get(..32)?;
        let word = |i: usize| {
            bytes[8 * i..]
                .first_chunk()
                .map(|word| u64::from_le_bytes(*word))
        };
        let offset = |address: u64| {
            let offset = u32::try_from(address.checked_sub(self.at)?).ok()?;
            (offset < self.code.end).then_some(offset)
        };
        let (start, abort) = (offset(word(1)?)?, offset(word(3)?)?);
        let commit = offset(word(1)?.checked_add(word(2)?)?)?;
        let signature = abort
            .checked_sub(4)
            .map(|at| &self.code.bytes[at as usize..abort as usize]);
        let right = self
            .env
            .rseq
            .is_some_and(|rseq| signature == Some(&rseq.signature.to_le_bytes()[..]));
        let aligned = (self.at + u64::from(descriptor)).is_multiple_of(32);
        let outside = abort < start || abort >= commit;
        (right && aligned && outside && word(0)? == 0).then_some(Section {
            start,
            commit,
            abort,
        })
    }

    /// Nothing but the last instruction of a section may store.
    fn check_section(&self, section: &Section) -> Result<(), JitError> {
        let mut at = section.start;
        while let Some(instruction) = self.nodes.get(&at).filter(|_| at < section.commit) {
            let behind = at + instruction.len() as u32;
            if stores(instruction) != (behind == section.commit) {
                return self.broken(at, "an rseq section stores once, by its last instruction");
            }
            if instruction.mnemonic() == Mnemonic::Syscall {
                return self.broken(at, "a system call in an rseq section");
            }
            at = behind;
        }
        if at == section.commit {
            Ok(())
        } else {
            self.broken(at, "an rseq section has a gap")
        }
    }

    /// The states before each instruction, when all paths are followed.
    fn flow(&self) -> Result<BTreeMap<u32, State>, JitError> {
        let mut states = BTreeMap::from([(self.code.entry, State::at_site())]);
        let mut todo = BTreeSet::from([self.code.entry]);
        while let Some(offset) = todo.pop_first() {
            let state = states[&offset];
            let Some(instruction) = self.nodes.get(&offset) else {
                continue;
            };
            let after = self.step(offset, instruction, state)?;
            let mut edges: Vec<_> = self
                .next(offset, instruction)?
                .into_iter()
                .map(|to| (to, after))
                .collect();
            let around = self
                .sections
                .values()
                .filter(|s| (s.start..s.commit).contains(&offset));
            edges.extend(around.map(|section| (section.abort, state)));
            for (to, state) in edges {
                let joined = match states.get(&to) {
                    None => state,
                    Some(known) => match known.join(&state) {
                        Some(joined) => joined,
                        None => return self.broken(to, "paths meet with different stacks"),
                    },
                };
                if states.get(&to) != Some(&joined) {
                    states.insert(to, joined);
                    todo.insert(to);
                }
            }
        }
        match states.get(&self.code.end) {
            Some(state) if (state.depth, state.flags) != (0, FlagState::Original) => {
                self.broken(self.code.end, "flags or stack pointer differ at the end")
            }
            Some(state) if state.registers != State::at_site().registers => {
                self.broken(self.code.end, "a register differs at the end")
            }
            None if self.code.entry != self.code.end => {
                self.broken(self.code.end, "the end is never reached")
            }
            _ => Ok(states),
        }
    }

    /// Most bytes under the site's stack pointer.
    fn deepest(&self) -> i64 {
        if self.env.check {
            MAX_CHECKED_DEPTH
        } else {
            MAX_DEPTH
        }
    }

    /// What one instruction does to a state.
    fn step(&self, offset: u32, i: &Instruction, mut state: State) -> Result<State, JitError> {
        let (first, second) = (i.op0_register(), i.op1_register());
        let old = state.get(R::RAX);
        match i.mnemonic() {
            Mnemonic::Push if first.is_gpr64() => {
                if state.depth < RED_ZONE || state.depth + 8 > self.deepest() {
                    return self.broken(offset, "a push into the red zone or too deep");
                }
                state.depth += 8;
                state.push(state.get(first));
                return Ok(state);
            }
            Mnemonic::Pushfq
                if (self.env.check || self.env.script.is_some()) && state.depth >= RED_ZONE =>
            {
                state.depth += 8;
                if state.depth > self.deepest() {
                    return self.broken(offset, "a push into the red zone or too deep");
                }
                state.push(Holds::Anything);
                return Ok(state);
            }
            Mnemonic::Pop if first.is_gpr64() && first != R::RSP => {
                let holds = state.pop();
                state.depth -= 8;
                state.set(first, holds);
                return Ok(state);
            }
            Mnemonic::Lea if first == R::RSP => {
                let plain = i.memory_base() == R::RSP && i.memory_index() == R::None;
                state.depth -= i.memory_displacement64().cast_signed();
                if !plain || state.depth < 0 || state.depth > self.deepest() {
                    return self.broken(offset, "the stack pointer is lost or too deep");
                }
                let depth = state.depth;
                state.forget_below(depth);
                return Ok(state);
            }
            Mnemonic::Call => {
                let Some(called) = self.called(i) else {
                    return self.broken(offset, "a call of something unknown");
                };
                let stack = i64::from(called.stack);
                if state.depth < RED_ZONE || state.depth + stack > self.deepest() {
                    return self.broken(offset, "a call with too little stack");
                }
                state.call(&called.clobbers);
                return Ok(state);
            }
            Mnemonic::Syscall if old != Holds::Number(GETTID) => {
                return self.broken(offset, "a system call that is not gettid");
            }
            _ => {}
        }
        if let Some(rule) = through_original(i, &state) {
            return self.broken(offset, rule);
        }
        if stores(i) && (i.memory_base() == R::RSP || i.memory_index() == R::RSP) {
            return self.broken(offset, "a store to the stack that is no push");
        }
        let kept = kept_register(i, &state);
        let before = state;
        let mut factory = InstructionInfoFactory::new();
        for used in factory.info(i).used_registers() {
            if writes(used.access()) && used.register().is_gpr() {
                if used.register().full_register() == R::RSP {
                    return self.broken(offset, "the stack pointer is lost or too deep");
                }
                state.set(used.register(), Holds::Anything);
            }
        }
        let flags = state.flags;
        if i.rflags_modified() != 0 {
            state.flags = FlagState::Anything;
        }
        match i.mnemonic() {
            Mnemonic::Lahf if flags == FlagState::Original => state.set(R::RAX, Holds::FlagsInAh),
            Mnemonic::Seto
                if first == R::AL && flags == FlagState::Original && old == Holds::FlagsInAh =>
            {
                state.set(R::RAX, Holds::Flags);
            }
            Mnemonic::Add
                if first == R::AL
                    && i.op1_kind() == OpKind::Immediate8
                    && i.immediate8() == 0x7f
                    && old == Holds::Flags =>
            {
                state.set(R::RAX, Holds::Flags);
                state.flags = FlagState::Overflow;
            }
            Mnemonic::Sahf if old == Holds::Flags && flags == FlagState::Overflow => {
                state.flags = FlagState::Original;
            }
            Mnemonic::Mov
                if first.is_gpr64()
                    && i.op1_kind() == OpKind::Memory
                    && i.memory_base() == R::RSP
                    && i.memory_index() == R::None =>
            {
                let depth = state.depth - i.memory_displacement64().cast_signed();
                state.set(first, state.word(depth));
            }
            Mnemonic::Mov if kept.is_some() => {
                let number = kept.unwrap_or_default();
                if i.op0_kind() == OpKind::Memory {
                    state.kept[number] = before.get(second);
                } else {
                    state.set(first, before.kept[number]);
                }
            }
            Mnemonic::Mov if first.is_gpr64() && before.get(second) == Holds::Slot => {
                state.set(first, Holds::Slot);
            }
            Mnemonic::Add if first.is_gpr64() && before.get(first) == Holds::Slot => {
                state.set(first, Holds::Slot);
            }
            Mnemonic::Mov
                if first.is_gpr64()
                    && i.op1_kind() == OpKind::Immediate64
                    && self.scratch().contains(&i.immediate64()) =>
            {
                state.set(first, Holds::Slot);
            }
            Mnemonic::Mov
                if first.is_gpr32() && second == R::None && i.op1_kind() == OpKind::Immediate32 =>
            {
                state.set(first, Holds::Number(i.immediate32().into()));
            }
            _ => {}
        }
        Ok(state)
    }

    /// Every cycle is closed by a counted branch.
    fn loops(&self, states: &BTreeMap<u32, State>) -> Result<(), JitError> {
        let mut done = BTreeSet::new();
        let roots = self
            .sections
            .values()
            .map(|s| s.abort)
            .chain([self.code.entry]);
        let mut roots: Vec<u32> = roots.collect();
        while let Some(root) = roots.pop() {
            let mut path = vec![(root, false)];
            let mut open = BTreeSet::new();
            while let Some((offset, leaving)) = path.pop() {
                if leaving {
                    open.remove(&offset);
                    done.insert(offset);
                    continue;
                }
                let Some(instruction) = self.nodes.get(&offset) else {
                    continue;
                };
                if done.contains(&offset) || !open.insert(offset) {
                    continue;
                }
                path.push((offset, true));
                for to in self.next(offset, instruction)? {
                    if open.contains(&to) {
                        self.check_loop(offset, to, states)?;
                    }
                    path.push((to, false));
                }
            }
        }
        Ok(())
    }

    /// The branch at `from` back to `to`: `dec counter; jne`, with the counter
    /// set to a small number before, and written by nothing else in the loop.
    fn check_loop(
        &self,
        from: u32,
        to: u32,
        states: &BTreeMap<u32, State>,
    ) -> Result<(), JitError> {
        let rule = "a loop without a bound";
        let before = self.nodes.range(..from).next_back();
        let Some((&dec, counter)) = before.filter(|(at, i)| {
            i.mnemonic() == Mnemonic::Dec
                && i.op0_register().is_gpr64()
                && **at + i.len() as u32 == from
                && self.nodes[&from].mnemonic() == Mnemonic::Jne
        }) else {
            return self.broken(from, rule);
        };
        let counter = counter.op0_register();
        let mut before: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (&offset, instruction) in &self.nodes {
            for next in self.next(offset, instruction)? {
                before.entry(next).or_default().push(offset);
            }
        }
        // All that leads to `from` without passing `to`.
        let mut body = BTreeSet::from([to]);
        let mut todo = vec![from];
        while let Some(offset) = todo.pop() {
            if body.insert(offset) {
                todo.extend(before.get(&offset).into_iter().flatten());
            }
        }
        let mut factory = InstructionInfoFactory::new();
        for offset in &body {
            let written = factory
                .info(&self.nodes[offset])
                .used_registers()
                .iter()
                .any(|used| writes(used.access()) && used.register().full_register() == counter);
            if (written && *offset != dec) || *offset == self.code.entry {
                return self.broken(*offset, rule);
            }
        }
        for &enters in before[&to].iter().filter(|offset| !body.contains(offset)) {
            let state = self.step(enters, &self.nodes[&enters], states[&enters])?;
            match state.get(counter) {
                Holds::Number(n) if (1..=i64::from(MAX_PROBES)).contains(&n) => {}
                _ => return self.broken(enters, rule),
            }
        }
        Ok(())
    }
}

/// The register whose place in the scratch slot an instruction loads or stores as a whole.
fn kept_register(i: &Instruction, state: &State) -> Option<usize> {
    let whole = i.op0_register().is_gpr64() || i.op1_register().is_gpr64();
    let plain = i.memory_index() == R::None && state.get(i.memory_base()) == Holds::Slot;
    let at = i.memory_displacement64();
    let number = (0..16).find(|number| crate::script::register_offset(*number) == at);
    number.filter(|_| i.mnemonic() == Mnemonic::Mov && whole && plain)
}

/// What stands against an access through a register that the target chose. The flags of a clone
/// call, which the kernel reads next, are the one exception.
fn through_original(i: &Instruction, state: &State) -> Option<&'static str> {
    let mut factory = InstructionInfoFactory::new();
    let info = factory.info(i);
    let chosen = |register: R| {
        let holds = state.get(register);
        register != R::RSP && matches!(holds, Holds::Original(_))
    };
    let bad = info
        .used_memory()
        .iter()
        .filter(|m| chosen(m.base()) || chosen(m.index()))
        .any(|m| {
            let flags = state.get(m.base()) == Holds::Original(R::RDI)
                && m.index() == R::None
                && m.displacement() == 0
                && m.memory_size().size() == 4
                && m.access() == OpAccess::Read;
            !flags
        });
    bad.then_some("memory at an address of the target's choosing")
}

fn writes(access: OpAccess) -> bool {
    !matches!(
        access,
        OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess
    )
}

fn stores(instruction: &Instruction) -> bool {
    let mut factory = InstructionInfoFactory::new();
    factory
        .info(instruction)
        .used_memory()
        .iter()
        .any(|memory| writes(memory.access()))
}

#[cfg(test)]
mod tests;
