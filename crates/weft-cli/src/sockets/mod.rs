//! TCP connections between processes of this host that go through shared memory: their state (`weft
//! stat`), live (`weft top`), and whether they can (`weft info`).

mod grid;
pub(crate) mod readiness;
mod sample;
mod source;
pub(crate) mod stat;
#[cfg(feature = "tui")]
pub(crate) mod top;

pub(crate) use sample::reasons;
