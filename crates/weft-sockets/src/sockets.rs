//! The table of the program's TCP and UDP sockets that Weft knows. Hooks ask it first, and it takes
//! no lock.

use std::os::fd::RawFd;
use std::sync::atomic::AtomicU32;

use crate::datagram::Datagram;
use crate::stream::Stream;
use crate::table::{self, Listed, Place, Table};

static SOCKETS: Table<Kind> = Table::new();

/// A known socket.
#[derive(Debug)]
// Almost all are of the large variant, and the hooks access them often.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Kind {
    /// TCP.
    Stream(Stream),
    /// UDP.
    Datagram(Datagram),
}

impl Kind {
    /// Returns how many epoll instances watch the socket.
    pub(crate) fn watches(&self) -> &AtomicU32 {
        match self {
            Self::Stream(stream) => stream.watches(),
            Self::Datagram(datagram) => datagram.watches(),
        }
    }

    /// Returns how many epoll instances announce the socket's data in memory.
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

/// Returns the socket of `fd`, if it is known.
#[inline]
pub(crate) fn find(fd: RawFd) -> Option<Held> {
    SOCKETS.find(fd)
}

/// Returns whether `fd` is a known socket, without taking a reference.
#[inline]
pub(crate) fn knows(fd: RawFd) -> bool {
    SOCKETS.knows(fd)
}

/// Returns every known socket in a range.
pub(crate) fn within(first: u32, last: u32) -> impl Iterator<Item = RawFd> {
    SOCKETS.within(first, last)
}

/// Returns every known socket.
pub(crate) fn all() -> impl Iterator<Item = RawFd> {
    SOCKETS.within(0, u32::MAX)
}

/// Records the new socket `fd`.
pub(crate) fn install(fd: RawFd, kind: Kind) {
    SOCKETS.install(fd, kind);
}

/// Records that `copy` is a duplicate of `held`.
pub(crate) fn share(held: &Held, copy: RawFd) {
    SOCKETS.share(held, copy);
}

/// Replaces the state of all descriptors of `held`.
pub(crate) fn replace(held: &Held, kind: Kind) {
    SOCKETS.replace(held, kind);
}

/// Removes `fd`, which is closed or about to be closed. Returns its socket.
pub(crate) fn remove(fd: RawFd) -> Option<Held> {
    SOCKETS.remove(fd)
}
