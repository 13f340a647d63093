//! What the surroundings of a hit say.

use cranelift_codegen::ir::{InstBuilder, Value as Ssa, types};
use lancet_abi::private;
use lancet_script::ir::{Clock, Fact};

use super::frame;
use super::function::{Maker, PLAIN};

const GETPID: i64 = 39;
const GETUID: i64 = 102;
const GETGID: i64 = 104;
const CLOCK_GETTIME: i64 = 228;
const GETRANDOM: i64 = 318;

const CLOCK_MONOTONIC: i64 = 1;
const CLOCK_BOOTTIME: i64 = 7;
const CLOCK_TAI: i64 = 11;

/// The system calls that an action makes, all of which always return.
pub(super) const CALLS: [i64; 7] = [
    GETPID,
    GETUID,
    GETGID,
    CLOCK_GETTIME,
    GETRANDOM,
    310, // process_vm_readv
    157, // prctl(PR_GET_NAME)
];

/// Registers that hold the arguments at a function's entry, by number.
const ARGUMENTS: [usize; 6] = [7, 6, 2, 1, 8, 9];
/// Names of the registers by number.
const NAMES: [&str; 16] = [
    "ax", "cx", "dx", "bx", "sp", "bp", "si", "di", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];

/// The fact that reads the flags.
pub(super) const FLAGS: Fact = Fact::Register("flags");

/// The number of the register that a fact reads.
pub(super) fn register_of(fact: Fact) -> Option<usize> {
    match fact {
        Fact::Arg(n) => Some(ARGUMENTS.get(usize::from(n)).copied().unwrap_or(4)),
        Fact::Register(name) => NAMES.iter().position(|known| *known == name),
        _ => None,
    }
}

impl Maker<'_> {
    pub(super) fn fact(&mut self, fact: Fact) -> Ssa {
        match fact {
            Fact::Pid => self.pid(),
            Fact::Tid => self.word(frame::TID),
            Fact::Uid => self.system_call(GETUID, &[]),
            Fact::Gid => self.system_call(GETGID, &[]),
            Fact::Cpu => self.word(frame::CPU),
            Fact::Ncpus => self.imm(self.cpus.into()),
            Fact::Rand => {
                let (zero, to) = (self.imm(0), self.address(frame::WORD));
                self.put(frame::WORD, zero);
                let four = self.imm(4);
                self.system_call(GETRANDOM, &[to, four, zero]);
                self.word(frame::WORD)
            }
            Fact::Nsecs(Clock::Boot) => self.clock(CLOCK_BOOTTIME),
            Fact::Nsecs(Clock::Monotonic) => self.clock(CLOCK_MONOTONIC),
            Fact::Nsecs(Clock::Tai) => self.clock(CLOCK_TAI),
            Fact::Nsecs(Clock::Elapsed) => {
                let now = self.clock(CLOCK_BOOTTIME);
                let start = self.region(self.shared.start());
                let start = self.load(start, 0);
                self.b.ins().isub(now, start)
            }
            Fact::Arg(n @ 6..) => {
                // Above the return address, in the frame of the caller: always mapped.
                let sp = self.word(frame::register(4));
                self.b
                    .ins()
                    .load(types::I64, PLAIN, sp, 8 * (i32::from(n) - 5))
            }
            Fact::Arg(_) | Fact::Register(_) => match register_of(fact) {
                Some(number) => self.word(frame::register(number)),
                None if fact == FLAGS => self.word(frame::FLAGS),
                None => self.word(frame::SITE),
            },
            Fact::Probe => self.word(frame::PROBE),
            Fact::Func => self.word(frame::FUNC),
        }
    }

    fn clock(&mut self, clock: i64) -> Ssa {
        let (clock, to) = (self.imm(clock), self.address(frame::TIME));
        self.system_call(CLOCK_GETTIME, &[clock, to]);
        let seconds = self.word(frame::TIME);
        let nanos = self.word(frame::TIME + 8);
        let seconds = self.b.ins().imul_imm_s(seconds, 1_000_000_000);
        self.b.ins().iadd(seconds, nanos)
    }

    /// The value, or what `other` makes where it is 0.
    fn unless_zero(&mut self, value: Ssa, other: impl FnOnce(&mut Self) -> Ssa) -> Ssa {
        let (zero, out) = (self.block(0), self.block(1));
        self.b.ins().brif(value, out, &[value.into()], zero, &[]);
        self.enter(zero);
        let value = other(self);
        self.jump_with(out, &[value]);
        self.enter(out);
        self.b.block_params(out)[0]
    }

    /// A word of the private page.
    fn private(&mut self, offset: u64) -> Ssa {
        let page = self.word(frame::MODE);
        self.b.ins().load(types::I64, PLAIN, page, offset as i32)
    }

    /// The process's id as the process itself sees it. It is kept in the private page, which a
    /// forked child finds empty.
    pub(super) fn own_pid(&mut self) -> Ssa {
        let known = self.private(private::OWN_PID);
        self.unless_zero(known, |maker| {
            let pid = maker.system_call(GETPID, &[]);
            let page = maker.word(frame::MODE);
            maker
                .b
                .ins()
                .store(PLAIN, pid, page, private::OWN_PID as i32);
            pid
        })
    }

    /// The process's id as the tracer sees it, where the tracer has said so.
    fn pid(&mut self) -> Ssa {
        let shown = self.private(private::SHOWN_PID);
        self.unless_zero(shown, Self::own_pid)
    }
}
