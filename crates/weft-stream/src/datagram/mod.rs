//! Datagrams through shared memory: an inbox for each UDP socket that receives, in a file beside
//! that of the streams.
//!
//! The kernel's socket stays bound, and it alone says who receives what: before a sender uses an
//! inbox it asks the kernel which socket a datagram from its address to the receiver's would reach
//! ([`receiver_of`]). An inbox is open only while its owner looks at it. Before the owner sleeps in
//! the kernel it shuts the inbox by the same word that a sender publishes a datagram by, so a
//! datagram is either in the ring before the owner has looked for the last time, or goes through
//! the kernel, which wakes the owner. No other wake-up is ever needed, and a socket that nobody
//! looks at is the kernel's alone.

mod futex_waits;
mod inbox;
mod layout;
mod oracle;
mod registry;

pub use crate::limits::DATAGRAM_LEN_MAX;
pub use futex_waits::{By, FutexWaits};
pub use inbox::{Arrival, Inbox, Owner, Put};
pub use oracle::receiver_of;
pub use registry::{DatagramTotals, Datagrams};
