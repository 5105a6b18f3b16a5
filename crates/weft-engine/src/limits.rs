//! The limits of this crate. Exceeding one gives the error that the verbs manual documents.

use std::time::Duration;

/// Work requests that one send or receive queue holds.
pub const QP_WR_MAX: u32 = 16_384;
/// Scatter/gather entries of one work request.
pub const SGE_MAX: u32 = 32;
/// Bytes of inline data in a work request.
pub const INLINE_MAX: u32 = 1_024;
/// Bytes of inline data that every queue pair accepts, even if the program asked for fewer: cards
/// round up, and some programs (`rdma_xclient`) rely on that.
pub const INLINE_MIN: u32 = 64;
/// Entries of a completion queue. libfabric's RxM asks for 262,144.
pub const CQE_MAX: u32 = 1 << 20;
/// Bytes of one message, the verbs limit.
pub const MESSAGE_MAX: u32 = 1 << 31;
/// Bytes of one datagram, without headers: what UDP over IPv4 can carry. Larger than the port's
/// MTU.
pub const DATAGRAM_MAX: u32 = weft_wire::datagram::PAYLOAD_MAX as u32;
/// RDMA reads and atomics outstanding in one direction of a queue pair (IRD and ORD).
pub const READ_DEPTH_MAX: u8 = 128;
/// Queue pairs, completion queues and shared receive queues of one context.
pub const OBJECTS_MAX: u32 = 65_536;
/// Memory regions of the process.
pub const MR_MAX: u32 = 1 << 20;
/// Bytes of one memory region.
pub const MR_SIZE_MAX: u64 = 1 << 46;
/// Bytes of Sends that one queue pair holds in its RNR queue; beyond that it stops reading the
/// stream.
pub const RNR_BYTES_MAX: usize = 256 << 10;
/// Bytes of one device memory (`ibv_alloc_dm`), a size that cards offer.
pub const DEVICE_MEMORY_MAX: usize = 256 << 10;
/// Asynchronous events that one context queues for the program; later ones are dropped.
pub const ASYNC_EVENTS_MAX: usize = 4_096;
/// Bytes of private data in a program's connection request or reply: what an MPA frame holds (RFC
/// 5044 section 7.1.1) less the four bytes of RFC 6581.
pub const PRIVATE_DATA_MAX: usize =
    weft_wire::mpa::frame::PRIVATE_DATA_MAX - weft_wire::mpa::frame::ENHANCED_LEN;
/// Bytes of private data to a Weft peer: the same less the trailer of the hello.
pub const WEFT_PRIVATE_DATA_MAX: usize = PRIVATE_DATA_MAX - crate::hello::TRAILER_LEN;
/// Bytes of private data for a datagram service.
pub const DATAGRAM_PRIVATE_DATA_MAX: usize = 196;
/// Multicast groups that the process has members in; the kernel's own limits are lower by default.
pub const MULTICAST_GROUPS_MAX: u32 = 1_024;
/// Queue pairs of the process in one multicast group.
pub const MULTICAST_QPS_MAX: u32 = 1_024;
/// Queue pairs that share one listening port (the low eight bits of a queue pair number).
pub const QPS_PER_PORT: u32 = 256;

// Quotas of connections whose peer has not been matched with a queue pair or a program. Each quota
// is the process's descriptor limit divided by the share, and is clamped to the bounds below.

/// Share of TCP connections whose MPA request is incomplete.
pub const HALF_OPEN_SHARE: u64 = 8;
/// Share of requests for queue pairs that are not ready for them.
pub const HELD_SHARE: u64 = 16;
/// Share of connection requests that the program has not taken; further ones are rejected.
pub const REQUESTED_SHARE: u64 = 2;
/// Share of Unix sockets of processes that have not yet sent their request.
pub const SESSIONS_SHARE: u64 = 16;
/// Upper bound of each quota.
pub const STRANGERS_MAX: u64 = 1_024;
/// Lower bound of each quota.
pub const STRANGERS_MIN: u64 = 4;
/// Requests that are held for one queue pair.
pub const HELD_PER_QP: usize = 8;
/// How long a silent connection keeps its permit while others wait for one. An honest peer sends
/// its request within microseconds, or within one round trip between hosts.
pub const HALF_OPEN_TIME: Duration = Duration::from_millis(250);
/// Delay before a listener retries after the process has run out of descriptors.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Connections that a listener accepts in one pass.
pub const ACCEPTS_MAX: usize = 64;

// Work limits of one pass, so that other sources get their turn.

/// Slots that one pass takes from a ring.
pub(crate) const RING_TAKE_MAX: u32 = 64;
/// Bytes that one pass puts into a ring.
pub(crate) const RING_GIVE_MAX: u64 = 1 << 20;
/// Bytes that one pass reads from a socket.
pub(crate) const SOCKET_RECEIVE_MAX: usize = 512 << 10;
/// Bytes that one pass writes to a socket.
pub(crate) const SOCKET_SEND_MAX: usize = 1 << 20;
/// Outboxes that one pass hands to a socket.
pub(crate) const OUTBOXES_MAX: usize = 8;
/// Batches that one pass takes from a socket.
pub(crate) const BATCHES_MAX: usize = 8;
/// Datagrams that may be sent without a look at the receiving side. Sends of datagrams complete at
/// once, so a program that keeps sending finds a completion at each poll, and polling alone would
/// never get as far as receiving.
pub(crate) const UNPOLLED_SENDS_MAX: u64 = 64;
/// Events that one `epoll_wait` returns.
pub(crate) const EPOLL_EVENTS_MAX: usize = 64;
/// Bytes that the kernel accepts in one segmented send (`UDP_SEGMENT`).
pub(crate) const UDP_RUN_BYTES_MAX: usize = 65_000;

// Limits of work that waits, and how long it waits.

/// Bytes that may wait for the next poll before they are sent anyway: enough to make good use of a
/// system call, few enough to keep the peer busy.
pub(crate) const DEFER_BYTES_MAX: u64 = 256 << 10;
/// Requests that may wait for the next poll.
pub(crate) const DEFER_REQUESTS_MAX: u64 = 64;
/// Messages of the peer whose acknowledgement may wait for the next poll.
pub(crate) const DEFER_ACKS_MAX: u64 = 16;
/// How long requests wait for a peer to connect: a little longer than the dialling side tries, so
/// that the dialling side's error, which says more, is reported first.
pub(crate) const CONNECT_TIME_MAX: Duration = Duration::from_secs(32);
/// How long requests to a lost peer wait at most before they fail.
pub(crate) const RETRY_TIME_MAX: Duration = Duration::from_millis(500);
/// Listen backlog of the debug socket.
pub(crate) const DEBUG_BACKLOG: i32 = 4;
/// Listen backlog of the socket for sessions between processes of this host.
pub(crate) const SESSION_BACKLOG: i32 = 1_024;
/// Listen backlog of a TCP listener.
pub(crate) const TCP_BACKLOG: i32 = 1024;
/// Fresh TCP ports to try until the UDP port of the same number is free, too.
pub(crate) const PORT_ATTEMPTS_MAX: u32 = 8;
/// Idle buffers that the pool keeps.
pub(crate) const IDLE_BUFFERS_MAX: usize = 16;

// Shared memory.

/// Slots of a ring in shared memory, a part of the layout that both sides know.
pub(crate) const RING_SLOTS: u32 = 128;
/// Bytes of the bulk area of one direction, a part of that layout.
pub(crate) const BULK_CAPACITY: usize = 256 << 10;
/// Keys of one side that the other may use directly at a time, a part of that layout.
pub(crate) const GRANTS_MAX: usize = 64;
/// Slots that one step uses.
pub(crate) const STEP_SLOTS_MAX: u32 = 4;
/// Payload bytes of a segment in the bulk area of a ring: small enough that sender and receiver
/// work at the same time, and that the receiver finds the bytes in the cache.
pub(crate) const RING_CHUNK_MAX: u32 = 32 << 10;
/// Length in bytes up to which the copy of a Write costs less than its overhead.
pub(crate) const SMALL_WRITE_MAX: u32 = 4 << 10;
/// Bytes that are written while the peer's key is marked in use; a deregistration waits for that
/// long.
pub(crate) const KEY_HELD_BYTES_MAX: u64 = 64 << 10;
/// How long a peer may use a key that is being revoked. An honest peer uses it for one copy.
pub(crate) const KEY_IN_USE_MAX: Duration = Duration::from_secs(2);
/// Cached keys of one peer. When the cache is full, it is emptied, and keys are requested again
/// when they are used.
pub(crate) const PEER_KEYS_MAX: usize = 1_024;
/// Bytes of one packet of a session between processes of this host.
pub(crate) const PACKET_LEN_MAX: usize = 96;
/// Length in bytes above which a region is not remapped as shared, because copying it takes long.
pub(crate) const REMAP_LEN_MAX: usize = 1 << 30;
/// Registered regions that are searched for one that overlaps a new region.
pub(crate) const REMAP_LOOKS_MAX: usize = 64;
