//! One action as one function of the code generator: `fn(slot)`.
//!
//! Virtual registers and buffers live in the scratch slot, not on the target's stack: within a
//! block the code generator sees a register's last value, across blocks it is loaded anew. So
//! hardly anything is ever spilled.

use std::collections::BTreeMap;

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{
    AbiParam, Block, ExtFuncData, ExternalName, FuncRef, Function, InstBuilder, MemFlagsData,
    Signature, UserExternalName, UserFuncName, Value as Ssa, types,
};
use cranelift_codegen::isa::{CallConv, TargetFrontendConfig};
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use lancet_script::ir::{BinOp, BlockId, Inst, Place, Program, Reg, Term, Value, Warning, Width};

use super::frame::{self, Frame};
use super::shared::{Count, Shared};

/// Code that is being made.
pub(super) struct Maker<'a> {
    pub(super) b: FunctionBuilder<'a>,
    pub(super) program: &'a Program,
    /// The action's number in the program.
    pub(super) number: usize,
    pub(super) shared: &'a Shared,
    pub(super) frame: Frame,
    pub(super) slot: Ssa,
    /// CPUs that are online.
    pub(super) cpus: u32,
    /// Functions that make a system call, by its number.
    syscalls: BTreeMap<i64, FuncRef>,
    blocks: Vec<Block>,
    /// Values of registers that the current block has seen.
    known: Vec<Option<Ssa>>,
}

/// What is needed besides the program.
#[derive(Clone, Copy)]
pub(super) struct Surroundings<'a> {
    pub(super) program: &'a Program,
    pub(super) number: usize,
    pub(super) shared: &'a Shared,
    pub(super) cpus: u32,
}

pub(super) fn signature() -> Signature {
    // The one convention in which the callee saves nothing: the entry has saved all registers.
    let mut signature = Signature::new(CallConv::Winch);
    signature.params.push(AbiParam::new(types::I64));
    signature
}

/// The action's function; it calls nothing but functions `0:N`, which make system call N with the
/// arguments in the slot.
pub(super) fn build(
    around: Surroundings<'_>,
    frame: Frame,
    target: TargetFrontendConfig,
) -> Function {
    let action = &around.program.actions[around.number];
    let mut function = Function::with_name_signature(UserFuncName::user(0, 1), signature());
    let mut context = FunctionBuilderContext::new();
    let mut b = FunctionBuilder::new(&mut function, &mut context);
    let entry = b.create_block();
    b.append_block_params_for_function_params(entry);
    b.switch_to_block(entry);
    let slot = b.block_params(entry)[0];
    let blocks = action.blocks.iter().map(|_| b.create_block()).collect();
    let mut maker = Maker {
        b,
        program: around.program,
        number: around.number,
        shared: around.shared,
        frame,
        slot,
        cpus: around.cpus,
        syscalls: BTreeMap::new(),
        blocks,
        known: vec![None; action.regs as usize],
    };
    let fuel = maker.imm(i64::from(action.fuel));
    maker.put(frame::FUEL, fuel);
    maker.jump(maker.blocks[0]);
    for (block, at) in action.blocks.iter().zip(0..) {
        maker.enter(maker.blocks[at]);
        block.insts.iter().for_each(|inst| maker.inst(inst));
        maker.end(block.term);
    }
    maker.b.seal_all_blocks();
    maker.b.finalize(target);
    function
}

pub(super) const PLAIN: MemFlagsData = MemFlagsData::trusted();

impl Maker<'_> {
    pub(super) fn imm(&mut self, value: i64) -> Ssa {
        self.b.ins().iconst(types::I64, value)
    }

    /// A word of the slot.
    pub(super) fn word(&mut self, offset: i32) -> Ssa {
        self.b.ins().load(types::I64, PLAIN, self.slot, offset)
    }

    pub(super) fn put(&mut self, offset: i32, value: Ssa) {
        self.b.ins().store(PLAIN, value, self.slot, offset);
    }

    /// An address in the slot.
    pub(super) fn address(&mut self, offset: i32) -> Ssa {
        self.b.ins().iadd_imm_s(self.slot, i64::from(offset))
    }

    /// An address in the region's part for scripts.
    pub(super) fn region(&mut self, offset: u64) -> Ssa {
        let base = self.word(frame::REGION);
        self.b.ins().iadd_imm_s(base, offset as i64)
    }

    pub(super) fn place(&mut self, place: Place) -> Ssa {
        let offset = self.offset(place);
        self.address(offset)
    }

    pub(super) fn offset(&self, place: Place) -> i32 {
        self.frame.buffer(place.buf) + place.offset as i32
    }

    pub(super) fn value(&mut self, value: Value) -> Ssa {
        match value {
            Value::Imm(value) => self.imm(value),
            Value::Reg(reg) => match self.known[reg.index()] {
                Some(value) => value,
                None => {
                    let value = self.word(self.frame.reg(reg));
                    self.known[reg.index()] = Some(value);
                    value
                }
            },
        }
    }

    pub(super) fn set(&mut self, reg: Reg, value: Ssa) {
        self.put(self.frame.reg(reg), value);
        self.known[reg.index()] = Some(value);
    }

    /// A new block with so many words as parameters.
    pub(super) fn block(&mut self, params: usize) -> Block {
        let block = self.b.create_block();
        for _ in 0..params {
            self.b.append_block_param(block, types::I64);
        }
        block
    }

    /// Goes on in a block that may be reached from elsewhere: only what is in memory is known.
    pub(super) fn enter(&mut self, block: Block) {
        self.b.switch_to_block(block);
        self.known.fill(None);
    }

    pub(super) fn jump(&mut self, to: Block) {
        self.b.ins().jump(to, &[]);
    }

    pub(super) fn jump_with(&mut self, to: Block, values: &[Ssa]) {
        let args: Vec<_> = values.iter().map(|value| (*value).into()).collect();
        self.b.ins().jump(to, &args);
    }

    pub(super) fn branch(&mut self, cond: Ssa, then: Block, other: Block) {
        self.b.ins().brif(cond, then, &[], other, &[]);
    }

    /// Runs `part` where the condition holds, and goes on.
    pub(super) fn when(&mut self, cond: Ssa, part: impl FnOnce(&mut Self)) {
        let (then, on) = (self.block(0), self.block(0));
        self.branch(cond, then, on);
        self.enter(then);
        part(self);
        self.jump(on);
        self.enter(on);
    }

    /// Counts, as one step.
    pub(super) fn count(&mut self, count: Count) {
        let at = self.region(self.shared.count(self.number, count));
        let one = self.imm(1);
        self.add(at, one);
    }

    pub(super) fn warn(&mut self, warning: Warning) {
        self.count(Count::Warning(warning));
    }

    /// Adds to a shared word; what it was.
    pub(super) fn add(&mut self, at: Ssa, value: Ssa) -> Ssa {
        use cranelift_codegen::ir::AtomicRmwOp::Add;
        self.b.ins().atomic_rmw(types::I64, PLAIN, Add, at, value)
    }

    /// A shared word.
    pub(super) fn load(&mut self, at: Ssa, offset: u64) -> Ssa {
        let at = self.b.ins().iadd_imm_s(at, offset as i64);
        self.b.ins().atomic_load(types::I64, PLAIN, at)
    }

    /// Makes a system call; its result.
    pub(super) fn system_call(&mut self, number: i64, arguments: &[Ssa]) -> Ssa {
        let syscall = self.syscall(number);
        for (argument, at) in arguments.iter().zip(1..) {
            self.put(frame::CALL + 8 * at, *argument);
        }
        self.b.ins().call(syscall, &[self.slot]);
        self.word(frame::CALL)
    }

    fn syscall(&mut self, number: i64) -> FuncRef {
        if let Some(known) = self.syscalls.get(&number) {
            return *known;
        }
        let name = UserExternalName::new(0, number as u32);
        let name = self.b.func.declare_imported_user_function(name);
        let signature = self.b.import_signature(signature());
        let made = self.b.import_function(ExtFuncData {
            name: ExternalName::user(name),
            signature,
            colocated: true,
            patchable: false,
        });
        self.syscalls.insert(number, made);
        made
    }

    fn end(&mut self, term: Term) {
        let to = |maker: &Self, id: BlockId| maker.blocks[id.index()];
        match term {
            Term::Return => {
                self.b.ins().return_(&[]);
            }
            Term::Jump(next) => self.jump(to(self, next)),
            Term::Branch { cond, then, other } => {
                let cond = self.value(cond);
                self.branch(cond, to(self, then), to(self, other));
            }
            Term::Loop(head) => {
                let fuel = self.word(frame::FUEL);
                let (on, out) = (self.block(0), self.block(0));
                self.branch(fuel, on, out);
                self.enter(out);
                self.warn(Warning::Fuel);
                self.b.ins().return_(&[]);
                self.enter(on);
                let less = self.b.ins().iadd_imm_s(fuel, -1);
                self.put(frame::FUEL, less);
                self.jump(to(self, head));
            }
        }
    }

    fn inst(&mut self, inst: &Inst) {
        match *inst {
            Inst::Copy { dst, src } => {
                let value = self.value(src);
                self.set(dst, value);
            }
            Inst::Bin { dst, op, a, b } => {
                let (a, b) = (self.value(a), self.value(b));
                if op.divides() {
                    let zero = self.b.ins().icmp_imm_s(IntCC::Equal, b, 0);
                    self.when(zero, |maker| maker.warn(Warning::DivisionByZero));
                }
                let value = self.operate(op, a, b);
                self.set(dst, value);
            }
            Inst::Extend { dst, src, width } => {
                let value = self.value(src);
                let value = self.extend(value, width);
                self.set(dst, value);
            }
            Inst::Fact { dst, fact } => {
                let value = self.fact(fact);
                self.set(dst, value);
            }
            Inst::Load { dst, src } => {
                let value = self.word(self.offset(src));
                self.set(dst, value);
            }
            Inst::Store { dst, src } => {
                let value = self.value(src);
                self.put(self.offset(dst), value);
            }
            Inst::Emit { format, ref args } => self.emit(format, args),
            Inst::MapGet { .. }
            | Inst::MapGetBytes { .. }
            | Inst::MapSet { .. }
            | Inst::MapSetBytes { .. }
            | Inst::MapUpdate { .. }
            | Inst::Aggregate { .. }
            | Inst::MapDelete { .. }
            | Inst::MapHas { .. }
            | Inst::MapLen { .. }
            | Inst::MapNext { .. } => self.map_inst(inst),
            _ => self.text_inst(inst),
        }
    }

    /// The low bytes of a value, extended.
    pub(super) fn extend(&mut self, value: Ssa, width: Width) -> Ssa {
        let narrow = match width.bytes {
            1 => types::I8,
            2 => types::I16,
            4 => types::I32,
            _ => return value,
        };
        let low = self.b.ins().ireduce(narrow, value);
        if width.signed {
            self.b.ins().sextend(types::I64, low)
        } else {
            self.b.ins().uextend(types::I64, low)
        }
    }

    /// The operation as the language defines it; a division never traps.
    pub(super) fn operate(&mut self, op: BinOp, a: Ssa, b: Ssa) -> Ssa {
        let compared = |maker: &mut Self, cc| {
            let bit = maker.b.ins().icmp(cc, a, b);
            maker.b.ins().uextend(types::I64, bit)
        };
        match op {
            BinOp::Add => self.b.ins().iadd(a, b),
            BinOp::Sub => self.b.ins().isub(a, b),
            BinOp::Mul => self.b.ins().imul(a, b),
            BinOp::SDiv | BinOp::UDiv | BinOp::SRem | BinOp::URem => self.divide(op, a, b),
            BinOp::And => self.b.ins().band(a, b),
            BinOp::Or => self.b.ins().bor(a, b),
            BinOp::Xor => self.b.ins().bxor(a, b),
            BinOp::Shl => self.b.ins().ishl(a, b),
            BinOp::LShr => self.b.ins().ushr(a, b),
            BinOp::AShr => self.b.ins().sshr(a, b),
            BinOp::Eq => compared(self, IntCC::Equal),
            BinOp::Ne => compared(self, IntCC::NotEqual),
            BinOp::SLt => compared(self, IntCC::SignedLessThan),
            BinOp::SLe => compared(self, IntCC::SignedLessThanOrEqual),
            BinOp::ULt => compared(self, IntCC::UnsignedLessThan),
            BinOp::ULe => compared(self, IntCC::UnsignedLessThanOrEqual),
        }
    }

    /// By unsigned division of the magnitudes: the signed instruction comes with a trap.
    fn divide(&mut self, op: BinOp, a: Ssa, b: Ssa) -> Ssa {
        let (zero, one) = (self.imm(0), self.imm(1));
        let by_zero = self.b.ins().icmp(IntCC::Equal, b, zero);
        // What would trap divides by 1 instead, and takes another result.
        let divisor = self.b.ins().select(by_zero, one, b);
        let negative =
            |maker: &mut Self, value| maker.b.ins().icmp_imm_s(IntCC::SignedLessThan, value, 0);
        let magnitude = |maker: &mut Self, value, negative| {
            let negated = maker.b.ins().ineg(value);
            maker.b.ins().select(negative, negated, value)
        };
        let result = match op {
            BinOp::UDiv => self.b.ins().udiv(a, divisor),
            BinOp::URem => self.b.ins().urem(a, divisor),
            _ => {
                let (minus_a, minus_b) = (negative(self, a), negative(self, divisor));
                let x = magnitude(self, a, minus_a);
                let y = magnitude(self, divisor, minus_b);
                let (result, minus) = if op == BinOp::SDiv {
                    let minus = self.b.ins().bxor(minus_a, minus_b);
                    (self.b.ins().udiv(x, y), minus)
                } else {
                    (self.b.ins().urem(x, y), minus_a)
                };
                magnitude(self, result, minus)
            }
        };
        self.b.ins().select(by_zero, one, result)
    }
}
