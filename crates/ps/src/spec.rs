//! The columns that there are: names, headers, widths. The names and headers are those of POSIX and of procps.

/// What a column shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// Nothing that this system has.
    Nothing,
    /// Arguments, or the name in brackets.
    Arguments,
    /// Name of the thread.
    Name,
    /// Its first eight characters.
    ShortName,
    /// Environment.
    Environment,
    /// Path of the executable.
    Executable,
    /// Control groups that are not the root of their hierarchy.
    ControlGroups,
    /// Short id of the container, from the control groups.
    Container,
    /// One of the ids.
    Id(Id),
    /// The same as a name.
    IdName(Id),
    /// Process id.
    Pid,
    /// Thread id.
    Tid,
    /// Parent.
    Parent,
    /// Process group.
    Group,
    /// Session.
    Session,
    /// Foreground process group of the terminal.
    TerminalGroup,
    /// Threads of the process.
    Threads,
    /// Terminal.
    Terminal,
    /// State, one letter.
    State,
    /// State with what else there is to know.
    LongState,
    /// Kernel flags that POSIX names.
    Flags,
    /// CPU share, whole percent.
    Share,
    /// CPU share, one decimal.
    ShareDecimal,
    /// CPU share in per mill.
    ShareMill,
    /// Memory share, one decimal.
    MemoryShare,
    /// CPU time, `[dd-]hh:mm:ss`.
    Time,
    /// CPU time, seconds.
    TimeSeconds,
    /// CPU time, `m:ss`.
    TimeShort,
    /// Time since the start, `[[dd-]hh:]mm:ss`.
    Elapsed,
    /// Time since the start, seconds.
    ElapsedSeconds,
    /// Start: time of today, day of this year, else the year.
    Start,
    /// Start: time within a day, else the date.
    StartLong,
    /// Start: time or date, short.
    StartShort,
    /// Start: date and time.
    StartFull,
    /// Priority as the kernel shows it, plus the first number, times the second.
    Priority(i32, i32),
    /// Nice value, where the policy has one.
    Nice,
    /// Scheduling policy, as a name.
    PolicyName,
    /// Scheduling policy, as a number.
    Policy,
    /// Real-time priority.
    RealtimePriority,
    /// Kernel function that it sleeps in.
    SleepsIn,
    /// CPU that it ran on last.
    Processor,
    /// The same while it runs.
    RunningProcessor,
    /// Resident memory, KiB.
    Resident,
    /// Limit of resident memory, KiB.
    ResidentLimit,
    /// Virtual memory, KiB.
    Virtual,
    /// Virtual memory, pages.
    VirtualPages,
    /// Virtual memory, bytes.
    VirtualBytes,
    /// Virtual memory without text, KiB.
    Data,
    /// Text, KiB.
    Text,
    /// Data and stack, KiB.
    Writable,
    /// Faults with reading.
    MajorFaults,
    /// Faults without reading.
    MinorFaults,
    /// Start of the stack.
    StackStart,
    /// A set of signals.
    Signals(Signals),
    /// Permitted capabilities.
    Capabilities,
    /// Supplementary groups.
    Groups,
    /// The same as names.
    GroupNames,
}

/// Which of the ids of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is its name")]
pub enum Id {
    RealUser,
    EffectiveUser,
    SavedUser,
    FileUser,
    RealGroup,
    EffectiveGroup,
    SavedGroup,
    FileGroup,
}

/// Which set of signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is its name")]
pub enum Signals {
    Pending,
    ThreadPending,
    Blocked,
    Ignored,
    Caught,
}

/// How a column is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// Text on the left.
    Left,
    /// Numbers on the right.
    Right,
    /// On the right, as wide as the largest pid.
    Pid,
    /// On the left, cut at the column's width, or at the line's end in the last column.
    Open,
    /// As `Open`, without the column's own cut where it is the last.
    Sleep,
    /// On the right in nine characters, or in sixteen where there is room.
    Signal,
}

/// One column that can be asked for.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// As it is asked for.
    pub name: &'static str,
    /// Above the column.
    pub header: &'static str,
    /// Characters.
    pub width: usize,
    /// How it is set.
    pub align: Align,
    /// What it shows.
    pub what: What,
}

/// The column of this name.
#[must_use]
pub(crate) fn find(name: &str) -> Option<&'static Spec> {
    SPECS.iter().find(|spec| spec.name == name)
}

const fn column(
    name: &'static str,
    header: &'static str,
    width: usize,
    align: Align,
    what: What,
) -> Spec {
    Spec {
        name,
        header,
        width,
        align,
        what,
    }
}

use Align::{Left, Open, Right, Signal, Sleep};
use Id::{
    EffectiveGroup, EffectiveUser, FileGroup, FileUser, RealGroup, RealUser, SavedGroup, SavedUser,
};

/// All of them.
pub static SPECS: &[Spec] = &[
    column("%cpu", "%CPU", 4, Right, What::ShareDecimal),
    column("%mem", "%MEM", 4, Right, What::MemoryShare),
    column("addr", "ADDR", 4, Right, What::Nothing),
    column("addr_1", "ADDR", 1, Left, What::Nothing),
    column("args", "COMMAND", 27, Open, What::Arguments),
    column("atime", "TIME", 8, Right, What::Time),
    column(
        "blocked",
        "BLOCKED",
        9,
        Signal,
        What::Signals(Signals::Blocked),
    ),
    column("bsdstart", "START", 6, Right, What::StartShort),
    column("bsdtime", "TIME", 6, Right, What::TimeShort),
    column("c", "C", 2, Right, What::Share),
    column(
        "caught",
        "CAUGHT",
        9,
        Signal,
        What::Signals(Signals::Caught),
    ),
    column("cgroup", "CGROUP", 27, Open, What::ControlGroups),
    column("class", "CLS", 3, Left, What::PolicyName),
    column("cls", "CLS", 3, Right, What::PolicyName),
    column("cmd", "CMD", 27, Open, What::Arguments),
    column("comm", "COMMAND", 15, Open, What::Name),
    column("command", "COMMAND", 27, Open, What::Arguments),
    column("container", "CONTAINER", 12, Left, What::Container),
    column("cp", "CP", 3, Right, What::ShareMill),
    column("cpu", "CPU", 3, Right, What::Processor),
    column("cpuid", "CPUID", 5, Right, What::Processor),
    column("cputime", "TIME", 8, Right, What::Time),
    column("cputimes", "TIME", 8, Right, What::TimeSeconds),
    column("drs", "DRS", 5, Right, What::Data),
    column("dsiz", "DSIZ", 4, Right, What::Data),
    column("egid", "EGID", 5, Right, What::Id(EffectiveGroup)),
    column("egroup", "EGROUP", 8, Left, What::IdName(EffectiveGroup)),
    column("environ", "ENVIRONMENT", 31, Open, What::Environment),
    column("etime", "ELAPSED", 11, Right, What::Elapsed),
    column("etimes", "ELAPSED", 7, Right, What::ElapsedSeconds),
    column("euid", "EUID", 5, Right, What::Id(EffectiveUser)),
    column("euser", "EUSER", 8, Left, What::IdName(EffectiveUser)),
    column("exe", "EXE", 27, Open, What::Executable),
    column("f", "F", 1, Right, What::Flags),
    column("fgid", "FGID", 5, Right, What::Id(FileGroup)),
    column("fgroup", "FGROUP", 8, Left, What::IdName(FileGroup)),
    column("flag", "F", 1, Right, What::Flags),
    column("flags", "F", 1, Right, What::Flags),
    column("fname", "COMMAND", 8, Left, What::ShortName),
    column("fsgid", "FSGID", 5, Right, What::Id(FileGroup)),
    column("fsgroup", "FSGROUP", 8, Left, What::IdName(FileGroup)),
    column("fsuid", "FSUID", 5, Right, What::Id(FileUser)),
    column("fsuser", "FSUSER", 8, Left, What::IdName(FileUser)),
    column("fuid", "FUID", 5, Right, What::Id(FileUser)),
    column("fuser", "FUSER", 8, Left, What::IdName(FileUser)),
    column("gid", "GID", 5, Right, What::Id(EffectiveGroup)),
    column("group", "GROUP", 8, Left, What::IdName(EffectiveGroup)),
    column(
        "ignored",
        "IGNORED",
        9,
        Signal,
        What::Signals(Signals::Ignored),
    ),
    column("intpri", "PRI", 3, Right, What::Priority(60, 1)),
    column("lim", "LIM", 5, Right, What::ResidentLimit),
    column("longtname", "TTY", 8, Left, What::Terminal),
    column("lstart", "STARTED", 24, Right, What::StartFull),
    column("lwp", "LWP", 5, Align::Pid, What::Tid),
    column("m_drs", "DRS", 5, Right, What::Data),
    column("m_size", "SIZE", 5, Right, What::VirtualBytes),
    column("m_trs", "TRS", 5, Right, What::Text),
    column("maj_flt", "MAJFL", 6, Right, What::MajorFaults),
    column("majflt", "MAJFLT", 6, Right, What::MajorFaults),
    column("min_flt", "MINFL", 6, Right, What::MinorFaults),
    column("minflt", "MINFLT", 6, Right, What::MinorFaults),
    column("ni", "NI", 3, Right, What::Nice),
    column("nice", "NI", 3, Right, What::Nice),
    column("nlwp", "NLWP", 4, Right, What::Threads),
    column("opri", "PRI", 3, Right, What::Priority(60, 1)),
    column("pagein", "PAGEIN", 6, Right, What::MajorFaults),
    column("pcap", "PCAP", 16, Right, What::Capabilities),
    column("pcpu", "%CPU", 4, Right, What::ShareDecimal),
    column(
        "pending",
        "PENDING",
        9,
        Signal,
        What::Signals(Signals::Pending),
    ),
    column("pgid", "PGID", 5, Align::Pid, What::Group),
    column("pgrp", "PGRP", 5, Align::Pid, What::Group),
    column("pid", "PID", 5, Align::Pid, What::Pid),
    column("pmem", "%MEM", 4, Right, What::MemoryShare),
    column("policy", "POL", 3, Left, What::PolicyName),
    column("ppid", "PPID", 5, Align::Pid, What::Parent),
    column("pri", "PRI", 3, Right, What::Priority(-39, -1)),
    column("pri_api", "API", 3, Right, What::Priority(1, -1)),
    column("pri_bar", "BAR", 3, Right, What::Priority(1, 1)),
    column("pri_baz", "BAZ", 3, Right, What::Priority(100, 1)),
    column("pri_foo", "FOO", 3, Right, What::Priority(-20, 1)),
    column("priority", "PRI", 3, Right, What::Priority(0, 1)),
    column("psr", "PSR", 3, Right, What::Processor),
    column("rgid", "RGID", 5, Right, What::Id(RealGroup)),
    column("rgroup", "RGROUP", 8, Left, What::IdName(RealGroup)),
    column("rss", "RSS", 5, Right, What::Resident),
    column("rssize", "RSS", 5, Right, What::Resident),
    column("rsz", "RSZ", 5, Right, What::Resident),
    column("rtprio", "RTPRIO", 6, Right, What::RealtimePriority),
    column("ruid", "RUID", 5, Right, What::Id(RealUser)),
    column("ruser", "RUSER", 8, Left, What::IdName(RealUser)),
    column("s", "S", 1, Left, What::State),
    column("sched", "SCH", 3, Right, What::Policy),
    column("sess", "SESS", 5, Align::Pid, What::Session),
    column("session", "SESS", 5, Align::Pid, What::Session),
    column("sgi_p", "P", 1, Right, What::RunningProcessor),
    column("sgid", "SGID", 5, Right, What::Id(SavedGroup)),
    column("sgroup", "SGROUP", 8, Left, What::IdName(SavedGroup)),
    column("sid", "SID", 5, Align::Pid, What::Session),
    column("sig", "PENDING", 9, Signal, What::Signals(Signals::Pending)),
    column(
        "sig_block",
        "BLOCKED",
        9,
        Signal,
        What::Signals(Signals::Blocked),
    ),
    column(
        "sig_catch",
        "CATCHED",
        9,
        Signal,
        What::Signals(Signals::Caught),
    ),
    column(
        "sig_ignore",
        "IGNORED",
        9,
        Signal,
        What::Signals(Signals::Ignored),
    ),
    column(
        "sig_pend",
        "SIGNAL",
        9,
        Signal,
        What::Signals(Signals::Pending),
    ),
    column(
        "sigcatch",
        "CAUGHT",
        9,
        Signal,
        What::Signals(Signals::Caught),
    ),
    column(
        "sigignore",
        "IGNORED",
        9,
        Signal,
        What::Signals(Signals::Ignored),
    ),
    column(
        "sigmask",
        "BLOCKED",
        9,
        Signal,
        What::Signals(Signals::Blocked),
    ),
    column("size", "SIZE", 5, Right, What::Writable),
    column("spid", "SPID", 5, Align::Pid, What::Tid),
    column("stackp", "STACKP", 16, Right, What::StackStart),
    column("start", "STARTED", 8, Right, What::StartLong),
    column("start_stack", "STACKP", 16, Right, What::StackStart),
    column("start_time", "START", 5, Right, What::Start),
    column("stat", "STAT", 4, Left, What::LongState),
    column("state", "S", 1, Left, What::State),
    column("stime", "STIME", 5, Right, What::Start),
    column("suid", "SUID", 5, Right, What::Id(SavedUser)),
    column("supgid", "SUPGID", 20, Open, What::Groups),
    column("supgrp", "SUPGRP", 40, Open, What::GroupNames),
    column("suser", "SUSER", 8, Left, What::IdName(SavedUser)),
    column("svgid", "SVGID", 5, Right, What::Id(SavedGroup)),
    column("svgroup", "SVGROUP", 8, Left, What::IdName(SavedGroup)),
    column("svuid", "SVUID", 5, Right, What::Id(SavedUser)),
    column("svuser", "SVUSER", 8, Left, What::IdName(SavedUser)),
    column("sz", "SZ", 5, Right, What::VirtualPages),
    column("tgid", "TGID", 5, Align::Pid, What::Pid),
    column("thcount", "THCNT", 5, Right, What::Threads),
    column("tid", "TID", 5, Align::Pid, What::Tid),
    column("time", "TIME", 8, Right, What::Time),
    column("times", "TIME", 8, Right, What::TimeSeconds),
    column("tname", "TTY", 8, Left, What::Terminal),
    column("tpgid", "TPGID", 5, Align::Pid, What::TerminalGroup),
    column("trs", "TRS", 4, Right, What::Text),
    column("trss", "TRSS", 4, Right, What::Text),
    column(
        "tsig",
        "PENDING",
        9,
        Signal,
        What::Signals(Signals::ThreadPending),
    ),
    column("tsiz", "TSIZ", 4, Right, What::Text),
    column("tt", "TT", 8, Left, What::Terminal),
    column("tty", "TT", 8, Left, What::Terminal),
    column("ucmd", "CMD", 15, Open, What::Name),
    column("ucomm", "COMMAND", 15, Open, What::Name),
    column("uid", "UID", 5, Right, What::Id(EffectiveUser)),
    column("uid_hack", "UID", 8, Left, What::IdName(EffectiveUser)),
    column("uname", "USER", 8, Left, What::IdName(EffectiveUser)),
    column("user", "USER", 8, Left, What::IdName(EffectiveUser)),
    column("util", "C", 2, Right, What::Share),
    column("vsize", "VSZ", 6, Right, What::Virtual),
    column("vsz", "VSZ", 6, Right, What::Virtual),
    column("wchan", "WCHAN", 6, Sleep, What::SleepsIn),
    column("wname", "WCHAN", 6, Sleep, What::SleepsIn),
];
