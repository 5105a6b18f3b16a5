//! The two ends of a session with their threads. The source reads, seals and sends blocks; the sink
//! receives, opens and writes them.
//!
//! In each end a machine of [`crate::session`] is behind a lock (`driver`). One thread sends the
//! machine's messages and one receives messages; the other threads move data.

mod bridge;
mod channels;
mod closers;
mod driver;
mod loads;
mod note;
mod relay;
mod remover;
mod shared;
mod sink;
mod source;

pub use bridge::{Bridge, BridgedSession};
pub use loads::{Loads, Stage, Stages, Work};
pub use note::{Found, Outcome, Planned};
pub use relay::{RelayPlan, run as run_relay};
pub use shared::{
    Carrier, Channels, Compressed, Decisions, EndError, Finished, Observer, Opened, Progress,
    SinkChannel, SourceChannel, Spare,
};
pub use sink::{SinkPlan, SinkTarget, run as run_sink};
pub use source::{SourcePlan, run as run_source};
