//! Weft's own protocol: the server's side of a connection, and a client.
//!
//! # Layers
//!
//! ```text
//! client connection
//! ```

mod client;
mod connection;

pub use client::{Address, Client, Credentials, Failure, Transport};
pub use connection::Connection;
