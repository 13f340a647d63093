//! How the bytes at a probe site can be replaced.
