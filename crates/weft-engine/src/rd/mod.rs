//! Reliable datagrams (RD): messages and RDMA between endpoints that are not connected.
//!
//! The format is [`weft_wire::rd`]. `peer.rs` says who a peer is and keeps its state, `outbox.rs`
//! has what goes to it, `inbox.rs` what comes from it; `machine.rs` has all peers of an endpoint.

mod endpoint;
mod inbox;
pub mod limits;
mod machine;
mod memory;
mod outbox;
mod peer;
mod rate;
mod request;
mod rtt;
mod seq;
#[cfg(test)]
mod sim;
mod table;

pub use endpoint::{Endpoint, Options};
pub use request::{Buffer, Data, Event, PeerAddress, Request, Status};
