//! Newtypes for numbers that must never be mixed up.

use core::fmt;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// This address moved up by `bytes`; wraps as addresses do.
            #[must_use]
            pub const fn plus(self, bytes: u64) -> Self {
                Self(self.0.wrapping_add(bytes))
            }

            /// This address moved down by `bytes`; wraps as addresses do.
            #[must_use]
            pub const fn minus(self, bytes: u64) -> Self {
                Self(self.0.wrapping_sub(bytes))
            }

            /// Bytes from `base` up to this address; wraps when it lies below.
            #[must_use]
            pub const fn offset_from(self, base: Self) -> u64 {
                self.0.wrapping_sub(base.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }
    };
}

address! {
    /// A position in a file, in bytes from its start.
    FileOffset
}
address! {
    /// An address as the ELF file states it, before any load bias.
    LinkAddr
}
address! {
    /// An address in the memory of one living process.
    RuntimeAddr
}

macro_rules! identifier {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
        #[repr(transparent)]
        pub struct $name(pub i32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

identifier! {
    /// A process (thread group) in the tracer's pid namespace.
    Pid
}
identifier! {
    /// A thread in the tracer's pid namespace.
    Tid
}
