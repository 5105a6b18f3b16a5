//! Receives datagrams from the inbox and from the kernel, and waits for either.

use std::os::fd::{AsFd as _, RawFd};
use std::sync::atomic::Ordering;

use libc::{c_int, ssize_t};
use weft_stream::datagram::{Arrival, By, FutexWaits, Inbox};
use weft_sys::Buffers;
use weft_sys::calls::io::Errno;
use weft_sys::calls::net::sockopt;
use weft_sys::calls::time::Timespec;

use super::Datagram;
use crate::descriptor::{Descriptor, is_nonblocking};
use crate::kernel::{Host, Kernel as _};
use crate::limits::MEMORY_TURNS_MAX;
use crate::wait::{self, Wait};
use crate::{errno, handlers, sleepers};

const SPIN_MAX_NS: u64 = 2_000_000;
/// Interval between two questions to the kernel while spinning, in nanoseconds.
const ASK_NS: u64 = 5_000;

/// Which source the next receive must use, because the program has peeked at it.
pub(super) mod peeked {
    pub(crate) const NOTHING: u32 = 0;
    pub(crate) const MEMORY: u32 = 1;
    pub(crate) const KERNEL: u32 = 2;
}

/// The result of a receive call.
#[derive(Debug)]
pub(crate) enum Received {
    /// The return value of the kernel's call, which has set `errno`.
    Kernel(ssize_t),
    Memory(Arrival),
}

impl Datagram {
    /// Receives like `recvmsg(2)`. `kernel` is the kernel's call, with the flags that it is passed.
    pub(crate) fn receive(
        &self,
        fd: RawFd,
        buffers: Buffers<'_>,
        flags: c_int,
        kernel: &mut dyn FnMut(c_int) -> ssize_t,
    ) -> Received {
        let Some(inbox) = self.inbox(fd) else { return Received::Kernel(kernel(flags)) };
        if flags & (libc::MSG_ERRQUEUE | libc::MSG_OOB) != 0 {
            return Received::Kernel(kernel(flags));
        }
        let before = errno::get();
        let keep = flags & libc::MSG_PEEK != 0;
        if !keep && self.receives.load(Ordering::Relaxed) == 0 {
            self.receives.store(1, Ordering::Relaxed);
        }
        if !self.is_kernels_turn(inbox)
            && let Some(arrival) = self.take(inbox, buffers, keep)
        {
            return Received::Memory(arrival);
        }
        let wait = Wait::begin(&self.spin);
        let pays = inbox.is_used() && !self.is_off();
        let mut looks = pays && wait.would_look();
        let mut waits_on_futex = pays && self.futex_waits.pay();
        if inbox.is_shut() && !looks && !waits_on_futex {
            return self.sleep(fd, inbox, buffers, flags, kernel, wait);
        }
        let dont_wait = is_nonblocking(fd, flags);
        let opens = inbox.is_shut();
        // While datagrams come through memory the kernel is asked only on its turn.
        let mut ask = dont_wait
            || opens
            || self.memory_turns.load(Ordering::Relaxed) == 0
            || self.is_kernels_turn(inbox)
            || (waits_on_futex && self.is_kernel_doubtful(&wait));
        let mut waited = false;
        loop {
            if ask {
                let received = kernel(flags | libc::MSG_DONTWAIT);
                if received >= 0 || errno::last() != Errno::AGAIN {
                    self.came_by(inbox);
                    return self.kernel_gave(received, keep);
                }
                self.kernel_empty_at.store(wait.began(), Ordering::Relaxed);
                self.kernel_is_empty(inbox);
            }
            if !self.is_kernel_first(inbox)
                && let Some(arrival) = self.take(inbox, buffers, keep)
            {
                if waited {
                    self.futex_waits.learn(wait.end(), By::Memory);
                }
                errno::set_raw(before);
                return Received::Memory(arrival);
            }
            if ask && dont_wait {
                errno::set(Errno::AGAIN);
                return Received::Kernel(-1);
            }
            if looks {
                looks = false;
                waited = true;
                if let Some(received) = self.look(inbox, &wait, flags, kernel) {
                    self.futex_waits.learn(wait.end(), self.came_by(inbox));
                    return self.kernel_gave(received, keep);
                }
            } else if waits_on_futex && self.kernel_first.load(Ordering::Relaxed) != 0 {
                ask = true; // The kernel may have taken some before the inbox was open.
                continue;
            } else if waits_on_futex {
                waits_on_futex = false;
                waited = true;
                let longest = if opens { FutexWaits::FIRST } else { FutexWaits::longest() };
                if self.futex_wait(fd, inbox, longest) == Err(Errno::INTR) && inbox.is_empty() {
                    errno::set(Errno::INTR);
                    return Received::Kernel(-1);
                }
            } else {
                return self.sleep(fd, inbox, buffers, flags, kernel, wait);
            }
            ask = self.is_kernel_first(inbox);
        }
    }

    /// Waits on a futex with the inbox open. A sender that puts a datagram into the inbox wakes the
    /// thread, at a third of what a datagram through the kernel costs both. Datagrams that reach
    /// the kernel meanwhile are delayed: see [`FutexWaits`].
    ///
    /// A call with `SO_RCVTIMEO`, or one whose thread is cancelled, may end later by as much. The
    /// kernel also counts the time limit in ticks, and rounds up.
    ///
    /// # Errors
    /// `EINTR`: a signal was handled, and the call ends because of it (signal(7)).
    fn futex_wait(&self, fd: RawFd, inbox: &Inbox, longest: Timespec) -> Result<(), Errno> {
        let may_have_limit = self.receive_limit.load(Ordering::Relaxed) != 0;
        let limit = || Host::time_limit(Descriptor::of(fd).as_fd(), sockopt::Timeout::Recv);
        let limit = if may_have_limit { limit() } else { None };
        let time = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let time = time.map_or(longest, |limit| limit.min(longest));
        match inbox.begin_futex_wait().map_or(Ok(()), |word| Host::wait_for_peer(word, &time)) {
            // A call with a time limit does not restart, whatever the handler's flags are.
            Err(Errno::INTR) if limit.is_some() || !handlers::restart() => Err(Errno::INTR),
            _ => Ok(()),
        }
    }

    /// Returns which way a datagram from the kernel would otherwise have come: through memory if
    /// its sender found the inbox shut, by the kernel if its sender knows no inbox.
    fn came_by(&self, inbox: &Inbox) -> By {
        let accounted = self.accounted.load(Ordering::Relaxed);
        if inbox.turned_away() <= accounted {
            return By::Kernel;
        }
        self.accounted.store(accounted + 1, Ordering::Relaxed);
        By::Memory
    }

    /// Returns whether the kernel was last asked too long ago to begin a futex wait.
    fn is_kernel_doubtful(&self, wait: &Wait<'_>) -> bool {
        let asked = self.kernel_empty_at.load(Ordering::Relaxed);
        FutexWaits::is_kernel_doubtful(asked, wait.began())
    }

    /// Returns whether the kernel has to be asked before the inbox is read: it may have taken
    /// datagrams before the inbox was opened. What it takes after a sender has shut the inbox is
    /// newer.
    fn is_kernel_first(&self, inbox: &Inbox) -> bool {
        self.kernel_first.load(Ordering::Relaxed) != 0 && !inbox.is_empty() && !inbox.is_shut()
    }

    /// Sleeps in the kernel as the program has asked, unless a datagram is there.
    fn sleep(
        &self,
        fd: RawFd,
        inbox: &Inbox,
        buffers: Buffers<'_>,
        flags: c_int,
        kernel: &mut dyn FnMut(c_int) -> ssize_t,
        wait: Wait<'_>,
    ) -> Received {
        let keep = flags & libc::MSG_PEEK != 0;
        let before = errno::get();
        if !self.is_still_at(fd) {
            errno::set(Errno::BADF);
            return Received::Kernel(-1);
        }
        self.log_received(fd);
        inbox.begin_sleep();
        if let Some(arrival) = self.take(inbox, buffers, keep) {
            inbox.end_sleep();
            self.futex_waits.learn(wait.end(), By::Memory);
            errno::set_raw(before);
            return Received::Memory(arrival);
        }
        let received = kernel(flags);
        let why = errno::get();
        inbox.end_sleep();
        if received >= 0 {
            self.futex_waits.learn(wait.end(), self.came_by(inbox));
        } else if why == libc::EAGAIN {
            self.kernel_is_empty(inbox);
        }
        errno::set_raw(why);
        self.kernel_gave(received, keep)
    }

    /// Returns whether the descriptor is still this socket: another thread may have closed it.
    fn is_still_at(&self, fd: RawFd) -> bool {
        self.place.get().is_some_and(|place| place.is_at(fd))
    }

    /// Spins for as long as that has paid, and asks the kernel at intervals. Returns the kernel's
    /// result, if it gave one.
    fn look(
        &self,
        inbox: &Inbox,
        wait: &Wait<'_>,
        flags: c_int,
        kernel: &mut dyn FnMut(c_int) -> ssize_t,
    ) -> Option<ssize_t> {
        let mut asked = wait::now();
        let mut found = None;
        wait.look(SPIN_MAX_NS, || {
            if !inbox.is_empty() {
                return true;
            }
            let time = wait::now();
            if time >= asked + ASK_NS {
                asked = time;
                let received = kernel(flags | libc::MSG_DONTWAIT);
                if received >= 0 || errno::last() != Errno::AGAIN {
                    found = Some((received, errno::get()));
                } else {
                    self.kernel_is_empty(inbox);
                }
            }
            found.is_some()
        });
        let (received, why) = found?;
        errno::set_raw(why);
        Some(received)
    }

    fn is_kernels_turn(&self, inbox: &Inbox) -> bool {
        match self.peeked.load(Ordering::Relaxed) {
            peeked::MEMORY => false,
            peeked::KERNEL => true,
            // What the kernel takes after a sender has shut the inbox is newer than the inbox's
            // content.
            _ if inbox.is_shut() => false,
            _ => {
                self.kernel_first.load(Ordering::Relaxed) != 0
                    || self.memory_turns.load(Ordering::Relaxed) >= MEMORY_TURNS_MAX
            }
        }
    }

    fn take(&self, inbox: &Inbox, buffers: Buffers<'_>, keep: bool) -> Option<Arrival> {
        let arrival = inbox.take(buffers, keep)?;
        self.memory_turns.fetch_add(1, Ordering::Relaxed);
        let next = if keep { peeked::MEMORY } else { peeked::NOTHING };
        if self.peeked.load(Ordering::Relaxed) != next {
            self.peeked.store(next, Ordering::Relaxed);
        }
        if self.announced.load(Ordering::Relaxed) > 0 && inbox.is_empty() {
            sleepers::read_out();
        }
        Some(arrival)
    }

    fn kernel_gave(&self, received: ssize_t, keep: bool) -> Received {
        self.memory_turns.store(0, Ordering::Relaxed);
        let next = if keep && received >= 0 { peeked::KERNEL } else { peeked::NOTHING };
        self.peeked.store(next, Ordering::Relaxed);
        Received::Kernel(received)
    }

    /// Opens the inbox because the kernel has no datagram, and has the kernel asked once more
    /// before the inbox is read: it may have taken one until then.
    pub(crate) fn kernel_is_empty(&self, inbox: &Inbox) {
        self.memory_turns.store(0, Ordering::Relaxed);
        // Datagrams that were not received by now are lost, except for one that may be on its way.
        let arrived = inbox.turned_away().saturating_sub(1);
        if self.accounted.load(Ordering::Relaxed) < arrived {
            self.accounted.store(arrived, Ordering::Relaxed);
        }
        let may_open = !self.is_off() && self.receives.load(Ordering::Relaxed) != 0;
        if inbox.is_shut() && inbox.is_empty() && may_open {
            self.kernel_first.store(1, Ordering::Relaxed);
            inbox.open();
        } else if self.kernel_first.load(Ordering::Relaxed) != 0 {
            self.kernel_first.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the length of the next datagram, if it is in the inbox.
    pub(crate) fn next_len(&self) -> Option<usize> {
        let len = self.inbox.get()?.next_len()?;
        self.peeked.store(peeked::MEMORY, Ordering::Relaxed);
        Some(len)
    }
}
