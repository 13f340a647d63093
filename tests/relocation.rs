//! Moved instructions do what they did in place.
