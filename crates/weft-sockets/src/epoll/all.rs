//! All instances: their birth, and what a close or a fork means for them.
//!
//! # Safety
//! Locks that are frozen before a fork are looked into, and thawed, by the thread that forks.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::atomic::{Ordering, fence};

use weft_sys::SectionLock;

use super::carrier::leave;
use super::{Epoll, Reach, Registered, sharing};
use crate::sockets::{self, Kind};
use crate::table::{self, Listed, Table};
use crate::{errno, identity, mode, sleepers};

static INSTANCES: Table<Epoll> = Table::new();
/// Every instance that is known, also those that threads still wait in after the last close.
static ALL: SectionLock<Vec<Held>> = SectionLock::new(Vec::new());

impl Listed for Epoll {
    fn table() -> &'static Table<Self> {
        &INSTANCES
    }
}

type Held = table::Held<Epoll>;

/// The instance `fd`, if it is known.
#[inline]
pub(super) fn find(fd: RawFd) -> Option<Held> {
    INSTANCES.find(fd)
}

/// Whether `fd` is an instance that is known.
#[inline]
pub(crate) fn knows(fd: RawFd) -> bool {
    INSTANCES.knows(fd)
}

/// Every descriptor in a range that is an instance.
pub(crate) fn within(first: u32, last: u32) -> impl Iterator<Item = RawFd> {
    INSTANCES.within(first, last)
}

/// `copy` has been made from `fd`.
pub(crate) fn copied(fd: RawFd, copy: RawFd) {
    if let Some(held) = INSTANCES.find(fd) {
        INSTANCES.share(&held, copy);
    }
}

/// `fd` stands for something else by now.
pub(crate) fn forget_number(fd: RawFd) {
    if INSTANCES.knows(fd) {
        drop(INSTANCES.remove(fd));
    }
}

/// The program has made an instance, if the call has succeeded. An instance is known from here on,
/// before anybody can copy it.
pub(crate) fn created(fd: RawFd) {
    if fd < 0 || !mode::enabled() || identity::is_borrowed() {
        return;
    }
    let before = errno::get();
    sleepers::follow_by(follow_note);
    if sockets::knows(fd) {
        drop(sockets::remove(fd)); // Closed behind our back.
    }
    INSTANCES.install(fd, Epoll::new(fd));
    if let Some(held) = INSTANCES.find(fd) {
        let mut all = ALL.lock();
        // Some may have been closed behind our back.
        let gone: Vec<Held> = all.extract_if(.., |held| held.descriptors() == 0).collect();
        all.push(held);
        drop(all);
        drop(gone);
    }
    follow_note();
    errno::set_raw(before);
}

/// An instance that others have made is known from here on, and stays the kernel's.
pub(super) fn take_over(fd: RawFd) -> Option<Held> {
    created(fd);
    INSTANCES.find(fd)
}

/// The last descriptor of a socket that is watched is about to be closed.
pub(crate) fn forget(socket: &sockets::Held) {
    for_each(|instance| {
        let mut watches = instance.lock();
        while let Some(place) = watches.place_of(socket) {
            let name = watches.places[place].as_ref().map(|watch| (watch.fd, watch.is_orphan));
            watches.remove(place);
            if let Some((fd, false)) = name {
                watches.names.remove(fd);
            }
        }
    });
}

/// A descriptor of a socket that is watched is about to be closed; another one stays open, and so
/// the kernel goes on to watch it, but will change nothing any more.
pub(crate) fn go_by(socket: &sockets::Held, closed: RawFd, other: RawFd) {
    for_each(|instance| {
        let mut watches = instance.lock();
        let Some(place) = watches.find(socket, closed) else { return };
        let epoll = instance.fd();
        if watches.is_detached(place) {
            return watches.delete_detached(epoll, place);
        }
        if let Some(watch) = watches.places[place].as_mut() {
            leave(&watch.socket, closed);
            watch.is_kernels = true;
            if watch.is_woken || watch.registered != Registered::Whole {
                watch.is_woken = false;
                watch.register(epoll, Registered::Whole);
            }
            watch.is_orphan = true;
            watch.fd = other;
        }
        watches.by_fd.remove(&closed);
        watches.by_fd.insert(other, place);
        watches.pass_on_orphan(epoll, place);
        watches.forget_if_over(place);
    });
}

/// A descriptor of an instance is about to be closed.
pub(crate) fn closing(fd: RawFd) {
    let Some(instance) = INSTANCES.remove(fd) else { return };
    if instance.descriptors() > 0 {
        if instance.fd() == fd {
            let is_copy = |&other: &RawFd| find(other).is_some_and(|it| it.is(&instance));
            let other = within(0, u32::MAX).find(is_copy);
            instance.fd.store(other.unwrap_or(-1), Ordering::Relaxed);
        }
        return;
    }
    {
        let mut watches = instance.lock();
        if watches.sleep.is_anyone_asleep() {
            // They sleep on, and the kernel alone can wake them.
            instance.kernels.store(true, Ordering::Relaxed);
            watches.fall_back(fd, Reach::Nested);
        }
        for place in 0..watches.places.len() {
            watches.remove(place);
        }
        watches.drop_alarm();
        instance.fd.store(-1, Ordering::Relaxed);
    }
    let mut all = ALL.lock();
    let gone: Vec<Held> = all.extract_if(.., |other| other.is(&instance)).collect();
    drop(all);
    drop(gone);
    follow_note();
}

/// The process gives up system calls: all that is watched is the kernel's to report.
pub(crate) fn enter_fallback() {
    for_each(|instance| instance.lock().enter_fallback(instance.fd()));
    let is_over = |&fd: &RawFd| find(fd).is_some_and(|instance| instance.lock().is_empty());
    within(0, u32::MAX).filter(is_over).for_each(|fd| drop(INSTANCES.remove(fd)));
}

/// This is a child just born: what the parent has armed is the parent's.
pub(crate) fn forked() {
    sharing::forked();
    sleepers::forked();
    for_each(|instance| {
        instance.sharing.inherit();
        let mut watches = instance.lock();
        for watch in watches.places.iter_mut().flatten() {
            (watch.is_armed, watch.is_tagged) = (false, false);
            if let Kind::Stream(stream) = &*watch.socket {
                stream.armed().store(0, Ordering::Relaxed);
            }
        }
        watches.forget_alarm();
        watches.start_polling_all();
    });
}

/// To be called by a thread that has had the lock of all instances.
fn follow_note() {
    while sleepers::is_noted() {
        let Some(all) = ALL.try_lock() else { return };
        sleepers::take_note();
        all.iter().for_each(|instance| instance.leave_note());
        drop(all);
        fence(Ordering::SeqCst);
    }
}

pub(super) fn for_each(mut act: impl FnMut(&Epoll)) {
    let all = ALL.lock();
    all.iter().for_each(|instance| act(instance));
    drop(all);
    follow_note();
}

/// Before a fork counts what the child gets: no instance is made until [`thaw`].
pub(crate) fn stop_opening() {
    INSTANCES.stop_opening();
}

/// After [`stop_opening`], before the fork: no other thread is in the middle of a change. A child
/// may use what there is.
pub(crate) fn freeze() {
    sharing::freeze();
    ALL.freeze();
    // SAFETY: frozen just now, and not thawed.
    for instance in unsafe { ALL.peek() } {
        expose(instance);
        instance.watches.freeze();
    }
    INSTANCES.freeze();
}

/// A child may use the instance.
fn expose(instance: &Epoll) {
    let mut watches = instance.lock();
    watches.is_exposed = true;
    watches.delete_all_detached(instance.fd());
    watches.close_pipe(instance.fd()); // It would be reported to a child that waits.
    if !instance.sharing.can_be_notified() && !instance.is_kernels() {
        instance.kernels.store(true, Ordering::Relaxed);
        watches.fall_back(instance.fd(), Reach::Shared);
    }
}

/// After [`freeze`], in the parent and in the child.
///
/// # Safety
/// [`stop_opening`] and [`freeze`] have been called by this thread, or by the one that it was
/// before the fork.
pub(crate) unsafe fn thaw() {
    // SAFETY: guaranteed by the caller.
    unsafe { INSTANCES.thaw() };
    // SAFETY: still frozen.
    let all = unsafe { ALL.peek() };
    // SAFETY: guaranteed by the caller; instances are added and removed under the frozen lock only.
    all.iter().for_each(|instance| unsafe { instance.watches.thaw() });
    // SAFETY: guaranteed by the caller.
    unsafe { ALL.thaw() };
    // SAFETY: guaranteed by the caller.
    unsafe { sharing::thaw() };
}

/// After [`thaw`], in the parent: other threads may have left notes for the holder of the locks.
pub(crate) fn follow_notes() {
    for_each(Epoll::follow_note);
}
