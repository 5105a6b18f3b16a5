//! Blocks: the memory through which the data of a copy passes, allocated once as a [`Pool`].
//!
//! A [`Block`] has one owner at a time, and returns to its pool when it is dropped, whatever the
//! reason. So none is lost, and the free blocks are the flow control: an end that is not served
//! waits for one.

mod block;
mod home;
mod pool;

pub use block::Block;
pub use pool::Pool;
