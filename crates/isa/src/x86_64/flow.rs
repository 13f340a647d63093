//! What each instruction becomes in a copy.

use iced_x86::{Code, Encoder, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::decode;

/// Bytes that run anywhere, but for one displacement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Movable {
    pub(super) bytes: Vec<u8>,
    /// Offset of a 32-bit displacement from `rip`, and the link address that it must name.
    pub(super) reference: Option<(usize, u64)>,
}

/// How one instruction is relocated. Targets are link addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The same bytes.
    Same(Movable),
    /// `jmp rel32`.
    Jump(u64),
    /// `jcc rel32`, by the condition's number in the opcode.
    Conditional(u8, u64),
    /// `jrcxz`, `loop` and their kind, which have only a short form: branch over a jump over a long jump.
    Counted { short: Vec<u8>, target: u64 },
    /// `xbegin rel32`.
    Transaction(u64),
    /// Push of the original return address, then a jump.
    Call(u64),
    /// Push of the original return address, then an indirect jump.
    CallThrough(Movable),
}

/// Why an instruction has no [`Form`].
pub(super) type Obstacle = &'static str;

impl Form {
    /// How `instruction`, whose bytes are `bytes`, is relocated.
    pub(super) fn of(instruction: &Instruction, bytes: &[u8]) -> Result<Self, Obstacle> {
        let relative = is_relative(instruction);
        let target = instruction.near_branch_target();
        let prefixes = decode::prefixes(bytes);
        // With REX.W the operand has 64 bits anyway: compilers pad calls to `__tls_get_addr` so.
        let wide = prefixes.last().is_some_and(|p| (0x48..=0x4f).contains(p));
        if (relative || instruction.is_call_near_indirect()) && prefixes.contains(&0x66) && !wide {
            return Err("processors disagree about a branch or call with an operand-size prefix");
        }
        let opcode = &bytes[prefixes.len()..];
        match instruction.code() {
            Code::Jmp_rel8_64 | Code::Jmp_rel32_64 => Ok(Self::Jump(target)),
            Code::Call_rel32_64 => Ok(Self::Call(target)),
            Code::Xbegin_rel32 => Ok(Self::Transaction(target)),
            Code::Call_rm64 => call_through(instruction).map(Self::CallThrough),
            code if code.is_jcc_short() => Ok(Self::Conditional(opcode[0] & 0xf, target)),
            code if code.is_jcc_near() => Ok(Self::Conditional(opcode[1] & 0xf, target)),
            code if code.is_jcx_short() || code.is_loop() || code.is_loopcc() => {
                let mut short: Vec<u8> = prefixes
                    .iter()
                    .copied()
                    .filter(|p| *p == 0x67)
                    .take(1)
                    .collect();
                short.push(opcode[0]);
                Ok(Self::Counted { short, target })
            }
            _ if relative => Err("this relative branch has no form that reaches far"),
            _ if instruction.flow_control() == FlowControl::IndirectCall => {
                Err("far calls and 16-bit calls push an address of the copy")
            }
            _ => same(instruction, bytes).map(Self::Same),
        }
    }

    /// Its length in the copy.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Same(movable) => movable.bytes.len(),
            Self::Jump(_) => 5,
            Self::Conditional(..) | Self::Transaction(_) => 6,
            Self::Counted { short, .. } => short.len() + 1 + 2 + 5,
            Self::Call(_) => 6 + 5,
            Self::CallThrough(movable) => 6 + movable.bytes.len(),
        }
    }

    /// Where its direct branch or call goes.
    pub(super) fn target(&self) -> Option<u64> {
        match self {
            Self::Same(_) | Self::CallThrough(_) => None,
            Self::Counted { target, .. } => Some(*target),
            Self::Jump(target)
            | Self::Conditional(_, target)
            | Self::Transaction(target)
            | Self::Call(target) => Some(*target),
        }
    }

    pub(super) fn is_call(&self) -> bool {
        matches!(self, Self::Call(_) | Self::CallThrough(_))
    }
}

/// Whether the instruction's first operand is relative to it.
pub(super) fn is_relative(instruction: &Instruction) -> bool {
    matches!(
        instruction.op0_kind(),
        OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
    )
}

/// Whether the instruction enters the kernel and comes back behind itself.
pub(super) fn is_syscall(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Syscall | Mnemonic::Sysenter | Mnemonic::Int
    )
}

/// Whether control never comes to what lies behind the instruction, other than by a branch.
pub(super) fn leaves(instruction: &Instruction) -> bool {
    matches!(
        instruction.flow_control(),
        FlowControl::Return | FlowControl::UnconditionalBranch | FlowControl::IndirectBranch
    )
}

/// Whether the instruction always faults.
pub(super) fn traps(instruction: &Instruction) -> bool {
    matches!(
        instruction.mnemonic(),
        Mnemonic::Ud0 | Mnemonic::Ud1 | Mnemonic::Ud2
    )
}

fn same(instruction: &Instruction, bytes: &[u8]) -> Result<Movable, Obstacle> {
    let reference = reference(instruction)?
        .map(|target| {
            decode::displacement_at(bytes, instruction.ip())
                .map(|at| (at, target))
                .ok_or("it has no displacement")
        })
        .transpose()?;
    Ok(Movable {
        bytes: bytes.to_vec(),
        reference,
    })
}

fn reference(instruction: &Instruction) -> Result<Option<u64>, Obstacle> {
    match instruction.memory_base() {
        Register::RIP => Ok(Some(instruction.ip_rel_memory_address())),
        Register::EIP => {
            Err("its address is relative to the lower half of the instruction pointer")
        }
        _ => Ok(None),
    }
}

/// The jump that does the second half of an indirect call, when the return address was pushed already.
fn call_through(call: &Instruction) -> Result<Movable, Obstacle> {
    let memory = call.op0_kind() == OpKind::Memory;
    if call.op0_register() == Register::RSP && !memory {
        return Err("a call through the stack pointer can't follow the push");
    }
    let target = reference(call)?;
    let mut jump = *call;
    jump.set_code(Code::Jmp_rm64);
    if memory && call.memory_base() == Register::ESP {
        return Err("its address is relative to the lower half of the stack pointer");
    }
    if memory && call.memory_base() == Register::RSP {
        let from = call.memory_displacement64().cast_signed();
        let plain =
            call.memory_index() == Register::None && call.segment_prefix() == Register::None;
        if plain && (-15..0).contains(&from) {
            return Err(
                "the pushed return address would overwrite the pointer that the call reads",
            );
        }
        let moved = from
            .checked_add(8)
            .filter(|d| i32::try_from(*d).is_ok())
            .ok_or("its displacement is too large")?;
        jump.set_memory_displacement64(moved.cast_unsigned());
        // One byte holds -128..=127, four hold the rest; the stack pointer as base can't go without a field in the
        // encoder's view unless the displacement is zero.
        jump.set_memory_displ_size(match moved {
            0 => 0,
            -128..=127 => 1,
            _ => 8,
        });
    }
    let mut encoder = Encoder::new(64);
    encoder
        .encode(&jump, call.ip())
        .map_err(|_| "the jump that would replace it can't be encoded")?;
    let offsets = encoder.get_constant_offsets();
    let bytes = encoder.take_buffer();
    Ok(Movable {
        bytes,
        reference: target.map(|t| (offsets.displacement_offset(), t)),
    })
}
