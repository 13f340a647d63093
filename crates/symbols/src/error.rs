//! The one error of this crate.

use std::io;
use std::path::PathBuf;

use lancet_abi::units::LinkAddr;

/// Why a file, a name or a probe could not be used; the text says what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SymbolError {
    /// The file could not be opened or read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file as the user sees it.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A directory, FIFO, device or socket.
    #[error("{} is {what}, not a program or library; name the ELF file itself", path.display())]
    NotRegular {
        /// The file as the user sees it.
        path: PathBuf,
        /// What it is, with its article.
        what: &'static str,
    },
    /// A file of no bytes.
    #[error("{} is empty; name a program or shared library", path.display())]
    Empty {
        /// The file as the user sees it.
        path: PathBuf,
    },
    /// Not an ELF file at all.
    #[error("{} is not an ELF file{hint}", path.display())]
    NotElf {
        /// The file as the user sees it.
        path: PathBuf,
        /// What it seems to be, starting with `; `, or nothing.
        hint: String,
    },
    /// An ELF file for a machine that can't be probed.
    #[error("{} is built for {machine}; only 64-bit x86-64 files can be probed", path.display())]
    WrongMachine {
        /// The file as the user sees it.
        path: PathBuf,
        /// The machine, such as `32-bit x86`.
        machine: String,
    },
    /// An object file, core dump or the like.
    #[error("{} is {what}; name a linked program or shared library", path.display())]
    NotLinked {
        /// The file as the user sees it.
        path: PathBuf,
        /// What it is, with its article.
        what: String,
    },
    /// The file ends before something that it promises.
    #[error("{} is truncated: {what} lies beyond its {size} bytes; copy or build it again", path.display())]
    Truncated {
        /// The file as the user sees it.
        path: PathBuf,
        /// What is missing.
        what: &'static str,
        /// How long the file is.
        size: u64,
    },
    /// Headers contradict each other.
    #[error("{} is malformed: {what}; build it again, or name another file", path.display())]
    Malformed {
        /// The file as the user sees it.
        path: PathBuf,
        /// What is wrong.
        what: &'static str,
    },
    /// The probe's text can't be read.
    #[error(
        "cannot read the probe `{text}`: {what}; write FILE:FUNCTION, FILE:FUNCTION+OFFSET or FILE:0xADDRESS"
    )]
    Spec {
        /// The text as given.
        text: String,
        /// What is wrong with it.
        what: String,
    },
    /// No file by that name.
    #[error("cannot find the file `{name}`; searched {searched}")]
    NotFound {
        /// The name as given.
        name: String,
        /// Where it was looked for.
        searched: String,
    },
    /// No function by that name.
    #[error("no function `{name}` in {}{hint}", path.display())]
    NoFunction {
        /// The pattern as given.
        name: String,
        /// The file as the user sees it.
        path: PathBuf,
        /// Near names, most likely first.
        near: Vec<String>,
        /// The near names and the library it may live in, as text for the user.
        hint: String,
    },
    /// The name belongs to a resolver that the loader runs once.
    #[error("`{name}` in {} is an indirect function: its symbol is the resolver that picks an implementation, so a probe there would not see calls; {hint}", path.display())]
    Indirect {
        /// The name as given.
        name: String,
        /// The file as the user sees it.
        path: PathBuf,
        /// Where the resolver is.
        resolver: LinkAddr,
        /// Which implementations there seem to be.
        hint: String,
    },
    /// Several different functions carry the name of an offset probe.
    #[error("`{name}` names {count} different functions in {}: {examples}; give the address (FILE:0xADDRESS) instead of an offset", path.display())]
    Ambiguous {
        /// The name as given.
        name: String,
        /// The file as the user sees it.
        path: PathBuf,
        /// How many there are.
        count: usize,
        /// Some of them, as `name (0xaddr)`.
        examples: String,
    },
    /// The offset lies behind the function's last byte.
    #[error("offset {offset:#x} lies outside `{name}`, which has {size:#x} bytes, in {}", path.display())]
    OutsideFunction {
        /// The function's name.
        name: String,
        /// The file as the user sees it.
        path: PathBuf,
        /// The offset as given.
        offset: u64,
        /// The function's size.
        size: u64,
    },
    /// The address is inside an instruction.
    #[error("{at} in {} is not the start of an instruction; instructions start at {before} and {after}", path.display())]
    MidInstruction {
        /// The file as the user sees it.
        path: PathBuf,
        /// The refused address.
        at: LinkAddr,
        /// The start of the instruction around it.
        before: LinkAddr,
        /// The start of the next one.
        after: LinkAddr,
    },
    /// Bytes before the address are no instructions.
    #[error("cannot tell where instructions start near {at} in {}: the bytes at {bad} are no x86-64 instruction", path.display())]
    Undecodable {
        /// The file as the user sees it.
        path: PathBuf,
        /// The wanted address.
        at: LinkAddr,
        /// The first bytes that could not be read.
        bad: LinkAddr,
    },
    /// The address is not code.
    #[error("{at} in {} is not in executable code; addresses are as in the file, before loading", path.display())]
    NotCode {
        /// The file as the user sees it.
        path: PathBuf,
        /// The refused address.
        at: LinkAddr,
    },
}
