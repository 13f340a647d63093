//! All of the `exec` suite again, with code that asserts its invariants at each hit.
#![allow(missing_docs)]

#[path = "exec.rs"]
mod exec;
