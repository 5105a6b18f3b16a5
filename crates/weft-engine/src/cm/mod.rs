//! The connection manager: what `librdmacm` and the kernel's `rdma_cm` do.
//!
//! An [`Id`] binds, listens, resolves, connects and accepts; the program learns what happens to it
//! by [`Event`]s on its [`Channel`]. A connection is plain MPA (RFC 5044 and RFC 6581) on a TCP
//! connection, so that it also works with iWARP peers such as Linux's siw; Weft peers recognise
//! each other by a trailer behind the program's private data ([`crate::hello`]). After the
//! negotiation the stream is attached to the queue pair, and the connection manager is only
//! notified of its end.
//!
//! | module | what it does |
//! | --- | --- |
//! | `id`, `connect` | the states of an identifier |
//! | `event`, `channel` | the events, and their delivery to the program |
//! | `port`, [`claim`], `query` | RDMA ports on top of TCP and UDP ports |
//! | `ask` | whether a peer runs Weft |
//! | `dial`, `listen`, `incoming`, `handshake` | the MPA exchange, active and passive |
//! | `datagram`, `sidr`, `lookup`, `service` | the datagram port spaces |
//! | `endpoint`, `held` | the queue pair that gets the stream, or a stand-in for it |
//!
//! # Locks
//!
//! While an identifier's lock is held, the lock of a channel, a handshake or the reactor may be
//! taken, never the other way round. When a queue pair is called, no lock is held that its callback
//! ([`crate::qp::Monitor`]) takes; the lock that orders events is held (`event.rs`).

mod ask;
mod channel;
pub mod claim;
mod connect;
mod datagram;
mod dial;
mod endpoint;
mod event;
mod handshake;
mod held;
mod id;
mod incoming;
pub mod limits;
mod listen;
mod lookup;
mod option;
mod port;
mod query;
mod service;
mod sidr;
mod socket;
#[cfg(test)]
mod tests;

pub use channel::{Delivery, EventChannel};
pub use connect::{ConnectParam, Via};
pub use event::{DatagramParam, EventKind, EventParam, reject, sidr_status};
pub use id::{Channel, Event, Id, PortSpace};
pub use option::IdOption;
