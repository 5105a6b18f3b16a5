//! Every bound of this crate. Reaching one gives the error that the verbs manual documents.

use std::time::Duration;

/// Work requests that one send or receive queue holds.
pub const QP_WR_MAX: u32 = 16_384;
/// Scatter/gather entries of one work request.
pub const SGE_MAX: u32 = 32;
/// Bytes that a work request carries inline.
pub const INLINE_MAX: u32 = 1_024;
/// Bytes that it may carry inline even if the program did not ask: cards round up, and programs
/// (`rdma_xclient`) have come to rely on it.
pub const INLINE_MIN: u32 = 64;
/// Entries of a completion queue. libfabric's RxM asks for 262,144.
pub const CQE_MAX: u32 = 1 << 20;
/// Bytes of one message, the verbs limit.
pub const MESSAGE_MAX: u32 = 1 << 31;
/// Bytes of one datagram, without headers: what UDP over IPv4 takes. More than the port's MTU says.
pub const DATAGRAM_MAX: u32 = weft_wire::datagram::PAYLOAD_MAX as u32;
/// RDMA reads and atomics outstanding in one direction of a queue pair (IRD and ORD).
pub const READ_DEPTH_MAX: u8 = 128;
/// Queue pairs, completion queues and shared receive queues of one context.
pub const OBJECTS_MAX: u32 = 65_536;
/// Memory regions of the process.
pub const MR_MAX: u32 = 1 << 20;
/// Bytes of one memory region.
pub const MR_SIZE_MAX: u64 = 1 << 46;
/// Bytes of Sends that wait for a receive on one queue pair; after that the stream stops.
pub const RNR_BYTES_MAX: usize = 256 << 10;
/// Bytes of one device memory (`ibv_alloc_dm`); as much as a card may have.
pub const DEVICE_MEMORY_MAX: usize = 256 << 10;
/// Asynchronous events that wait for the program on one context; later ones are dropped.
pub const ASYNC_EVENTS_MAX: usize = 4_096;
/// Bytes of a private data that a program hands to a connection request or reply: what an MPA frame
/// holds (RFC 5044 section 7.1.1) beside the four bytes of RFC 6581.
pub const PRIVATE_DATA_MAX: usize =
    weft_wire::mpa::frame::PRIVATE_DATA_MAX - weft_wire::mpa::frame::ENHANCED_LEN;
/// The same to a Weft peer, which needs a part of the frame.
pub const WEFT_PRIVATE_DATA_MAX: usize = PRIVATE_DATA_MAX - crate::hello::TRAILER_LEN;
/// Bytes of a private data for a datagram service.
pub const DATAGRAM_PRIVATE_DATA_MAX: usize = 196;
/// Multicast groups with members in the process; the kernel's own bounds are lower by default.
pub const MULTICAST_GROUPS_MAX: u32 = 1_024;
/// Queue pairs of the process in one multicast group.
pub const MULTICAST_QPS_MAX: u32 = 1_024;
/// Queue pairs that share one listening port (the low eight bits of a queue pair number).
pub const QPS_PER_PORT: u32 = 256;

// What strangers may hold, whose connections have not found a queue pair or a program: one in so
// many of the descriptors that the process may open, within bounds.

/// Of TCP connections whose MPA request has not come in whole.
pub const HALF_OPEN_SHARE: u64 = 8;
/// Of requests for queue pairs that are not ready for them.
pub const HELD_SHARE: u64 = 16;
/// Of connection requests that the program has not taken; further ones are rejected.
pub const REQUESTED_SHARE: u64 = 2;
/// Of Unix sockets of processes that have not said what they want.
pub const SESSIONS_SHARE: u64 = 16;
/// At most so many of each kind.
pub const STRANGERS_MAX: u64 = 1_024;
/// At least so many of each kind.
pub const STRANGERS_MIN: u64 = 4;
/// Of those that are held for one queue pair.
pub const HELD_PER_QP: usize = 8;
/// How long a connection that says nothing keeps its place when others wait for it. Who has
/// something to say says it within microseconds, or within a round trip between hosts.
pub const HALF_OPEN_TIME: Duration = Duration::from_millis(250);
/// When accepting is tried again after the process has run out of descriptors.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Connections that a listener accepts before others have their turn.
pub const ACCEPTS_MAX: usize = 64;

// How much one pass does before others have their turn.

/// Slots of a ring that one pass takes before others have their turn.
pub(crate) const RING_TAKE_MAX: u32 = 64;
/// Bytes that one pass hands over to a ring before others have their turn.
pub(crate) const RING_GIVE_MAX: u64 = 1 << 20;
/// Bytes that one pass takes from a socket before others have their turn.
pub(crate) const SOCKET_RECEIVE_MAX: usize = 512 << 10;
/// Bytes that one pass hands to a socket before others have their turn.
pub(crate) const SOCKET_SEND_MAX: usize = 1 << 20;
/// Outboxes that one pass hands to a socket before others have their turn.
pub(crate) const OUTBOXES_MAX: usize = 8;
/// Batches that one pass takes from a socket before others have their turn.
pub(crate) const BATCHES_MAX: usize = 8;
/// Datagrams that may go out before somebody looks whether any have come. A program whose sends are
/// complete at once finds a completion whenever it polls, so that polling alone never gets there.
pub(crate) const UNPOLLED_SENDS_MAX: u64 = 64;
/// Events taken from the kernel at once.
pub(crate) const EPOLL_EVENTS_MAX: usize = 64;
/// Bytes that the kernel takes as one run.
pub(crate) const UDP_RUN_BYTES_MAX: usize = 65_000;

// What waits, and for how long.

/// Bytes that may wait for the next poll before they are sent all the same: enough to share a
/// system call well, not so many that the peer has nothing to do meanwhile.
pub(crate) const DEFER_BYTES_MAX: u64 = 256 << 10;
/// Requests that may wait likewise.
pub(crate) const DEFER_REQUESTS_MAX: u64 = 64;
/// Messages of the peer's whose acknowledgement may wait for the next poll.
pub(crate) const DEFER_ACKS_MAX: u64 = 16;
/// How long requests wait for a peer that should connect: a little longer than the side that dials
/// tries, so that its failure, which says more, comes first.
pub(crate) const CONNECT_TIME_MAX: Duration = Duration::from_secs(32);
/// How long requests to a peer that is gone wait at most before they fail.
pub(crate) const RETRY_TIME_MAX: Duration = Duration::from_millis(500);
/// Connections that wait to be answered with a description of the process.
pub(crate) const DEBUG_BACKLOG: i32 = 4;
/// Sessions of processes of this host that wait to be accepted.
pub(crate) const SESSION_BACKLOG: i32 = 1_024;
/// Connections that wait to be accepted on one TCP listener.
pub(crate) const TCP_BACKLOG: i32 = 1024;
/// Fresh ports to try until one is free for UDP, too.
pub(crate) const PORT_ATTEMPTS_MAX: u32 = 8;
/// Idle buffers that are kept.
pub(crate) const IDLE_BUFFERS_MAX: usize = 16;

// Shared memory.

/// Payload of a segment that goes through bulk data: small enough for both sides to be at it at
/// once, and for the second to find it in the cache.
pub(crate) const RING_CHUNK_MAX: u32 = 32 << 10;
/// A Write up to this length costs less than what is done for it besides.
pub(crate) const SMALL_WRITE_MAX: u32 = 4 << 10;
/// Bytes that are written while the peer's key is in use, for which a deregistration waits.
pub(crate) const KEY_HELD_BYTES_MAX: u64 = 64 << 10;
/// How long a peer may be at a key that is being revoked. An honest one is at it for one copy.
pub(crate) const KEY_IN_USE_MAX: Duration = Duration::from_secs(2);
/// Keys of one peer that are remembered; then all are forgotten, and asked for again when they are
/// used.
pub(crate) const PEER_KEYS_MAX: usize = 1_024;
/// Bytes of one packet of a session between processes of this host.
pub(crate) const PACKET_LEN_MAX: usize = 96;
/// Descriptors that come with such a packet.
pub(crate) const PACKET_FDS_MAX: usize = 2;
/// Regions longer than this, in bytes, stay where they are: copying them takes long.
pub(crate) const REMAP_LEN_MAX: usize = 1 << 30;
/// How many registered regions are looked at to find out that none overlaps a new one.
pub(crate) const REMAP_LOOKS_MAX: usize = 64;
