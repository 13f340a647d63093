//! The system calls that the target `blocked` waits in.

/// Each mode, with the libc's wrapper that the thread is blocked in. The kernel restarts some of
/// these calls after a stop, and some it does not.
pub(crate) const MODES: [(&str, &str); 14] = [
    ("sigsuspend", "sigsuspend"),
    ("pause", "pause"),
    ("ppoll", "ppoll"),
    ("poll", "poll"),
    ("epoll_pwait", "epoll_pwait"),
    ("epoll_wait", "epoll_wait"),
    ("select", "select"),
    ("futex", "syscall"),
    ("semop", "semop"),
    ("sigtimedwait", "sigtimedwait"),
    ("nanosleep", "clock_nanosleep"),
    ("clock_nanosleep", "clock_nanosleep"),
    ("read", "read"),
    ("accept", "accept"),
];
