//! The index as a service: one process scans for many.
//!
//! A client sends a [`Query`] to the service's socket and is told the generation of a snapshot, with the memory that it lies
//! in ([`Slots`](crate::Slots)). A strict query is answered by a scan that began after it arrived; queries that wait at the
//! same time share one scan. The service keeps `stat` and `cmdline` of each process open, which saves more than half of a
//! look, and by which it notices at once when a pid has passed to another process.
//!
//! Who may ask is said by the mode of the socket: its owner, or a group too. Where `/proc` hides processes from other users,
//! only root and the service's own user are answered. Nothing that `/proc` would not show to any of its users is published.

mod client;
mod keeper;
mod protocol;
mod server;

pub use client::{Unserved, ask};
pub use keeper::Keeper;
pub use protocol::{Query, socket_paths};
pub use server::Server;
