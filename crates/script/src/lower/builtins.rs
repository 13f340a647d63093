//! Names that stand for what the surroundings of a hit say.

use super::Lower;
use super::build::Val;
use crate::diag::{Diagnostic, Span, nearest};
use crate::ir::{Clock, Fact, Inst, StrSource, Value};
use crate::types::{I64, Ty, U32, U64};

const BUILTINS: &[&str] = &[
    "pid", "tid", "comm", "nsecs", "elapsed", "cpu", "uid", "gid", "username", "func", "probe",
    "rand", "ncpus", "arg0", "arg1", "arg2", "arg3", "arg4", "arg5", "arg6", "arg7", "arg8",
    "arg9", "usermode",
];
const LATER: &[&str] = &[
    "retval",
    "ustack",
    "args",
    "cgroup",
    "jiffies",
    "numaid",
    "cpid",
    "has_cpid",
    "ppid",
    "pcomm",
    "leader_tid",
    "leader_comm",
    "probetype",
];
const KERNEL: &[&str] = &["kstack", "ctx", "curtask"];

impl Lower<'_> {
    pub(super) fn builtin(&mut self, name: &str, span: Span) -> Val {
        let fact = |lower: &mut Self, ty: Ty, fact: Fact| {
            Val::word(ty, lower.b.def(|dst| Inst::Fact { dst, fact }))
        };
        if let Some(number) = name
            .strip_prefix("arg")
            .and_then(|number| number.parse::<u8>().ok())
        {
            if number > 9 {
                self.error(span, format!("{name}: arguments are arg0 to arg9"));
                return Val::unknown();
            }
            self.needs_target(span, name);
            return fact(self, U64, Fact::Arg(number));
        }
        match name {
            "pid" => fact(self, U32, Fact::Pid),
            "tid" => fact(self, U32, Fact::Tid),
            "uid" => fact(self, U32, Fact::Uid),
            "gid" => fact(self, U32, Fact::Gid),
            "cpu" => fact(self, U32, Fact::Cpu),
            "ncpus" => fact(self, U64, Fact::Ncpus),
            "rand" => fact(self, U32, Fact::Rand),
            "nsecs" => fact(self, U64, Fact::Nsecs(Clock::Boot)),
            "elapsed" => fact(self, U64, Fact::Nsecs(Clock::Elapsed)),
            "username" => fact(self, Ty::Username, Fact::Uid),
            "usermode" => Val::word(I64, Value::Imm(1)),
            "comm" => self.text(16, StrSource::Comm),
            "probe" => fact(self, Ty::Probe, Fact::Probe),
            "func" => {
                self.needs_target(span, "func");
                fact(self, Ty::Func, Fact::Func)
            }
            _ => {
                let error = if LATER.contains(&name) {
                    Diagnostic::error(span, format!("`{name}` is not supported yet"))
                } else if KERNEL.contains(&name) {
                    Diagnostic::error(
                        span,
                        format!("`{name}` is of the kernel; this program probes user space only"),
                    )
                } else {
                    let error = Diagnostic::error(span, format!("unknown name `{name}`"));
                    match nearest(name, BUILTINS.iter().copied()) {
                        Some(near) => error.hint(format!("did you mean {near}?")),
                        None => error,
                    }
                };
                self.tell(error);
                Val::unknown()
            }
        }
    }
}
