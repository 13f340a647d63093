//! Attaching and detaching does not show in system calls that were interrupted for it.
