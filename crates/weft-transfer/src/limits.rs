//! How much there is of everything.

use std::time::Duration;

/// The TCP port of `weft serve` unless another is named.
pub const PORT: u16 = 29_338;

/// Workers of all stages of a pipeline together, unless another number is asked for.
pub const PIPELINE_THREADS_MAX: usize = 64;
/// How often the monitor of a pipeline looks at its stages.
pub const MONITOR_INTERVAL: Duration = Duration::from_millis(20);
/// Intervals in a row in which a stage has to be short of workers to get one.
pub const MONITOR_SHORT_MAX: u32 = 2;
/// Intervals in a row in which a stage has to have one worker too many to lose one.
pub const MONITOR_SLACK_MAX: u32 = 5;
/// Intervals over which the rate of a stage with one more worker is measured.
pub const MONITOR_TRIAL: u32 = 2;
/// Intervals in which a stage gets no worker after one did not help.
pub const MONITOR_HOLD: u32 = 50;
/// Results that a parallel stage holds back at most, to keep their order.
pub const ORDER_WINDOW_MAX: usize = 256;
/// How long an asynchronous stage waits for completions before it looks at its queue again, should
/// the wakeup be lost.
pub const ENGINE_WAIT_MAX: Duration = Duration::from_millis(100);

/// Bytes of a block's header.
pub const HEAD_LEN_MAX: usize = 64;
/// Bytes of a control message.
pub const CONTROL_LEN_MAX: usize = 64 << 10;
/// Control messages that are on the way between two ends in one process.
pub const MEMORY_CONTROL_MAX: usize = 1_024;
