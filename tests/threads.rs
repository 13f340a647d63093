//! Threads and signals while probes come and go.
