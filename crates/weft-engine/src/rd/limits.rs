//! Every bound of reliable datagrams. Times are in microseconds.

use weft_wire::rd::WINDOW_MAX;

/// Peers that one endpoint knows at a time.
pub const PEERS_MAX: usize = 65_536;
/// Peers whose address may be forged, among them. Further ones must repeat an epoch first.
pub const UNPROVEN_MAX: usize = 1_024;
/// Bytes of a datagram unless the program chooses another length: what an Ethernet frame carries
/// over IPv6 and UDP.
pub const DATAGRAM_LEN: usize = 1_452;
/// The least that a datagram may be: every control message fits in.
pub const DATAGRAM_LEN_MIN: usize = 256;
/// The most that UDP over IPv4 carries.
pub const DATAGRAM_LEN_MAX: usize = 65_507;
/// Bytes of one Send. Longer transfers go to registered memory.
pub const SEND_LEN_MAX: u32 = 4 << 20;
/// Bytes of one RDMA Write or Read: offsets in a message have 32 bits.
pub const TRANSFER_LEN_MAX: u32 = 1 << 31;
/// Requests that one endpoint holds until they are complete.
pub const REQUESTS_MAX: usize = 65_536;
/// Bytes of their own that these requests hold.
pub const REQUEST_BYTES_MAX: usize = 64 << 20;
/// Bytes of Sends that an endpoint has received, in whole or in part, and the program not taken.
pub const RECEIVE_BYTES_MAX: usize = 16 << 20;
/// What a received Send counts beside its bytes.
pub const RECEIVE_COST: usize = 128;
/// Bytes of datagrams that an endpoint keeps because an earlier one is missing.
pub const EARLY_BYTES_MAX: usize = 4 << 20;
/// Datagrams from the first missing one on that an endpoint takes.
pub const WINDOW: u16 = WINDOW_MAX;
/// RDMA Reads under way to one peer; further ones wait.
pub const READS_MAX: usize = 16;
/// RDMA Reads of one peer's that wait for their answer. More than a sound peer has under way: it
/// may have given up on some.
pub const RESPONSES_MAX: usize = 4 * READS_MAX;
/// Datagrams to a peer that has not shown yet that it receives them.
pub const FIRST_FLIGHT: u32 = 4;
/// Datagrams that go to one peer before the others have their turn.
pub const BURST: u32 = 32;
/// Answers to strangers that wait to be sent; further ones are not made.
pub const REPLIES_MAX: usize = 64;
/// Peers looked at when room for another is needed.
pub const SWEEP: usize = 64;

/// A peer that is silent for that long has failed.
pub const GIVE_UP: u64 = 30_000_000;
/// A peer with whom nothing happens for that long may be forgotten. Three times [`GIVE_UP`]: when
/// an endpoint forgets a peer, no request of that peer's that it has carried out is still open, and
/// no datagram of that peer's is on its way (RFC 9293 takes 120 seconds for a segment's life; that
/// was 1981).
pub const IDLE: u64 = 3 * GIVE_UP;
/// A Send that comes in for longer may be refused when others find no room, unless it has come at
/// [`PARTIAL_RATE`] since.
pub const PARTIAL_MAX: u64 = GIVE_UP;
/// In bytes per second.
pub const PARTIAL_RATE: u64 = 1_024;
/// The retransmission timer: before the first measurement, at least, and the most that back-off
/// makes of it. A path that loses one datagram in seven in either direction is still not given up
/// for that.
pub const RTO_INITIAL: u64 = 250_000;
/// See [`RTO_INITIAL`].
pub const RTO_MIN: u64 = 10_000;
/// See [`RTO_INITIAL`].
pub const RTO_MAX: u64 = 2_000_000;
/// How long an acknowledgement waits for data that it can ride on, or for a second datagram.
pub const ACK_DELAY: u64 = 1_000;

/// What is longer than this, in microseconds, is no round trip.
pub(crate) const RTT_MAX: u32 = 60_000_000;
/// Batches that one pass takes from the socket before others have their turn.
pub(crate) const BATCHES_MAX: usize = 8;
/// Bytes of a burst that count for the window.
pub(crate) const QUANTUM_MAX: u64 = 64 << 10;
/// Outboxes kept for the next peers that become active, so that messages cost no allocation each.
pub(crate) const SPARE_MAX: usize = 16;
/// Messages and datagrams for which an outbox that is put aside keeps room.
pub(crate) const KEPT_MAX: usize = 64;
