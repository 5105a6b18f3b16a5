//! Limits, sizes and times of the whole crate.

use std::time::Duration;

/// Default length of buffers in bytes.
pub const BUFFER_LEN: usize = 64 << 10;
/// The longest buffer in bytes.
pub const BUFFER_LEN_MAX: usize = 64 << 20;
/// Default number of buffers that one producer may have at one consumer without acknowledgement.
pub const WINDOW: u32 = 4;
/// The largest window.
pub const WINDOW_MAX: u32 = 256;
/// The most copies of one filter.
pub const COPIES_MAX: usize = 64;
/// The most copies of all filters.
pub const PROCESSES_MAX: usize = 256;
/// The most units of work.
pub const UNITS_MAX: usize = 1 << 16;
/// The longest name of a filter, a host or a parameter in bytes.
pub const NAME_LEN_MAX: usize = 64;
/// The longest description of a pipeline in bytes.
pub const FILE_LEN_MAX: u64 = 1 << 20;
/// The longest message between a worker and the process that has started it, in bytes. A setup
/// contains most of a description, in which JSON may write a byte as six.
pub const MESSAGE_LEN_MAX: u64 = 8 << 20;
/// The most messages of all workers that the process that has started them keeps. Workers that send
/// more wait.
pub const EVENTS_MAX: usize = 16;
/// The most images' pixels in each direction.
pub const IMAGE_SIDE_MAX: u32 = 1 << 20;
/// The most delays that a `measure` filter keeps.
pub const DELAYS_MAX: usize = 1 << 20;
/// The longest error of a worker in bytes. The rest is cut off.
pub const WHY_LEN_MAX: usize = 4 << 10;

/// The longest time that starting and connecting all workers may take.
pub const SETUP_TIME: Duration = Duration::from_secs(60);
/// The longest time in which an accepted connection must say which stream it is.
pub const HELLO_TIME: Duration = Duration::from_secs(5);
/// The most connections at a time that have not said which stream they are.
pub const STRANGERS_MAX: usize = 64;
/// Interval of the reports of a worker.
pub const REPORT_INTERVAL: Duration = Duration::from_millis(250);
/// Silence of a worker after which its host counts as lost.
pub const SILENCE_TIME: Duration = Duration::from_secs(40);
/// How long a lost connection waits for the failure that has caused it.
pub const CAUSE_TIME: Duration = Duration::from_secs(1);
/// How long workers have to end after they were cancelled.
pub const CANCEL_TIME: Duration = Duration::from_secs(5);
/// Bytes of a connection that one read takes ahead of their use. Several short buffers with their
/// headers arrive by one read, and longer ones are read directly.
pub const READ_AHEAD_LEN: usize = 2 << 10;
/// Interval in which a thread checks whether the filter computes while buffers arrive.
pub const READ_AHEAD_TICK: Duration = Duration::from_millis(1);
/// Idle intervals after which that thread sleeps until the filter computes again.
pub const READ_AHEAD_IDLE: u32 = 20;
