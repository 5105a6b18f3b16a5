//! Staged pipelines: stages joined by bounded queues that pass handles of blocks.
//!
//! A pipeline is put together with [`Pipeline`]: its queues, then its stages, each of which takes
//! tasks from a queue and gives them to the next. There are three kinds of stages:
//!
//! - [`Pipeline::parallel`]: any number of identical workers on one queue, for what computes. The
//!   monitor changes their number at run time, and the stage may keep the order of its tasks.
//! - [`Pipeline::asynchronous`]: one thread that keeps many operations of an [`Engine`] in flight,
//!   for disks.
//! - [`Pipeline::threads`]: threads with roles of their own, for networks, and for the ends.
//!
//! Memory is allocated once, as a [`Pool`] of blocks. A task begins when it has a free block, and
//! a [`Block`] returns to its pool when it is dropped. So the blocks are the flow control: a slow
//! stage has all of them in front of it, and the first stage waits.
//!
//! The first error of any stage, or [`Stop::cancel`], stops the pipeline: queues drop what is in
//! them, waiting threads wake, and all of them end. [`Running::wait`] joins them and returns the
//! first error.

pub mod block;
mod build;
pub mod clock;
mod crew;
pub mod engine;
mod memory;
pub mod meter;
pub mod monitor;
pub mod order;
mod ordered;
pub mod pool;
pub mod queue;
pub mod report;
mod running;
mod stage;
pub mod stop;

pub use block::{Block, BlockEvent, BlockState};
pub use build::Pipeline;
pub use clock::{Clock, ManualClock};
pub use engine::Engine;
pub use meter::{Doing, Role, Times};
pub use monitor::{Change, Load, Monitor};
pub use order::Reorder;
pub use pool::Pool;
pub use queue::{Passage, Queue};
pub use report::{Bound, Report, StageReport};
pub use running::Running;
pub use stage::{Halt, Next, StageSettings, Worker};
pub use stop::{Cause, Stop, Stopped};

#[cfg(test)]
mod tests;
