//! x86-64.

mod check;
mod copy;
mod decode;
mod entries;
mod faults;
mod flow;
mod indirect;
mod jump;
mod plan;
mod tables;
mod window;

pub use check::check;
pub use copy::Copy;
pub use jump::{JUMP_LEN, jump};
pub use plan::{Plan, plan};
