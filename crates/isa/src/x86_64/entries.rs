//! The scan of a module for every address that control may enter.
//!
//! Two passes over the bytes, both cheap. The *sweep* decodes from every known start, and takes branches, addresses that
//! code takes, and jump tables. The *pattern pass* looks at every byte offset that lies in no known function, and takes
//! what looks like a 32-bit branch or call into the text; and everywhere it takes every `endbr64`. It can't miss a
//! branch by losing step with the instructions; it can take a few entries too many, which costs a refusal and never
//! harm. Behind bytes that the sweep does not know, all branches at every offset are taken, until the next start.
//!
//! Inside of known functions no patterns are taken: a displacement or constant often looks like a branch, into the first
//! bytes of some other function as likely as not.

use core::ops::Range;

use iced_x86::{Code, Decoder, DecoderOptions, Instruction, OpKind, Register};
use lancet_abi::units::LinkAddr;

use super::tables::{self, Bases};
use crate::{Entries, Roots, Text};

/// Text below this size is scanned by one thread: starting another takes longer.
const WORTH_A_THREAD: usize = 256 << 10;
/// A scan never uses more threads than this: it runs beside the programs that are traced.
const MOST_THREADS: usize = 4;
/// Numbers below this are hardly addresses of position-dependent code.
const LOWEST_ABSOLUTE: u64 = 0x1_0000;

impl Entries {
    /// Scans a module. Over-approximates: an address in the set may be no entry, but every entry that the text and
    /// `roots` show is in the set.
    #[must_use]
    pub fn scan(text: &[Text<'_>], roots: &Roots<'_>) -> Self {
        let mut starts: Vec<u64> = roots.starts.iter().map(|s| s.0).collect();
        starts.sort_unstable();
        starts.dedup();
        let size: usize = text.iter().map(|t| t.bytes.len()).sum();
        let threads = std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(MOST_THREADS);
        let threads = threads.min(size / WORTH_A_THREAD).max(1);

        let known = known(roots, &starts);
        let parts: Vec<Part<'_>> = text
            .iter()
            .flat_map(|t| split(t, text, &starts, &known, threads))
            .collect();
        let mut found = parallel(&parts, threads, roots);
        let (mut entries, mut bases) = found
            .pop()
            .unwrap_or_else(|| (Self::empty(text), Bases::default()));
        for (other, tables) in found {
            entries.merge(&other);
            bases.extend(tables);
        }
        for root in roots.starts.iter().chain(&roots.entries) {
            entries.add(root.0);
        }
        bases.read(&roots.data, &mut entries);
        entries
    }
}

/// The bytes of known functions: ranges in order that do not touch.
fn known(roots: &Roots<'_>, starts: &[u64]) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = roots
        .functions
        .iter()
        .map(|f| f.start.0..f.end.0)
        .filter(|f| f.start < f.end && starts.binary_search(&f.start).is_ok())
        .collect();
    ranges.sort_unstable_by_key(|f| f.start);
    let mut known: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match known.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => known.push(range),
        }
    }
    known
}

/// Scans `parts` on up to `threads` threads, this one among them.
fn parallel(parts: &[Part<'_>], threads: usize, roots: &Roots<'_>) -> Vec<(Entries, Bases)> {
    let run =
        |parts: &[Part<'_>]| -> Vec<_> { parts.iter().map(|p| Sweep::run(p, roots)).collect() };
    let mut groups = parts.chunks(parts.len().div_ceil(threads).max(1));
    let Some(own) = groups.next() else {
        return Vec::new();
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = groups
            .map(|group| scope.spawn(move || run(group)))
            .collect();
        let mut found = run(own);
        for other in others {
            found.extend(
                other
                    .join()
                    .unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            );
        }
        found
    })
}

/// A stretch of one text that is scanned in one go.
struct Part<'a> {
    all: &'a [Text<'a>],
    text: &'a Text<'a>,
    known: &'a [Range<u64>],
    /// Where decoding starts again, in order; the first is the part's start.
    starts: Vec<u64>,
    end: u64,
}

/// Cuts a text at function starts into about `count` parts of the same size.
fn split<'a>(
    text: &'a Text<'a>,
    all: &'a [Text<'a>],
    starts: &[u64],
    known: &'a [Range<u64>],
    count: usize,
) -> Vec<Part<'a>> {
    let (low, high) = (text.start.0, text.end().0);
    let first = starts.partition_point(|s| *s <= low);
    let last = starts.partition_point(|s| *s < high).max(first);
    let share = (high - low) / count as u64 + 1;
    let mut parts = Vec::new();
    let mut part = Part {
        all,
        text,
        known,
        starts: vec![low],
        end: high,
    };
    for start in &starts[first..last] {
        if start - part.starts[0] >= share {
            part.end = *start;
            parts.push(core::mem::replace(
                &mut part,
                Part {
                    all,
                    text,
                    known,
                    starts: vec![*start],
                    end: high,
                },
            ));
        } else {
            part.starts.push(*start);
        }
    }
    parts.push(part);
    parts
}

struct Sweep<'a> {
    text: &'a Text<'a>,
    data: &'a [(LinkAddr, &'a [u8])],
    /// What is not passed yet of the known functions' bytes.
    known: &'a [Range<u64>],
    entries: Entries,
    bases: Bases,
}

impl<'a> Sweep<'a> {
    fn run(part: &Part<'a>, roots: &'a Roots<'_>) -> (Entries, Bases) {
        let mut sweep = Self {
            text: part.text,
            data: &roots.data,
            known: part.known,
            entries: Entries::empty(part.all),
            bases: Bases::default(),
        };
        sweep.marks(part.starts[0], part.end);
        let mut decoder =
            Decoder::with_ip(64, part.text.bytes, part.text.start.0, DecoderOptions::NONE);
        for (i, start) in part.starts.iter().enumerate() {
            let end = part.starts.get(i + 1).copied().unwrap_or(part.end);
            sweep.function(&mut decoder, *start, end);
        }
        (sweep.entries, sweep.bases)
    }

    /// Every `endbr64`, whether or not the offset is an instruction start.
    fn marks(&mut self, start: u64, end: u64) {
        const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];
        let bytes = self.text.from(LinkAddr(start));
        let last = bytes.len().min((end - start) as usize + ENDBR.len() - 1);
        for (i, found) in bytes[..last].windows(ENDBR.len()).enumerate() {
            if found == ENDBR {
                self.entries.add(start + i as u64);
            }
        }
    }

    /// Every 32-bit branch and call, whether or not the offset is an instruction start.
    fn patterns(&mut self, start: u64, end: u64) {
        let bytes = self.text.from(LinkAddr(start));
        for (i, byte) in bytes[..(end - start) as usize].iter().enumerate() {
            match byte {
                0xe8 | 0xe9 => self.long_branch(bytes, start, i + 1),
                0x0f if matches!(bytes.get(i + 1), Some(0x80..=0x8f)) => {
                    self.long_branch(bytes, start, i + 2);
                }
                _ => {}
            }
        }
    }

    #[inline]
    fn long_branch(&mut self, bytes: &[u8], start: u64, field: usize) {
        if let Some(field_bytes) = bytes.get(field..).and_then(|b| b.first_chunk()) {
            let next = start + field as u64 + 4;
            self.entries
                .add_branch(next.wrapping_add_signed(i32::from_le_bytes(*field_bytes).into()));
        }
    }

    /// Up to where the bytes from `at` on belong to known functions; `at` where they don't.
    fn known_until(&mut self, at: u64) -> u64 {
        while self.known.first().is_some_and(|k| k.end <= at) {
            self.known = &self.known[1..];
        }
        match self.known.first() {
            Some(first) if first.start <= at => first.end,
            _ => at,
        }
    }

    /// Decodes from `start` to `end`, where the next start is.
    fn function(&mut self, decoder: &mut Decoder<'_>, start: u64, end: u64) {
        let known = self.known_until(start).min(end);
        self.patterns(known, end);
        if decoder
            .set_position((start - self.text.start.0) as usize)
            .is_err()
        {
            return;
        }
        decoder.set_ip(start);
        let mut instruction = Instruction::default();
        while decoder.ip() < end {
            let at = decoder.ip();
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                self.short_branches(at, end);
                self.patterns(at.min(known), known);
                return;
            }
            self.instruction(&instruction, at < known);
        }
    }

    #[inline]
    fn instruction(&mut self, instruction: &Instruction, known: bool) {
        match (instruction.op0_kind(), instruction.op1_kind()) {
            (OpKind::NearBranch64, _) => {
                let code = instruction.code();
                // Elsewhere the pattern pass has the long ones; counting them twice would hide that they have one origin.
                if known || !(code.is_jmp_near() || code.is_jcc_near() || code.is_call_near()) {
                    self.entries.add_branch(instruction.near_branch64());
                }
            }
            (_, OpKind::Memory)
                if instruction.memory_base() == Register::RIP
                    && instruction.code() == Code::Lea_r64_m =>
            {
                self.address(instruction.memory_displacement64());
            }
            (OpKind::Memory, _) | (_, OpKind::Memory)
                if instruction.memory_index_scale() == 8
                    && instruction.memory_base() == Register::None =>
            {
                self.bases
                    .absolute
                    .push(instruction.memory_displacement64());
            }
            (_, OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64)
                if matches!(
                    instruction.code(),
                    Code::Mov_r32_imm32
                        | Code::Mov_r64_imm64
                        | Code::Mov_rm64_imm32
                        | Code::Mov_rm32_imm32
                ) =>
            {
                self.number(instruction.immediate(1));
            }
            (OpKind::Immediate32to64, _) if instruction.code() == Code::Pushq_imm32 => {
                self.number(instruction.immediate(0));
            }
            _ => {}
        }
    }

    /// An address that code takes: an entry when it is text, perhaps a table when it is data.
    fn address(&mut self, address: u64) {
        if !self.entries.add(address) && !tables::bytes_at(self.data, address).is_empty() {
            self.bases.relative.push(address);
        }
    }

    /// A number that may be an address in position-dependent code.
    fn number(&mut self, value: u64) {
        if value >= LOWEST_ABSOLUTE {
            self.address(value);
        }
    }

    /// Every short branch at every offset, for bytes that can't be decoded.
    fn short_branches(&mut self, start: u64, end: u64) {
        let bytes = self.text.from(LinkAddr(start));
        for (i, pair) in bytes[..(end - start) as usize].windows(2).enumerate() {
            if matches!(pair[0], 0x70..=0x7f | 0xe0..=0xe3 | 0xeb) {
                let next = start + i as u64 + 2;
                self.entries
                    .add(next.wrapping_add_signed(i64::from(pair[1].cast_signed())));
            }
        }
    }
}
