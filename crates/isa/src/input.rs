//! What the planner is told about a module, a function and a site.

use core::ops::Range;

use lancet_abi::units::LinkAddr;

use crate::Entries;

/// Executable bytes of one module by link address: one per executable segment or section.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// Where the first byte lies.
    pub start: LinkAddr,
    /// The bytes as the file holds them.
    pub bytes: &'a [u8],
}

impl<'a> Text<'a> {
    /// Address of the first byte behind the text.
    #[must_use]
    pub fn end(&self) -> LinkAddr {
        self.start.plus(self.bytes.len() as u64)
    }

    /// Bytes from `at` to the end of the text; nothing when `at` lies outside.
    #[must_use]
    pub fn from(&self, at: LinkAddr) -> &'a [u8] {
        usize::try_from(at.offset_from(self.start))
            .ok()
            .and_then(|skip| self.bytes.get(skip..))
            .unwrap_or(&[])
    }
}

/// Where control may enter a module other than by falling through or by a direct branch.
#[derive(Clone, Debug, Default)]
pub struct Roots<'a> {
    /// Function starts (symbols, frame descriptions). Decoding restarts at each. They count as entries too.
    pub starts: Vec<LinkAddr>,
    /// Bytes that belong to a function, as symbols and frame descriptions say: code, to be decoded from the start of the
    /// range, which is one of `starts` (else the range counts for nothing). Everywhere else whatever looks like a branch
    /// counts as one; without any ranges that is all of the text.
    pub functions: Vec<Range<LinkAddr>>,
    /// Landing pads, relocated pointers into text, the program's entry, init arrays.
    pub entries: Vec<LinkAddr>,
    /// Read-only data by link address, where jump tables lie. In a position-dependent program, whose pointers have no
    /// relocations, the initialised writable data belongs here too.
    pub data: Vec<(LinkAddr, &'a [u8])>,
    /// Bytes that no window may touch: the program's own rseq sections with the stretch before them from the store of
    /// `rseq_cs`, and the signature before each abort handler.
    pub forbidden: Vec<Range<LinkAddr>>,
}

/// What happens to a fault in a relocated instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultPolicy {
    /// Nobody in the program looks up fault addresses: any instruction may be relocated.
    Native,
    /// The program's runtime handles faults by their address (Go, JVM, wasm engines, .NET). An instruction that may
    /// fault is refused, unless it touches memory only through the stack or frame pointer, the instruction pointer, a
    /// fixed address or the thread block.
    ByAddress {
        /// The program is Go: `r14` holds `g`, which never faults.
        go: bool,
    },
}

/// The function that a site lies in.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Its first byte. Where it is missing from [`Roots::starts`], branches inside the window count as foreign ones.
    pub start: LinkAddr,
    /// The end of its symbol. A symbol without a size (`end == start`) is taken to reach up to `next`.
    pub end: LinkAddr,
    /// Where the next known function starts, or the end of the section. Padding in `[end, next)` may be covered.
    pub next: LinkAddr,
}

/// One question to [`plan`](crate::plan).
#[derive(Clone, Debug)]
pub struct PlanRequest<'a> {
    /// The text that holds the site.
    pub text: &'a Text<'a>,
    /// The instruction to probe.
    pub site: LinkAddr,
    /// The function around it.
    pub function: Function,
    /// Every entry of the module.
    pub entries: &'a Entries,
    /// The roots that `entries` was scanned with.
    pub roots: &'a Roots<'a>,
    /// What may be relocated.
    pub faults: FaultPolicy,
}
