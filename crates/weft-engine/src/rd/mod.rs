//! Reliable datagrams (RD): messages and RDMA between endpoints that are not connected.
//!
//! The format is [`weft_wire::rd`]. `endpoint.rs` has socket and clock, `machine.rs` the peers of
//! an endpoint, `shared.rs` what they have in common, `peer.rs` the state of one and who it is.
//! What goes to it is in `outbox.rs`, and is sent (`transmit.rs`), acknowledged or lost
//! (`ack.rs`), or fails (`failure.rs`), at the pace that `rate.rs` and `rtt.rs` find. What comes
//! from it is taken by `receive.rs`; what cannot be handed over yet is in `inbox.rs`.

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
mod receive;
mod request;
mod rtt;
mod seq;
mod shared;
#[cfg(test)]
mod sim;
mod table;
mod time;
mod transmit;

pub use endpoint::{Endpoint, Options};
pub use request::{Buffer, Data, Event, PeerAddress, Request, Status};
