//! Datagrams through shared memory: an inbox for each receiving UDP socket, in a file beside that
//! of the streams.
//!
//! The kernel's socket stays bound, and only the kernel decides which socket receives a datagram:
//! before a sender uses an inbox it asks the kernel which socket a datagram from its address to the
//! receiver's address would reach ([`receiver_of`]). An inbox is open only while its owner watches
//! it. Before the owner sleeps in the kernel it shuts the inbox, by the same word with which
//! senders publish datagrams. So each datagram is either in the ring before the owner has looked
//! for the last time, or goes through the kernel, which wakes the owner. No other wakeup is needed,
//! and a socket whose owner does not watch its inbox gets everything from the kernel.

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
