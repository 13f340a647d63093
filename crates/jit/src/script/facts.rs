//! What the surroundings of a hit say.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{InstBuilder, Value as Ssa, types};
use lancet_abi::private;
use lancet_script::ir::{Clock, Fact};

use super::frame;
use super::function::{Maker, PLAIN};
use super::shared::Clock as Head;

const GETPID: i64 = 39;
const GETUID: i64 = 102;
const GETGID: i64 = 104;
const CLOCK_GETTIME: i64 = 228;
const GETRANDOM: i64 = 318;

const CLOCK_MONOTONIC: i64 = 1;
const CLOCK_BOOTTIME: i64 = 7;
const CLOCK_TAI: i64 = 11;

/// Where a bucket's lock is held by a thread that waits for a CPU.
pub(super) const SCHED_YIELD: i64 = 24;

/// The system calls that an action makes, all of which always return.
pub(super) const CALLS: [i64; 8] = [
    SCHED_YIELD,
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
            Fact::Nsecs(Clock::Boot) => self.clock(CLOCK_BOOTTIME, None),
            Fact::Nsecs(Clock::Monotonic) => self.clock(CLOCK_MONOTONIC, Some(Head::Monotonic)),
            Fact::Nsecs(Clock::Tai) => self.clock(CLOCK_TAI, Some(Head::Tai)),
            Fact::Nsecs(Clock::Elapsed) => {
                let now = self.clock(CLOCK_BOOTTIME, None);
                let start = self.head(Head::Start);
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

    /// A word of the head.
    fn head(&mut self, word: Head) -> Ssa {
        let at = self.region(word.offset());
        self.load(at, 0)
    }

    /// A clock: by the counter at the action's begin and the tracer's factors, or by the kernel where
    /// there are none, or where they change at this moment. `from_boot`: what is added to boot time.
    fn clock(&mut self, clock: i64, from_boot: Option<Head>) -> Ssa {
        let out = self.block(1);
        let (kernel, counter, read) = (self.block(0), self.block(0), self.block(0));
        let version = self.head(Head::Version);
        let odd = self.b.ins().band_imm_s(version, 1);
        let none = self.b.ins().icmp_imm_s(IntCC::Equal, version, 0);
        let none = self.b.ins().uextend(types::I64, none);
        let unusable = self.b.ins().bor(odd, none);
        self.branch(unusable, kernel, read);

        self.enter(read);
        let ticks = self.word(frame::TSC);
        let begin = self.head(Head::Ticks);
        let since = self.b.ins().isub(ticks, begin);
        let slope = self.head(Head::Slope);
        // Bits 32 to 95 of the product.
        let high = self.b.ins().smulhi(since, slope);
        let high = self.b.ins().ishl_imm_u(high, 32);
        let low = self.b.ins().imul(since, slope);
        let low = self.b.ins().ushr_imm_u(low, 32);
        let nanos = self.b.ins().bor(high, low);
        let boot = self.head(Head::Boot);
        let mut now = self.b.ins().iadd(boot, nanos);
        if let Some(word) = from_boot {
            let more = self.head(word);
            now = self.b.ins().iadd(now, more);
        }
        let again = self.head(Head::Version);
        let same = self.b.ins().icmp(IntCC::Equal, version, again);
        self.branch(same, counter, kernel);
        self.enter(counter);
        self.jump_with(out, &[now]);

        self.enter(kernel);
        let now = self.kernel_clock(clock);
        self.jump_with(out, &[now]);
        self.enter(out);
        self.b.block_params(out)[0]
    }

    fn kernel_clock(&mut self, clock: i64) -> Ssa {
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
