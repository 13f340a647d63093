//! Probes by processes: the library behind the `lancet` command.
//!
//! A [`Session`] holds probes and the processes they are in. It lives in a *tracer*, a process
//! that is watched by a *guardian*; [`launch`] makes both. Whatever happens to the tracer, the
//! guardian takes its probes out again.
//!
//! ```no_run
//! use lancet_abi::units::Pid;
//! use lancet_engine::{Binary, Consumer, Event, Session, launch, sites};
//! use lancet_symbols::ProbeSpec;
//!
//! let code = launch(None, |tracer| {
//!     let spec: ProbeSpec = "libc:malloc".parse().expect("a probe");
//!     let path = lancet_symbols::locate(&spec.file, None).expect("libc");
//!     let binary = Binary::open(&path).expect("an ELF file");
//!     let mut session = Session::open(&tracer);
//!     let found = sites(&binary, &spec.target).expect("malloc");
//!     let probes = session
//!         .register_sites(&binary, found, Consumer::Count)
//!         .expect("room for a counter");
//!     session.attach(Pid(1234)).expect("a process that may be traced");
//!     while session.wait(None) == Event::Time {}
//!     session.detach();
//!     for probe in probes.into_iter().flatten() {
//!         println!("{}: {:?}", session.name(probe), session.read(probe));
//!     }
//!     0
//! })?;
//! std::process::exit(i32::from(code));
//! # Ok::<(), lancet_engine::EngineError>(())
//! ```
//!
//! The caller's duties: call [`launch`] before other threads exist, and keep using a session
//! from the thread that made it (ptrace requests must come from the thread that attached).
//!
//! Not for: parsing or printing. Names become files and sites in `lancet-symbols`, results
//! become text in `lancet-output`.

mod attach;
mod catalog;
mod children;
mod consumer;
mod crew;
mod detach;
mod domain;
mod error;
mod facts;
mod follow;
mod guardian;
mod leftovers;
mod many;
mod mapping;
mod pads;
mod pages;
mod patience;
mod process;
mod read;
mod recipe;
mod rescue;
mod script;
mod sentinel;
mod session;
mod start;
mod stubs;
mod sys;
mod text;
mod tids;
mod undo;
mod verify;

pub use attach::Attached;
pub use catalog::Binary;
pub use consumer::{Consumer, Kind, MapHandle, ProbeId, Row, Total};
pub use crew::State;
pub use detach::Detached;
pub use error::{EngineError, Refused};
pub use follow::Followed;
pub use guardian::{Command, Event, Tracer, launch};
pub use lancet_abi::Invariant;
pub use lancet_jit::script as scripts;
pub use lancet_jit::{Key, Register, Value};
pub use lancet_remote::sys::Hurry;
pub use leftovers::{Leftover, Looked, clean, status};
pub use script::ScriptMemory;
pub use session::{Session, possible_cpus, sites};
pub use start::Started;
pub use undo::Restored;
pub use verify::{Loss, Lost};
