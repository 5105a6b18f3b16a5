//! Byte streams to another host, through rings that the peer writes by RDMA.
//!
//! As on one host ([`crate::End`]) the kernel's TCP connection stays, makes the connection, rings,
//! and tells of the end; a direction is `switch` bytes over TCP, then bytes through the ring, then,
//! if one end has left, bytes over TCP again. But nothing is shared: each end has a [`Window`] into
//! which the other writes, and what an end says arrives later.
//!
//! *Order.* The sender puts bytes into the peer's ring by RDMA Write, and then the new head, on one
//! queue pair. A receiver that sees the head has the bytes: Weft places what it takes from a stream
//! in the order of the stream. InfiniBand has that order, too (Architecture vol. 1, section 9.5).
//! RFC 5040, section 5.5, does not: there a Write's bytes count once a Send behind it is delivered.
//!
//! *Flow control* is packetized (Balaji 2006, chapter 6): the sender knows what is free at the
//! receiver, which tells its tail whenever it has taken a quarter of the ring.
//!
//! *Changing over.* A sender decides after how many bytes it leaves TCP, and writes that number to
//! the peer before anything else. It sends no byte over TCP behind those before that number and
//! the one at which it goes back have arrived (`leave`). So a reader that finds no number knows
//! that all that TCP has brought so far is the stream.
//!
//! *Sleeping.* Each end's bytes are placed by a thread of its own process, which wakes the thread
//! that sleeps: see [`WakeupFd`]. So nothing has to be agreed with the peer.
//!
//! *Hostile peers.* They write what they like into [`window::PEER_STATE`] and the ring, and nothing
//! else: each word is taken once, and a head or tail that cannot be ends the connection.

mod clock;
mod end;
mod leave;
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
pub use send::{Closing, Farewell};
pub use wakeup_fd::WakeupFd;
pub use window::{StateWord, Window};
pub use wire::{Ticket, Wire};
