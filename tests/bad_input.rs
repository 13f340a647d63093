//! Bad input gets a clear error, and no target is touched.
