//! The bpftrace language for user-space probes: text in, checked program and IR out.
//!
//! Pure: no file, no system call. [`compile`] is the whole: lexer and parser, then one walk that finds types and makes code, repeated until the
//! types are known. [`ir`] says what a code generator and an interpreter get, [`eval`] is
//! the interpreter.

mod ast;
mod diag;
pub mod eval;
pub mod ir;
mod lower;
mod parse;
mod types;

pub use diag::{Diagnostic, Severity, Source, Span};
pub use lower::{Options, is_setting};

/// The program of the text, or all that is wrong with it.
///
/// # Errors
/// At least one message, in the order of the text.
pub fn compile(source: Source<'_>, options: &Options) -> Result<ir::Program, Vec<Diagnostic>> {
    let (tree, mut diags) = parse::parse(source.text);
    // after a syntax error the rest is still checked, but what may follow from the missing part is not told
    let broken = !diags.is_empty();
    let (program, found) = lower::lower(&tree, options, broken);
    diags.extend(found);
    diags.sort_by_key(|diag| (diag.span.start, diag.span.end));
    if diags.iter().any(|diag| diag.severity == Severity::Error) {
        Err(diags)
    } else {
        Ok(program)
    }
}
/// Registers of x86-64 as `reg()` and [`ir::Fact::Register`] name them.
pub const REGISTERS: &[&str] = &[
    "r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di",
    "ip", "flags", "sp",
];
