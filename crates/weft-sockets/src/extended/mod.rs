//! Extended sockets: one-sided and asynchronous operations beside the ordinary stream.
//!
//! `include/weft_socket.h` documents them. A program gets the calls by a socket option, so it does
//! not link to this library, and without it the kernel answers that there is no such option.
//!
//! * `memory`: memory that peers can map, and mappings of peers' memory;
//! * `onesided`: gets, puts and atomics on a peer's memory;
//! * `queue`: posted operations and their completions.

pub(crate) mod memory;
pub(crate) mod onesided;
pub(crate) mod queue;

use weft_sys::SectionLock;

/// The extra state of a socket in extended mode.
#[derive(Debug)]
pub(crate) struct Extended {
    pub(crate) peer: onesided::PeerMemory,
    pub(crate) work: SectionLock<queue::Work>,
}

impl Extended {
    /// Returns the state with nothing mapped or posted.
    pub(crate) fn new() -> Self {
        Self { peer: onesided::PeerMemory::new(), work: SectionLock::new(queue::Work::default()) }
    }
}
