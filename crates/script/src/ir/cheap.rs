//! Actions so simple that a code generator has hand-made code for them.

use super::{Action, Agg, Fact, Inst, Key, MapId, Reg, Term, Value};

/// An action that is one step of one aggregation, without condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cheap {
    /// The map.
    pub map: MapId,
    /// What is done.
    pub agg: Agg,
    /// Which entry.
    pub key: CheapKey,
    /// What is added: a fact or a constant.
    pub value: CheapKey,
}

/// Where an integer of a cheap action comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CheapKey {
    /// There is none.
    None,
    /// A constant.
    Constant(i64),
    /// A fact, such as `tid` or `arg0`.
    Fact(Fact),
}

impl Action {
    /// The action as one aggregation step, if it is nothing else.
    pub fn cheap(&self) -> Option<Cheap> {
        match self.steps()?.as_slice() {
            [step] => Some(*step),
            _ => None,
        }
    }

    /// The action as aggregation steps one after the other, if it is nothing else.
    pub fn steps(&self) -> Option<Vec<Cheap>> {
        let [block] = self.blocks.as_slice() else {
            return None;
        };
        if block.term != Term::Return {
            return None;
        }
        let mut known: Vec<(Reg, CheapKey)> = Vec::new();
        let find = |known: &[(Reg, CheapKey)], value: Value| match value {
            Value::Imm(constant) => Some(CheapKey::Constant(constant)),
            Value::Reg(reg) => known
                .iter()
                .rev()
                .find(|(dst, _)| *dst == reg)
                .map(|(_, from)| *from),
        };
        let mut steps = Vec::new();
        for inst in &block.insts {
            match inst {
                Inst::Fact { dst, fact } => known.push((*dst, CheapKey::Fact(*fact))),
                Inst::Copy { dst, src } => {
                    let from = find(&known, *src)?;
                    known.push((*dst, from));
                }
                Inst::Aggregate {
                    map,
                    key,
                    agg,
                    value,
                } => steps.push(Cheap {
                    map: *map,
                    agg: *agg,
                    key: match key {
                        Key::None => CheapKey::None,
                        Key::Word(value) => find(&known, *value)?,
                        Key::Bytes(_) => return None,
                    },
                    value: find(&known, *value)?,
                }),
                _ => return None,
            }
        }
        Some(steps)
    }
}
