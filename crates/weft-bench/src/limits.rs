//! The limits of this crate. Requests of a control connection beyond them are refused.

use std::time::Duration;

/// Bytes of one frame of the control connection.
pub(crate) const FRAME_MAX: usize = 4 << 20;
/// Workers of one measurement, and workers that one `weft bench serve` runs at a time.
pub(crate) const WORKERS_MAX: usize = 256;
/// Threads of one worker.
pub(crate) const LANES_MAX: usize = 64;
/// Connections of one thread.
pub(crate) const CONNECTIONS_MAX: usize = 16_384;
/// Bytes of one message.
pub(crate) const MESSAGE_MAX: usize = 64 << 20;
/// Outstanding operations of one connection.
pub(crate) const WINDOW_MAX: usize = 4_096;
/// Outstanding operations of all connections of a worker.
pub(crate) const REQUESTS_MAX: usize = 1 << 18;
/// Buffers of one thread for each direction.
pub(crate) const SLOTS_MAX: usize = 4_096;
/// Bytes of all buffers of a worker, for each direction.
pub(crate) const BUFFERS_MAX: usize = 256 << 20;
/// Time of one measurement.
pub(crate) const DURATION_MAX: Duration = Duration::from_secs(600);
/// How long one end waits for a message of a peer that does not lose messages.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(20);
/// After this much silence a message of a lossy peer counts as lost.
pub(crate) const LOSS_AFTER: Duration = Duration::from_millis(200);
/// How long a step of the control connection may take, beyond the measurement itself.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Messages up to this length are sent inline, as perftest does in latency tests.
pub(crate) const INLINE_MAX: usize = 220;
/// Outstanding reads and atomics of one queue pair.
pub(crate) const READS_MAX: u8 = 16;
/// Events that one `epoll_wait` returns.
pub(crate) const EVENTS_MAX: usize = 64;
/// How long filling a connection may take beyond the measurement's time.
pub(crate) const FILL_MAX: Duration = Duration::from_secs(10);
