//! The limits of the connection manager.

use std::time::Duration;

/// Connection requests of one listener that wait for the program, and the meaning of a backlog of 0
/// (as in the Linux kernel, `net.rdma_ucm.max_backlog`). Further requests are rejected.
pub const BACKLOG_MAX: u32 = 1_024;
/// How long a peer may take to send its whole request. The Linux kernel's siw waits as long.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a request waits for a program that takes no events. Its peer gives up earlier.
pub const UNTAKEN_TIMEOUT: Duration = Duration::from_secs(60);
/// How long connecting by TCP may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the peer's program may take to accept or reject. InfiniBand's connection manager allows
/// about a minute, siw 10 s.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest private data in a peer's request or reply, including the trailer: what an MPA frame
/// holds (RFC 5044 section 7.1.1).
pub const PEER_PRIVATE_DATA_MAX: usize = 512;

/// How long a peer's closed UDP port is remembered.
pub const CLOSED_FOR: Duration = Duration::from_secs(60);
/// Number of peers whose closed UDP port is remembered.
pub const CLOSED_MAX: usize = 64;
/// First pause between two queries of a datagram service; each further pause is twice as long.
pub const QUERY_INTERVAL: Duration = Duration::from_millis(50);
/// Longest pause between two queries.
pub const QUERY_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// How long a closed port does not end a lookup: see [`REFUSED_RETRY_DELAYS`].
pub const REFUSED_TIME: Duration = Duration::from_millis(600);
/// Requests that a datagram service remembers, to repeat its answers.
pub const SERVICE_REQUESTS_MAX: usize = 1_024;
/// Port queries that one pass answers before other sources have their turn.
pub const ANSWERS_MAX: usize = 64;

/// Delays before a port on which no program listens is tried again, each from the last attempt.
/// Connecting takes longer with InfiniBand, and programs rely on that: perftest's client connects
/// for the second time just when its server is about to listen again.
pub const REFUSED_RETRY_DELAYS: [Duration; 5] = [
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(80),
    Duration::from_millis(160),
    Duration::from_millis(320),
];

/// How long a listener leaves the TCP port to a program whose calls we do not see, see
/// [`super::claim`].
pub const PORT_GRACE: Duration = Duration::from_millis(200);
/// Ports to try if the program lets us choose one.
pub const PORT_TRIES_MAX: usize = 32;

/// How long the report of the peer's disconnect waits for the program to take earlier completions.
pub const UNREAD_WAIT: Duration = Duration::from_millis(100);
/// How often these completions are checked.
pub const UNREAD_INTERVAL: Duration = Duration::from_millis(1);
/// Time from the program's disconnect to its event: about as long as InfiniBand's connection
/// managers need to exchange their messages. Programs rely on some delay: libiscsi disconnects and
/// then cancels its event thread, which would crash if it got the event before.
pub const DISCONNECT_TIME: Duration = Duration::from_millis(1);
/// Time from the end of a connection to its `TIMEWAIT_EXIT` event.
pub const TIMEWAIT: Duration = Duration::from_millis(500);
/// Bytes that a connection without a queue pair of ours may receive: a ready-to-receive message
/// needs no more.
pub const HELD_BYTES_MAX: usize = 256;
