//! TCP connections between processes of this host that go through shared memory: what becomes of
//! them (`weft stat`), live (`weft top`), and whether they can (`weft info`).

mod grid;
mod sample;
mod source;
pub(crate) mod stat;
#[cfg(feature = "tui")]
pub(crate) mod top;
