//! How much there is of everything. These are part of the layout that processes share: a change
//! needs another [`VERSION`].

/// The version of the layout, which is in the name of the shared file.
pub const VERSION: u32 = 13;
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
