//! UDP sockets: what is known of one, from `socket(2)` to `close(2)`.
//!
//! A receiver looks at its inbox and at the kernel's socket. The inbox is open only while it looks,
//! or waits: what was put there came before what the kernel took when it was shut, so the inbox is
//! read first, and it is opened again when the kernel has nothing more. So datagrams of one sender
//! keep their order, though UDP does not ask for it.

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

use log::LogOnce;
pub(crate) use log::Why;
pub(crate) use recv::Received;
use recv::peeked;
use send::Routes;

use crate::table::Place;

/// What is known of a UDP socket.
#[derive(Debug)]
pub(crate) struct Datagram {
    is_v6: bool,
    /// It is the kernel's: a feature is in use that only the kernel has.
    off: AtomicU32,
    /// It may have a port.
    bound: AtomicU32,
    shared: AtomicU32,
    v6_only: AtomicU32,
    /// Bytes of a datagram that is not complete are in the kernel (`MSG_MORE`).
    corked: AtomicU32,
    /// The file of inboxes, once it has been asked for.
    datagrams: SectionOnce<Option<&'static Datagrams>>,
    inbox: SectionOnce<Inbox>,
    spin: Spin,
    futex_waits: FutexWaits,
    /// Datagrams that senders have handed to the kernel because the inbox was shut, and that have
    /// been received or lost.
    accounted: AtomicU64,
    /// The program has taken a datagram. Until then it may only be waiting for one to hand the
    /// socket on to another program, which may not be on Weft (inetd): that one has to find it.
    receives: AtomicU32,
    /// `SO_RCVTIMEO` has been set.
    receive_limit: AtomicU32,
    /// When the kernel was last seen to have nothing.
    kernel_empty_at: AtomicU64,
    /// The kernel may have datagrams that were sent before those in the inbox.
    kernel_first: AtomicU32,
    memory_turns: AtomicU32,
    peeked: AtomicU32,
    routes: SectionLock<Routes>,
    sent_log: LogOnce,
    received_log: LogOnce,
    watches: AtomicU32,
    /// Epoll instances that announce what waits in memory.
    announced: AtomicU32,
    /// The last fork that it has been notified of.
    fork: AtomicU32,
    /// Where it stands among the program's sockets.
    place: SectionOnce<Place>,
}

impl Datagram {
    /// A socket just made.
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
