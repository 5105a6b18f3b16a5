//! Bounds of the exchange.

use std::time::Duration;

use weft_wire::mpa::frame;

/// When a peer is asked for the TCP port of an RDMA port, counted from the first time. A host tells
/// only once a second that a port is closed, after the first few times.
pub const ASK_AT: [Duration; 7] = [
    Duration::ZERO,
    Duration::from_millis(50),
    Duration::from_millis(150),
    Duration::from_millis(350),
    Duration::from_millis(600),
    Duration::from_millis(850),
    Duration::from_millis(1_100),
];
/// When the answer is not waited for any longer: there is a filter between.
pub const ASK_TIMEOUT: Duration = Duration::from_millis(1_200);
/// The same on one host, where an answer takes no time.
pub const ASK_LOCAL_TIMEOUT: Duration = Duration::from_millis(100);
/// Bytes that are read at a time of a reply and of the first FPDUs behind it. What does not fit
/// stays in the socket.
pub(crate) const REPLY_READ_LEN: usize = 4 * FRAME_LEN_MAX;
/// Bytes that are read of a request at a time. Nothing may come behind it.
pub(crate) const REQUEST_READ_LEN: usize = FRAME_LEN_MAX + 1;

/// Bytes of the longest frame.
const FRAME_LEN_MAX: usize = frame::HEADER_LEN + frame::PRIVATE_DATA_MAX;
