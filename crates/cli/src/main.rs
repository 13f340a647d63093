//! The `lancet` command.

fn main() {}
