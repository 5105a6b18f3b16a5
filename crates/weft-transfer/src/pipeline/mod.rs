//! Staged pipelines: stages connected by bounded queues of tasks, which own blocks.
//!
//! [`Pipeline`] builds a pipeline: first its queues, then its stages. Each stage takes tasks from a
//! queue and passes them to the next. There are three kinds of stages:
//!
//! - [`Pipeline::parallel`]: any number of identical workers on one queue, for computations. The
//!   monitor changes their number at run time, and the stage can keep the order of its tasks.
//! - [`Pipeline::asynchronous`]: one thread that keeps many operations of an [`Engine`] in flight,
//!   for disks.
//! - [`Pipeline::threads`]: threads with different roles, for networks and for the first and last
//!   stage.
//!
//! Memory is allocated once, as a [`Pool`] of blocks. A task begins when it has a free block, and a
//! [`Block`] returns to its pool when it is dropped. So the blocks provide the flow control: all of
//! them queue before a slow stage, and the first stage waits.
//!
//! The first error of a stage, or [`Stop::cancel`], stops the pipeline: queues drop their tasks,
//! waiting threads wake, and all threads end. [`Running::wait`] joins them and returns the first
//! error.

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
