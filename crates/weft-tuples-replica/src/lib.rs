//! Tuple spaces that several servers keep together: a leader serves clients, and what it answers is
//! on the disks of a majority. The servers agree by Raft, which is openraft.
//!
//! The leader's event loop does the operations. Their effects, not the operations, are what the
//! servers agree on: one proposal for each turn of the loop, which names the one before. A proposal
//! that does not follow the last one has no effects, so that a leader of the past changes nothing.
//! `docs/internals/tuples-replication.md` has the whole of it.
//!
//! # Layers
//!
//! Modules use those of their own line, and of the lines below. `cargo xtask tidy` checks it.
//!
//! ```text
//! fuzzing node
//! network
//! member
//! machine
//! store
//! channel tls
//! proposal
//! group
//! limits
//! ```

mod channel;
#[doc(hidden)]
pub mod fuzzing;
mod group;
pub mod limits;
mod machine;
mod member;
mod network;
mod node;
mod proposal;
#[cfg(test)]
mod sim;
mod store;
mod tls;

pub use group::{Group, GroupError, Server};
pub use node::{Node, StartError};
