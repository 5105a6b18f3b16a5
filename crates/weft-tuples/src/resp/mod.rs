//! The Redis protocol (RESP2 and RESP3): commands for lists and streams.
//!
//! # Layers
//!
//! ```text
//! connection
//! commands
//! roster
//! transaction
//! glob parse reply
//! ```

mod commands;
mod connection;
mod glob;
mod parse;
mod reply;
mod roster;
#[cfg(test)]
mod tests;
mod transaction;

pub use connection::Connection;
pub use parse::{Malformed, Parser, Words};
pub use roster::{Addresses, Roster};
