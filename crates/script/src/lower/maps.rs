//! Maps: what is learned of them, and how keys are laid out.

use super::Lower;
use super::build::{At, Val};
use super::text::behind;
use crate::ast::Expr;
use crate::diag::{Diagnostic, Span, nearest};
use crate::ir::{Agg, Inst, Key, Map, MapId, MapKind, MapValue};
use crate::types::{I64, Ty, U64, fields};

#[derive(Clone, Debug)]
pub(super) struct MapState {
    pub(super) name: String,
    /// None before the first use; an empty tuple for a map without key.
    pub(super) key: Option<Ty>,
    pub(super) value: Holds,
    pub(super) first: Span,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Holds {
    Unknown,
    Plain(Ty),
    Agg { agg: Agg, signed: bool },
}

impl Lower<'_> {
    pub(super) fn declare_maps(&mut self) {
        for decl in &self.tree.maps {
            if !matches!(
                decl.kind.as_str(),
                "hash" | "lruhash" | "percpuhash" | "percpulruhash"
            ) {
                self.error(decl.span, format!("unknown kind of map `{}`", decl.kind));
            }
            if decl.entries == 0 || decl.entries > 1 << 24 {
                self.error(decl.span, "a map has 1 to 16777216 entries");
            }
            if self
                .tree
                .maps
                .iter()
                .filter(|other| other.name == decl.name)
                .count()
                > 1
            {
                self.error(
                    decl.span,
                    format!("{} is declared more than once", decl.name),
                );
            }
            self.map_id(&decl.name, decl.span);
        }
    }

    pub(super) fn map_id(&mut self, name: &str, span: Span) -> MapId {
        let maps = &mut self.learned.maps;
        let known = maps.iter().position(|map| map.name == name);
        let at = known.unwrap_or_else(|| {
            self.learned.changed = true;
            maps.push(MapState {
                name: name.to_owned(),
                key: None,
                value: Holds::Unknown,
                first: span,
            });
            maps.len() - 1
        });
        MapId(at as u32)
    }

    pub(super) fn map_state(&self, map: MapId) -> &MapState {
        &self.learned.maps[map.index()]
    }

    /// Evaluates the key and makes it fit the map.
    pub(super) fn key(&mut self, map: MapId, keys: Option<&[Expr]>, span: Span) -> Key {
        let val = match keys {
            None => self.tuple_of(&[], span),
            Some([]) => {
                self.error(span, "the key is missing");
                return Key::None;
            }
            Some([only]) => {
                let val = self.expr(only);
                self.key_value(val, only.span)
            }
            Some(several) => {
                let vals = several.iter().map(|key| {
                    let val = self.expr(key);
                    self.key_value(val, key.span)
                });
                let vals: Vec<Val> = vals.collect();
                self.tuple_of(&vals, span)
            }
        };
        let learned = self.learned.maps[map.index()].key.clone();
        let joined = match &learned {
            None => Some(val.ty.clone()),
            Some(known) => known.join(&val.ty),
        };
        let Some(joined) = joined else {
            let name = self.map_state(map).name.clone();
            let what = |ty: &Ty| {
                if ty.size() == 0 {
                    "no key".to_owned()
                } else {
                    format!("key {}", ty.name())
                }
            };
            let known = learned.as_ref().map_or(String::new(), what);
            self.error(
                span,
                format!(
                    "{name} is used with {} here and with {known} elsewhere",
                    what(&val.ty)
                ),
            );
            return self.any_key(map);
        };
        if learned.as_ref() != Some(&joined) {
            self.learned.changed = true;
            self.learned.maps[map.index()].key = Some(joined.clone());
        }
        if joined.size() == 0 {
            Key::None
        } else if joined.is_word() {
            Key::Word(val.value())
        } else {
            Key::Bytes(self.fit(&val, &joined))
        }
    }

    fn tuple_of(&mut self, vals: &[Val], span: Span) -> Val {
        if vals.is_empty() {
            Val {
                ty: Ty::Tuple(vec![]),
                at: At::Nowhere,
            }
        } else {
            self.tuple(vals, span)
        }
    }

    /// Keys' integers are 64 bits wide, so that one map does not split by the width of what was at hand.
    fn key_value(&mut self, val: Val, span: Span) -> Val {
        match val.ty {
            Ty::Int(width) if width.bytes < 8 => Val { ty: I64, ..val },
            Ty::Void | Ty::Time(_) => {
                self.error(span, format!("{} cannot be a key", val.ty.name()));
                Val::unknown()
            }
            _ => val,
        }
    }

    /// A key of the right layout after an error.
    fn any_key(&mut self, map: MapId) -> Key {
        match self.map_state(map).key.clone() {
            Some(ty) if ty.size() > 0 => {
                let size = ty.size();
                let dst = self.b.temp(size);
                self.b.push(Inst::Zero { dst, size });
                Key::Bytes(dst)
            }
            _ => Key::None,
        }
    }

    /// Notes that the map holds values of the type; the type that it holds now, or None after an error.
    pub(super) fn holds(
        &mut self,
        map: MapId,
        ty: &Ty,
        constant: Option<i64>,
        span: Span,
    ) -> Option<Ty> {
        let wide = match ty {
            Ty::Int(width) if width.signed => I64,
            Ty::Int(_) => U64,
            Ty::Void | Ty::Time(_) => {
                self.error(span, format!("{} cannot be kept in a map", ty.name()));
                return None;
            }
            other => other.clone(),
        };
        let state = &self.learned.maps[map.index()];
        let joined = match &state.value {
            Holds::Unknown => Some(wide),
            // a constant that fits takes the map's signedness
            Holds::Plain(known @ Ty::Int(_))
                if *known == U64 && constant.is_some_and(|value| value >= 0) =>
            {
                Some(known.clone())
            }
            Holds::Plain(known) => known.join(&wide),
            Holds::Agg { .. } => None,
        };
        let Some(joined) = joined else {
            let (name, held) = (state.name.clone(), describe(&state.value));
            let error = Diagnostic::error(
                span,
                format!("{name} holds {held} and cannot be assigned {}", ty.name()),
            );
            self.tell(error.hint("use another map"));
            return None;
        };
        if joined == Ty::Unknown {
            return Some(joined);
        }
        if state.value != Holds::Plain(joined.clone()) {
            self.learned.changed = true;
            self.learned.maps[map.index()].value = Holds::Plain(joined.clone());
        }
        Some(joined)
    }

    pub(super) fn aggregates(&mut self, map: MapId, agg: Agg, signed: bool, span: Span) -> bool {
        let state = &self.learned.maps[map.index()];
        let wanted = Holds::Agg { agg, signed };
        match &state.value {
            Holds::Unknown => {}
            Holds::Agg {
                agg: known,
                signed: known_signed,
            } if *known == agg && (*known_signed || !signed) => return true,
            // any signed value makes the whole signed
            Holds::Agg { agg: known, .. } if *known == agg => {}
            held => {
                let (name, held) = (state.name.clone(), describe(held));
                self.error(
                    span,
                    format!("{name} holds {held} and cannot take {}", describe(&wanted)),
                );
                return false;
            }
        }
        self.learned.changed = true;
        self.learned.maps[map.index()].value = wanted;
        true
    }

    /// The maps of the program, as learned.
    pub(super) fn finish_maps(&mut self) {
        let states = std::mem::take(&mut self.learned.maps);
        for state in &states {
            let value = match &state.value {
                Holds::Plain(ty) => MapValue::Field(ty.field(0)),
                Holds::Agg { agg, signed } => MapValue::Agg {
                    agg: *agg,
                    signed: *signed,
                },
                Holds::Unknown => {
                    let declared_only = self.tree.maps.iter().any(|decl| decl.name == state.name)
                        && state.key.is_none();
                    if !declared_only && !self.broken && !self.tried.contains(&state.name) {
                        let error = Diagnostic::error(
                            state.first,
                            format!("{} is never assigned", state.name),
                        );
                        let others = states
                            .iter()
                            .filter(|other| other.value != Holds::Unknown)
                            .map(|other| other.name.as_str());
                        self.tell(match nearest(&state.name, others) {
                            Some(near) => error.hint(format!("did you mean {near}?")),
                            None => error,
                        });
                    }
                    MapValue::Field(I64.field(0))
                }
            };
            let key = match &state.key {
                Some(Ty::Tuple(parts)) => fields(parts),
                Some(ty) => vec![ty.field(0)],
                None => vec![],
            };
            let decl = self.tree.maps.iter().find(|decl| decl.name == state.name);
            let limit = decl.map_or(self.program.config.max_map_keys, |decl| {
                decl.entries.clamp(1, 1 << 24) as u32
            });
            let key_size = state.key.as_ref().map_or(0, Ty::size);
            let kind = if decl.is_some_and(|decl| decl.kind.contains("lru")) {
                MapKind::LruHash
            } else {
                MapKind::Hash
            };
            let capacity = if key_size == 0 { 1 } else { limit };
            self.program.maps.push(Map {
                name: state.name.clone(),
                key,
                key_size,
                value,
                capacity,
                kind,
            });
        }
    }

    /// Where a tuple's part begins.
    pub(super) fn part(&mut self, val: &Val, number: u32, span: Span) -> Val {
        let (Ty::Tuple(parts), At::Bytes(place)) = (&val.ty, val.at) else {
            if val.ty != Ty::Unknown {
                self.error(span, format!("{} has no elements", val.ty.name()));
            }
            return Val::unknown();
        };
        let Some(ty) = parts.get(number as usize) else {
            self.error(
                span,
                format!(
                    "the tuple has {} elements, there is no .{number}",
                    parts.len()
                ),
            );
            return Val::unknown();
        };
        let offset = parts[..number as usize].iter().map(Ty::size).sum();
        let ty = ty.clone();
        self.load(&ty, behind(place, offset))
    }
}

pub(super) fn describe(holds: &Holds) -> String {
    match holds {
        Holds::Unknown => "nothing".into(),
        Holds::Plain(ty) => ty.name(),
        Holds::Agg { agg, .. } => match agg {
            Agg::Hist { bits } => format!("hist(n, {bits})"),
            Agg::Lhist { min, max, step } => format!("lhist(n, {min}, {max}, {step})"),
            other => format!("{other:?}()").to_lowercase(),
        },
    }
}
