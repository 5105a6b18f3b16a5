//! The connection manager: `librdmacm.so.1`.
//!
//! The engine's [`weft_engine::cm`] does the work; here are the C structures that programs look
//! into, the waiting of synchronous identifiers, and what librdmacm makes on its own account:
//! completion queues, protection domains, endpoints. Structures change as they do in librdmacm,
//! inside the program's own calls: what has happened to an identifier shows in it once the program
//! has taken the event.

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
