//! All instances: what a close or a fork means for them.
//!
//! # Safety
//! Locks that are frozen before a fork are looked into, and thawed, by the thread that forks.
#![allow(unsafe_code)]

use std::os::fd::RawFd;
use std::sync::atomic::Ordering;

use super::{ALL, Epoll, Watches};
use crate::table;
use crate::table::{Held, Kind};

/// The last descriptor of a socket that is watched is about to be closed.
pub(crate) fn forget(socket: &Held) {
    for_each(|_, watches| {
        while let Some(place) = watches.place_of(socket) {
            watches.remove(place);
        }
    });
}

/// A descriptor of a socket that is watched is about to be closed; another one stays open.
pub(crate) fn go_by(socket: &Held, closed: RawFd, other: RawFd) {
    for_each(|_, watches| {
        let all = watches.places.iter_mut().flatten();
        all.filter(|watch| watch.via == closed && watch.socket.is(socket))
            .for_each(|watch| watch.via = other);
    });
}

/// The last descriptor of an instance is about to be closed.
pub(crate) fn closing(epoll: RawFd, instance: &Epoll) {
    ALL.lock().retain(|&other| other != epoll);
    let mut watches = instance.watches.lock();
    for place in 0..watches.places.len() {
        watches.remove(place);
    }
    watches.drop_alarm();
}

/// The process is confined: all that is watched is the kernel's to tell.
pub(crate) fn surrender() {
    for_each(|epoll, watches| watches.surrender(epoll));
    let is_over = |fd: &RawFd| match table::find(*fd).as_deref() {
        Some(Kind::Epoll(instance)) => instance.watches.lock().is_empty(),
        _ => false,
    };
    table::within(0, u32::MAX).filter(is_over).for_each(|fd| drop(table::remove(fd)));
    ALL.lock().retain(|&epoll| table::knows(epoll));
}

/// This is a child just born: what the parent has armed is the parent's.
pub(crate) fn forked() {
    for_each(|_, watches| {
        for watch in watches.places.iter_mut().flatten() {
            (watch.armed, watch.tagged) = (false, false);
            if let Kind::Stream(stream) = &*watch.socket {
                stream.armed().store(0, Ordering::Relaxed);
            }
        }
        watches.forget_alarm();
        watches.heat_all();
    });
}

pub(super) fn for_each(mut act: impl FnMut(RawFd, &mut Watches)) {
    let all = ALL.lock();
    for &epoll in all.iter() {
        if let Some(held) = table::find(epoll)
            && let Kind::Epoll(instance) = &*held
        {
            act(epoll, &mut instance.watches.lock());
        }
    }
}

/// Before a fork: no other thread is in the middle of a change.
pub(crate) fn freeze() {
    ALL.freeze();
    // SAFETY: frozen just now, and not thawed.
    for_each_instance(unsafe { ALL.peek() }, |instance| instance.watches.freeze());
}

/// After it, in the parent and in the child.
///
/// # Safety
/// [`freeze`] has been called by this thread, or by the one that it was before the fork.
pub(crate) unsafe fn thaw() {
    // SAFETY: still frozen.
    let all = unsafe { ALL.peek() };
    // SAFETY: the caller's promise; instances are added and removed under the frozen lock only.
    for_each_instance(all, |instance| unsafe { instance.watches.thaw() });
    // SAFETY: likewise.
    unsafe { ALL.thaw() };
}

fn for_each_instance(all: &[RawFd], act: impl Fn(&Epoll)) {
    for held in all.iter().filter_map(|&epoll| table::find(epoll)) {
        if let Kind::Epoll(instance) = &*held {
            act(instance);
        }
    }
}
