//! The bpftrace language for user-space probes: text in, checked program and IR out.
//!
//! Pure: no file, no system call. [`ir`] says what a code generator and an interpreter get.

pub mod ir;

/// Registers of x86-64 as `reg()` and [`ir::Fact::Register`] name them.
pub const REGISTERS: &[&str] = &[
    "r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di",
    "ip", "flags", "sp",
];
