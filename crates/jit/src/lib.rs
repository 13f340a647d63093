//! Actions to machine code.
