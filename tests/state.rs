//! Registers, flags and stack are as without a probe.
