//! Reliable datagrams (RD): messages and RDMA between endpoints that are not connected.
//!
//! The format is in [`weft_wire::rd`]. `endpoint.rs` has the socket and the clock, `machine.rs` the
//! peers of an endpoint, `shared.rs` the state that they share, and `peer.rs` the state and
//! identity of one peer. Outgoing messages are in `outbox.rs`; they are sent (`transmit.rs`),
//! acknowledged or lost (`ack.rs`), or fail (`failure.rs`), at the rate that `rate.rs` and `rtt.rs`
//! determine. `receive.rs` processes what a peer sends, and `inbox.rs` holds what cannot be
//! delivered yet.
//!
//! `port.rs` has endpoints whose peers are connected: their protocol is in `connections.rs`, the
//! messages of its own in [`weft_wire::rd`], and the descriptors that wake who waits in
//! `wakeups.rs`. That a peer's process is gone is known from its host (`refusals.rs`), which is
//! asked now and then (`neighbours.rs`).

mod ack;
mod connections;
mod endpoint;
mod failure;
mod inbox;
pub mod limits;
mod machine;
mod memory;
mod message;
mod neighbours;
mod outbox;
mod peer;
mod port;
mod rate;
mod receive;
mod refusals;
mod request;
mod rtt;
mod seq;
mod shared;
#[cfg(test)]
mod sim;
mod table;
mod time;
mod transmit;
mod wakeups;

pub use connections::{Change, Room};
pub use endpoint::{Endpoint, Options};
pub use port::{Caller, ConnectionEnd, Port, PortListener};
pub use request::{AtomicOp, Buffer, Data, Event, PeerAddress, Request, Status};
