//! What the tracer and the code inside a target agree on.
#![no_std]

pub mod units;
