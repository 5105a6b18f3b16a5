//! The Redis protocol (RESP2 and RESP3): commands for lists and streams.
//!
//! # Layers
//!
//! ```text
//! connection
//! commands
//! glob parse reply roster
//! ```

mod commands;
mod connection;
mod glob;
mod parse;
mod reply;
mod roster;
#[cfg(test)]
mod tests;

pub use connection::Connection;
pub use parse::{Malformed, Parser, Words};
pub use roster::{Addresses, Roster};
