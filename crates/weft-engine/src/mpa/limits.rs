//! Limits of the MPA exchange.

use std::time::Duration;

use weft_wire::mpa::frame;

/// When a port query is sent and repeated, from its start. After the first few, a host reports only
/// one closed port per second.
pub const ASK_AT: [Duration; 7] = [
    Duration::ZERO,
    Duration::from_millis(50),
    Duration::from_millis(150),
    Duration::from_millis(350),
    Duration::from_millis(600),
    Duration::from_millis(850),
    Duration::from_millis(1_100),
];
/// The timeout of a query to another host, whose firewall may drop it.
pub const ASK_TIMEOUT: Duration = Duration::from_millis(1_200);
/// The timeout of a query to this host, where an answer is immediate.
pub const ASK_LOCAL_TIMEOUT: Duration = Duration::from_millis(100);
/// Bytes of a reply, and of first FPDUs behind it, that are read at a time. The rest stays in the
/// socket.
pub(crate) const REPLY_READ_LEN: usize = 4 * FRAME_LEN_MAX;
/// Bytes of a request that are read at a time. Nothing may follow it.
pub(crate) const REQUEST_READ_LEN: usize = FRAME_LEN_MAX + 1;

/// Length of the longest frame.
const FRAME_LEN_MAX: usize = frame::HEADER_LEN + frame::PRIVATE_DATA_MAX;
