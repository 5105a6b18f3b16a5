//! Every bound of the connection manager.

use std::time::Duration;

/// Connection requests of one listener that wait for the program, and what a backlog of 0 means
/// (as in the Linux kernel, `net.rdma_ucm.max_backlog`). A request beyond it is rejected.
pub const BACKLOG_MAX: u32 = 1_024;
/// How long a peer may take to send its whole request. The Linux kernel's siw waits as long.
pub const REQUEST_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 5_000 });
/// How long a request waits for a program that takes no events. Its peer does not wait as long.
pub const UNTAKEN_TIMEOUT: Duration =
    Duration::from_millis(if cfg!(test) { 1_000 } else { 60_000 });
/// How long a TCP connection may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the peer's program may take to accept or reject. InfiniBand's connection manager lets
/// it take about a minute, siw 10 s.
pub const REPLY_TIMEOUT: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 30_000 });
/// Longest private data that a peer's request or reply may carry, trailer included: what an MPA
/// frame holds (RFC 5044 section 7.1.1).
pub const PEER_PRIVATE_DATA_MAX: usize = 512;

/// How long it is remembered that a peer's UDP port was closed, and of how many peers.
pub const CLOSED_FOR: Duration = Duration::from_secs(60);
/// See [`CLOSED_FOR`].
pub const CLOSED_MAX: usize = 64;
/// When a datagram service is asked again, counted from the last time; twice as long each time.
pub const INQUIRE_EVERY: Duration = Duration::from_millis(50);
/// The longest pause between.
pub const INQUIRE_EVERY_MAX: Duration = Duration::from_secs(1);
/// How long a closed port is no reason to give up: see [`KNOCK_AGAIN_AFTER`].
pub const REFUSED_TIME: Duration = Duration::from_millis(600);
/// Requests that a datagram service remembers, to answer those that are repeated.
pub const INQUIRIES_MAX: usize = 1_024;
/// Port queries answered in a row before the driving thread looks at something else.
pub const ANSWERS_MAX: usize = 64;

/// When a port on which nobody listens is tried again, each time counted from the last. With
/// InfiniBand a connection takes its time, and programs rely on that: perftest's client connects
/// once more at the moment when its server is about to listen once more.
pub const KNOCK_AGAIN_AFTER: [Duration; 5] = [
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(80),
    Duration::from_millis(160),
    Duration::from_millis(320),
];

/// How long a listener leaves the TCP port to a program that cannot ask for it, see
/// [`super::claim`].
pub const PORT_GRACE: Duration = Duration::from_millis(200);
/// Ports tried when the program lets us choose one.
pub const PORT_TRIES_MAX: usize = 32;

/// How long the news that the peer has disconnected waits for the program to take what completed
/// before, and how often that is looked at.
pub const UNREAD_WAIT: Duration = Duration::from_millis(100);
/// See [`UNREAD_WAIT`].
pub const UNREAD_INTERVAL: Duration = Duration::from_millis(1);
/// How long after the program disconnects that is reported to it: about what the exchange of
/// messages takes that a connection manager of InfiniBand has with the peer. Programs rely on that
/// it takes some time: libiscsi disconnects, and then cancels its thread that waits for events,
/// which would crash if it met the event before.
pub const DISCONNECT_TIME: Duration = Duration::from_millis(1);
/// How long after the end of a connection its `TIMEWAIT_EXIT` event comes.
pub const TIMEWAIT: Duration = Duration::from_millis(500);
/// Bytes that a connection without a queue pair of ours may receive: no more than a
/// ready-to-receive message is due there.
pub const HELD_BYTES_MAX: usize = 256;
