//! Epoll instances that watch sockets of ours.
//!
//! A socket of ours is in the kernel's instance, too, under a mark of our own instead of the
//! program's data. While TCP carries it, the kernel tells its readiness, and only the data is put
//! back. When the rings carry it, we do; the kernel is asked for changes alone (edge-triggered),
//! which are bells, the end of the stream and errors.
//!
//! Of those, some are *hot*: each wait looks at their rings. Before the thread sleeps they become
//! *armed*: the peer rings when it has put something, and then they are hot again. So a wait
//! costs what is going on, and not what is open. Of several that were hot until a sleep, the peers
//! ring one [`alarm`] for all: whatever the first brings, all are hot again.
//!
//! # Safety
//! Only the C library's own functions are called.
#![allow(unsafe_code)]

mod alarm;
mod all;
mod nested;
mod rests;
mod waiting;
mod watch;
mod watches;

use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use libc::{c_int, epoll_event};
use rustix::io::Errno;
use weft_sys::{Lock, Spin};

pub(crate) use self::all::{closing, forget, forked, freeze, go_by, surrender, thaw};
pub(crate) use self::nested::read_out;
use self::waiting::{Sleep, Waiting};
use crate::datagram::Why;
use crate::errno;
use crate::next::next;
use crate::reason::Reason;
use crate::settings;
use crate::table::{self, Held, Kind};

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const ERR_HUP: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
const MODES: u32 = EDGE | ONESHOT | EXCLUSIVE | libc::EPOLLWAKEUP as u32;

/// Upper bits of our marks: no address and no small number has them. The rest are a counter of
/// 16 bits, which tells a watch from the last one in its place, and the place.
const MARK: u64 = 0xA5C3 << 48;
const PLACE_BITS: u32 = 32;
/// Set in the mark of what wakes for a connection to another host, beside its socket.
const DOORBELL: u64 = 1 << (PLACE_BITS - 1);
/// Looks at a hot socket that found nothing, after which it is armed while others are busy.
const IDLE_LOOKS_MAX: u32 = 512;

/// Every instance that has watched a socket of ours.
static ALL: Lock<Vec<RawFd>> = Lock::new(Vec::new());

/// How often a reader has taken a bell that an instance may wait for.
static BELLS_TAKEN: AtomicU64 = AtomicU64::new(0);

/// What is known of an epoll instance.
#[derive(Debug)]
pub(crate) struct Epoll {
    watches: Lock<Watches>,
    spin: Spin,
    /// When the kernel was asked last.
    asked: AtomicU64,
    /// The kernel alone has filled the last list: next time the rings come first.
    crowded: AtomicBool,
    nested: AtomicBool,
}

#[derive(Debug, Default)]
struct Watches {
    places: Vec<Option<Watch>>,
    free: Vec<usize>,
    by_fd: HashMap<RawFd, usize>,
    /// Places of those that are looked at.
    hot: Vec<usize>,
    /// Where the next look begins, so that none is always last.
    next: usize,
    /// [`BELLS_TAKEN`] when all were looked at for it.
    bells_taken: u64,
    counter: u16,
    /// Counts the waits: the last one's number.
    round: u64,
    nap: alarm::Nap,
}

/// A socket of ours in an epoll instance.
#[derive(Debug)]
struct Watch {
    socket: Held,
    /// By which descriptor the program has added it.
    fd: RawFd,
    /// One that is still open.
    via: RawFd,
    place: usize,
    counter: u16,
    /// What the program waits for.
    events: u32,
    data: u64,
    /// The kernel has it for changes alone.
    converted: bool,
    /// The kernel tells what comes, but not that there is room, which would always be there.
    muted: bool,
    /// The kernel tells of room instead of what waits in memory ([`nested`]).
    announced: bool,
    /// The program has deleted it. The kernel still has it, for the next time: programs that delete
    /// and add for each message would make system calls for nothing else.
    dormant: bool,
    /// A one-shot that has been told.
    spent: bool,
    is_hot: bool,
    /// The peer rings.
    armed: bool,
    /// But not if the alarm has been rung. Sleeps through which nothing has come so.
    tagged: bool,
    idle_sleeps: u32,
    /// The kernel has the doorbell of a connection to another host.
    has_doorbell: bool,
    idle_looks: u32,
    /// What was there when it was last told, for edges.
    seen: Option<(u64, u32)>,
    /// The last wait that has told of it: one tells of a socket once.
    round: u64,
    /// What the kernel has told that the program is still to know, and in which wait it has.
    withheld: u32,
    withheld_in: u64,
}

/// A bell has been taken from a socket by someone who reads from it: no event will tell of what the
/// bell was for.
pub(crate) fn bell_taken() {
    BELLS_TAKEN.fetch_add(1, Ordering::Release);
}

/// `epoll_ctl(2)` for a socket of ours. `None`: it is not; the kernel is to do it.
pub(crate) fn control(
    epoll: RawFd,
    operation: c_int,
    fd: RawFd,
    event: Option<epoll_event>,
) -> Option<c_int> {
    let socket = table::find(fd)?;
    if settings::is_confined() {
        if let Kind::Epoll(instance) = &*table::find(epoll)? {
            instance.watches.lock().change_rest(&socket, fd, event);
        }
        return None;
    }
    if let Kind::Epoll(inner) = &*socket {
        inner.nest(fd);
    }
    let count = watch_count(&socket)?;
    if operation == libc::EPOLL_CTL_ADD && table::find(epoll).is_none() && event.is_some() {
        if is_kernels(&socket) {
            return None;
        }
        let instance = Epoll {
            watches: Lock::new(Watches::default()),
            spin: Spin::new(),
            asked: AtomicU64::new(0),
            crowded: AtomicBool::new(false),
            nested: AtomicBool::new(false),
        };
        table::install(epoll, Kind::Epoll(instance));
        ALL.lock().push(epoll);
    }
    let instance = table::find(epoll)?;
    let Kind::Epoll(instance) = &*instance else { return None };
    let elsewhere = operation == libc::EPOLL_CTL_ADD && count.load(Ordering::Relaxed) > 0;
    if (elsewhere && !instance.watches.lock().has(&socket)) || instance.is_nested() {
        leave(&socket, fd);
    }
    let mut watches = instance.watches.lock();
    let result = watches.control(epoll, operation, &socket, fd, event);
    if result == Some(0) && instance.is_nested() {
        watches.announce(epoll, &socket, fd);
    }
    result
}

impl Watches {
    /// `epoll_ctl(2)`, here and in the kernel.
    fn control(
        &mut self,
        epoll: RawFd,
        operation: c_int,
        socket: &Held,
        fd: RawFd,
        event: Option<epoll_event>,
    ) -> Option<c_int> {
        let known = self.find(socket, fd);
        if let Some(result) = self.control_here(operation, event, known) {
            return Some(result);
        }
        match (operation, event, known) {
            // One that the kernel still has, but not as it is to have it now.
            (libc::EPOLL_CTL_ADD, Some(event), Some(place)) if self.is_dormant(place) => {
                let watch = self.places[place].as_mut()?;
                let marked = epoll_event { events: event.events, u64: mark(place, watch.counter) };
                let result = kernel_change(epoll, fd, marked);
                if result == 0 {
                    (watch.converted, watch.muted) = (false, false);
                    watch.wait_for(event);
                    self.heat(place);
                }
                Some(result)
            }
            (libc::EPOLL_CTL_ADD, Some(event), None) => {
                let place = self.place();
                let counter = self.counter.wrapping_add(1);
                self.counter = counter;
                let marked = epoll_event { events: event.events, u64: mark(place, counter) };
                let result = kernel_control(epoll, operation, fd, Some(marked));
                if result == 0 {
                    watch_count(socket)?.fetch_add(1, Ordering::Relaxed);
                    let watch = Watch {
                        socket: socket.again(),
                        fd,
                        via: fd,
                        place,
                        counter,
                        events: event.events,
                        data: event.u64,
                        converted: false,
                        muted: false,
                        announced: false,
                        dormant: false,
                        spent: false,
                        is_hot: false,
                        armed: false,
                        tagged: false,
                        idle_sleeps: 0,
                        has_doorbell: false,
                        idle_looks: 0,
                        seen: None,
                        round: 0,
                        withheld: 0,
                        withheld_in: 0,
                    };
                    self.places[place] = Some(watch);
                    self.by_fd.insert(fd, place);
                    self.heat(place);
                } else {
                    self.free.push(place);
                }
                Some(result)
            }
            // One that the kernel has for changes alone and that cannot stay so begins anew.
            (libc::EPOLL_CTL_MOD, Some(event), Some(place)) => {
                let watch = self.places[place].as_mut()?;
                let marked = epoll_event { events: event.events, u64: mark(place, watch.counter) };
                let exclusive = event.events & EXCLUSIVE != 0 || watch.events & EXCLUSIVE != 0;
                let result = if exclusive {
                    errno::fail(Errno::INVAL)
                } else {
                    kernel_control(epoll, operation, fd, Some(marked))
                };
                if result == 0 {
                    (watch.converted, watch.muted) = (false, false);
                    watch.wait_for(event);
                    self.heat(place);
                }
                Some(result)
            }
            (libc::EPOLL_CTL_DEL, _, Some(place)) => {
                let result = kernel_control(epoll, operation, fd, event);
                if result == 0 {
                    self.remove(place);
                }
                Some(result)
            }
            _ => None,
        }
    }
}

/// How many epoll instances watch a socket of ours.
fn watch_count(socket: &Held) -> Option<&AtomicU32> {
    match &**socket {
        Kind::Stream(stream) => Some(stream.watches()),
        Kind::Datagram(datagram) => Some(datagram.watches()),
        Kind::Epoll(_) => None,
    }
}

/// Whether the kernel has a socket to itself for good.
fn is_kernels(socket: &Held) -> bool {
    match &**socket {
        Kind::Stream(stream) => stream.is_tcp(),
        Kind::Datagram(datagram) => datagram.is_off() && datagram.known_inbox().is_none(),
        Kind::Epoll(_) => true,
    }
}

fn kernel_control(epoll: RawFd, operation: c_int, fd: RawFd, event: Option<epoll_event>) -> c_int {
    let mut event = event;
    let place: *mut epoll_event = event.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    next!(epoll_ctl(
        epoll: c_int, operation: c_int, fd: c_int, place: *mut epoll_event
    ) -> c_int)
}

/// The kernel, which has the descriptor, is asked for this from here on. What is exclusive cannot
/// be changed, and is added anew.
fn kernel_change(epoll: RawFd, fd: RawFd, event: epoll_event) -> c_int {
    if event.events & EXCLUSIVE != 0 {
        kernel_control(epoll, libc::EPOLL_CTL_DEL, fd, None);
        kernel_control(epoll, libc::EPOLL_CTL_ADD, fd, Some(event))
    } else {
        kernel_control(epoll, libc::EPOLL_CTL_MOD, fd, Some(event))
    }
}

/// What the kernel is asked for when the rings tell the readiness.
fn changes(events: u32) -> u32 {
    IN | RDHUP | EDGE | (events & libc::EPOLLPRI.cast_unsigned())
}

fn mark(place: usize, counter: u16) -> u64 {
    MARK | u64::from(counter) << PLACE_BITS | place as u64
}

/// `epoll_wait(2)`. `None`: the instance watches nothing of ours; the kernel is to do it. `sleep`
/// is the kernel's wait with a timeout in milliseconds.
pub(crate) fn wait(
    epoll: RawFd,
    events: &mut [epoll_event],
    timeout_ns: Option<u64>,
    sleep: &mut Sleep<'_>,
) -> Option<c_int> {
    let held = table::find(epoll)?;
    let Kind::Epoll(instance) = &*held else { return None };
    if events.is_empty() || instance.watches.lock().is_empty() {
        return None;
    }
    if settings::is_confined() {
        return instance.watches.lock().tell_rests(events);
    }
    Some(Waiting::new(instance, epoll, sleep).wait(events, timeout_ns))
}

/// Goes back to the kernel, which alone can wake all who watch it.
fn leave(socket: &Held, fd: RawFd) {
    match &**socket {
        Kind::Stream(stream) => stream.leave(fd, Reason::Watched),
        Kind::Datagram(datagram) => datagram.leave(Why::Watched),
        Kind::Epoll(_) => {}
    }
}
