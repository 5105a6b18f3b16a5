//! Limits of tables, queues and retries.

use std::ffi::c_int;
use std::time::Duration;

/// Descriptors from this number on are not in the table.
pub(crate) const FDS_MAX: usize = 1 << 20;
/// System call numbers are below this.
pub(crate) const CALL_NUMBERS_MAX: usize = 512;
/// Number of users whose shared files a process maps. Sockets of further users stay with the
/// kernel. The files of one user take 17 GB of address space.
pub(crate) const USERS_MAX: usize = 8;
/// Bytes of a log line; longer ones are truncated.
pub(crate) const LOG_LINE_MAX: usize = 256;
/// Calls on an accepted socket that look for the connector's offer. After the first ones only calls
/// whose number is a power of two do.
pub(crate) const OFFER_TRIES_MAX: u32 = 4_096;

/// Number of address classes whose connections' lifetimes are tracked.
pub(crate) const BRIEF_PLACES: usize = 64;
/// A connection with fewer messages by memory has gained nothing: each saves about 5 us, and the
/// set-up costs both ends together some 40 us.
pub(crate) const BRIEF_MESSAGES_MAX: u64 = 8;
/// The same for bytes, which save about 0.1 ns each.
pub(crate) const BRIEF_BYTES_MAX: u64 = 256 << 10;
/// A connection that lives longer, in nanoseconds, is not brief.
pub(crate) const BRIEF_NS_MAX: u64 = 100_000_000;
/// Number of brief connections in a row after which the next ones stay on TCP.
pub(crate) const BRIEF_RUN: u64 = 16;
/// The longest time in milliseconds between the ends of two connections of a run. Rarer connections
/// cost little.
pub(crate) const BRIEF_GAP_MS: u64 = 10;
/// After this many milliseconds without the end of a brief connection the next one is offered to
/// memory again.
pub(crate) const BRIEF_REST_MS: u64 = 50;
/// One of this many connections in a run is offered to memory as a probe.
pub(crate) const BRIEF_PROBE: u64 = 256;

/// Number of ends that one thread waits for by futex.
pub(crate) const FUTEX_WAIT_ENDS_MAX: usize = 8;
/// After this many polls that the rings answer, the kernel is asked.
pub(crate) const RING_POLLS_MAX: u32 = 8;
/// Instances with more entries are not scanned.
pub(crate) const EPOLL_ENTRIES_MAX: usize = 4_096;
/// Repeated questions to the kernel in one wait, if its answers contain only Weft's own events.
pub(crate) const EPOLL_ASKS_MAX: usize = 64;
/// After this many checks that have found nothing a polled socket is armed, while others are busy.
pub(crate) const IDLE_LOOKS_MAX: u32 = 512;
/// Number of idle sleeps, times the number of polled sockets, after which a socket is not checked
/// after each sleep any more. Its peer then notifies for it alone, by a byte over TCP. That costs 4
/// us at either end, a check about 50 ns.
pub(crate) const IDLE_SLEEPS_TIMES_POLLED: usize = 512;
/// The lowest number of such sleeps, however many sockets are polled.
pub(crate) const IDLE_SLEEPS_MIN: usize = 3;
/// Attempts of an instance to open a pipe.
pub(crate) const PIPE_TRIES_MAX: u32 = 4;
/// Number of remembered data values of removed sockets. The kernel may still deliver an event of a
/// deleted entry to a waiting thread.
pub(crate) const RETIRED_NAMES_MAX: usize = 1_024;

/// Buffers of one message (`UIO_MAXIOV`).
pub(crate) const MESSAGE_PARTS_MAX: usize = 1024;
/// Entries of an `lio_listio` list that are examined; longer lists are passed on.
pub(crate) const AIO_LIST_MAX: usize = 1 << 16;
/// Control blocks of one `io_submit` that are examined: more than a context takes by default.
pub(crate) const AIO_BLOCKS_MAX: usize = 1 << 16;
/// Bytes in memory that one read of an `io_submit` gets: what a pipe holds at most.
pub(crate) const AIO_READ_MAX: usize = 1 << 20;
/// Receivers that a UDP socket remembers for sending.
pub(crate) const DATAGRAM_ROUTES_MAX: usize = 1_024;
/// After this many datagrams in a row from the inbox the kernel has its turn.
pub(crate) const MEMORY_TURNS_MAX: u32 = 64;
/// Deferred sends of this process at a time.
pub(crate) const DEFERRED_SENDS_MAX: usize = 32;
/// Pieces of a deferred message: an unaligned head, whole pages and an unaligned tail.
pub(crate) const DEFERRED_PIECES_MAX: usize = 3;
/// Signaled operations that move bytes to another host, outstanding at a time.
pub(crate) const BYTES_UNDER_WAY_MAX: u64 = 192;
/// All signaled operations to another host, outstanding at a time.
pub(crate) const UNDER_WAY_MAX: u64 = 256;
/// Requests to another host, outstanding at a time: each signaled one has up to two unsignaled
/// ones.
pub(crate) const SEND_REQUESTS_MAX: u32 = 3 * UNDER_WAY_MAX as u32;
/// The longest sleep between two checks whether the peer switches to extended mode, too.
pub(crate) const SWITCH_SLEEP_MAX: Duration = Duration::from_millis(1);

/// Sleeps of 50 us in which an exec waits for closes of other threads.
pub(crate) const CLOSE_WAITS_MAX: u32 = 1_000;
/// Threads that can be asked at a time to arm themselves.
pub(crate) const ASKED_THREADS_MAX: usize = 1024;
/// A list of file actions with more entries is not trusted.
pub(crate) const ACTIONS_MAX: c_int = 1 << 16;
/// Signal numbers are below this.
pub(crate) const SIGNALS_MAX: usize = 65;
