//! A walk over one function: is the site an instruction start, and where do its indirect jumps go?

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};
use lancet_abi::units::LinkAddr;

use super::{decode, tables, window};
use crate::{Function, Refusal, Roots, Text};

/// How far back the origin of a jump's register is searched.
const REACH: usize = 16;

/// Refuses a site that is not an instruction start, seen from the function's start.
pub(super) fn expect_boundary(
    text: &Text<'_>,
    function: &Function,
    site: LinkAddr,
) -> Result<(), Refusal> {
    let mut at = function.start.0;
    while at < site.0 {
        let bytes = text.from(LinkAddr(at));
        at = decode::one(bytes, at)
            .ok_or_else(|| decode::unknown(bytes, at))?
            .next_ip();
    }
    if at == site.0 {
        Ok(())
    } else {
        Err(Refusal::NotABoundary {
            at: site,
            function: function.start,
        })
    }
}

/// The first indirect jump of the function whose targets can't be told, or the first bytes that are unknown and may
/// hide one.
pub(super) fn unresolved(
    text: &Text<'_>,
    function: &Function,
    roots: &Roots<'_>,
) -> Option<LinkAddr> {
    let end = window::end_of(function).0;
    let mut instructions = Vec::new();
    let mut at = function.start.0;
    while at < end {
        let Some(instruction) = decode::one(text.from(LinkAddr(at)), at) else {
            return Some(LinkAddr(at));
        };
        at = instruction.next_ip();
        instructions.push(instruction);
    }
    let is_code = |target| !text.from(LinkAddr(target)).is_empty();
    let has_table = instructions.iter().any(|i| {
        i.mnemonic() == Mnemonic::Lea
            && tables::is_relative(&roots.data, i.ip_rel_memory_address(), is_code)
    });
    instructions.iter().enumerate().find_map(|(index, jump)| {
        let open = jump.is_jmp_near_indirect()
            && !match jump.op0_kind() {
                OpKind::Memory => pointer_is_known(jump, roots, is_code),
                _ => register_is_known(
                    &instructions[index.saturating_sub(REACH)..index],
                    jump,
                    has_table,
                    |load| pointer_is_known(load, roots, is_code),
                ),
            };
        open.then(|| LinkAddr(jump.ip()))
    })
}

/// Whether a code pointer that is loaded from memory is known to the scan. A pointer in memory was put there by a
/// relocation or is an address that code took, and both are entries; only a table at a fixed address must be readable.
fn pointer_is_known(load: &Instruction, roots: &Roots<'_>, is_code: impl Fn(u64) -> bool) -> bool {
    let fixed = load.memory_base() == Register::None && load.memory_index() != Register::None;
    !fixed || tables::is_absolute(&roots.data, load.memory_displacement64(), is_code)
}

/// Follows the register of a `jmp reg` back to what wrote it: an addition to a table's distance, or a load.
fn register_is_known(
    before: &[Instruction],
    jump: &Instruction,
    has_table: bool,
    pointer_is_known: impl Fn(&Instruction) -> bool,
) -> bool {
    let register = jump.op0_register().full_register();
    let mut factory = InstructionInfoFactory::new();
    let mut writes = |i: &Instruction| {
        i.is_call_near()
            || i.is_call_near_indirect()
            || factory.info(i).used_registers().iter().any(|used| {
                let reads = matches!(
                    used.access(),
                    OpAccess::None | OpAccess::Read | OpAccess::CondRead
                );
                !reads && used.register().full_register() == register
            })
    };
    let Some(writer) = before.iter().rev().find(|i| writes(i)) else {
        return false;
    };
    match writer.mnemonic() {
        Mnemonic::Add if writer.op1_kind() == OpKind::Register => {
            let distance = before.iter().rev().any(|i| {
                i.mnemonic() == Mnemonic::Movsxd
                    && i.op1_kind() == OpKind::Memory
                    && i.memory_index_scale() == 4
            });
            has_table && distance
        }
        Mnemonic::Mov => writer.op1_kind() == OpKind::Memory && pointer_is_known(writer),
        _ => false,
    }
}
