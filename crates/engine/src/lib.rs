//! Probes by processes: register, unregister, read.
