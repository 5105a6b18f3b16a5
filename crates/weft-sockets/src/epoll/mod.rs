//! Epoll instances. Weft knows every instance that this process creates, from its creation.
//!
//! The kernel's instance holds each socket with the program's own data, whatever carries its bytes.
//! So waiters that Weft does not see (another process, a duplicate, a call by hand) get events that
//! mean something to the program. Weft recognises an event of its sockets by the data ([`names`]).
//! While TCP carries a socket, the kernel reports its readiness. While rings carry it, Weft does,
//! and the kernel watches it for changes alone (edge-triggered): wakeups, the end of the stream and
//! errors.
//!
//! Some of the sockets in memory are *polled*: each wait checks their rings. Before a thread sleeps
//! they are *armed*: the peer notifies when it has written, and then they are polled again. So the
//! cost of a wait depends on the active sockets, not on the open ones. The peers of several armed
//! sockets share one [`alarm`]: after the first wakeup all of them are polled again.
//!
//! While a thread sleeps in an instance, all its sockets are armed. A thread that changes the
//! instance, or takes an event that the sleeper waits for, checks on the sleeper's behalf
//! ([`wakeup`]).

mod again;
mod alarm;
mod all;
mod by_fd;
mod calls;
mod carrier;
mod change;
mod fallback;
mod foreign;
mod instance;
mod names;
mod sharing;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod tests;
mod unread;
mod waiting;
mod wakeup;
mod watch;
mod watches;

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use weft_sys::{SectionLock, Spin};

pub(crate) use self::all::{
    closing, copied, created, enter_fallback, follow_notes, forget, forget_number, forked, freeze,
    go_by, knows, stop_opening, thaw, within,
};
pub(crate) use self::calls::{control, wait};
pub(crate) use self::fallback::{hand_on, hand_on_all, nest};
use crate::identity;
use crate::sockets::Held;

const IN: u32 = libc::EPOLLIN as u32;
/// Events by which a program gets bytes as edges.
const BYTES: u32 = (libc::EPOLLRDNORM | libc::EPOLLRDBAND | libc::EPOLLPRI) as u32 | IN;
const OUT: u32 = libc::EPOLLOUT as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const ERR_HUP: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
const MODES: u32 = EDGE | ONESHOT | EXCLUSIVE | libc::EPOLLWAKEUP as u32;

/// The state of an epoll instance.
#[derive(Debug)]
pub(crate) struct Epoll {
    watches: SectionLock<Watches, true>,
    /// A thread that found the lock held has requested [`Watches::recheck`].
    notes: AtomicU32,
    /// An open descriptor of the instance; -1 if there is none.
    fd: AtomicI32,
    spin: Spin,
    /// When the kernel was last asked.
    asked: AtomicU64,
    /// The kernel alone has filled the last list of events: the next wait checks the rings first.
    crowded: AtomicBool,
    /// Only the kernel serves the instance ([`fallback`]).
    kernels: AtomicBool,
    sharing: sharing::Sharing,
}

/// Which waiters an instance may have besides threads of this process that call `epoll_wait`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Visibility {
    /// None.
    #[default]
    Own,
    /// Another instance, or poll, watches this instance.
    Nested,
    /// Another process may have it.
    Shared,
}

#[derive(Debug, Default)]
struct Watches {
    /// A number of the instance, which children inherit.
    instance: u64,
    reach: Visibility,
    places: Vec<Option<Watch>>,
    free: Vec<usize>,
    by_fd: by_fd::ByFd<usize>,
    names: names::Names,
    /// Indices of the watches that each wait checks.
    polled: Vec<usize>,
    /// The value of [`sleepers::taken`](crate::sleepers::taken) at the last check of all watches.
    wakeups_taken: u64,
    /// The number of the last wait.
    round: u64,
    sleep: alarm::Sleeps,
    /// A child may have a copy, and another waiter may take an event first: registrations must not
    /// lose events.
    is_exposed: bool,
    /// The kernel repeats an event that it has just reported.
    is_reported_again: bool,
    /// A reused buffer for the list of ready sockets.
    ready: Vec<watches::Ready>,
}

/// What the kernel watches of a socket in an instance, always with the program's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registered {
    /// The events that the program waits for.
    Whole,
    /// The same without room, which the kernel's socket always has.
    WithoutRoom,
    /// Changes alone: wakeups, errors and the end.
    Changes,
    /// The events that the program waits for, plus room, which announces data in memory
    /// ([`fallback`]).
    Announced,
}

/// A socket of Weft's in an epoll instance.
#[derive(Debug)]
struct Watch {
    socket: Held,
    /// The descriptor by which the program has added it.
    fd: RawFd,
    place: usize,
    /// The events that the program waits for.
    events: u32,
    data: u64,
    registered: Registered,
    /// The socket has fallen back to TCP, and is watched for data that is still to be read there.
    is_kernels: bool,
    /// Its descriptor is closed while a duplicate is open: the kernel cannot change the entry any
    /// more.
    is_orphan: bool,
    /// It was added after a fork: see [`Watches`].
    is_exposed: bool,
    /// The kernel has been asked for room, to wake a sleeper ([`wakeup`]).
    is_woken: bool,
    /// The program has deleted it, and the kernel keeps it for the next `EPOLL_CTL_ADD`. This saves
    /// system calls to programs that delete and add for each message.
    is_detached: bool,
    /// A one-shot that has fired.
    is_disabled: bool,
    /// A check has found that the connection has fallen back to TCP.
    has_fallen_back: bool,
    is_polled: bool,
    /// The peer notifies for this socket.
    is_armed: bool,
    /// The peer does not notify if the alarm has been rung already.
    is_tagged: bool,
    /// Number of sleeps in a row through which nothing has come.
    idle_sleeps: u32,
    idle_looks: u32,
    /// The data of the entry by which the kernel reports wakeups of a connection to another host.
    wakeup_fd: Option<u64>,
    /// The end events that the kernel has reported, where the program reads by TCP.
    hung: u32,
    /// The state when it was last reported, for edges.
    seen: Option<(u64, u32)>,
    /// Memory carried what came in by then. Otherwise bytes of TCP may be unknown to the program.
    was_in_memory: bool,
    /// How many bytes had come through memory at the last check.
    come: u64,
    /// The last check, if it has found nothing.
    quiet: Option<watch::Quiet>,
    /// The kernel repeats an event that the program knows, to a sleeping thread, unless the state
    /// differs from this.
    echo: Option<again::State>,
    /// The same, because another process has reported the event to the program.
    reported_elsewhere: Option<again::State>,
    /// When it was put at the end of the ready list: when it was added or reported.
    queued_at: u64,
    /// It keeps its position since then: the kernel drops an entry from its ready list only when a
    /// wait comes to it.
    is_queued: bool,
    /// The last wait that has reported it; a wait reports each socket once.
    round: u64,
    /// Events of the kernel that still have to be reported to the program, and the wait that has
    /// found them.
    pending: u32,
    pending_in: u64,
    /// Another process may announce data in memory: there was, or could come, some when the
    /// instance became the kernel's.
    can_be_announced: bool,
    /// The kernel has announced data in memory, which still has to be reported to the program.
    is_announced_here: bool,
    /// How many bytes of TCP behind those in memory the program knows of, if it waits for edges.
    behind: usize,
}

impl Epoll {
    /// Returns the state of a new instance with the descriptor `fd`.
    fn new(fd: RawFd) -> Self {
        Self {
            watches: SectionLock::new(Watches { instance: new_number(), ..Watches::default() }),
            notes: AtomicU32::new(0),
            fd: AtomicI32::new(fd),
            spin: Spin::new(),
            asked: AtomicU64::new(0),
            crowded: AtomicBool::new(false),
            kernels: AtomicBool::new(false),
            sharing: sharing::Sharing::new(),
        }
    }
}

/// Returns a number that no other instance of this host has.
fn new_number() -> u64 {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let made = MADE.fetch_add(1, Ordering::Relaxed);
    u64::from(identity::number()) << 32 | u64::from(made)
}
