//! The process's forks, and its end.
//!
//! # Safety
//! The forking thread freezes locks before the fork, and it or its copy in the child thaws them.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use libc::{c_int, c_long, pid_t};
use weft_stream::inheritance;

use crate::handover::Own;
use crate::identity::{self, is_borrowed};
use crate::reason::Reason;
use crate::sockets::{self, Kind};
use crate::table::Listed;
use crate::zcopy::deferred;
use crate::{
    by_hand, child_starts, closes, epoll, errno, extended, mode, remote, seccomp_fallback,
    shared_files, stream, unseen_fork,
};

/// Prepares for an end without exit handlers, perhaps inside a signal handler: nothing is freed.
pub(crate) fn end_at_once() {
    if is_borrowed() || mode::is_in_fallback() {
        return;
    }
    deferred::reclaim_all();
    for fd in sockets::all() {
        let Some(held) = sockets::remove(fd).map(std::mem::ManuallyDrop::new) else { continue };
        match &**held {
            Kind::Stream(stream) if held.descriptors() == 0 => {
                stream.closing(fd);
                stream.let_go();
            }
            Kind::Datagram(datagram) if held.descriptors() == 0 => datagram.log_at_close(fd),
            _ => {}
        }
    }
    remote::finish();
    shared_files::leave();
}

/// Whether children will have ids of another PID namespace (`unshare(2)`, `setns(2)`).
static CHILDREN_ELSEWHERE: AtomicBool = AtomicBool::new(false);

/// Notes that the process's children will be in another PID namespace. Thread ids there mean other
/// threads here, or none, so that a lock's holder could be taken for dead. So connections fall back
/// to TCP before a child is forked. Returns whether this was known before.
pub(crate) fn begin_children_elsewhere() -> bool {
    CHILDREN_ELSEWHERE.swap(true, Ordering::Relaxed)
}

thread_local! {
    /// The number of the last fork that this thread has begun. Forks of several threads are
    /// serialised.
    static OWN_FORK: Cell<u32> = const { Cell::new(0) };
}

pub(crate) extern "C" fn before_fork() {
    unseen_fork::before_seen();
    if CHILDREN_ELSEWHERE.load(Ordering::Relaxed) {
        seccomp_fallback::leave_all(Reason::Processes);
    }
    remote::finish(); // A child would hold the sockets of lingering connections open.
    // The child would inherit, uncounted, what other threads open while holders are counted.
    Kind::table().stop_opening();
    epoll::stop_opening();
    let fork = child_starts::FORKS.begin();
    OWN_FORK.set(fork);
    inheritance::before_fork(&Own, fork);
    for fd in sockets::all() {
        if let Some(Kind::Datagram(datagram)) = sockets::find(fd).as_deref() {
            datagram.forking(fork);
        }
    }
    // Order matters: an instance's lock is held while a connection falls back to TCP, which
    // reclaims deferred sends.
    epoll::freeze();
    deferred::freeze();
    shared_files::freeze();
    Kind::table().freeze();
    extended::memory::freeze();
    stream::freeze();
}

pub(crate) extern "C" fn in_parent() {
    child_starts::FORKS.end();
    thaw();
    unseen_fork::after_seen();
    epoll::follow_notes();
}

/// Unlocks everything after [`before_fork`], in the parent and in the child.
fn thaw() {
    // SAFETY: `before_fork` has frozen this module's locks.
    unsafe { stream::thaw() };
    // SAFETY: `before_fork` has frozen this module's lock.
    unsafe { extended::memory::thaw() };
    // SAFETY: `before_fork` has frozen this module's locks.
    unsafe { shared_files::thaw() };
    // SAFETY: `before_fork` has frozen this module's locks.
    unsafe { deferred::thaw() };
    // SAFETY: `before_fork` has frozen this module's locks.
    unsafe { epoll::thaw() };
    // SAFETY: `before_fork` has frozen the table first, so signals are deferred until it is thawed.
    unsafe { Kind::table().thaw() };
}

/// A fork that does not run fork handlers, or has flags of `clone(2)`.
#[derive(Debug)]
pub(crate) struct Forking {
    /// Whether only this child is in another PID namespace.
    leaves: bool,
    number: u32,
}

impl Forking {
    /// Prepares for the fork.
    pub(crate) fn begin(flags: c_int) -> Self {
        if flags & libc::CLONE_FILES != 0 {
            seccomp_fallback::keep_on_tcp("a child shares the descriptors");
        }
        let leaves = flags & libc::CLONE_NEWPID != 0 && !begin_children_elsewhere();
        before_fork();
        Self { leaves, number: OWN_FORK.get() }
    }

    /// Ends the fork, in the parent and in the child. `spawn` is the call's result.
    pub(crate) fn end(self, child: c_long) {
        if child == 0 {
            let before = errno::get();
            in_child();
            errno::set_raw(before);
        } else {
            self.end_in_parent(child);
        }
    }

    /// Ends the fork in the parent.
    pub(crate) fn end_in_parent(self, child: c_long) {
        let before = errno::get();
        in_parent();
        if self.leaves {
            CHILDREN_ELSEWHERE.store(false, Ordering::Relaxed);
        }
        if child < 0 {
            fork_failed(self.number);
        }
        errno::set_raw(before);
    }
}

/// Forks by a C library function that runs the fork handlers. These do not learn when the fork
/// fails.
pub(crate) fn fork_with_handlers(call: impl FnOnce() -> pid_t) -> pid_t {
    // This may run in a signal handler that has interrupted another fork.
    let interrupted = OWN_FORK.take();
    let child = call();
    if child < 0 {
        let why = errno::get();
        fork_failed(OWN_FORK.get());
        errno::set_raw(why);
    }
    OWN_FORK.set(interrupted);
    child
}

/// Undoes the fork of this number, which has failed; 0 if it had not begun.
fn fork_failed(fork: u32) {
    if fork != 0 {
        inheritance::fork_failed(&Own, fork);
    }
}

pub(crate) extern "C" fn in_child() {
    // SAFETY: the forking thread is not inside the heap.
    unsafe { crate::HEAP.forked() };
    thaw();
    begin_as_child();
}

/// Resets the state in a forked child, which has a copy of its parent's.
pub(crate) fn begin_as_child() {
    let parent = identity::in_child();
    by_hand::in_child();
    child_starts::forked();
    closes::forked();
    weft_sys::forget_thread();
    shared_files::enter();
    inheritance::in_child(&Own, parent);
    remote::forked();
    epoll::forked();
    deferred::forked();
    if CHILDREN_ELSEWHERE.load(Ordering::Relaxed) {
        // Bytes that have come into memory can still be read there.
        weft_sys::hide_threads();
        mode::disable();
    }
}
