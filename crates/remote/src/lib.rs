//! Stops, reads and writes other processes.
