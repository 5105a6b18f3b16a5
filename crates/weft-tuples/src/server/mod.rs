//! The server: one event loop, on one thread, for all connections of both protocols.
//!
//! One thread does all operations, so that they have one order. Sockets are waited for by mio,
//! which calls the C library: under `weft run` connections of one host go through shared memory.
//! Connections by the fabric are looked at for a while before the server sleeps.
//!
//! # Layers
//!
//! ```text
//! event_loop
//! polled
//! served
//! replica socket unproven
//! tls
//! ```

mod event_loop;
#[cfg(test)]
mod fabric_tests;
mod polled;
mod replica;
mod served;
mod socket;
#[cfg(test)]
mod tests;
mod tls;
mod unproven;

pub use event_loop::{Server, ServerError, Stop};
pub use replica::{Replica, Standing};
pub use socket::Listener;
pub(crate) use tls::TlsStream;
