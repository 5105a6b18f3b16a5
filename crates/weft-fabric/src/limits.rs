//! The limits of this crate.

use std::time::Duration;

/// Bytes of the program's private data in a request to connect, or in the answer, over Weft's own
/// engine; [`Fabric::private_data_max`](crate::Fabric::private_data_max) has what other carriers
/// take.
pub const PRIVATE_DATA_MAX: usize = weft_engine::limits::WEFT_PRIVATE_DATA_MAX - HELLO_LEN;
/// Bytes of a message that is sent by value: what fits into a work request, less its header.
pub const VALUE_MAX: usize = weft_engine::limits::INLINE_MAX as usize - HEADER_LEN;
/// Bytes of a message that any end must be ready to receive.
pub const MESSAGE_MAX: usize = 1 << 20;
/// Messages that one end may be ready to receive.
pub const WINDOW_MAX: usize = 4_096;
/// Operations of an endpoint that may be under way at a time.
pub const DEPTH_MAX: usize = 8_192;
/// Operations of an endpoint that may wait for their turn.
pub const WAITING_MAX: usize = 65_536;
/// Receives beyond the window, for messages that only return credits: see [`crate::credits`].
pub(crate) const CREDIT_RECEIVES_MAX: usize = 2;
/// Bytes of a shared range that is moved to pages of its own, see [`crate::share`].
pub(crate) const APART_MAX: usize = 64 << 10;
/// Completions that one look at an endpoint takes at a time.
pub(crate) const BATCH: usize = 32;
/// Looks of a blocked thread between two looks at the clock, which takes as long.
pub(crate) const LOOKS_PER_CLOCK: u32 = 4;
/// Events that the watcher takes at a time.
pub(crate) const WATCHED_EVENTS_MAX: usize = 64;
/// Connections to the socket of a listener's path that wait, and that are answered at a time.
pub(crate) const DOOR_CALLS_MAX: i32 = 128;
/// The longest time in which an address and the route to it are found by the system's libraries, or
/// the address of a path by asking there.
pub(crate) const RESOLVE_TIME_MAX: Duration = Duration::from_secs(10);
/// Bytes of a hello, see [`crate::hello`].
pub(crate) const HELLO_LEN: usize = 14;
/// Bytes of the header of a message, see [`crate::header`].
pub(crate) const HEADER_LEN: usize = 8;
