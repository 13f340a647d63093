//! The out-of-line copy.

use lancet_abi::units::{LinkAddr, RuntimeAddr};

use super::flow::{self, Form, Movable};
use super::jump::displacement;
use super::{Plan, decode, jump};
use crate::Refusal;

/// The window's instructions, relocated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// The instructions, then a jump back to the window's end unless the last one never goes there, then constants
    /// (aligned to 8 in memory).
    pub bytes: Vec<u8>,
    /// Window offset and copy offset of each instruction start. When there is a jump back, the last pair is the
    /// window's end and that jump: where a thread goes that shows the window's end behind a system call. Without a
    /// jump back (the window ends with a ret, a jmp or a call) that pair is absent: a thread at the window's end stands
    /// outside of the window and stays there.
    pub boundaries: Vec<(u8, u16)>,
}

impl Plan {
    /// Relocates the window to `at`, in a process where a runtime address is the link address plus `bias`.
    ///
    /// # Errors
    /// [`Refusal::OutOfReach`] when `at` is too far from something that the window refers to.
    pub fn emit_copy(&self, at: RuntimeAddr, bias: u64) -> Result<Copy, Refusal> {
        Emitter::new(self, at, bias).emit()
    }

    /// Whether the last instruction leaves for good, so that no jump back is needed. After a trap it is: a signal
    /// handler may step over it.
    fn leaves(&self) -> bool {
        let from = self.boundaries()[self.instructions() - 1];
        let last = decode::one(&self.original()[from.into()..], 0);
        self.has_call() || last.is_some_and(|i| flow::leaves(&i))
    }
}

struct Emitter<'a> {
    plan: &'a Plan,
    at: RuntimeAddr,
    bias: u64,
    starts: Vec<(u8, u16)>,
    bytes: Vec<u8>,
    /// Where the constant with the original return address lies.
    return_address: RuntimeAddr,
    leaves: bool,
}

impl<'a> Emitter<'a> {
    fn new(plan: &'a Plan, at: RuntimeAddr, bias: u64) -> Self {
        let mut len = 0_u16;
        let mut starts = Vec::with_capacity(plan.forms.len() + 1);
        for (offset, form) in plan.boundaries().iter().zip(&plan.forms) {
            starts.push((*offset, len));
            len += form.len() as u16;
        }
        let leaves = plan.leaves();
        if !leaves {
            starts.push((plan.window_len(), len));
            len += u16::from(super::JUMP_LEN);
        }
        let code_end = at.plus(len.into());
        let return_address = RuntimeAddr(code_end.0.wrapping_add(7) & !7);
        Self {
            plan,
            at,
            bias,
            starts,
            bytes: Vec::new(),
            return_address,
            leaves,
        }
    }

    fn emit(mut self) -> Result<Copy, Refusal> {
        let plan = self.plan;
        for form in &plan.forms {
            self.form(form)?;
        }
        let end = RuntimeAddr(plan.window_end().0.wrapping_add(self.bias));
        if !self.leaves {
            self.long_jump(end)?;
        }
        if plan.has_call() {
            let padding = self.return_address.offset_from(self.here());
            self.bytes.extend((0..padding).map(|_| 0xcc));
            self.bytes.extend(end.0.to_le_bytes());
        }
        Ok(Copy {
            bytes: self.bytes,
            boundaries: self.starts,
        })
    }

    fn form(&mut self, form: &Form) -> Result<(), Refusal> {
        match form {
            Form::Same(movable) => self.movable(movable),
            Form::Jump(target) => self.long_jump(self.destination(*target)),
            Form::Conditional(condition, target) => {
                self.relative(&[0x0f, 0x80 | condition], self.destination(*target))
            }
            Form::Counted { short, target } => {
                self.bytes.extend(short);
                // Taken: over the two-byte jump that takes the other way over the long one.
                self.bytes.extend([2, 0xeb, 5]);
                self.long_jump(self.destination(*target))
            }
            Form::Transaction(target) => self.relative(&[0xc7, 0xf8], self.destination(*target)),
            Form::Call(target) => {
                self.push_return_address()?;
                self.long_jump(self.destination(*target))
            }
            Form::CallThrough(movable) => {
                self.push_return_address()?;
                self.movable(movable)
            }
        }
    }

    /// Where a branch to a link address goes at run time: into the copy when it stays inside the window, but to the
    /// site itself when it goes to the window's start, since each such pass is a hit.
    fn destination(&self, target: u64) -> RuntimeAddr {
        let offset = LinkAddr(target).offset_from(self.plan.site());
        let inside = self.starts[..self.plan.forms.len()]
            .iter()
            .skip(1)
            .find(|(start, _)| u64::from(*start) == offset);
        inside.map_or(RuntimeAddr(target.wrapping_add(self.bias)), |(_, copy)| {
            self.at.plus((*copy).into())
        })
    }

    fn here(&self) -> RuntimeAddr {
        self.at.plus(self.bytes.len() as u64)
    }

    fn push_return_address(&mut self) -> Result<(), Refusal> {
        self.relative(&[0xff, 0x35], self.return_address)
    }

    fn long_jump(&mut self, to: RuntimeAddr) -> Result<(), Refusal> {
        let bytes = jump(self.here(), to)?;
        self.bytes.extend(bytes);
        Ok(())
    }

    /// An opcode whose only operand is a 32-bit displacement at its end.
    fn relative(&mut self, opcode: &[u8], to: RuntimeAddr) -> Result<(), Refusal> {
        let field = displacement(self.here(), opcode.len() as u64 + 4, to)?;
        self.bytes.extend(opcode);
        self.bytes.extend(field);
        Ok(())
    }

    fn movable(&mut self, movable: &Movable) -> Result<(), Refusal> {
        let start = self.bytes.len();
        let from = self.here();
        self.bytes.extend(&movable.bytes);
        if let Some((field, target)) = movable.reference {
            let to = RuntimeAddr(target.wrapping_add(self.bias));
            let value = displacement(from, movable.bytes.len() as u64, to)?;
            self.bytes[start + field..start + field + 4].copy_from_slice(&value);
        }
        Ok(())
    }
}
