//! Weft's own protocol: the server's side of a connection, and a client.
//!
//! # Layers
//!
//! ```text
//! client connection
//! rights
//! ```

mod client;
mod connection;
mod rights;

pub use client::{Address, Client, Credentials, Failure, Transport};
pub use connection::Connection;
