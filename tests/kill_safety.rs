//! Whoever is killed at whatever moment, no target is harmed and none keeps a probe.
