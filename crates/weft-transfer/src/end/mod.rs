//! The two ends of a session, with their threads: what reads, seals and sends at the source, and
//! what receives, opens and writes at the sink.
//!
//! A machine of [`crate::session`] is behind a lock in each end (`desk`). One thread sends
//! what the machines want to be sent, one receives; the other threads do the work.

mod desk;
mod loads;
mod note;
mod shared;
mod sink;
mod source;

pub use loads::Loads;
pub use note::{Outcome, Planned};
pub use shared::{
    Channels, EndError, Finished, Observer, Opened, Progress, SinkChannel, SourceChannel,
};
pub use sink::{SinkPlan, run as run_sink};
pub use source::{SourcePlan, run as run_source};
