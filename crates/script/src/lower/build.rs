//! The action that is being made: blocks, registers, scratch buffers, variables in scope.

use std::collections::HashMap;

use crate::ir::{Action, BinOp, Block, BlockId, BufId, Inst, Place, Reg, Term, Value};
use crate::types::Ty;

/// A value and where it is.
#[derive(Clone, Debug)]
pub(super) struct Val {
    pub(super) ty: Ty,
    pub(super) at: At,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum At {
    Nowhere,
    Word(Value),
    Bytes(Place),
}

impl Val {
    pub(super) fn word(ty: Ty, value: Value) -> Val {
        Val {
            ty,
            at: At::Word(value),
        }
    }

    pub(super) fn bytes(ty: Ty, place: Place) -> Val {
        Val {
            ty,
            at: At::Bytes(place),
        }
    }

    pub(super) fn unknown() -> Val {
        Val::word(Ty::Unknown, Value::Imm(0))
    }

    pub(super) fn void() -> Val {
        Val {
            ty: Ty::Void,
            at: At::Nowhere,
        }
    }

    /// The register or constant; zero where an error was told.
    pub(super) fn value(&self) -> Value {
        match self.at {
            At::Word(value) => value,
            _ => Value::Imm(0),
        }
    }

    pub(super) fn constant(&self) -> Option<i64> {
        match self.at {
            At::Word(Value::Imm(value)) => Some(value),
            _ => None,
        }
    }
}

/// A `$variable` of this action.
#[derive(Clone, Debug)]
pub(super) struct Var {
    /// Its number among the program's variables.
    pub(super) id: usize,
    pub(super) at: At,
    /// With `let $x : type` assignments are cut to it.
    pub(super) declared: bool,
}

pub(super) struct Loop {
    pub(super) next: BlockId,
    pub(super) end: BlockId,
}

#[derive(Default)]
pub(super) struct Builder {
    blocks: Vec<(Vec<Inst>, Option<Term>)>,
    current: usize,
    regs: u32,
    buffers: Vec<u32>,
    free: Vec<BufId>,
    temps: Vec<BufId>,
    init: Vec<Inst>,
    pub(super) scopes: Vec<HashMap<String, Var>>,
    pub(super) loops: Vec<Loop>,
    /// Statements deep; variables of deeper ones are set to zero at the entry.
    pub(super) nested: u32,
}

impl Builder {
    pub(super) fn new() -> Builder {
        Builder {
            blocks: vec![(Vec::new(), None)],
            scopes: vec![HashMap::new()],

            ..Builder::default()
        }
    }

    pub(super) fn reg(&mut self) -> Reg {
        self.regs += 1;
        Reg(self.regs - 1)
    }

    pub(super) fn push(&mut self, inst: Inst) {
        self.blocks[self.current].0.push(inst);
    }

    /// Something into a new register.
    pub(super) fn def(&mut self, inst: impl FnOnce(Reg) -> Inst) -> Value {
        let dst = self.reg();
        self.push(inst(dst));
        Value::Reg(dst)
    }

    pub(super) fn bin(&mut self, op: BinOp, a: Value, b: Value) -> Value {
        match (a, b) {
            (Value::Imm(x), Value::Imm(y)) if !(op.divides() && y == 0) => {
                Value::Imm(op.eval(x, y))
            }
            _ => self.def(|dst| Inst::Bin { dst, op, a, b }),
        }
    }

    /// A buffer that lives as long as the action.
    pub(super) fn buffer(&mut self, size: u32) -> Place {
        self.buffers.push(size.next_multiple_of(8));
        Place {
            buf: BufId(self.buffers.len() as u32 - 1),
            offset: 0,
        }
    }

    /// A buffer that lives as long as the statement.
    pub(super) fn temp(&mut self, size: u32) -> Place {
        let size = size.next_multiple_of(8);
        let found = self
            .free
            .iter()
            .position(|id| self.buffers[id.index()] == size);
        let buf = match found {
            Some(at) => self.free.swap_remove(at),
            None => self.buffer(size).buf,
        };
        self.temps.push(buf);
        Place { buf, offset: 0 }
    }

    pub(super) fn mark(&self) -> usize {
        self.temps.len()
    }

    pub(super) fn release(&mut self, mark: usize) {
        let done = self.temps.split_off(mark.min(self.temps.len()));
        self.free.extend(done);
    }

    pub(super) fn at_entry(&mut self, inst: Inst) {
        self.init.push(inst);
    }

    pub(super) fn block(&mut self) -> BlockId {
        self.blocks.push((Vec::new(), None));
        BlockId(self.blocks.len() as u32 - 1)
    }

    /// Ends the current block; what follows without [`Builder::enter`] is never reached.
    pub(super) fn end(&mut self, term: Term) {
        let slot = &mut self.blocks[self.current].1;
        if slot.is_none() {
            *slot = Some(term);
        }
    }

    pub(super) fn enter(&mut self, block: BlockId) {
        self.current = block.index();
    }

    /// A block that nothing leads to, for the code behind `return`, `break` and `continue`.
    pub(super) fn unreachable(&mut self) {
        let block = self.block();
        self.enter(block);
    }

    pub(super) fn var(&self, name: &str) -> Option<&Var> {
        self.scopes.iter().rev().find_map(|scope| scope.get(name))
    }

    /// The finished code. Unreachable blocks are left out.
    pub(super) fn finish(mut self, fuel: u32) -> Action {
        self.end(Term::Return);
        let mut reached = vec![false; self.blocks.len()];
        let mut work = vec![0];
        while let Some(at) = work.pop() {
            if !std::mem::replace(&mut reached[at], true) {
                match self.blocks[at].1 {
                    Some(Term::Jump(to) | Term::Loop(to)) => work.push(to.index()),
                    Some(Term::Branch { then, other, .. }) => {
                        work.extend([then.index(), other.index()])
                    }
                    Some(Term::Return) | None => {}
                }
            }
        }
        let mut number = 0;
        let renumbered: Vec<BlockId> = reached
            .iter()
            .map(|reached| {
                let id = BlockId(number);
                number += u32::from(*reached);
                id
            })
            .collect();
        let to = |id: BlockId| renumbered[id.index()];
        let mut blocks: Vec<Block> = Vec::new();
        for ((insts, term), _) in self
            .blocks
            .into_iter()
            .zip(&reached)
            .filter(|(_, reached)| **reached)
        {
            let term = match term.unwrap_or(Term::Return) {
                Term::Return => Term::Return,
                Term::Jump(id) => Term::Jump(to(id)),
                Term::Loop(id) => Term::Loop(to(id)),
                Term::Branch { cond, then, other } => Term::Branch {
                    cond,
                    then: to(then),
                    other: to(other),
                },
            };
            blocks.push(Block { insts, term });
        }
        let body = std::mem::take(&mut blocks[0].insts);
        blocks[0].insts = self.init.into_iter().chain(body).collect();
        Action {
            blocks,
            regs: self.regs,
            buffers: self.buffers,
            fuel,
            ..Action::default()
        }
    }
}
