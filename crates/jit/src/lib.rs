//! Actions to machine code: what runs at every hit.
//!
//! [`emit`] turns the built-in actions of one site into x86-64 bytes that go in
//! front of the site's displaced instructions. The bytes touch no vector
//! register, call nothing, make no system call (but `gettid` where a thread's
//! id can't be read), and leave every register and flag as found. Counters are
//! per CPU: an rseq section of plain moves where the thread's rseq state is
//! certain ([`Form::Fused`]), a lock-prefixed addition elsewhere.
//! With [`Env::check`] the code also asserts what it relies on.
//! [`verify`] decodes what was emitted and proves its bounds independently.
//!
//! The caller maps region, private page and code, and answers for the rseq
//! area that it names in [`Env`]. Not for scripts: they need a compiler.

pub mod action;
mod checking;
mod counter;
mod emit;
mod emitter;
pub mod error;
mod keyed;
pub mod script;
mod verify;

pub use action::{Action, Code, Env, Form, Key, Mark, Register, Rseq, Scratch, Update, Value};
pub use checking::CANARY;
pub use emit::emit;
pub use error::JitError;
pub use verify::verify;
