//! Epoll instances, of which every one that this process makes is known from its birth.
//!
//! The kernel's instance holds each socket with the program's own data, whatever carries its bytes:
//! who waits by another copy, in another process or by a call that we do not see, gets events that
//! mean something to the program. An event is found to be one of ours by its data ([`names`]).
//! While TCP carries a socket, the kernel tells its readiness. When the rings carry it, we do; the
//! kernel is asked for changes alone (edge-triggered), which are wakeups, the end of the stream and
//! errors.
//!
//! Of the sockets in memory some are *polled*: each wait looks at their rings. Before a thread
//! sleeps they are *armed*: the peer notifies when it has put something, and then they are polled
//! again. So a wait costs what is going on, and not what is open. Of several that were polled until
//! a sleep, the peers notify one [`alarm`]: whatever the first brings, all are polled again.
//!
//! While a thread sleeps in an instance, all that it watches is armed, and a thread that changes
//! the instance, or takes what the sleeper waits for, looks on its behalf ([`wakeup`]).

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
mod rests;
mod sharing;
#[cfg(test)]
mod tests;
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
/// What a program asks for that gets bytes as edges.
const BYTES: u32 = (libc::EPOLLRDNORM | libc::EPOLLRDBAND | libc::EPOLLPRI) as u32 | IN;
const OUT: u32 = libc::EPOLLOUT as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const ERR_HUP: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
const MODES: u32 = EDGE | ONESHOT | EXCLUSIVE | libc::EPOLLWAKEUP as u32;

/// What is known of an epoll instance.
#[derive(Debug)]
pub(crate) struct Epoll {
    watches: SectionLock<Watches, true>,
    /// Somebody who found the lock taken wants [`Watches::recheck`].
    notes: AtomicU32,
    /// A descriptor of it that is open; -1: none.
    fd: AtomicI32,
    spin: Spin,
    /// When the kernel was asked last.
    asked: AtomicU64,
    /// The kernel alone has filled the last list: next time the rings come first.
    crowded: AtomicBool,
    /// It is the kernel's alone ([`fallback`]).
    kernels: AtomicBool,
    sharing: sharing::Sharing,
}

/// Who may wait for an instance, beside threads of this process that call `epoll_wait`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reach {
    /// Nobody.
    #[default]
    Own,
    /// It is watched itself, by another instance or by poll.
    Nested,
    /// Another process may have it.
    Shared,
}

#[derive(Debug, Default)]
struct Watches {
    /// A number for it, which children that inherit it have, too.
    instance: u64,
    reach: Reach,
    places: Vec<Option<Watch>>,
    free: Vec<usize>,
    by_fd: by_fd::ByFd<usize>,
    names: names::Names,
    /// Places of those that are looked at.
    polled: Vec<usize>,
    /// [`sleepers::taken`](crate::sleepers::taken) when all were looked at for it.
    wakeups_taken: u64,
    /// Counts the waits: the last one's number.
    round: u64,
    sleep: alarm::Sleeps,
    /// A child may have a copy: what is registered must not be lost to who takes it first.
    is_exposed: bool,
    /// The kernel reports something again that it has just reported.
    is_reported_again: bool,
    /// What fills in for the list of those that are ready.
    ready: Vec<watches::Ready>,
}

/// What the kernel has of a socket in an instance; always with the program's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Registered {
    /// What the program waits for.
    Whole,
    /// The same, but not that there is room, which would always be there.
    WithoutRoom,
    /// Changes alone.
    Changes,
    /// What the program waits for, and room, which stands for what waits in memory ([`fallback`]).
    Announced,
}

/// A socket of ours in an epoll instance.
#[derive(Debug)]
struct Watch {
    socket: Held,
    /// By which descriptor the program has added it.
    fd: RawFd,
    place: usize,
    /// What the program waits for.
    events: u32,
    data: u64,
    registered: Registered,
    /// It has left memory, and is watched for what is still to be read there.
    is_kernels: bool,
    /// The descriptor it was added by is closed, another is not: the kernel changes nothing more.
    is_orphan: bool,
    /// It was added after a fork: see [`Watches`].
    is_exposed: bool,
    /// The kernel has been asked for room, to wake a sleeper ([`wakeup`]).
    is_woken: bool,
    /// The program has deleted it. The kernel still has it, for the next time: programs that delete
    /// and add for each message would make system calls for nothing else.
    is_detached: bool,
    /// A one-shot that has been reported.
    is_disabled: bool,
    is_polled: bool,
    /// The peer notifies.
    is_armed: bool,
    /// But not if the alarm has been rung.
    is_tagged: bool,
    /// Sleeps through which nothing has come.
    idle_sleeps: u32,
    idle_looks: u32,
    /// By which data the kernel has what wakes for a connection to another host.
    wakeup_fd: Option<u64>,
    /// How the kernel has reported the connection's end, where the program reads by TCP.
    hung: u32,
    /// What was there when it was last reported, for edges.
    seen: Option<(u64, u32)>,
    /// How much had come by memory when it was looked at last.
    come: u64,
    /// That look, if it has found nothing.
    quiet: Option<watch::Quiet>,
    /// The kernel tells a thread that sleeps once more of what the program knows, unless something
    /// has come since this.
    echo: Option<again::State>,
    /// The same, because another process has reported it to the program.
    reported_elsewhere: Option<again::State>,
    /// When it came to the end of the list of those that are ready: it was added, or reported.
    queued_at: u64,
    /// It stands there since, whatever comes: the kernel's list drops what is not ready any more
    /// only when a wait comes to it.
    is_queued: bool,
    /// The last wait that has reported it: one does so once.
    round: u64,
    /// What the kernel has reported that the program is still to know, and in which wait it has.
    pending: u32,
    pending_in: u64,
    /// The kernel has announced what waits in memory, which the program is still to know.
    is_announced_here: bool,
    /// How many bytes that have come by TCP behind those in memory the program knows of, if it
    /// waits for edges.
    behind: usize,
}

impl Epoll {
    /// Just made, as `fd`.
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

/// A number that no other instance of this host has.
fn new_number() -> u64 {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let made = MADE.fetch_add(1, Ordering::Relaxed);
    u64::from(identity::number()) << 32 | u64::from(made)
}
