//! The Redis protocol (RESP2): commands for lists and streams.
//!
//! # Layers
//!
//! ```text
//! connection
//! commands
//! glob parse reply
//! ```

mod commands;
mod connection;
mod glob;
mod parse;
mod reply;
#[cfg(test)]
mod tests;

pub use connection::Connection;
pub use parse::{Malformed, Parser, Words};
