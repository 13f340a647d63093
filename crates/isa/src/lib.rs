//! How the bytes at a probe site can be replaced.
//!
//! Pure code: bytes in, plan out. Nothing here reads a file or touches a process.
//!
//! The way of the data:
//!
//! 1. [`Entries::scan`] collects, once for a module, every address that control may enter.
//! 2. [`plan`] chooses the *window* at a site, the whole instructions that a five-byte `jmp rel32` overwrites, or
//!    says by name why there is none ([`Refusal`]).
//! 3. [`Plan::emit_copy`] relocates the window's instructions to the address where the out-of-line copy will lie.
//! 4. [`check`] decodes the copy again, shares no code with what emitted it, and compares instruction by instruction.
//!    A copy that it does not accept must not be used.
//! 5. [`jump`] gives the five bytes for the site. When the window is longer, its other bytes stay as they are: nothing
//!    reaches them any more.
//!
//! # Duties of the caller
//!
//! - [`Roots`] must name every way into the code that is neither falling through nor a direct branch. An entry that is
//!   missing there can put control into the middle of a jump.
//! - No thread may stand inside the window while it is written; [`Copy::boundaries`] says where each goes instead. A
//!   thread that is blocked in a call that ends the window returns to the window's end, which stays valid. One that is
//!   blocked in a *system call* that ends the window shows the window's end too, but may be restarted two bytes
//!   earlier: it must be moved.
//! - A window that [has a call](Plan::has_call) must not be used in a process with a shadow stack: the copy pushes the
//!   return address without a `call`.
//! - A jump replaces an `endbr64` at the site ([`Plan::starts_with_endbr`]). Kernels do not enforce indirect branch
//!   tracking in user space; where one does, an indirect call to the site would fault.
//!
//! # Limits
//!
//! Branches are found where decoding from the nearest [start](Roots::starts) is in step, so data between the instructions
//! of a known [function](Roots::functions) may hide one. Outside of known functions long ones are found at every byte
//! offset. An address that a program computes from parts can't be seen: a site behind its function's start is refused
//! when the function has an indirect jump whose origin is unknown; at the start no such jump is expected.
//!
//! # What it is not for
//!
//! It does not follow jumps (a probe on a thunk counts the thunk), it does not prove that registers are dead, and it
//! does not disassemble for people.
//!
//! Each architecture has a folder with the same file names; the current one is re-exported here.

#![forbid(unsafe_code)]

mod entry_set;
mod input;
mod refusal;
mod violation;
mod x86_64;

pub use entry_set::Entries;
pub use input::{FaultPolicy, Function, PlanRequest, Roots, Text};
pub use refusal::Refusal;
pub use violation::Violation;
pub use x86_64::{ChildCall, ChildCalls, Copy, JUMP_LEN, Maker, Plan, check, jump, plan};
