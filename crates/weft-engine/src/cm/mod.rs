//! The connection manager: what `librdmacm` and the kernel's `rdma_cm` do.
//!
//! An [`Id`] binds, listens, resolves, connects and accepts; what happens to it comes as an
//! [`Event`] over its [`Channel`]. A connection is plain MPA (RFC 5044 and RFC 6581) on a TCP
//! connection, so that iWARP peers such as Linux's siw are served as well; Weft peers know each
//! other by a trailer behind the program's private data ([`crate::hello`]). When both sides have
//! agreed, the stream is handed to the queue pair and the connection manager only listens for its
//! end.
//!
//! | module | what it does |
//! | --- | --- |
//! | `id`, `connect` | the states of an identifier |
//! | `event`, `channel` | what events say, and how they get to the program |
//! | `port`, [`claim`], `query` | RDMA ports laid over TCP and UDP ports |
//! | `ask` | who of the peers is a Weft peer |
//! | `dial`, `listen`, `incoming`, `handshake` | the exchange, active and passive |
//! | `datagram`, `sidr`, `lookup`, `service` | the port space of datagrams |
//! | `endpoint`, `held` | the queue pair that gets the stream, or what stands in for it |
//!
//! # Locks
//!
//! An identifier's lock may be held while a channel's, a handshake's or the reactor's is taken,
//! never the other way round. While a queue pair is called, no lock is held that its call back
//! ([`crate::qp::Monitor`]) takes; the one that orders events is held (`event.rs`).

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
