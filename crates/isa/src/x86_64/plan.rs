//! The plan for one site.

use core::ops::Range;

use iced_x86::{Instruction, Mnemonic};
use lancet_abi::units::LinkAddr;

use super::flow::{self, Form};
use super::window::{self, Window};
use super::{JUMP_LEN, faults, indirect};
use crate::{FaultPolicy, PlanRequest, Refusal};

/// How the bytes at one site can be replaced by a jump.
#[derive(Clone, Debug)]
pub struct Plan {
    site: LinkAddr,
    original: Vec<u8>,
    boundaries: Vec<u8>,
    endbr: bool,
    syscall: bool,
    pub(super) forms: Vec<Form>,
}

impl Plan {
    /// The site.
    #[must_use]
    pub fn site(&self) -> LinkAddr {
        self.site
    }

    /// Bytes in the window: at least the jump's five.
    #[must_use]
    pub fn window_len(&self) -> u8 {
        self.original.len() as u8
    }

    /// The address behind the window.
    #[must_use]
    pub fn window_end(&self) -> LinkAddr {
        self.site.plus(self.window_len().into())
    }

    /// The window's bytes as the file holds them.
    #[must_use]
    pub fn original(&self) -> &[u8] {
        &self.original
    }

    /// Offsets of the instruction starts in the window, then the window's length. Padding behind the last instruction
    /// has no start of its own.
    #[must_use]
    pub fn boundaries(&self) -> &[u8] {
        &self.boundaries
    }

    /// Instructions in the window.
    #[must_use]
    pub fn instructions(&self) -> usize {
        self.forms.len()
    }

    /// Whether the window ends with a call, whose return address the copy pushes without a `call`. No such plan may be
    /// used in a process with a shadow stack.
    #[must_use]
    pub fn has_call(&self) -> bool {
        self.forms.last().is_some_and(Form::is_call)
    }

    /// Whether the window ends with a system call. A thread that is blocked in it shows the window's end as its
    /// address and must be moved to the copy.
    #[must_use]
    pub fn ends_with_syscall(&self) -> bool {
        self.syscall
    }

    /// Whether the site holds an `endbr64`, which the jump replaces.
    #[must_use]
    pub fn starts_with_endbr(&self) -> bool {
        self.endbr
    }
}

/// Chooses the window at a site.
///
/// # Errors
/// The reason why this site can't be patched; others are not affected.
pub fn plan(req: &PlanRequest<'_>) -> Result<Plan, Refusal> {
    let (site, function) = (req.site, &req.function);
    let end = window::end_of(function);
    if site < function.start || site >= end || req.text.from(site).is_empty() {
        return Err(Refusal::Outside { at: site });
    }
    if req.text.from(site)[0] == 0xcc {
        return Err(Refusal::TrapByte { at: site });
    }
    indirect::expect_boundary(req.text, function, site)?;

    let window = window::choose(req.text, site, function)?;
    let range = site..site.plus(window.len.into());
    forbidden(req, &range)?;
    let original = req.text.from(site)[..window.len.into()].to_vec();
    let forms = relocatable(req, &window, &original)?;
    if window.instructions[0].len() < JUMP_LEN.into() {
        entered(req, &window, &forms, &range)?;
    }

    let last = window
        .instructions
        .last()
        .ok_or(Refusal::Outside { at: site })?;
    let starts = window.instructions.iter().map(|i| (i.ip() - site.0) as u8);
    Ok(Plan {
        site,
        boundaries: starts.chain([window.len]).collect(),
        endbr: window.instructions[0].mnemonic() == Mnemonic::Endbr64,
        syscall: flow::is_syscall(last),
        original,
        forms,
    })
}

fn forbidden(req: &PlanRequest<'_>, window: &Range<LinkAddr>) -> Result<(), Refusal> {
    let hit = req
        .roots
        .forbidden
        .iter()
        .find(|f| f.start < window.end && window.start < f.end);
    hit.map_or(Ok(()), |f| {
        Err(Refusal::Forbidden {
            at: f.start.max(window.start),
        })
    })
}

fn relocatable(
    req: &PlanRequest<'_>,
    window: &Window,
    original: &[u8],
) -> Result<Vec<Form>, Refusal> {
    let site = req.site.0;
    let is_start = |target| window.instructions.iter().any(|i| i.ip() == target);
    window
        .instructions
        .iter()
        .map(|instruction| {
            let at = LinkAddr(instruction.ip());
            let refuse = |why| Refusal::Unrelocatable { at, why };
            let from = (instruction.ip() - site) as usize;
            let form =
                Form::of(instruction, &original[from..from + instruction.len()]).map_err(refuse)?;
            if let FaultPolicy::ByAddress { go } = req.faults
                && faults::may_fault(instruction, go)
            {
                return Err(Refusal::FaultByAddress { at });
            }
            if reads_window(instruction, site) {
                return Err(refuse("it touches the bytes that the jump overwrites"));
            }
            match form.target() {
                Some(target)
                    if target.wrapping_sub(site) < u64::from(window.len) && !is_start(target) =>
                {
                    Err(refuse("it branches between two instructions of the window"))
                }
                _ => Ok(form),
            }
        })
        .collect()
}

/// Whether the instruction accesses memory in the five bytes at the site, which hold the jump by then.
fn reads_window(instruction: &Instruction, site: u64) -> bool {
    if !instruction.is_ip_rel_memory_operand()
        || matches!(instruction.mnemonic(), Mnemonic::Lea | Mnemonic::Nop)
    {
        return false;
    }
    let start = instruction.ip_rel_memory_address();
    // State areas (fxsave and the like) have no size of their own in the decoder: the largest stands for them.
    let size = match instruction.memory_size().size() as u64 {
        0 => 4096,
        size => size,
    };
    start.wrapping_sub(site) < JUMP_LEN.into() || site.wrapping_sub(start) < size
}

/// Refuses a window that control may enter behind its first instruction, other than by its own branches.
fn entered(
    req: &PlanRequest<'_>,
    window: &Window,
    forms: &[Form],
    range: &Range<LinkAddr>,
) -> Result<(), Refusal> {
    let at = req.site;
    let mut from = range.start.plus(1);
    while let Some(target) = req.entries.within(from..range.end) {
        let own = forms
            .iter()
            .filter(|f| f.target() == Some(target.0))
            .count();
        // The scan counts the window's own branch only where it was in step with the function.
        let counted = own == 1 && req.roots.starts.contains(&req.function.start);
        if !counted || !req.entries.has_one_origin(target) {
            return Err(Refusal::BranchInto { at, target });
        }
        from = target.plus(1);
    }
    if at != req.function.start
        && window.instructions.len() > 1
        && let Some(jump) = indirect::unresolved(req.text, &req.function, req.roots)
    {
        return Err(Refusal::IndirectJumpInFunction { at, jump });
    }
    Ok(())
}
