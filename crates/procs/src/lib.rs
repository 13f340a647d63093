//! Processes and where they map files.
