//! Real programs, all of libc counted: their output is the same.
