//! The limits of reliable datagrams. Times are in microseconds.

use std::time::Duration;

use weft_wire::rd::WINDOW_MAX;

/// Peers whose state one endpoint keeps.
pub const PEERS_MAX: usize = 65_536;
/// Peers among them whose address may be forged. Further ones must repeat an epoch first.
pub const UNPROVEN_MAX: usize = 1_024;
/// Default datagram length in bytes: what an Ethernet frame carries over IPv6 and UDP.
pub const DATAGRAM_LEN: usize = 1_452;
/// Least datagram length: large enough for every control message.
pub const DATAGRAM_LEN_MIN: usize = 256;
/// Largest datagram length: what UDP over IPv4 can carry.
pub const DATAGRAM_LEN_MAX: usize = 65_507;
/// Bytes of one Send. Longer transfers must use registered memory.
pub const SEND_LEN_MAX: u32 = 4 << 20;
/// Bytes of one RDMA Write or Read: offsets within a message have 32 bits.
pub const TRANSFER_LEN_MAX: u32 = 1 << 31;
/// Bytes that an atomic operation changes.
pub const ATOMIC_LEN: u32 = 8;
/// Requests of one endpoint that are not complete.
pub const REQUESTS_MAX: usize = 65_536;
/// Bytes that these requests own.
pub const REQUEST_BYTES_MAX: usize = 64 << 20;
/// Bytes of complete and incomplete received Sends that the program has not taken.
pub const RECEIVE_BYTES_MAX: usize = 16 << 20;
/// Cost of a received Send in addition to its bytes.
pub const RECEIVE_COST: usize = 128;
/// Bytes of datagrams that an endpoint keeps because an earlier one is missing.
pub const EARLY_BYTES_MAX: usize = 4 << 20;
/// Sequences from the first missing one on that an endpoint accepts.
pub const WINDOW: u16 = WINDOW_MAX;
/// Outstanding RDMA Reads and atomics to one peer; further ones wait.
pub const READS_MAX: usize = 16;
/// RDMA Reads and atomics of one peer that have not been answered. This is more than an honest peer
/// has outstanding, because it may have given up some.
pub const RESPONSES_MAX: usize = 4 * READS_MAX;
/// Datagrams to a peer that has not yet shown that it receives them.
pub const FIRST_FLIGHT: u32 = 4;
/// Datagrams that go to one peer before other peers have their turn.
pub const BURST: u32 = 32;
/// Requests to connect to a port that its program has not answered; further ones are refused.
pub const CALLS_MAX: usize = 1_024;
/// Replies to unknown senders that wait to be sent; further ones are dropped.
pub const REPLIES_MAX: usize = 64;
/// Peers that are examined when room for another is needed.
pub const SWEEP: usize = 64;

/// Time after which a silent peer has failed.
pub const GIVE_UP: u64 = 30_000_000;
/// Idle time after which a peer may be forgotten. It is three times [`GIVE_UP`]: when an endpoint
/// forgets a peer, all requests of that peer that it has carried out are complete, and no datagram
/// of that peer is still in the network. (RFC 9293 assumes 120 seconds for a segment's lifetime;
/// that figure dates from 1981.)
pub const IDLE: u64 = 3 * GIVE_UP;
/// Time after which a connected endpoint that has got nothing asks whether its peer is there.
pub const PING: u64 = 15_000_000;
/// Time after which one of the connections with a port that has said nothing asks, so that the
/// port's host can answer that it is gone.
pub const LOOK: u64 = 3_000_000;
/// How long a host has to answer that a peer is gone before that is believed.
pub const REFUSED_FOR: u64 = 1_000_000;
/// Time after which an incomplete Send may be refused if there is no room for others, unless it has
/// arrived at [`PARTIAL_RATE`] since.
pub const PARTIAL_MAX: u64 = GIVE_UP;
/// Least rate of an incomplete Send, in bytes per second.
pub const PARTIAL_RATE: u64 = 1_024;
/// Retransmission timeout before the first measurement. With these three limits a path that loses
/// one datagram in seven in each direction is not given up.
pub const RTO_INITIAL: u64 = 250_000;
/// Least retransmission timeout.
pub const RTO_MIN: u64 = 10_000;
/// Largest retransmission timeout that back-off leads to.
pub const RTO_MAX: u64 = 2_000_000;
/// How long an acknowledgement waits for data to be sent with, or for a second datagram.
pub const ACK_DELAY: u64 = 1_000;

/// Addresses whose hosts have answered that nobody is there; earlier ones are forgotten.
pub(crate) const REFUSING_MAX: usize = 64;
/// Such answers that one pass takes.
pub(crate) const BOUNCES_MAX: usize = 64;
/// A longer time, in microseconds, is not a round trip.
pub(crate) const RTT_MAX: u32 = 60_000_000;
/// Batches that one pass takes from the socket.
pub(crate) const BATCHES_MAX: usize = 8;
/// Largest burst in bytes that is added to the window.
pub(crate) const QUANTUM_MAX: u64 = 64 << 10;
/// Spare outboxes for the next peers that become active, so that messages need no allocation each.
pub(crate) const SPARE_MAX: usize = 16;
/// Messages and datagrams for which a spare outbox keeps memory.
pub(crate) const KEPT_MAX: usize = 64;
/// How long the end of a port waits until its peers have what was sent, and between two looks.
pub(crate) const LINGER: Duration = Duration::from_secs(1);
pub(crate) const LINGER_STEP: Duration = Duration::from_millis(1);
