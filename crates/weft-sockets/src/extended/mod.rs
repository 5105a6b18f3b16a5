//! Extended sockets: one-sided and asynchronous operations beside the ordinary stream.
//!
//! `include/weft_socket.h` says what programs may expect. A program finds the calls by an option
//! of its socket, so that it is linked to nothing and hears from the kernel that there is no such
//! option where this library is not loaded.
//!
//! * `memory`: memory that peers can map, and that of peers;
//! * `onesided`: getting, putting and changing words there;
//! * `queue`: posted operations and their completions;
//! * `switch`: how a socket comes to have them; `calls`: the C functions.

pub(crate) mod memory;
pub(crate) mod onesided;
pub(crate) mod queue;

use weft_sys::SectionLock;

/// What a socket in extended mode has beside its stream.
#[derive(Debug)]
pub(crate) struct Extended {
    pub(crate) peer: onesided::Peer,
    pub(crate) work: SectionLock<queue::Work>,
}

impl Extended {
    /// Nothing is mapped or posted yet.
    pub(crate) fn new() -> Self {
        Self { peer: onesided::Peer::new(), work: SectionLock::new(queue::Work::default()) }
    }
}
