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
