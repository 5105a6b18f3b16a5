//! Byte streams to another host, through rings that the peer writes by RDMA.
//!
//! As on one host ([`crate::End`]) the kernel's TCP connection stays open: it makes the connection,
//! wakes sleepers and reports the end. Each direction is `switch` bytes over TCP, then bytes
//! through the ring, then, if one end has fallen back, bytes over TCP again. But no memory is
//! shared: each end has a [`Window`] into which the other writes, and published words arrive with a
//! delay.
//!
//! *Order.* The sender writes bytes into the peer's ring by RDMA Write, and then the new head, on
//! one queue pair. A receiver that sees the head has the bytes: Weft places what it takes from a
//! stream in the order of the stream. InfiniBand guarantees that order, too (Architecture vol. 1,
//! section 9.5). RFC 5040, section 5.5, does not: there the bytes of a Write are valid once a later
//! Send has been delivered.
//!
//! *Flow control* is packetized (Balaji 2006, chapter 6): the sender knows the free space at the
//! receiver, which publishes its tail whenever it has taken a quarter of the ring.
//!
//! *Changing over.* Each end decides for itself whether it takes the wire that it is offered (the
//! program may have closed the socket meanwhile, or the peer's proof may not hold), and publishes
//! that it has ([`window::state::BEGUN`]). A sender that has seen this decides after how many bytes
//! it leaves TCP, and writes that number to the peer before anything else. It sends no further byte
//! over TCP before that number, and the position at which it falls back (`leave`), have arrived. So
//! as long as a reader finds no number, all bytes that TCP has brought belong to the stream.
//!
//! *Sleeping.* Each end's bytes are placed by a service thread of its own process, which wakes the
//! sleeping thread: see [`WakeupFd`]. So nothing has to be agreed with the peer.
//!
//! *Hostile peers.* They can write any value into [`window::PEER_STATE`] and the ring, and nothing
//! else. Each word is read once, and an impossible head or tail ends the connection.

mod clock;
mod end;
mod fallback;
mod proof;
mod recv;
mod send;
#[cfg(test)]
mod sim;
mod sleep;
mod wakeup_fd;
pub mod window;
mod wire;

pub use clock::{Clock, SystemClock};
pub use end::Remote;
pub use proof::{BYTES_MIN, Moved, PROOF_LEN, Proof};
pub use send::{Closing, FinalFlush};
pub use wakeup_fd::WakeupFd;
pub use window::{StateWord, Window};
pub use wire::{Ticket, Wire};
