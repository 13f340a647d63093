//! Which bytes a jump at a site overwrites.

use iced_x86::{Instruction, Mnemonic};
use lancet_abi::units::LinkAddr;

use super::{JUMP_LEN, decode, flow};
use crate::{Function, Refusal, Text};

/// Whole instructions from the site on, then padding that nothing runs.
#[derive(Clone, Debug)]
pub(super) struct Window {
    pub(super) instructions: Vec<Instruction>,
    /// Length with padding.
    pub(super) len: u8,
}

/// The end of the function's own instructions.
pub(super) fn end_of(function: &Function) -> LinkAddr {
    if function.end > function.start {
        function.end
    } else {
        function.next
    }
}

/// The shortest window at `site` that holds a jump.
pub(super) fn choose(
    text: &Text<'_>,
    site: LinkAddr,
    function: &Function,
) -> Result<Window, Refusal> {
    let end = end_of(function).0;
    let limit = function.next.0.max(end).min(text.end().0);
    let mut instructions: Vec<Instruction> = Vec::new();
    let mut at = site.0;
    loop {
        let have = at - site.0;
        if have >= u64::from(JUMP_LEN) {
            return Ok(Window {
                instructions,
                len: have as u8,
            });
        }
        let too_short = || too_short(site, at);
        let falls = instructions
            .last()
            .is_none_or(|i| !flow::leaves(i) && !flow::traps(i));
        let bytes = inside(text, at, limit);
        if !falls && (at >= end || bytes.first() == Some(&0xcc)) {
            let need = usize::from(JUMP_LEN) - have as usize;
            if !is_padding(bytes, need, end.saturating_sub(at)) {
                return Err(too_short());
            }
            return Ok(Window {
                instructions,
                len: JUMP_LEN,
            });
        }
        if bytes.is_empty() {
            return Err(too_short());
        }
        if let Some(last) = instructions.last()
            && let Some(what) = must_be_last(last)
        {
            return Err(Refusal::NotLast {
                site,
                at: LinkAddr(last.ip()),
                what,
            });
        }
        let Some(instruction) = decode::one(bytes, at) else {
            let cut = decode::one(text.from(LinkAddr(at)), at).is_some();
            return Err(if cut {
                too_short()
            } else {
                decode::unknown(bytes, at)
            });
        };
        if instruction.mnemonic() == Mnemonic::Int3 {
            return Err(Refusal::TrapByte { at: LinkAddr(at) });
        }
        let own = at < end;
        if (own && instruction.next_ip() > end) || (!own && instruction.mnemonic() != Mnemonic::Nop)
        {
            return Err(too_short());
        }
        at = instruction.next_ip();
        instructions.push(instruction);
    }
}

fn too_short(site: LinkAddr, limit: u64) -> Refusal {
    Refusal::TooShort {
        site,
        have: (limit - site.0) as u8,
        need: JUMP_LEN,
        limit: LinkAddr(limit),
    }
}

fn inside<'a>(text: &Text<'a>, at: u64, limit: u64) -> &'a [u8] {
    let bytes = text.from(LinkAddr(at));
    &bytes[..bytes.len().min(limit.saturating_sub(at) as usize)]
}

fn must_be_last(instruction: &Instruction) -> Option<&'static str> {
    if flow::is_syscall(instruction) {
        return Some("system call");
    }
    (instruction.is_call_near() || instruction.is_call_near_indirect()).then_some("call")
}

/// Whether the first `need` of `bytes` only fill the gap up to what comes next. The first `own` bytes belong to the
/// function: there only int3 counts. Zeros could be data, so they count only when nothing but zeros follows.
fn is_padding(bytes: &[u8], need: usize, own: u64) -> bool {
    let mut at = 0;
    while at < need {
        let rest = &bytes[at..];
        at += match rest.first() {
            Some(0xcc) => 1,
            Some(_) if (at as u64) < own => return false,
            Some(0) => return rest.len() >= need - at && rest.iter().all(|b| *b == 0),
            Some(_) => match decode::one(rest, 0) {
                Some(nop) if nop.mnemonic() == Mnemonic::Nop => nop.len(),
                _ => return false,
            },
            None => return false,
        };
    }
    true
}
