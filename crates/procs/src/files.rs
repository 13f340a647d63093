//! The table of the files below `/proc/PID` that are read, as types: what a file may wait for decides who may read it.
//!
//! | type | file | may wait for | right needed |
//! |---|---|---|---|
//! | [`Calm`] | `stat`, `status`, `cgroup` | nothing of the process | none |
//! | [`Calm`] | `wchan` | nothing of the process | ptrace read access, else it says `0` |
//! | [`Bound`] | `cmdline` | the process's mmap lock, on every kernel | none |
//! | [`Bound`] | `environ` | the process's mmap lock and a running `exec` | ptrace read access |
//!
//! A [`Calm`] file is read where its contents are needed ([`Proc::read`](crate::Proc::read)). A [`Bound`] one has no such
//! function: it is read on a helper thread that may be left behind, by [`Proc::read_bound`](crate::Proc::read_bound).

/// Files that never wait for the process that they tell of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Calm {
    /// `stat`: one line of numbers.
    Stat,
    /// `status`: labelled lines.
    Status,
    /// `wchan`: the kernel function that the thread sleeps in.
    Wchan,
    /// `cgroup`: one line a hierarchy.
    Cgroup,
}

/// Files that wait while the process's memory map is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Bound {
    /// `cmdline`: the arguments, each closed by a zero byte.
    Cmdline,
    /// `environ`: the environment as it was at the start, each variable closed by a zero byte.
    Environ,
}

impl Calm {
    /// Every one.
    pub const ALL: [Self; 4] = [Self::Stat, Self::Status, Self::Wchan, Self::Cgroup];

    /// Its name below `/proc/PID`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Stat => "stat",
            Self::Status => "status",
            Self::Wchan => "wchan",
            Self::Cgroup => "cgroup",
        }
    }
}

impl Bound {
    /// Every one.
    pub const ALL: [Self; 2] = [Self::Cmdline, Self::Environ];

    /// Its name below `/proc/PID`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Cmdline => "cmdline",
            Self::Environ => "environ",
        }
    }
}
