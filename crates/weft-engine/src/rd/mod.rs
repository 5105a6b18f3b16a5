//! Reliable datagrams (RD): messages and RDMA between endpoints that are not connected.
//!
//! The format is [`weft_wire::rd`]. `endpoint.rs` has socket and clock, `machine.rs` the peers of
//! an endpoint, `peer.rs` the state of one and who it is. What goes to it is in `outbox.rs`, and is
//! sent (`transmit.rs`), acknowledged or lost (`ack.rs`), or fails (`failure.rs`), at the pace that
//! `rate.rs` and `rtt.rs` find; what comes from it goes through `inbox.rs`.

mod ack;
mod endpoint;
mod failure;
mod inbox;
pub mod limits;
mod machine;
mod memory;
mod message;
mod outbox;
mod peer;
mod rate;
mod request;
mod rtt;
mod seq;
#[cfg(test)]
mod sim;
mod table;
mod transmit;

pub use endpoint::{Endpoint, Options};
pub use request::{Buffer, Data, Event, PeerAddress, Request, Status};
