//! The connection manager: `librdmacm.so.1`.
//!
//! [`weft_engine::cm`] implements the protocol. This module has the C structures that programs
//! read, the synchronous identifiers, whose calls wait, and the objects that librdmacm creates
//! itself: completion queues, protection domains, endpoints. As in librdmacm, structures change
//! only inside the program's calls: an identifier's structure reflects an event once the program
//! has taken it.

mod acked;
mod address;
mod addrinfo;
mod channel;
mod claim;
mod connect;
mod device;
mod endpoint;
mod event;
mod id;
mod multicast;
mod prepared;
mod qp;
mod resolve;
mod rsocket;
