//! MPA's exchange of request and reply, which opens a connection (RFC 5044 and RFC 6581).
//!
//! The protocol is in two state machines that know no socket and no clock. What has happened is
//! handed to them with the time, and what is to be done is drained from them as effects:
//!
//! | module | what it is |
//! | --- | --- |
//! | [`dialer`] | the active side: asks for a port, connects, sends the request, reads the reply |
//! | [`responder`] | the passive side: reads the request, waits for an answer, sends the reply |
//! | `dial`, `incoming` | the same with sockets, timers and the reactor |
//!
//! Both are shared by the connection manager ([`crate::cm`]) and by queue pairs that are connected
//! by number and GID (`crate::rendezvous`, `crate::acceptor`).

pub(crate) mod dial;
pub mod dialer;
pub(crate) mod incoming;
pub mod limits;
pub mod responder;
#[cfg(test)]
mod tests;
