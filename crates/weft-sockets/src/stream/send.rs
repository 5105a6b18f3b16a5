//! Sends bytes, and waits for room.

use std::os::fd::{AsFd as _, RawFd};
use std::sync::atomic::Ordering;

use weft_stream::{Carrier, Kernel as _};
use weft_sys::calls::event::PollFlags;
use weft_sys::calls::io::Errno;
use weft_sys::calls::net::sockopt;
use weft_sys::{Buffers, Handled, test_cancel, time_stamp};

use super::remote_end;
use super::{ASK_STAMPS, By, SPIN_MAX_NS, Stream, WRITER_SLEEP};
use crate::descriptor::{Descriptor, is_hung_up, is_nonblocking};
use crate::kernel::{End, Host, Kernel as _};
use crate::link::AnyEnd;
use crate::reason::Reason;
use crate::settings::{self, ZeroCopy};
use crate::wait::{self, Wait};
use crate::zcopy::{SendContext, deferred};
use crate::{errno, handlers, mode};

/// How long a writer sleeps while too many operations to another host are outstanding.
const REMOTE_SLEEP_NS: u64 = 100_000;
/// The longest time between two questions whether the peer was killed, while something else shows
/// that it lives: some 100 ms. What shows it is in shared memory.
const ASK_STAMPS_LONGEST: u64 = 1 << 28;

impl Stream {
    /// Sends like `sendmsg(2)`. `None`: the kernel is to do it.
    pub(crate) fn send(
        &self,
        fd: RawFd,
        buffers: Buffers<'_>,
        flags: libc::c_int,
    ) -> Option<Result<usize, Errno>> {
        let lends = settings::zero_copy() == ZeroCopy::Async;
        let sent = self.send_from(fd, buffers, flags, lends);
        if lends && sent != Some(Ok(buffers.len())) {
            deferred::settle(&self.zcopy);
        }
        sent
    }

    /// Sends from buffers that the caller reuses at once, so that the send cannot be deferred.
    pub(crate) fn send_copy(
        &self,
        fd: RawFd,
        buffers: Buffers<'_>,
        flags: libc::c_int,
    ) -> Option<Result<usize, Errno>> {
        self.send_from(fd, buffers, flags, false)
    }

    fn defer_send(
        &self,
        end: &End,
        fd: RawFd,
        buffers: Buffers<'_>,
        nonblocking: bool,
    ) -> Option<Result<usize, Errno>> {
        let context = SendContext { end, place: self.place.get(), fd, spin: &self.spin_out };
        self.zcopy.defer_send(&context, buffers, nonblocking)
    }

    pub(super) fn send_from(
        &self,
        fd: RawFd,
        buffers: Buffers<'_>,
        flags: libc::c_int,
        lends: bool,
    ) -> Option<Result<usize, Errno>> {
        if mode::is_in_fallback() {
            return None;
        }
        if !lends {
            deferred::reclaim(&self.zcopy);
        }
        if flags & (libc::MSG_OOB | libc::MSG_FASTOPEN) != 0 {
            self.fall_back_to_tcp(fd, Reason::Urgent);
            self.log_carrier(fd);
            return None;
        }
        if flags & libc::MSG_ZEROCOPY != 0 {
            self.fall_back_to_tcp(fd, Reason::Notices); // The kernel reports zero-copy completions.
            self.log_carrier(fd);
        }
        let handled = Handled::up_to_now();
        let mut done = 0;
        let mut may_be_deferred = lends;
        let mut may_be_pulled = self.zcopy.is_for(buffers);
        let mut was_retried = false;
        loop {
            let rest = buffers.after(done);
            if done == 0
                && let Some(error) = self.take_error()
            {
                return Some(Err(error));
            }
            Host::moment();
            let sent = match self.by(fd) {
                By::Kernel if done == 0 => return self.not_counted(fd, flags),
                By::Kernel => Host::send(Descriptor::of(fd).as_fd(), rest, flags),
                By::End(end) if may_be_deferred => {
                    let nonblocking = is_nonblocking(fd, flags);
                    match self.defer_send(end, fd, rest, nonblocking) {
                        Some(Ok(0)) => continue,
                        Some(deferred) => deferred,
                        None => {
                            may_be_deferred = false;
                            continue;
                        }
                    }
                }
                By::End(end) if may_be_pulled => {
                    may_be_pulled = false;
                    let nonblocking = is_nonblocking(fd, flags);
                    match self.zcopy.send(end, fd, rest, nonblocking, &self.spin_out) {
                        Ok((0, _)) => continue,
                        Ok((sent, true)) => return Some(Ok(done + sent)),
                        other => other.map(|(sent, _)| sent),
                    }
                }
                By::End(end) => {
                    self.notice_killed_peer(end, fd);
                    end.try_send(Descriptor::of(fd).as_fd(), rest, flags)
                }
                By::Remote(remote) => remote.try_send(Descriptor::of(fd).as_fd(), rest, flags),
                By::Counted => self.send_counted(fd, rest, flags),
            };
            Host::moment();
            match sent {
                Ok(sent) => {
                    done += sent;
                    if sent == 0 || done >= buffers.len() {
                        return Some(Ok(done));
                    }
                }
                Err(Errno::AGAIN) if is_nonblocking(fd, flags) => {
                    if self.fall_back_if_stalled(fd) {
                        continue;
                    }
                    if self.be_full() && !std::mem::replace(&mut was_retried, true) {
                        continue;
                    }
                    return Some(if done > 0 { Ok(done) } else { Err(Errno::AGAIN) });
                }
                Err(Errno::AGAIN) => {
                    if let Err(errno) = self.wait_for_room(fd, handled) {
                        return Some(if done > 0 { Ok(done) } else { Err(errno) });
                    }
                    // Another thread may have deferred a send meanwhile, which this one must
                    // follow.
                    may_be_deferred = lends;
                }
                Err(Errno::DEADLK) => return Some(Err(Errno::AGAIN)),
                Err(errno) if done > 0 => {
                    // The kernel would report it on the next call, but has already reported it to
                    // this one.
                    if errno != Errno::PIPE {
                        self.keep_error(errno);
                    }
                    return Some(Ok(done));
                }
                Err(errno) => {
                    self.error_has_come(errno);
                    return Some(Err(errno));
                }
            }
        }
    }

    /// Checks for a killed peer, which could not publish its end: asks the kernel at intervals. It
    /// does so also while nothing is unread, so that bytes which are unread at the end came before
    /// the end. A peer that has just sent something was alive then, which spares the question, and
    /// so does the answer about another connection that the same process holds.
    #[inline]
    fn notice_killed_peer(&self, end: &End, fd: RawFd) {
        let now = time_stamp();
        // A time in the future, which a peer may claim, is long ago here.
        let age = |known: u64| now.wrapping_sub(known);
        let asked = age(self.asked_out.load(Ordering::Relaxed));
        let lives = || {
            asked < ASK_STAMPS_LONGEST
                && (age(end.arrived_at()) < ASK_STAMPS || end.has_live_peer(now, ASK_STAMPS))
        };
        if asked >= ASK_STAMPS && !lives() {
            self.asked_out.store(now, Ordering::Relaxed);
            if end.carrier_out() != Carrier::Memory {
                return;
            }
            if is_hung_up(fd) {
                end.hang_up_unread(Descriptor::of(fd).as_fd());
            } else {
                end.note_live_peer(now);
            }
        }
    }

    /// Handles a writer without room. Falls back to TCP if the peer has read nothing for too long;
    /// returns whether it has.
    #[cold]
    pub(crate) fn fall_back_if_stalled(&self, fd: RawFd) -> bool {
        let Some(AnyEnd::Local(end)) = self.link() else { return false };
        if end.carrier_out() != Carrier::Memory {
            return false;
        }
        let (_, read) = end.progress();
        let is_stalled = self.stall.is_over(read, wait::now());
        if is_stalled {
            self.fall_back_to_tcp(fd, Reason::Stalled);
        }
        is_stalled
    }

    fn send_counted(
        &self,
        fd: RawFd,
        buffers: Buffers<'_>,
        flags: libc::c_int,
    ) -> Result<usize, Errno> {
        let mut before = self.before.lock();
        if let Some(end) = self.end() {
            return end.try_send(Descriptor::of(fd).as_fd(), buffers, flags);
        }
        let flags = flags | libc::MSG_DONTWAIT;
        let sent = Host::send(Descriptor::of(fd).as_fd(), buffers, flags)?;
        before.sent += sent as u64;
        Ok(sent)
    }

    /// Waits until there is room, or the connection has ended. The caller holds no lock: the
    /// program may cancel the thread. A handler that has run since `handled`, also while the thread
    /// spun, ends the wait as it would end the kernel's sleep.
    ///
    /// # Errors
    /// `EINTR`, `EAGAIN` after `SO_SNDTIMEO`, and `EBADF` if another thread has closed the
    /// descriptor.
    #[cold]
    pub(crate) fn wait_for_room(&self, fd: RawFd, handled: Handled) -> Result<(), Errno> {
        let deadline = deadline(fd, sockopt::Timeout::Send);
        let wait = Wait::begin(&self.spin_out);
        loop {
            test_cancel(); // The futex wait is no cancellation point.
            let end = self.link().filter(|end| end.carrier_out() == Carrier::Memory);
            if end.is_some_and(|end| wait.look(SPIN_MAX_NS, || end.room() > 0)) {
                wait.end();
                return Ok(());
            }
            if handled.ends_calls_now() {
                return Err(Errno::INTR);
            }
            let Some(end) = end else { return sleep_until_writable(fd, deadline) };
            let slept = match end {
                AnyEnd::Local(end) => {
                    let (word, value) = end.want_room_by_futex();
                    if end.room() > 0 {
                        return Ok(());
                    }
                    Host::wait_on_word(word, value, &WRITER_SLEEP)
                }
                AnyEnd::Remote(remote) => {
                    remote.want_room();
                    if remote.room() > 0 {
                        return Ok(());
                    }
                    let soon = wait::now() + REMOTE_SLEEP_NS;
                    let until = if remote.can_be_woken() { deadline } else { Some(soon) };
                    remote_end::sleep(fd, remote, PollFlags::empty(), until)
                }
            };
            if end.room() > 0 {
                wait.end();
                return Ok(());
            }
            if slept == Err(Errno::INTR) && !handlers::restart() {
                return Err(Errno::INTR);
            }
            self.check_still_at(fd)?;
            if is_hung_up(fd) {
                end.hang_up_unread(Descriptor::of(fd).as_fd());
                return Ok(()); // The kernel's call returns the error.
            }
            if self.fall_back_if_stalled(fd) {
                continue;
            }
            if deadline.is_some_and(|deadline| wait::now() >= deadline) {
                return Err(Errno::AGAIN);
            }
        }
    }
}

/// Returns the deadline of a call that begins now, from the socket's time limit.
pub(super) fn deadline(fd: RawFd, which: sockopt::Timeout) -> Option<u64> {
    let limit = Host::time_limit(Descriptor::of(fd).as_fd(), which)?;
    Some(wait::now().saturating_add(u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX)))
}

/// Sleeps on the kernel's socket until it has one of `events`. Every handled signal ends it. The
/// caller holds no lock: the program may cancel the thread.
///
/// # Errors
/// `EAGAIN` at the deadline, and `EINTR`.
pub(super) fn poll_until(fd: RawFd, events: PollFlags, deadline: Option<u64>) -> Result<(), Errno> {
    let left = deadline.map(|deadline| wait::timespec(deadline.saturating_sub(wait::now())));
    let mut set = [libc::pollfd { fd, events: events.bits(), revents: 0 }];
    match Host::poll_as_program(&mut set, left.as_ref()) {
        0 => Err(Errno::AGAIN),
        1.. => Ok(()),
        _ => Err(errno::last()),
    }
}

fn sleep_until_writable(fd: RawFd, deadline: Option<u64>) -> Result<(), Errno> {
    match poll_until(fd, PollFlags::OUT, deadline) {
        Err(Errno::INTR) if handlers::restart() => Ok(()),
        other => other,
    }
}
