//! MPA's exchange of request and reply, which opens a connection (RFC 5044 and RFC 6581).
//!
//! The protocol consists of two state machines without sockets and clocks. They get inputs with the
//! time, and return effects to execute:
//!
//! | module | what it is |
//! | --- | --- |
//! | [`dialer`] | the active side: asks for a port, connects, sends the request, reads the reply |
//! | [`responder`] | the passive side: reads the request, waits for an answer, sends the reply |
//! | `dial`, `incoming` | run the machines with sockets, timers and the reactor |
//!
//! The connection manager ([`crate::cm`]) uses both, and so do queue pairs that are connected by
//! number and GID (`crate::rendezvous`, `crate::acceptor`).

pub(crate) mod dial;
pub mod dialer;
pub(crate) mod incoming;
pub mod limits;
pub mod responder;
#[cfg(test)]
mod tests;
