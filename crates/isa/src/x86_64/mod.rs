//! x86-64.

mod check;
mod child_calls;
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
pub use child_calls::{ChildCall, ChildCalls, Maker};
pub use copy::Copy;
pub use jump::{JUMP_LEN, jump};
pub use plan::{Plan, plan};
