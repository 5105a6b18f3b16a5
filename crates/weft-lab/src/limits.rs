//! Limits of random programs, of long paths, and of what is written about hangs.

use std::time::Duration;

/// Maximum number of steps, without those that end a program.
pub(crate) const STEPS_MAX: usize = 70;
/// Maximum number of variables. The executor's limit is higher, because templates add some.
pub(crate) const VARS_MAX: usize = 60;
/// Maximum number of actors. The executor's limit is higher, because templates add some.
pub(crate) const ACTORS_MAX: usize = 14;

/// The longest packet of a TUN device with its header, in bytes.
pub(crate) const PACKET_LEN_MAX: usize = (64 << 10) + 10;
/// The longest wait of a long path's thread, after which it checks whether the path still exists.
pub(crate) const PATH_WAIT_MAX: Duration = Duration::from_millis(20);
/// The longest packet that a long path copies, so that it does not keep a whole buffer.
pub(crate) const SHORT_PACKET_LEN_MAX: usize = 4 << 10;
/// The most bytes under way in one direction of a long path, which drops more.
pub(crate) const PATH_QUEUE_LEN_MAX: usize = 512 << 20;
/// The most buffers that a long path keeps for the next packets.
pub(crate) const SPARE_BUFFERS_MAX: usize = 1_024;
/// Maximum number of processes of a program that hangs that are described.
pub(crate) const HANGING_PROCESSES_MAX: usize = 16;
