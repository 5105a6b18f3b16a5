//! Limits and sizes. The first part describes layouts that processes share: a change there needs
//! another [`VERSION`], or another version of the inbox file.

/// Version of the shared layout. It is a part of the shared file's name.
pub const VERSION: u32 = 18;
/// Maximum number of connections between the processes of one user. Further ones stay on TCP.
pub const CONNECTIONS_MAX: usize = 4_096;
/// Holders of one side of a connection that are recorded by process number. Of further ones, the
/// slot only records that there are some.
pub const HOLDERS_MAX: usize = 24;
/// Alarms ([`weft_sys::Alarm`]) for epoll instances. Further instances go without one.
pub const ALARMS_MAX: usize = 256;
/// Length in bytes of a direction's first ring: enough for requests and replies.
pub const SMALL_RING_LEN: usize = 16 << 10;
/// Length in bytes of the ring that replaces the small one once that has been full. With less,
/// reader and writer of a bulk stream wait for each other more often than they copy; with more, the
/// bytes have left the caches before they are read.
pub const BIG_RING_LEN: usize = 2 << 20;
/// The big ring gets memory in steps of this many bytes, when the stream first reaches them.
pub const FILL_LEN: usize = 256 << 10;
/// The writer publishes a long message to the reader after each copied part of this length.
pub const PUBLISH_LEN: usize = 32 << 10;
/// Number of buffers of a direction under credit-based flow control (N).
pub const CREDITS: usize = 32;
/// Length in bytes of such a buffer (S).
pub const CREDIT_LEN: usize = 8 << 10;
/// Free bytes from which a stream is reported as writable. As with TCP, this is a large part of the
/// buffer: a program may send one piece on a blocking socket once poll says that it is writable. If
/// that send could block, two programs that relay to each other could block for ever.
pub const WRITABLE_LEN: usize = BIG_RING_LEN / 4;
/// Sockets of one user that may receive datagrams through memory. Further ones stay with the
/// kernel.
pub const INBOXES_MAX: usize = 1_024;
/// Memory registrations of one side of a connection (extended sockets).
pub const GRANTS_MAX: usize = 8;
/// Number of [`crate::Reason`]s that the layout has counters for.
pub(crate) const FALLBACKS_MAX: usize = 32;
/// SrcAvails of a direction that may be open at a time ([`crate::source`]).
pub(crate) const SRC_AVAILS_MAX: usize = 8;
/// Maximum number of pieces of a source.
pub(crate) const PIECES_MAX: usize = 4;

// The limits below are not part of any layout.

/// Maximum length in bytes of a source.
pub(crate) const SOURCE_LEN_MAX: u64 = 1 << 40;
/// Pieces of a deferred message: an unaligned head, whole pages and an unaligned tail.
pub(crate) const PLAN_PIECES_MAX: usize = 3;
/// Longest run of messages that take the faster path before both paths are measured again.
pub(crate) const STAY_MAX: u32 = 8_192;
/// Longest run of messages that take another path after too many write faults.
pub(crate) const PAUSE_MAX: u32 = 16_384;
/// Wakeups that may be left in the socket for other sleepers. More would fill it.
pub(crate) const WAKEUPS_LEFT_MAX: u64 = 32;
/// How often a reader looks again for bytes that are on their way from a source into the ring, or
/// from there into the kernel's queue. Each time it gives up the processor.
pub(crate) const MOVE_LOOKS_MAX: u32 = 10_000;
/// How often it then sleeps before it looks again, for a second in all. A process that was stopped
/// or killed just then never puts them.
pub(crate) const MOVE_PAUSES_MAX: u32 = 100;
/// How often putting bytes back waits for the kernel to deliver what has been sent.
pub(crate) const KERNEL_WAITS_MAX: u32 = 20;
/// Most bytes of the kernel's queue that are taken and sent again.
pub(crate) const TAKEN_LEN_MAX: u64 = 16 << 20;
/// Bytes of each direction that serve as the key of a proof.
pub(crate) const PROOF_BYTES_MAX: usize = 1_024;
/// Maximum length in bytes of a file of rules.
pub const RULES_BYTES_MAX: usize = 64 << 10;
/// Maximum number of rules: each connection is compared with all of them.
pub const RULES_MAX: usize = 256;
/// The longest UDP datagram over IPv4. The kernel refuses longer ones there, and longer ones over
/// IPv6 are left to it.
pub const DATAGRAM_LEN_MAX: usize = 65_507;
/// Calls for which a receiver makes no futex wait after the kernel, and not memory, has brought a
/// datagram.
pub(crate) const WAITS_WITHOUT_MAX: u32 = 65_536;
