//! How much there is of everything.

use std::ffi::c_int;
use std::time::Duration;

/// Descriptors from here on are in no table.
pub(crate) const FDS_MAX: usize = 1 << 20;
/// Numbers from here on are no system calls.
pub(crate) const CALL_NUMBERS_MAX: usize = 512;
/// Of how many users a process has files at most: what more of them do stays with the kernel. The
/// files of one take 17 GB of address space.
pub(crate) const USERS_MAX: usize = 8;
/// Bytes of a line; what is longer is cut.
pub(crate) const LOG_LINE_MAX: usize = 256;
/// Calls on an accepted socket that look for the connector's offer. After the first ones only
/// those whose number is a power of two do.
pub(crate) const OFFER_TRIES_MAX: u32 = 4_096;

/// Addresses of whose connections it is known how long they last.
pub(crate) const BRIEF_PLACES: usize = 64;
/// A connection that moves fewer messages by memory has gained nothing: each saves about 5 us, and
/// the set-up costs some 40 us at both ends together.
pub(crate) const BRIEF_MESSAGES_MAX: u64 = 8;
/// The same of bytes, which save about 0.1 ns each.
pub(crate) const BRIEF_BYTES_MAX: u64 = 256 << 10;
/// One that lives longer, in nanoseconds, is not brief.
pub(crate) const BRIEF_NS_MAX: u64 = 100_000_000;
/// Brief connections in a row after which the next ones stay on TCP.
pub(crate) const BRIEF_RUN: u64 = 16;
/// The longest time between the ends of two of them, in milliseconds: what is rarer costs little.
pub(crate) const BRIEF_GAP_MS: u64 = 10;
/// How long none has ended, in milliseconds, when the next one is offered to memory again.
pub(crate) const BRIEF_REST_MS: u64 = 50;
/// One of so many of those that stay on TCP is offered to memory all the same.
pub(crate) const BRIEF_PROBE: u64 = 256;

/// Ends that one thread does a futex wait for.
pub(crate) const FUTEX_WAIT_ENDS_MAX: usize = 8;
/// Polls that are answered by the rings, after which the kernel is asked all the same.
pub(crate) const RING_POLLS_MAX: u32 = 8;
/// An instance with more in it is not looked through.
pub(crate) const EPOLL_ENTRIES_MAX: usize = 4_096;
/// Questions to the kernel in one wait after such as had only answers that are not the program's.
pub(crate) const EPOLL_ASKS_MAX: usize = 64;
/// Looks at a polled socket that found nothing, after which it is armed while others are busy.
pub(crate) const IDLE_LOOKS_MAX: u32 = 512;
/// After how many sleeps without anything for it a socket is no longer looked at after each, times
/// the sockets that are: its peer notifies for it alone then, by a byte over TCP. That costs 4 us
/// at either end, a look about 50 ns.
pub(crate) const IDLE_SLEEPS_TIMES_POLLED: usize = 512;
/// So many sleeps it is at least, however many sockets are looked at.
pub(crate) const IDLE_SLEEPS_MIN: usize = 3;
/// A pipe that is not to be had is not asked for at each sleep.
pub(crate) const PIPE_TRIES_MAX: u32 = 4;
/// Data of sockets of ours that are remembered when they are gone. An event may be on its way to a
/// thread that waits, for what the program has deleted, and the kernel has not.
pub(crate) const RETIRED_NAMES_MAX: usize = 1_024;

/// Parts of one message (`UIO_MAXIOV`).
pub(crate) const MESSAGE_PARTS_MAX: usize = 1024;
/// Lists that the C library takes are as long as its programs please; longer ones are refused.
pub(crate) const AIO_LIST_MAX: usize = 1 << 16;
/// Control blocks that are looked at: more than a context takes by default.
pub(crate) const AIO_BLOCKS_MAX: usize = 1 << 16;
/// Receivers that a socket's sender remembers.
pub(crate) const DATAGRAM_ROUTES_MAX: usize = 1_024;
/// Datagrams in a row from the inbox after which the kernel has its turn.
pub(crate) const MEMORY_TURNS_MAX: u32 = 64;
/// Sources of this process at a time.
pub(crate) const DEFERRED_SENDS_MAX: usize = 32;
/// Pieces of a deferred message: an unaligned head, whole pages and an unaligned tail.
pub(crate) const DEFERRED_PIECES_MAX: usize = 3;
/// Operations that report, and move bytes, under way to another host at a time.
pub(crate) const BYTES_UNDER_WAY_MAX: u64 = 192;
/// All operations that report, under way to another host at a time.
pub(crate) const UNDER_WAY_MAX: u64 = 256;
/// Requests under way to another host: each that reports has up to two more that do not.
pub(crate) const SEND_REQUESTS_MAX: u32 = 3 * UNDER_WAY_MAX as u32;
/// The longest sleep between two looks for a peer that switches to extended mode, too.
pub(crate) const SWITCH_SLEEP_MAX: Duration = Duration::from_millis(1);

/// Sleeps, of 50 us, in which an exec waits for closes of other threads.
pub(crate) const CLOSE_WAITS_MAX: u32 = 1_000;
/// Threads that are asked at a time to have their calls by hand seen.
pub(crate) const ASKED_THREADS_MAX: usize = 1024;
/// More actions than this are not believed.
pub(crate) const ACTIONS_MAX: c_int = 1 << 16;
/// No signal has this number, or a larger one.
pub(crate) const SIGNALS_MAX: usize = 65;
