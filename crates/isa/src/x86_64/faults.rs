//! Which instructions may fault, for programs whose runtime looks faults up by address.

use iced_x86::{Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register};

/// Whether `instruction` may raise a fault that a runtime could expect at its address.
///
/// Memory counts as safe through `rsp`, `rbp`, `rip`, a fixed address or the thread block, and in Go through `r14`
/// (`g`), each without an index. Division and the trap instructions count as faults: runtimes use both in place of
/// explicit checks.
pub(super) fn may_fault(instruction: &Instruction, go: bool) -> bool {
    if matches!(
        instruction.mnemonic(),
        Mnemonic::Div
            | Mnemonic::Idiv
            | Mnemonic::Ud0
            | Mnemonic::Ud1
            | Mnemonic::Ud2
            | Mnemonic::Hlt
            | Mnemonic::Int1
    ) {
        return true;
    }
    let mut factory = InstructionInfoFactory::new();
    factory
        .info(instruction)
        .used_memory()
        .iter()
        .any(|memory| {
            let touches = !matches!(memory.access(), OpAccess::None | OpAccess::NoMemAccess);
            let safe_base = match memory.base() {
                Register::None | Register::RSP | Register::RBP | Register::RIP => true,
                Register::R14 => go,
                _ => false,
            };
            touches && !(safe_base && memory.index() == Register::None)
        })
}
