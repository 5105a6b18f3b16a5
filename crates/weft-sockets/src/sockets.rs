//! The program's sockets: which descriptors are TCP or UDP sockets of ours, asked first and without
//! a lock.

use std::os::fd::RawFd;
use std::sync::atomic::AtomicU32;

use crate::datagram::Datagram;
use crate::stream::Stream;
use crate::table::{self, Listed, Place, Table};

static SOCKETS: Table<Kind> = Table::new();

/// A socket of ours.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Almost all are the large one, and they are looked at often.
pub(crate) enum Kind {
    /// TCP.
    Stream(Stream),
    /// UDP.
    Datagram(Datagram),
}

impl Kind {
    /// How many epoll instances watch it.
    pub(crate) fn watches(&self) -> &AtomicU32 {
        match self {
            Self::Stream(stream) => stream.watches(),
            Self::Datagram(datagram) => datagram.watches(),
        }
    }

    /// How many epoll instances announce what waits for it in memory.
    pub(crate) fn announced(&self) -> &AtomicU32 {
        match self {
            Self::Stream(stream) => stream.announced(),
            Self::Datagram(datagram) => datagram.announced(),
        }
    }
}

impl Listed for Kind {
    fn table() -> &'static Table<Self> {
        &SOCKETS
    }

    fn placed(&self, place: Place) {
        match self {
            Self::Stream(stream) => stream.placed(place),
            Self::Datagram(datagram) => datagram.placed(place),
        }
    }
}

/// A reference to a socket.
pub(crate) type Held = table::Held<Kind>;

/// The socket `fd`, if it is ours.
#[inline]
pub(crate) fn find(fd: RawFd) -> Option<Held> {
    SOCKETS.find(fd)
}

/// Whether `fd` is a socket of ours, without holding it.
#[inline]
pub(crate) fn knows(fd: RawFd) -> bool {
    SOCKETS.knows(fd)
}

/// Every socket of ours in a range.
pub(crate) fn within(first: u32, last: u32) -> impl Iterator<Item = RawFd> {
    SOCKETS.within(first, last)
}

/// Every socket of ours.
pub(crate) fn all() -> impl Iterator<Item = RawFd> {
    SOCKETS.within(0, u32::MAX)
}

/// `fd`, just opened, is a socket of ours.
pub(crate) fn install(fd: RawFd, kind: Kind) {
    SOCKETS.install(fd, kind);
}

/// `copy` is the same socket as `held` from now on.
pub(crate) fn share(held: &Held, copy: RawFd) {
    SOCKETS.share(held, copy);
}

/// All descriptors of `held` stand for something else from now on.
pub(crate) fn replace(held: &Held, kind: Kind) {
    SOCKETS.replace(held, kind);
}

/// `fd` is closed, or is about to be. Returns what it was.
pub(crate) fn remove(fd: RawFd) -> Option<Held> {
    SOCKETS.remove(fd)
}
