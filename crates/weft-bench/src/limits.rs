//! Every bound of this crate. What a control connection asks for beyond one is refused.

use std::time::Duration;

/// Bytes of one frame of the control connection.
pub(crate) const FRAME_MAX: usize = 4 << 20;
/// Workers of one measurement, and those that one `weft bench serve` runs at once.
pub(crate) const WORKERS_MAX: usize = 256;
/// Threads of one worker.
pub(crate) const LANES_MAX: usize = 64;
/// Connections of one thread.
pub(crate) const CONNECTIONS_MAX: usize = 16_384;
/// Bytes of one message.
pub(crate) const MESSAGE_MAX: usize = 64 << 20;
/// Operations of one connection under way at once.
pub(crate) const WINDOW_MAX: usize = 4_096;
/// The same of all connections of a worker.
pub(crate) const REQUESTS_MAX: usize = 1 << 18;
/// Buffers of one thread each way.
pub(crate) const SLOTS_MAX: usize = 4_096;
/// Bytes of all buffers of a worker, each way.
pub(crate) const BUFFERS_MAX: usize = 256 << 20;
/// Time of one measurement.
pub(crate) const DURATION_MAX: Duration = Duration::from_secs(600);
/// How long one end waits for a message of a peer that does not lose any.
pub(crate) const SILENCE_MAX: Duration = Duration::from_secs(20);
/// After which silence a message of a peer that may lose some is taken for lost.
pub(crate) const LOSS_AFTER: Duration = Duration::from_millis(200);
/// How long a step of the control connection may take, beyond the measurement itself.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(60);
/// Messages up to this length are sent inline, as perftest does where latency counts.
pub(crate) const INLINE_MAX: usize = 220;
/// Reads and atomics under way on one queue pair.
pub(crate) const READS_MAX: u8 = 16;
/// Events that one `epoll_wait` returns.
pub(crate) const EVENTS_MAX: usize = 64;
/// How long filling a connection may take, beyond the measurement's time.
pub(crate) const FILL_MAX: Duration = Duration::from_secs(10);
