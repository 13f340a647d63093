//! The machine code that makes system calls inside a target.
//!
//! A stopped thread is sent through it: the calls, one after the other, then a bounded spin in
//! which the tracer finds it, takes the results out of its registers and gives back the original
//! ones. If the tracer has died by then nobody gives anything back; so after the spin the stub
//! puts the signal mask and every register that it used back by itself and goes on where the
//! thread was interrupted. It writes no memory and changes no flag, so it needs no stack.
//!
//! The spin is long (about a second) because a stub that returns by itself ends an interrupted
//! system call instead of letting the kernel restart it: right only when nobody is there.

use lancet_abi::units::RuntimeAddr;

use crate::sys::Registers;
use crate::trailer::Trailer;

/// Where one argument of a call comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    /// A number.
    Value(u64),
    /// The result of an earlier call of the same stub, counted from 0.
    Result(usize),
}

/// For tests of lancet: calls that the kernel refuses, so that what follows can be looked at.
pub mod trial {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Call;

    /// No kernel knows it.
    const UNKNOWN: i64 = 0xffff;

    /// Calls until the refused one, that one included; 0: none is.
    /// writer and reader: whoever encodes a stub / Relaxed: it orders nothing
    static LEFT: AtomicU32 = AtomicU32::new(0);

    /// Has the `number`th call from now on, counted from 1, answered by ENOSYS. 0: none.
    pub fn refuse(number: u32) {
        LEFT.store(number, Ordering::Relaxed);
    }

    /// Whether the call that was to be refused has been made.
    #[must_use]
    pub fn is_over() -> bool {
        LEFT.load(Ordering::Relaxed) == 0
    }

    pub(super) fn number_of(call: &Call) -> i64 {
        let one_less = |left: u32| left.checked_sub(1);
        match LEFT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less) {
            Ok(1) => UNKNOWN,
            _ => call.number,
        }
    }
}

/// One system call.
#[derive(Clone, Debug)]
pub struct Call {
    /// What it does, for messages.
    pub name: &'static str,
    /// Its number.
    pub number: i64,
    /// Its arguments in order.
    pub arguments: Vec<Argument>,
}

impl Call {
    /// A call whose arguments are all numbers.
    #[must_use]
    pub fn new(name: &'static str, number: i64, arguments: &[u64]) -> Self {
        Self {
            name,
            number,
            arguments: arguments.iter().map(|&v| Argument::Value(v)).collect(),
        }
    }
}

/// How a thread goes on when the stub lets it go by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resume {
    /// Value of rax.
    pub(crate) rax: u64,
    /// Address.
    pub(crate) rip: u64,
}

impl Resume {
    /// What the kernel would do with an interrupted call when there is no handler to run:
    /// issue it again, by its own number or as restart_syscall(2).
    #[must_use]
    pub(crate) fn of(registers: &Registers) -> Self {
        const RESTART_BLOCK: i64 = -516;
        const RESTART_SYSCALL: u64 = 219;
        let (rax, rip) = (registers.rax, registers.rip);
        if (registers.orig_rax as i64) < 0 {
            return Self { rax, rip };
        }
        match rax as i64 {
            RESTART_BLOCK => Self {
                rax: RESTART_SYSCALL,
                rip: rip - 2,
            },
            -514..=-512 => Self {
                rax: registers.orig_rax,
                rip: rip - 2,
            },
            _ => Self { rax, rip },
        }
    }
}

/// A thread that is to be sent through a stub, as it was before.
#[derive(Clone, Debug)]
pub(crate) struct Away {
    /// What it goes on with.
    pub(crate) registers: Registers,
    /// Its signal mask.
    pub(crate) mask: u64,
}

/// Machine code and what the tracer must know of it.
#[derive(Clone, Debug)]
pub(crate) struct Stub {
    /// The bytes.
    pub(crate) code: Vec<u8>,
    /// Offsets of the spin: a thread in here has finished its calls.
    pub(crate) parked: std::ops::Range<u64>,
    calls: usize,
}

/// Most calls that one stub can make.
pub const MOST_CALLS: usize = 7;

const SPINS: u32 = 1 << 25;

/// `pause; lea rcx, [rcx-1]; jrcxz +2; jmp back`: where a thread waits when its calls are done.
const SPIN: [u8; 10] = [0xf3, 0x90, 0x48, 0x8d, 0x49, 0xff, 0xe3, 0x02, 0xeb, 0xf6];

/// Bytes before a thread's address that [`has_calls_ahead`] looks at.
pub const LOOK_BACK: usize = SPIN.len() - 1;

/// Whether a thread that is stopped in a stub still has calls to make. `around` are the bytes from
/// [`LOOK_BACK`] before its address on. What an earlier, longer stub left behind is not reached.
#[must_use]
pub fn has_calls_ahead(around: &[u8]) -> bool {
    around
        .windows(SPIN.len())
        .position(|w| w == SPIN)
        .is_some_and(|at| at > LOOK_BACK)
}

// Register numbers as instruction encodings have them.
const RAX: u8 = 0;
const RCX: u8 = 1;
const RDX: u8 = 2;
const RBX: u8 = 3;
const RBP: u8 = 5;
const RSI: u8 = 6;
const RDI: u8 = 7;
const R8: u8 = 8;
const R9: u8 = 9;
const R10: u8 = 10;
const R11: u8 = 11;
const R12: u8 = 12;
const R13: u8 = 13;
const R14: u8 = 14;
const R15: u8 = 15;

const ARGUMENTS: [u8; 6] = [RDI, RSI, RDX, R10, R8, R9];
/// Registers that keep the results of all calls but the last; system calls leave them alone.
const KEPT: [u8; MOST_CALLS - 1] = [R12, R13, R14, R15, RBX, RBP];

#[derive(Default)]
struct Writer {
    code: Vec<u8>,
}

impl Writer {
    fn put(&mut self, bytes: &[u8]) {
        self.code.extend_from_slice(bytes);
    }

    /// `mov r, value` in its shortest form that leaves the flags alone.
    fn load(&mut self, register: u8, value: u64) {
        let (high, low) = (register >> 3, register & 7);
        if let Ok(small) = u32::try_from(value) {
            if high == 1 {
                self.put(&[0x41]);
            }
            self.put(&[0xb8 + low]);
            self.put(&small.to_le_bytes());
        } else if let Ok(negative) = i32::try_from(value as i64) {
            self.put(&[0x48 | high, 0xc7, 0xc0 + low]);
            self.put(&negative.to_le_bytes());
        } else {
            self.put(&[0x48 | high, 0xb8 + low]);
            self.put(&value.to_le_bytes());
        }
    }

    /// `mov to, from`.
    fn copy(&mut self, to: u8, from: u8) {
        self.put(&[
            0x48 | (from >> 3) << 2 | to >> 3,
            0x89,
            0xc0 | (from & 7) << 3 | to & 7,
        ]);
    }

    fn system_call(&mut self) {
        self.put(&[0x0f, 0x05]);
    }
}

fn value_in(registers: &Registers, register: u8) -> u64 {
    match register {
        RAX => registers.rax,
        RCX => registers.rcx,
        RDX => registers.rdx,
        RBX => registers.rbx,
        RBP => registers.rbp,
        RSI => registers.rsi,
        RDI => registers.rdi,
        R8 => registers.r8,
        R9 => registers.r9,
        R10 => registers.r10,
        R11 => registers.r11,
        R12 => registers.r12,
        R13 => registers.r13,
        R14 => registers.r14,
        _ => registers.r15,
    }
}

impl Stub {
    /// Code that makes `calls`, for this thread as it was, with a trailer for those who find it
    /// when nobody is left who knows.
    ///
    /// # Panics
    /// When there are no calls, or more than [`MOST_CALLS`].
    #[must_use]
    pub(crate) fn encode(calls: &[Call], away: &Away, guardian: (i32, u64)) -> Self {
        let (original, mask) = (&away.registers, away.mask);
        let resume = Resume::of(original);
        assert!(!calls.is_empty() && calls.len() <= MOST_CALLS);
        let mut w = Writer::default();
        for (index, call) in calls.iter().enumerate() {
            for (&register, argument) in ARGUMENTS.iter().zip(&call.arguments) {
                match *argument {
                    Argument::Value(value) => w.load(register, value),
                    Argument::Result(earlier) => {
                        assert!(earlier < index);
                        w.copy(register, KEPT[earlier]);
                    }
                }
            }
            w.load(RAX, trial::number_of(call) as u64);
            w.system_call();
            if index + 1 < calls.len() {
                w.copy(KEPT[index], RAX);
            }
        }
        w.load(RCX, u64::from(SPINS));
        let park = w.code.len() as u64;
        w.put(&SPIN);
        let parked = park..w.code.len() as u64;

        // Nobody came. rt_sigprocmask(SIG_SETMASK, &mask, NULL, 8), with the mask behind the code.
        w.load(RDI, libc::SIG_SETMASK as u64);
        w.put(&[0x48, 0x8d, 0x35]); // lea rsi, [rip + mask]
        let hole = w.code.len();
        w.put(&[0; 4]);
        w.load(RDX, 0);
        w.load(R10, 8);
        w.load(RAX, libc::SYS_rt_sigprocmask as u64);
        w.system_call();
        let used = [RCX, RDX, RSI, RDI, R8, R9, R10, R11];
        for register in used
            .into_iter()
            .chain(KEPT[..calls.len() - 1].iter().copied())
        {
            w.load(register, value_in(original, register));
        }
        w.load(RAX, resume.rax);
        w.put(&[0xff, 0x25, 0, 0, 0, 0]); // jmp [rip + 0]
        w.put(&resume.rip.to_le_bytes());
        let mask_at = w.code.len();
        w.put(&mask.to_le_bytes());
        let displacement = (mask_at - (hole + 4)) as u32;
        w.code[hole..hole + 4].copy_from_slice(&displacement.to_le_bytes());
        let first = |index: usize| match calls[0].arguments.get(index) {
            Some(Argument::Value(value)) => *value,
            _ => 0,
        };
        let trailer = Trailer {
            guardian,
            mapping: (RuntimeAddr(first(0)), first(1)),
            mask,
        };
        let code = w.code.len();
        w.put(&trailer.encode(code));
        Self {
            code: w.code,
            parked,
            calls: calls.len(),
        }
    }

    /// The results of the calls, out of the registers of a parked thread.
    #[must_use]
    pub(crate) fn results(&self, parked: &Registers) -> Vec<i64> {
        KEPT[..self.calls - 1]
            .iter()
            .map(|&register| value_in(parked, register) as i64)
            .chain([parked.rax as i64])
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mapping_call_fits_into_the_room_behind_a_segment() {
        // SAFETY: all-zero is a valid value of a struct of integers.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        for field in [
            &mut registers.rcx,
            &mut registers.rdx,
            &mut registers.rsi,
            &mut registers.rdi,
            &mut registers.r8,
            &mut registers.r9,
            &mut registers.r10,
            &mut registers.r11,
        ] {
            *field = 0x1234_5678_9abc_def0;
        }
        registers.rax = 0x1122_3344_5566_7788;
        registers.rip = 0x7fff_1234_5678;
        registers.orig_rax = u64::MAX;
        let call = Call::new(
            "mmap",
            libc::SYS_mmap,
            &[0x7fff_0000_0000, 1 << 20, 5, 0x10_0022, u64::MAX, 0],
        );
        let away = Away { registers, mask: 0 };
        let stub = Stub::encode(&[call], &away, (1, 2));
        assert!(stub.code.len() <= 256, "{}", stub.code.len());
    }

    #[test]
    fn a_thread_in_the_spin_or_behind_it_has_no_calls_ahead() {
        // SAFETY: all-zero is a valid value of a struct of integers.
        let registers: Registers = unsafe { std::mem::zeroed() };
        let away = Away { registers, mask: 0 };
        let call = Call::new("close", libc::SYS_close, &[1]);
        let stub = Stub::encode(&[call], &away, (0, 0));
        let mut bytes = vec![0; LOOK_BACK];
        bytes.extend_from_slice(&stub.code);
        let ahead = |at: u64| has_calls_ahead(&bytes[at as usize..]);
        assert!((0..stub.parked.start).all(ahead));
        assert!(!(stub.parked.start..stub.code.len() as u64).any(ahead));
        // The spin of an earlier, longer stub behind this one.
        bytes.extend_from_slice(&SPIN);
        let ahead = |at: u64| has_calls_ahead(&bytes[at as usize..]);
        assert!(!stub.parked.clone().any(ahead));
    }

    #[test]
    fn a_restartable_call_is_issued_again() {
        // SAFETY: all-zero is a valid value of a struct of integers.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        registers.rip = 0x1002;
        registers.orig_rax = 34;
        registers.rax = -514i64 as u64;
        let resume = Resume::of(&registers);
        assert_eq!((resume.rax, resume.rip), (34, 0x1000));
        registers.rax = -516i64 as u64;
        let resume = Resume::of(&registers);
        assert_eq!((resume.rax, resume.rip), (219, 0x1000));
        registers.orig_rax = u64::MAX;
        let resume = Resume::of(&registers);
        assert_eq!(resume.rip, 0x1002);
    }
}
