//! The process's forks, and its end.
//!
//! # Safety
//! Locks are frozen before a fork, and thawed after it by the thread that froze them.
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
    births, by_hand, closes, epoll, errno, extended, mode, remote, seccomp_fallback, shared_files,
    stream, unseen_fork,
};

/// The process ends without its last handlers, perhaps out of a signal handler: nothing is freed.
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

/// Children have process numbers that say nothing here: `unshare(2)` and `setns(2)`.
static CHILDREN_ELSEWHERE: AtomicBool = AtomicBool::new(false);

/// The process's children will be in another PID namespace. Threads there have numbers that mean
/// other threads here, or none, so that a holder of a lock could be taken for dead: connections
/// go back to TCP before a child is born. Returns whether it was so before.
pub(crate) fn begin_children_elsewhere() -> bool {
    CHILDREN_ELSEWHERE.swap(true, Ordering::Relaxed)
}

thread_local! {
    /// The last fork that the thread has begun. Those of several threads begin one after the other.
    static OWN_FORK: Cell<u32> = const { Cell::new(0) };
}

pub(crate) extern "C" fn before_fork() {
    unseen_fork::before_seen();
    if CHILDREN_ELSEWHERE.load(Ordering::Relaxed) {
        seccomp_fallback::leave_all(Reason::Processes);
    }
    remote::finish(); // A child would hold their sockets open.
    // What other threads open while the holders are counted the child would hold uncounted.
    Kind::table().stop_opening();
    epoll::stop_opening();
    let fork = births::FORKS.begin();
    OWN_FORK.set(fork);
    inheritance::before_fork(&Own, fork);
    for fd in sockets::all() {
        if let Some(Kind::Datagram(datagram)) = sockets::find(fd).as_deref() {
            datagram.forking(fork);
        }
    }
    // An instance's lock is held where a connection goes back to TCP, which takes back deferred
    // sends.
    epoll::freeze();
    deferred::freeze();
    shared_files::freeze();
    Kind::table().freeze();
    extended::memory::freeze();
    stream::freeze();
}

pub(crate) extern "C" fn in_parent() {
    births::FORKS.end();
    thaw();
    unseen_fork::after_seen();
    epoll::follow_notes();
}

/// After [`before_fork`], in the parent and in the child.
fn thaw() {
    // SAFETY: `before_fork` has frozen them.
    unsafe { stream::thaw() };
    // SAFETY: `before_fork` has frozen them.
    unsafe { extended::memory::thaw() };
    // SAFETY: `before_fork` has frozen them.
    unsafe { shared_files::thaw() };
    // SAFETY: `before_fork` has frozen them.
    unsafe { deferred::thaw() };
    // SAFETY: `before_fork` has frozen them.
    unsafe { epoll::thaw() };
    // SAFETY: `before_fork` has frozen it, as the first: this restores the signals.
    unsafe { Kind::table().thaw() };
}

/// A fork that runs no handlers, or has flags of `clone(2)`.
#[derive(Debug)]
pub(crate) struct Forking {
    /// The child alone is in another PID namespace.
    leaves: bool,
    number: u32,
}

impl Forking {
    /// Before it.
    pub(crate) fn begin(flags: c_int) -> Self {
        if flags & libc::CLONE_FILES != 0 {
            seccomp_fallback::keep_on_tcp("a child shares the descriptors");
        }
        let leaves = flags & libc::CLONE_NEWPID != 0 && !begin_children_elsewhere();
        before_fork();
        Self { leaves, number: OWN_FORK.get() }
    }

    /// After it, in the parent and in the child: what the call has returned.
    pub(crate) fn end(self, born: c_long) {
        if born == 0 {
            let before = errno::get();
            in_child();
            errno::set_raw(before);
        } else {
            self.end_in_parent(born);
        }
    }

    /// After it, in the parent.
    pub(crate) fn end_in_parent(self, born: c_long) {
        let before = errno::get();
        in_parent();
        if self.leaves {
            CHILDREN_ELSEWHERE.store(false, Ordering::Relaxed);
        }
        if born < 0 {
            fork_failed(self.number);
        }
        errno::set_raw(before);
    }
}

/// Forks by a function of the C library's that runs the handlers of forks. They do not learn that
/// there is no child after all.
pub(crate) fn fork_with_handlers(call: impl FnOnce() -> pid_t) -> pid_t {
    let interrupted = OWN_FORK.take(); // This may be a handler of a signal.
    let born = call();
    if born < 0 {
        let why = errno::get();
        fork_failed(OWN_FORK.get());
        errno::set_raw(why);
    }
    OWN_FORK.set(interrupted);
    born
}

/// There is no child by the fork of this number, if it has begun at all.
fn fork_failed(fork: u32) {
    if fork != 0 {
        inheritance::fork_failed(&Own, fork);
    }
}

pub(crate) extern "C" fn in_child() {
    // SAFETY: the thread that forks is in the middle of nothing else.
    unsafe { crate::HEAP.forked() };
    thaw();
    begin_as_child();
}

/// This is a child just born, with all that its parent knew.
pub(crate) fn begin_as_child() {
    let parent = identity::in_child();
    by_hand::in_child();
    births::forked();
    closes::forked();
    weft_sys::forget_thread();
    shared_files::enter();
    inheritance::in_child(&Own, parent);
    remote::forked();
    epoll::forked();
    deferred::forked();
    if CHILDREN_ELSEWHERE.load(Ordering::Relaxed) {
        // Bytes that have come into memory are still read from there.
        weft_sys::hide_threads();
        mode::disable();
    }
}
