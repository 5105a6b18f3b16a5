//! Receives bytes, and waits for them.

use std::os::fd::{AsFd as _, RawFd};
use std::sync::atomic::Ordering;

use weft_stream::{Carrier, Kernel as _, RecvOptions, recv_behind_part};
use weft_sys::calls::event::{PollFlags, Timespec};
use weft_sys::calls::io::Errno;
use weft_sys::calls::net::sockopt;
use weft_sys::{Buffers, Handled, with_cleanup};

use super::remote_end;
use super::send::{deadline, poll_until};
use super::{By, SPIN_MAX_NS, Stream};
use crate::descriptor::{Descriptor, events_now, has_time_limit, is_nonblocking};
use crate::kernel::{Host, Kernel as _};
use crate::link::AnyEnd;
use crate::wait::{self, Wait};
use crate::{futex_wait, handlers, mode, sleepers};

/// Interval between two questions to the kernel whether the peer was killed, which it could not
/// publish, in nanoseconds.
const ASK_NS: u64 = 1_000_000;

impl Stream {
    /// Receives like `recvmsg(2)`. `None`: the kernel is to do it.
    pub(crate) fn recv(
        &self,
        fd: RawFd,
        buffers: Buffers<'_>,
        flags: libc::c_int,
    ) -> Option<Result<usize, Errno>> {
        if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
            return None;
        }
        if mode::is_in_fallback() {
            return self.recv_rest(fd, buffers, flags);
        }
        let waits_for_all = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
        let mut done = 0;
        loop {
            let rest = buffers.after(done);
            Host::moment();
            let received = match self.by(fd) {
                By::Kernel | By::Counted if done > 0 && is_at_mark(fd) => return Some(Ok(done)),
                By::Kernel if done > 0 => recv_rest_by_kernel(fd, rest, flags),
                By::Kernel => return self.not_counted(fd, flags),
                // The kernel may report time stamps that another process has asked for. If the peer
                // has unread bytes in memory, an end may be a reset.
                By::End(end)
                    if done == 0
                        && end.is_over()
                        && (self.passes_option_on() || end.is_over_for_both()) =>
                {
                    self.be_dry(); // What this call finds is not known here.
                    return None;
                }
                by @ (By::End(_) | By::Remote(_)) => {
                    let Some(end) = by.link() else { continue };
                    let received =
                        self.recv_watched(end, || self.recv_from(end, fd, rest, flags, done > 0));
                    Host::moment();
                    let received = self.recv_what_came(end, fd, (rest, flags), received);
                    return Some(self.with_part(done, received));
                }
                By::Counted => self.recv_counted(fd, rest, flags, done > 0)?,
            };
            match received {
                Ok(more) if waits_for_all && more > 0 && more < rest.len() => {
                    done += more;
                    continue;
                }
                Err(Errno::AGAIN) if !is_nonblocking(fd, flags) => {}
                received => return Some(self.with_part(done, received)),
            }
            // Another thread may find the peer's offer meanwhile; then bytes arrive in memory.
            let may_sleep = self.holding.begin_sleep();
            let sleep = |_: &mut &Self| match may_sleep {
                true if done > 0 => sleep_for_more(fd),
                true => sleep_for_bytes(fd),
                false => Ok(()),
            };
            let slept = with_cleanup(&mut &*self, sleep, |stream| stream.holding.end_sleep());
            self.holding.end_sleep();
            if let Err(errno) = slept {
                return Some(self.with_part(done, Err(errno)));
            }
        }
    }

    /// Looks once more after a call that has `received` less than it asked for, where TCP carries
    /// what comes next because the connection has fallen back to TCP. A program that waits for
    /// edges takes such a call as the sign that everything has been read. See [`Stream::be_dry`].
    #[inline]
    fn recv_what_came(
        &self,
        end: AnyEnd<'_>,
        fd: RawFd,
        (buffers, flags): (Buffers<'_>, libc::c_int),
        received: Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        let part = match received {
            Ok(bytes) if bytes > 0 && bytes < buffers.len() => bytes,
            Err(Errno::AGAIN) => 0,
            _ => return received,
        };
        if self.watches.load(Ordering::Relaxed) == 0
            || end.carrier_in() != Carrier::Tcp
            || !end.has_fallen_back()
            || !self.be_dry()
            || part > 0 && ends_part(end, fd)
        {
            return received;
        }
        Host::moment();
        let taken = if flags & libc::MSG_PEEK != 0 { 0 } else { part };
        let (rest, flags) = (buffers.after(taken), flags | libc::MSG_DONTWAIT);
        match self.recv_from(end, fd, rest, flags, taken > 0) {
            Err(Errno::AGAIN) => received,
            Ok(0) if part > 0 => received, // The end of the stream stays for the next call.
            more => self.with_part(taken, more),
        }
    }

    /// Receives, and lets other threads that sleep know what that has changed for them.
    #[inline]
    fn recv_watched<T>(&self, end: AnyEnd<'_>, recv: impl FnOnce() -> T) -> T {
        let watched = self.armed.load(Ordering::Relaxed) > 0;
        let wakeups = watched.then(|| end.wakeups_taken());
        let received = recv();
        if wakeups.is_some_and(|wakeups| wakeups != end.wakeups_taken()) {
            sleepers::wakeup_taken();
        }
        if self.announced.load(Ordering::Relaxed) > 0 && end.unread() == 0 {
            sleepers::read_out();
        }
        received
    }

    /// Shows bytes to `deliver`, if some are unread in memory, and takes those that it has
    /// delivered ([`End::recv_delivered`](weft_stream::End::recv_delivered)). Returns how many.
    /// `None`: none are in memory.
    pub(crate) fn recv_delivered(
        &self,
        fd: RawFd,
        bytes: &mut [u8],
        deliver: &mut dyn FnMut(&[u8]) -> usize,
    ) -> Option<Result<usize, Errno>> {
        let end = self.link().filter(|end| end.unread() > 0)?;
        let socket = Descriptor::of(fd);
        Some(self.recv_watched(end, || end.recv_delivered(socket.as_fd(), bytes, deliver)))
    }

    /// Returns the result of a call that has received `done` bytes before. An error is kept for the
    /// next call.
    fn with_part(&self, done: usize, received: Result<usize, Errno>) -> Result<usize, Errno> {
        match received {
            Ok(more) => Ok(done + more),
            Err(errno) if done > 0 => {
                self.keep_error(errno);
                Ok(done)
            }
            Err(errno) => {
                self.error_has_come(errno);
                Err(errno)
            }
        }
    }

    /// Receives unread bytes in memory, without a system call unless older bytes of TCP are unread,
    /// too. `None`: there are none, and the kernel is to do it.
    #[cold]
    fn recv_rest(
        &self,
        fd: RawFd,
        buffers: Buffers<'_>,
        flags: libc::c_int,
    ) -> Option<Result<usize, Errno>> {
        let end = self.link().filter(|_| self.has_unread())?;
        let keep = flags & libc::MSG_PEEK != 0;
        let discard = flags & libc::MSG_TRUNC != 0;
        let options = RecvOptions { keep, discard, ..RecvOptions::default() };
        Some(end.try_recv(Descriptor::of(fd).as_fd(), buffers, options))
    }

    fn recv_counted(
        &self,
        fd: RawFd,
        buffers: Buffers<'_>,
        flags: libc::c_int,
        has_part: bool,
    ) -> Option<Result<usize, Errno>> {
        let mut before = self.before.lock();
        if self.end().is_some() {
            // Another thread has found the offer; the caller tries again.
            return Some(Err(Errno::AGAIN));
        }
        let received = if has_part {
            recv_rest_by_kernel(fd, buffers, flags)
        } else {
            let flags = flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
            Host::recv(Descriptor::of(fd).as_fd(), buffers, usize::MAX, flags)
        };
        if let Ok(received) = received
            && flags & libc::MSG_PEEK == 0
        {
            before.read += received as u64;
        }
        Some(received)
    }

    /// Receives from an end. `has_part`: the call has received bytes before.
    fn recv_from(
        &self,
        end: AnyEnd<'_>,
        fd: RawFd,
        buffers: Buffers<'_>,
        flags: libc::c_int,
        has_part: bool,
    ) -> Result<usize, Errno> {
        let keep = flags & libc::MSG_PEEK != 0;
        let discard = flags & libc::MSG_TRUNC != 0;
        let wants_all = flags & libc::MSG_WAITALL != 0 && !keep;
        let mut since = Since { handled: Handled::up_to_now(), has_part, wants_all };
        let mut done = 0;
        loop {
            let rest = buffers.after(done);
            let options = RecvOptions { keep, discard, look: false, has_part: since.has_part };
            let is_tcp = end.carrier_in() == Carrier::Tcp;
            if is_tcp && since.has_part && ends_part(end, fd) {
                return Ok(done);
            }
            let result = match end.try_recv(Descriptor::of(fd).as_fd(), rest, options) {
                // These were the last bytes of TCP, and memory has more for this call. An end on
                // this host handles that itself. What TCP has after them may be urgent.
                Ok(received)
                    if end.remote().is_some()
                        && is_tcp
                        && received < rest.len()
                        && !keep
                        && end.unread() > 0 =>
                {
                    let rest = rest.after(received);
                    let options = RecvOptions { has_part: received > 0, ..options };
                    let more = end.try_recv(Descriptor::of(fd).as_fd(), rest, options);
                    self.with_part(received, more)
                }
                Err(Errno::AGAIN) => {
                    if let Some(error) = self.take_error() {
                        Err(error)
                    } else if is_nonblocking(fd, flags) {
                        let look = !end.is_quiet() || self.is_time_to_ask();
                        let options = RecvOptions { look, ..options };
                        end.try_recv_shown(Descriptor::of(fd).as_fd(), rest, options)
                    } else {
                        self.wait_and_recv(end, fd, rest, options, &mut since)
                    }
                }
                other => other,
            };
            match result {
                Ok(received) => {
                    if flags & libc::MSG_WAITALL == 0 || received == 0 {
                        return Ok(done + received);
                    }
                    if keep {
                        if received >= buffers.len() || !self.wait_for_more(end, fd, received) {
                            return Ok(received);
                        }
                        continue;
                    }
                    done += received;
                    since.has_part = true;
                    if done >= buffers.len() {
                        return Ok(done);
                    }
                }
                Err(Errno::DEADLK) => return Err(Errno::AGAIN),
                errno => return self.with_part(done, errno),
            }
        }
    }

    /// Returns whether it is time for a non-blocking receive that finds nothing to ask the kernel,
    /// too.
    fn is_time_to_ask(&self) -> bool {
        let now = wait::now();
        let is_time = now >= self.asked.load(Ordering::Relaxed) + ASK_NS;
        if is_time {
            self.asked.store(now, Ordering::Relaxed);
        }
        is_time
    }

    /// Waits until there are more than `known` bytes. Returns `false` if there will not be.
    fn wait_for_more(&self, end: AnyEnd<'_>, fd: RawFd, known: usize) -> bool {
        const SLEEP_TIME: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let mut set = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
        let deadline = deadline(fd, sockopt::Timeout::Recv);
        end.acknowledge(Descriptor::of(fd).as_fd());
        let come =
            || end.all_unread(Descriptor::of(fd).as_fd()).unwrap_or_else(|| unread_by_kernel(fd));
        loop {
            if come() > known {
                return true;
            }
            if end.is_full() {
                return false; // The buffers are full.
            }
            match Host::poll_as_program(&mut set, Some(&SLEEP_TIME)) {
                0 if deadline.is_some_and(|deadline| wait::now() >= deadline) => return false,
                0 => {}
                1.. => return come() > known,
                _ => return false, // A signal: the result is what has come.
            }
        }
    }

    /// Waits for bytes, and receives them.
    #[cold]
    fn wait_and_recv(
        &self,
        end: AnyEnd<'_>,
        fd: RawFd,
        buffers: Buffers<'_>,
        options: RecvOptions,
        since: &mut Since,
    ) -> Result<usize, Errno> {
        let has_part = since.has_part;
        let is_interrupted = || has_part || !handlers::restart();
        let ask = || match has_part && ends_part(end, fd) {
            true => Ok(0),
            false => end.try_recv(
                Descriptor::of(fd).as_fd(),
                buffers,
                RecvOptions { look: true, ..options },
            ),
        };
        self.log_carrier(fd);
        let wait = Wait::begin(&self.spin_in);
        let deadline =
            matches!(end, AnyEnd::Remote(_)).then(|| deadline(fd, sockopt::Timeout::Recv));
        let deadline = deadline.flatten();
        // The kernel's own sleep knows which signal has interrupted it.
        let mut waited = matches!(end, AnyEnd::Remote(_)) || handlers::differ();
        loop {
            if end.carrier_in() == Carrier::Memory && wait.look(SPIN_MAX_NS, || since.finds(end)) {
                match end.try_recv(Descriptor::of(fd).as_fd(), buffers, options) {
                    Err(Errno::AGAIN) => {} // Another thread has taken the bytes.
                    other => {
                        wait.end();
                        return other;
                    }
                }
            }
            if !waited && end.carrier_in() == Carrier::Memory {
                waited = true;
                let woken = end.futex_wait(&futex_wait_time(fd));
                let finds = since.finds(end);
                if woken == Err(Errno::INTR) && !finds && is_interrupted() {
                    return Err(Errno::INTR);
                }
                if finds {
                    match end.try_recv(Descriptor::of(fd).as_fd(), buffers, options) {
                        Err(Errno::AGAIN) => {}
                        other => {
                            wait.end();
                            return other;
                        }
                    }
                }
            }
            end.begin_sleep();
            let ask_and_sleep = |end: &mut AnyEnd<'_>| {
                let received = ask();
                let is_interrupted = received == Err(Errno::AGAIN) && since.is_interrupted();
                let slept = match (received, *end) {
                    _ if is_interrupted => Ok(()),
                    (Err(Errno::AGAIN), AnyEnd::Local(_)) if has_part || since.begins_anew() => {
                        sleep_for_more(fd)
                    }
                    (Err(Errno::AGAIN), AnyEnd::Local(_)) => sleep_for_bytes(fd),
                    (Err(Errno::AGAIN), AnyEnd::Remote(remote)) => {
                        let urgent = if has_part { PollFlags::PRI } else { PollFlags::empty() };
                        remote_end::sleep(fd, remote, PollFlags::IN | urgent, deadline)
                    }
                    _ => Ok(()),
                };
                (received, is_interrupted, slept)
            };
            let (received, is_interrupted, slept) =
                with_cleanup(&mut { end }, ask_and_sleep, |end| end.end_sleep());
            end.end_sleep();
            if is_interrupted {
                return Err(Errno::INTR);
            }
            if let Err(errno) = self.check_still_at(fd) {
                // A signal handler may have closed it; the call is not restarted.
                return Err(if slept == Err(Errno::INTR) { Errno::INTR } else { errno });
            }
            // A handler that Weft has not seen is assumed to have the same flags as all others.
            let is_unseen = !since.handled.is_more_now();
            if slept == Err(Errno::INTR) && !since.finds(end) {
                let restarts = !is_unseen || handlers::restart();
                if since.begins_anew()
                    && restarts
                    && !since.is_interrupted()
                    && !has_time_limit(fd, sockopt::Timeout::Recv)
                {
                    continue;
                }
                return Err(Errno::INTR); // EINTR comes before an end that the handler has caused.
            }
            if let Err(errno @ (Errno::CONNRESET | Errno::TIMEDOUT | Errno::PIPE)) = slept
                && !(errno == Errno::CONNRESET && end.is_reset_for_wakeups())
            {
                end.note_reset();
                // Bytes in the rings come before the error.
                return match end.try_recv(Descriptor::of(fd).as_fd(), buffers, options) {
                    Err(Errno::AGAIN) => Err(errno),
                    received => {
                        self.keep_error(errno);
                        received
                    }
                };
            }
            let received = match received {
                Err(Errno::AGAIN) => ask(),
                other => other,
            };
            if received != Err(Errno::AGAIN) {
                wait.end();
                return received;
            }
            if slept != Err(Errno::CONNRESET) {
                slept?;
            }
        }
    }
}

/// What a waiting call remembers from its beginning.
#[derive(Clone, Copy, Debug)]
struct Since {
    /// How many signal handlers had run.
    handled: Handled,
    /// Whether the call has received a part of what it wants: then a handled signal ends it, with
    /// or without `SA_RESTART` (tcp_recvmsg).
    has_part: bool,
    /// Whether the call waits for all bytes (`MSG_WAITALL`).
    wants_all: bool,
}

impl Since {
    /// Returns whether a signal has been handled while the call spun, which would have ended the
    /// kernel's call.
    fn is_interrupted(self) -> bool {
        if self.has_part { self.handled.is_more_now() } else { self.handled.ends_calls_now() }
    }

    /// Returns whether the call is restarted here after a signal that comes before the first bytes.
    /// A signal after the first part ends a `MSG_WAITALL` call. So the order matters, and the
    /// restart is not left to the kernel.
    fn begins_anew(self) -> bool {
        self.wants_all && !self.has_part
    }

    /// Returns whether memory has unread bytes. If not, and the call restarts after signals,
    /// signals handled so far are forgotten.
    fn finds(&mut self, end: AnyEnd<'_>) -> bool {
        let is_any = end.unread() > 0;
        if !is_any && self.begins_anew() && !self.is_interrupted() {
            self.handled = Handled::up_to_now();
        }
        is_any
    }
}

/// Returns how many unread bytes the kernel's socket has.
fn unread_by_kernel(fd: RawFd) -> usize {
    Host::unread(Descriptor::of(fd).as_fd()).unwrap_or(0)
}

/// Receives over TCP, without waiting, for a call that has received bytes before.
fn recv_rest_by_kernel(
    fd: RawFd,
    buffers: Buffers<'_>,
    flags: libc::c_int,
) -> Result<usize, Errno> {
    let flags = flags & !libc::MSG_WAITALL;
    recv_behind_part::<Host>(Descriptor::of(fd).as_fd(), buffers, usize::MAX, flags)
}

/// Returns whether urgent data comes next. The kernel ends a call with a part before urgent data.
/// A receive that follows does not skip urgent data that comes in between ([`recv_behind_part`]).
fn is_at_mark(fd: RawFd) -> bool {
    Host::is_at_mark(Descriptor::of(fd).as_fd())
}

/// Returns whether a call with a part ends here, like the kernel's (tcp_recvmsg): before urgent
/// data, and before an error. The error stays with the socket for the next call, of this process or
/// another.
fn ends_part(end: AnyEnd<'_>, fd: RawFd) -> bool {
    let has_error =
        || events_now(Descriptor::of(fd).as_fd(), PollFlags::empty()).contains(PollFlags::ERR);
    // The error is checked first, because it follows the bytes.
    let is_next = || has_error() && unread_by_kernel(fd) == 0;
    is_at_mark(fd) || (end.carrier_in() == Carrier::Tcp && is_next())
}

/// Sleeps on the socket until data arrives, subject to its options and the signal handlers. The
/// caller holds no lock: the program may cancel the thread.
fn sleep_for_bytes(fd: RawFd) -> Result<(), Errno> {
    Host::wait_for_bytes(Descriptor::of(fd).as_fd())
}

/// Sleeps like [`sleep_for_bytes`], but every handled signal ends it.
fn sleep_for_more(fd: RawFd) -> Result<(), Errno> {
    let events = PollFlags::IN | PollFlags::RDHUP | PollFlags::PRI;
    poll_until(fd, events, deadline(fd, sockopt::Timeout::Recv))
}

/// Returns how long to sleep where only the peer can end the sleep.
fn futex_wait_time(fd: RawFd) -> Timespec {
    let limit = Host::time_limit(Descriptor::of(fd).as_fd(), sockopt::Timeout::Recv);
    let longest = std::time::Duration::from_nanos(futex_wait::TIME_NS);
    let time = limit.map_or(longest, |limit| limit.min(longest));
    Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() }
}
