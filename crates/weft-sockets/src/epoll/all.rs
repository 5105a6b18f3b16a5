//! The list of all instances: creation, close and fork.
//!
//! # Safety
//! The thread that forks is the only one that accesses frozen locks, and thaws them.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::atomic::{Ordering, fence};

use weft_sys::{SectionLock, Uncancelled};

use super::carrier::fall_back_to_tcp;
use super::{Epoll, Registered, Visibility, sharing};
use crate::sockets::{self, Kind};
use crate::table::{self, Listed, Table};
use crate::{errno, identity, mode, sleepers};

static INSTANCES: Table<Epoll> = Table::new();
/// Every known instance, including those in which threads still wait after the last close.
static ALL: SectionLock<Vec<Held>> = SectionLock::new(Vec::new());

impl Listed for Epoll {
    fn table() -> &'static Table<Self> {
        &INSTANCES
    }
}

type Held = table::Held<Epoll>;

/// Returns the instance of `fd`, if it is known.
#[inline]
pub(super) fn find(fd: RawFd) -> Option<Held> {
    INSTANCES.find(fd)
}

/// Returns whether `fd` is a known instance.
#[inline]
pub(crate) fn knows(fd: RawFd) -> bool {
    INSTANCES.knows(fd)
}

/// Returns every descriptor in a range that is an instance.
pub(crate) fn within(first: u32, last: u32) -> impl Iterator<Item = RawFd> {
    INSTANCES.within(first, last)
}

/// Records that `copy` is a duplicate of `fd`.
pub(crate) fn copied(fd: RawFd, copy: RawFd) {
    if let Some(held) = INSTANCES.find(fd) {
        INSTANCES.share(&held, copy);
    }
}

/// Forgets `fd`, which stands for another file by now.
pub(crate) fn forget_number(fd: RawFd) {
    if INSTANCES.knows(fd) {
        drop(INSTANCES.remove(fd));
    }
}

/// Records an instance that the program has created, if the call has succeeded, before any thread
/// can duplicate it.
pub(crate) fn created(fd: RawFd) {
    if fd < 0 || !mode::enabled() || identity::is_borrowed() {
        return;
    }
    let before = errno::get();
    // `getrandom`, which a thread's first hash table calls, is a cancellation point.
    let _uncancelled = Uncancelled::begin();
    sleepers::follow_by(follow_note);
    if sockets::knows(fd) {
        drop(sockets::remove(fd)); // The socket was closed unseen.
    }
    INSTANCES.install(fd, Epoll::new(fd));
    if let Some(held) = INSTANCES.find(fd) {
        let mut all = ALL.lock();
        // Instances may have been closed unseen.
        let gone: Vec<Held> = all.extract_if(.., |held| held.descriptors() == 0).collect();
        all.push(held);
        drop(all);
        drop(gone);
    }
    follow_note();
    errno::set_raw(before);
}

/// Records an instance that another process has created. It stays with the kernel.
pub(super) fn take_over(fd: RawFd) -> Option<Held> {
    created(fd);
    INSTANCES.find(fd)
}

/// Removes a watched socket whose last descriptor is about to be closed.
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

/// Handles the close of a watched socket's registered descriptor while another one stays open: the
/// kernel keeps watching the file, but the entry cannot be changed any more.
pub(crate) fn go_by(socket: &sockets::Held, closed: RawFd, other: RawFd) {
    for_each(|instance| {
        let mut watches = instance.lock();
        let Some(place) = watches.find(socket, closed) else { return };
        let epoll = instance.fd();
        if watches.is_detached(place) {
            return watches.delete_detached(epoll, place);
        }
        if let Some(watch) = watches.places[place].as_mut() {
            fall_back_to_tcp(&watch.socket, closed);
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
        watches.forget_if_over(place, 0);
    });
}

/// Handles the close of a descriptor of an instance.
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
            // Threads sleep on in it, and only the kernel can wake them.
            instance.kernels.store(true, Ordering::Relaxed);
            watches.fall_back(fd, Visibility::Nested);
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

/// Gives all watched sockets to the kernel, because the process gives up system calls.
pub(crate) fn enter_fallback() {
    for_each(|instance| instance.lock().enter_fallback(instance.fd()));
    let is_over = |&fd: &RawFd| find(fd).is_some_and(|instance| instance.lock().is_empty());
    within(0, u32::MAX).filter(is_over).for_each(|fd| drop(INSTANCES.remove(fd)));
}

/// Resets the instances in a forked child: whatever is armed is the parent's.
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

/// Rechecks all instances if a thread has asked for it. A thread that has held the lock of all
/// instances calls this afterwards.
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

/// Stops the creation of instances until [`thaw`], before a fork counts the child's descriptors.
pub(crate) fn stop_opening() {
    INSTANCES.stop_opening();
}

/// Locks all instances, after [`stop_opening`] and before the fork, so that no thread is in the
/// middle of a change, and prepares them for use by a child.
pub(crate) fn freeze() {
    sharing::freeze();
    ALL.freeze();
    // SAFETY: this thread has just frozen `ALL`, so no other thread changes it.
    for instance in unsafe { ALL.peek() } {
        expose(instance);
        instance.watches.freeze();
    }
    INSTANCES.freeze();
}

/// Prepares an instance for use by a child.
fn expose(instance: &Epoll) {
    let mut watches = instance.lock();
    watches.is_exposed = true;
    watches.delete_all_detached(instance.fd());
    watches.close_pipe(instance.fd()); // A child that waits would get its events.
    if !instance.sharing.can_be_notified() && !instance.is_kernels() {
        instance.kernels.store(true, Ordering::Relaxed);
        watches.fall_back(instance.fd(), Visibility::Shared);
    }
}

/// Unlocks everything after [`freeze`], in the parent and in the child.
///
/// # Safety
/// This thread, or its copy in the parent, has called [`stop_opening`] and [`freeze`].
pub(crate) unsafe fn thaw() {
    // SAFETY: the caller has frozen `INSTANCES`.
    unsafe { INSTANCES.thaw() };
    // SAFETY: `ALL` is still frozen, so no other thread changes it.
    let all = unsafe { ALL.peek() };
    // SAFETY: `freeze` has frozen each instance's lock, and the frozen `ALL` keeps the list as it
    // was then.
    all.iter().for_each(|instance| unsafe { instance.watches.thaw() });
    // SAFETY: the caller has frozen `ALL`.
    unsafe { ALL.thaw() };
    // SAFETY: `freeze` has frozen `sharing`.
    unsafe { sharing::thaw() };
}

/// Handles recheck requests that came while the locks were frozen, in the parent after [`thaw`].
pub(crate) fn follow_notes() {
    for_each(Epoll::follow_note);
}
