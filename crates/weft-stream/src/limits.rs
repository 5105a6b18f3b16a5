//! How much there is of everything. What is part of the layout that processes share says so by its
//! place: a change of it needs another [`VERSION`], or another one of the file of inboxes.

/// The version of the layout, which is in the name of the shared file.
pub const VERSION: u32 = 16;
/// Connections between the processes of one user at a time. Those beyond stay on TCP.
pub const CONNECTIONS_MAX: usize = 4_096;
/// Holders of one side of a connection that are known by their numbers; of those beyond it is only
/// known that there are some.
pub const HOLDERS_MAX: usize = 24;
/// Alarms ([`weft_sys::Alarm`]) that epoll instances have at a time. Those beyond go without.
pub const ALARMS_MAX: usize = 256;
/// Bytes of a direction's first ring: enough for requests and replies.
pub const SMALL_RING_LEN: usize = 16 << 10;
/// Bytes of the ring that replaces it when it has been full once: a stream of bytes. With less,
/// reader and writer wait for each other more often than they copy; with more, the bytes have left
/// the caches before they are read.
pub const BIG_RING_LEN: usize = 2 << 20;
/// Bytes of it that get memory at a time, when the stream first comes to them.
pub const FILL_LEN: usize = 256 << 10;
/// Bytes after which a long message is shown to the reader while it is still being copied.
pub const PUBLISH_LEN: usize = 32 << 10;
/// Buffers of a direction under flow control by credits, N.
pub const CREDITS: usize = 32;
/// Bytes of such a buffer, S.
pub const CREDIT_LEN: usize = 8 << 10;
/// Free bytes from which on a stream is called writable. As with TCP it is a good part of the
/// buffer: a program that sends one piece when it may, by a socket that blocks, must not come to
/// sleep in it, or two that relay to each other would both.
pub const WRITABLE_LEN: usize = BIG_RING_LEN / 4;
/// Sockets of one user that receive through memory at a time. Those beyond stay with the kernel.
pub const INBOXES_MAX: usize = 1_024;
/// Registrations of memory of one side of a connection at a time (extended sockets).
pub const GRANTS_MAX: usize = 8;
/// Kinds of [`crate::Reason`] that there is room for.
pub(crate) const FALLBACKS_MAX: usize = 32;
/// Sources of a direction that may be open at a time ([`crate::source`]).
pub(crate) const SOURCES_MAX: usize = 8;
/// Pieces of a source.
pub(crate) const PIECES_MAX: usize = 4;

// From here on nothing is part of a layout.

/// Bytes that a source can have.
pub(crate) const SOURCE_LEN_MAX: u64 = 1 << 40;
/// Pieces of a message whose pages stay where they are: an edge, whole pages, an edge.
pub(crate) const PLAN_PIECES_MAX: usize = 3;
/// Messages that go the faster way before both ways are tried again.
pub(crate) const STAY_MAX: u32 = 8_192;
/// Messages that go another way after too many write faults.
pub(crate) const PAUSE_MAX: u32 = 16_384;
/// Wakeups that are left in the socket for other sleepers: more would fill it.
pub(crate) const WAKEUPS_LEFT_MAX: u64 = 32;
/// How often putting bytes back waits for the kernel to bring what has been sent.
pub(crate) const KERNEL_WAITS_MAX: u32 = 20;
/// Bytes in the kernel's queue that are taken and sent again.
pub(crate) const TAKEN_LEN_MAX: u64 = 16 << 20;
/// Bytes of each direction that are the key of a proof.
pub(crate) const PROOF_BYTES_MAX: usize = 1_024;
/// Bytes of a file of rules.
pub const RULES_BYTES_MAX: usize = 64 << 10;
/// Rules: each connection is compared with all of them.
pub const RULES_MAX: usize = 256;
/// The longest datagram of UDP over IPv4; the kernel refuses longer ones there, and has those over
/// IPv6 to itself.
pub const DATAGRAM_LEN_MAX: usize = 65_507;
/// Waits of a receiver without a futex wait, after the kernel has brought what memory never would.
pub(crate) const WAITS_WITHOUT_MAX: u32 = 65_536;
