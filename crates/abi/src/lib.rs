//! What the tracer and the code inside a target agree on: the layout of the
//! shared region, the private page of each process, and the algorithms on
//! both, written over a small [`memory`] trait so that a model checker can run
//! them and so that a reader can treat every byte as hostile.
//!
//! One region serves one trust domain. Its parts, in file order:
//!
//! | part | written by | read by |
//! |---|---|---|
//! | header words, histogram table | tracer, once, before the file is shared | actions, tracer |
//! | words of broken invariants | actions of a session that checks itself | tracer |
//! | `on` word and CPU table | tracer or guardian (off switch) | every action |
//! | entries of keyed maps | actions, one 16-byte compare-and-swap each | actions, tracer |
//! | one block of slots per CPU | actions on that CPU | tracer |
//!
//! The machine code that follows these rules is made by `lancet-jit`.
#![cfg_attr(not(test), no_std)]

pub mod counter;
pub mod error;
pub mod histogram;
pub mod invariant;
pub mod layout;
pub mod map;
pub mod memory;
pub mod private;
pub mod reader;
pub mod ring;
pub mod table;
pub mod units;

pub use error::LayoutError;
pub use invariant::Invariant;
pub use layout::{Layout, LayoutBuilder, MapId, MapLayout, SlotId};
pub use memory::{Memory, Shared, SharedMut};
pub use reader::{Entry, Region};
pub use ring::RingLayout;
