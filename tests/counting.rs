//! Counts are exact, whatever runs.
