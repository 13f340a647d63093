//! Target programs for tests, and what tests ask about a process.
