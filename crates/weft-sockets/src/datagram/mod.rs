//! UDP sockets: the state of one, from `socket(2)` to `close(2)`.
//!
//! A receiver reads its inbox and the kernel's socket. The inbox is open only while the receiver
//! reads or waits. So the inbox holds older datagrams than those that the kernel has taken since it
//! was shut; the receiver empties it first, and opens it again once the kernel has nothing more.
//! This keeps the order of each sender's datagrams, though UDP does not require it.

mod log;
mod options;
mod recv;
mod send;
mod socket;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicU32, AtomicU64};

use weft_stream::datagram::{Datagrams, FutexWaits, Inbox};
use weft_sys::{SectionLock, SectionOnce, Spin};

pub(crate) use log::DatagramReason;
use log::LogOnce;
pub(crate) use recv::Received;
use recv::peeked;
use send::Routes;

use crate::table::Place;

/// The state of a UDP socket.
#[derive(Debug)]
pub(crate) struct Datagram {
    is_v6: bool,
    /// The kernel carries it: a feature is in use that only the kernel implements.
    off: AtomicU32,
    /// Whether the socket may have a port.
    bound: AtomicU32,
    shared: AtomicU32,
    v6_only: AtomicU32,
    /// The kernel holds the beginning of an incomplete datagram (`MSG_MORE`).
    corked: AtomicU32,
    /// The file of inboxes, once it has been opened; `None` if that failed.
    datagrams: SectionOnce<Option<&'static Datagrams>>,
    inbox: SectionOnce<Inbox>,
    spin: Spin,
    futex_waits: FutexWaits,
    /// How many of the datagrams that senders gave to the kernel because the inbox was shut have
    /// been received or lost.
    accounted: AtomicU64,
    /// Whether the program has received a datagram. Until then it may be waiting for one only to
    /// hand the socket to another program that may not run on Weft (inetd) and has to find it.
    receives: AtomicU32,
    /// Whether `SO_RCVTIMEO` has been set.
    receive_limit: AtomicU32,
    /// When the kernel's socket was last seen empty.
    kernel_empty_at: AtomicU64,
    /// Whether the kernel may have datagrams that are older than those in the inbox.
    kernel_first: AtomicU32,
    memory_turns: AtomicU32,
    peeked: AtomicU32,
    routes: SectionLock<Routes>,
    sent_log: LogOnce,
    received_log: LogOnce,
    watches: AtomicU32,
    /// Number of epoll instances that report datagrams in the inbox.
    announced: AtomicU32,
    /// The last fork that this socket has taken part in.
    fork: AtomicU32,
    /// Its entry in the descriptor table.
    place: SectionOnce<Place>,
}

impl Datagram {
    /// Returns the state of a new socket.
    pub(crate) fn fresh(is_v6: bool) -> Self {
        Self {
            is_v6,
            off: AtomicU32::new(0),
            bound: AtomicU32::new(0),
            shared: AtomicU32::new(0),
            v6_only: AtomicU32::new(0),
            corked: AtomicU32::new(0),
            datagrams: SectionOnce::new(),
            inbox: SectionOnce::new(),
            spin: Spin::new(),
            futex_waits: FutexWaits::new(),
            accounted: AtomicU64::new(0),
            receives: AtomicU32::new(0),
            receive_limit: AtomicU32::new(0),
            kernel_empty_at: AtomicU64::new(0),
            kernel_first: AtomicU32::new(0),
            memory_turns: AtomicU32::new(0),
            peeked: AtomicU32::new(peeked::NOTHING),
            routes: SectionLock::new(Routes::default()),
            sent_log: LogOnce::new(),
            received_log: LogOnce::new(),
            watches: AtomicU32::new(0),
            announced: AtomicU32::new(0),
            fork: AtomicU32::new(0),
            place: SectionOnce::new(),
        }
    }
}
