//! `poll(2)` and `select(2)` on sets that contain known sockets.
//!
//! # Safety
//! The callers of the C functions guarantee that their sets are valid.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{c_int, c_short, pollfd};
use smallvec::SmallVec;
use weft_stream::Carrier;
use weft_stream::datagram::Inbox;
use weft_sys::calls::event::PollFlags;
use weft_sys::calls::io::Errno;
use weft_sys::{Handled, Section, SectionOnce, Spin, with_cleanup};

use crate::datagram::Datagram;
use crate::descriptor::{self, Descriptor};
use crate::limits::{FDS_MAX, FUTEX_WAIT_ENDS_MAX, RING_POLLS_MAX};
use crate::link::AnyEnd;
use crate::remote::{self, RemoteEnd};
use crate::sockets::{self, Held, Kind};
use crate::stall::STALL_NS;
use crate::stream::Stream;
use crate::wait::{self, Wait};
use crate::{epoll, errno, futex_wait, mode, open};

const IN: c_short = libc::POLLIN | libc::POLLRDNORM;
const OUT: c_short = libc::POLLOUT | libc::POLLWRNORM;
const SPIN_MAX_NS: u64 = 2_000_000;
/// Interval between two questions to the kernel while spinning, in nanoseconds.
const ASK_NS: u64 = 5_000;
/// How long select sleeps without the sockets that have hung up, which it must not report.
const HANG_UP_NS: u64 = 50_000_000;
/// How long a writer sleeps if its peer cannot notify.
const SLEEP_NS: u64 = 1_000_000;

/// A known socket in the set.
#[derive(Debug)]
struct Ours {
    index: usize,
    socket: Held,
    /// The program's entry. The kernel is asked with other events, and sometimes not at all.
    asked: (RawFd, c_short),
    /// The carriers before the kernel was asked the last time.
    carriers: Option<[Carrier; 2]>,
}

impl Ours {
    fn new(index: usize, socket: Held, asked: &pollfd) -> Self {
        Self { index, socket, asked: (asked.fd, asked.events), carriers: None }
    }

    /// Returns what carries either direction of the connection.
    fn carriers_now(&self) -> Option<[Carrier; 2]> {
        let end = self.stream()?.link()?;
        Some([end.carrier_in(), end.carrier_out()])
    }

    fn stream(&self) -> Option<&Stream> {
        match &*self.socket {
            Kind::Stream(stream) => Some(stream),
            Kind::Datagram(_) => None,
        }
    }

    fn datagram(&self) -> Option<(&Datagram, &Inbox)> {
        match &*self.socket {
            Kind::Datagram(datagram) => Some((datagram, datagram.known_inbox()?)),
            Kind::Stream(_) => None,
        }
    }
}

/// Executes `poll(2)`. `None`: no descriptor is known, and the kernel is to do it. `sleep` is the
/// kernel's call with a timeout in nanoseconds.
pub(crate) fn poll(
    set: &mut [pollfd],
    timeout_ns: Option<u64>,
    sleep: &mut dyn FnMut(&mut [pollfd], Option<u64>) -> c_int,
) -> Option<c_int> {
    if !set.iter().any(|asked| open::knows(asked.fd)) {
        return None;
    }
    let ours = find(set);
    if ours.is_empty() {
        return None;
    }
    if mode::is_in_fallback() {
        return report_unread(set, &ours);
    }
    let handled = Handled::up_to_now();
    Some(Polled { set, ours, spin: spin(), handled, is_armed: false }.poll(timeout_ns, sleep))
}

/// Reports unread data in memory, in a process that has fallen back. `None`: there is none, and the
/// kernel is to be asked.
fn report_unread(set: &mut [pollfd], ours: &Sockets) -> Option<c_int> {
    let has_unread = |ours: &&Ours| {
        let unread = ours.stream().is_some_and(Stream::has_unread);
        unread && set[ours.index].events & IN != 0
    };
    let ready: SmallVec<[usize; 8]> =
        ours.iter().filter(has_unread).map(|ours| ours.index).collect();
    if ready.is_empty() {
        return None;
    }
    set.iter_mut().for_each(|place| place.revents = 0);
    ready.iter().for_each(|&index| set[index].revents = set[index].events & IN);
    c_int::try_from(ready.len()).ok()
}

/// The known sockets of a set. Programs that poll a few must not pay for an allocation.
type Sockets = SmallVec<[Ours; 8]>;

/// Returns the record of earlier waits. All callers of poll share one, because their sets change.
fn spin() -> &'static Spin {
    static SPIN: SectionOnce<Spin> = SectionOnce::new();
    SPIN.get_or_init(Spin::new)
}

/// Returns the sockets of the set that the rings carry, or may carry.
fn find(set: &[pollfd]) -> Sockets {
    let all = set.iter().enumerate().filter_map(|(index, asked)| {
        let Some(socket) = sockets::find(asked.fd) else {
            epoll::nest(asked.fd);
            return None;
        };
        let stream = match &*socket {
            Kind::Stream(stream) => stream,
            Kind::Datagram(datagram) => {
                let receives = asked.events & IN != 0 && datagram.inbox(asked.fd).is_some();
                return receives.then(|| Ours::new(index, socket, asked));
            }
        };
        let _ = stream.by(asked.fd); // The connection may just have been established.
        let end = stream.link()?;
        end.advance(Descriptor::of(asked.fd).as_fd());
        end.drain_wakeups_if_left(Descriptor::of(asked.fd).as_fd());
        Some(Ours::new(index, socket, asked))
    });
    all.collect()
}

struct Polled<'a> {
    set: &'a mut [pollfd],
    ours: Sockets,
    spin: &'static Spin,
    /// How many signal handlers had run when the call began.
    handled: Handled,
    /// Whether the peers have been asked to notify.
    is_armed: bool,
}

impl Polled<'_> {
    fn poll(
        &mut self,
        timeout_ns: Option<u64>,
        sleep: &mut dyn FnMut(&mut [pollfd], Option<u64>) -> c_int,
    ) -> c_int {
        if let Some(found) = self.report_rings() {
            return found;
        }
        let waits_on_futex = timeout_ns != Some(0) && self.can_futex_wait();
        if !waits_on_futex {
            let mut found = self.ask(Some(0), sleep);
            if found == 0 && self.leave_stalled() {
                found = self.ask(Some(0), sleep);
            }
            if found != 0 || timeout_ns == Some(0) {
                return found;
            }
        }
        let wait = |this: &mut Self| this.wait(timeout_ns, waits_on_futex, sleep);
        with_cleanup(self, wait, Self::disarm)
    }

    /// Waits until a descriptor is ready. The program may cancel the thread.
    fn wait(
        &mut self,
        timeout_ns: Option<u64>,
        mut waits_on_futex: bool,
        sleep: &mut dyn FnMut(&mut [pollfd], Option<u64>) -> c_int,
    ) -> c_int {
        let wait = Wait::begin(self.spin);
        let deadline = timeout_ns.map(|timeout| wait::now().saturating_add(timeout));
        loop {
            let left = |most: u64| {
                deadline.map_or(most, |deadline| deadline.saturating_sub(wait::now()).min(most))
            };
            if let Some(found) = self.look(&wait, left(SPIN_MAX_NS), sleep) {
                wait.end();
                return found;
            }
            if std::mem::take(&mut waits_on_futex) {
                if self.futex_wait(left(futex_wait::TIME_NS)) == Err(Errno::INTR) {
                    return errno::fail(Errno::INTR);
                }
                let found = self.report_rings().unwrap_or_else(|| self.ask(Some(0), sleep));
                if found != 0 {
                    wait.end();
                    return found;
                }
            }
            self.leave_stalled();
            let longest = self.arm();
            let is_there = self.is_anything_there();
            if !is_there && self.is_interrupted() {
                self.disarm();
                return errno::fail(Errno::INTR);
            }
            let sleeping = if is_there {
                Some(0)
            } else if let Some(most) = longest {
                Some(left(most))
            } else {
                deadline.map(|_| left(u64::MAX))
            };
            let found = self.ask(sleeping, sleep);
            if found != 0 {
                wait.end();
                return found;
            }
            if deadline.is_some_and(|deadline| wait::now() >= deadline) {
                return 0;
            }
        }
    }

    /// Reports the rings' events without asking the kernel: at least one. `None` if there are none,
    /// or if it is time to ask the kernel about the other events.
    fn report_rings(&mut self) -> Option<c_int> {
        static POLLS: AtomicU32 = AtomicU32::new(0);
        // Only the kernel knows about other descriptors.
        if self.ours.len() < self.set.len() || !self.is_anything_there() {
            return None;
        }
        let ends = |ours: &Ours| {
            let stream = ours.stream();
            let end = stream.and_then(Stream::link);
            stream.is_some_and(|stream| stream.ended() != 0) || end.is_some_and(AnyEnd::is_ending)
        };
        if self.ours.iter().any(ends) {
            return None; // Only the kernel knows the state of an end.
        }
        let asks_kernel = |ours: &Ours| {
            let events = self.set[ours.index].events;
            let is_tcp = |carrier: Carrier| carrier == Carrier::Tcp;
            ours.stream().and_then(Stream::link).is_some_and(|end| {
                (events & IN != 0 && is_tcp(end.carrier_in()))
                    || (events & OUT != 0 && is_tcp(end.carrier_out()))
            })
        };
        if self.ours.iter().any(asks_kernel) {
            return None; // TCP still carries one direction.
        }
        let asks_room =
            |ours: &Ours| ours.datagram().is_some() && self.set[ours.index].events & OUT != 0;
        if self.ours.iter().any(asks_room) {
            return None; // Only the kernel knows whether a UDP socket is writable.
        }
        let polls = POLLS.fetch_add(1, Ordering::Relaxed);
        if polls.is_multiple_of(RING_POLLS_MAX) {
            return None;
        }
        self.set.iter_mut().for_each(|place| place.revents = 0);
        let mut found = 0;
        for index in 0..self.ours.len() {
            let ready = self.ready(&self.ours[index]);
            self.set[self.ours[index].index].revents = ready;
            found += c_int::from(ready != 0);
        }
        // Another thread may have read meanwhile what was there.
        (found > 0).then_some(found)
    }

    /// Spins on the rings for as long as that has paid, and asks the kernel at intervals.
    fn look(
        &mut self,
        wait: &Wait<'_>,
        most: u64,
        sleep: &mut dyn FnMut(&mut [pollfd], Option<u64>) -> c_int,
    ) -> Option<c_int> {
        let mut asked = wait::now();
        let mut result = None;
        wait.look(most, || {
            if self.is_anything_there() || wait::now() >= asked + ASK_NS {
                let found = self.ask(Some(0), sleep);
                asked = wait::now();
                result = (found != 0).then_some(found);
            }
            result.is_some() || self.is_interrupted()
        });
        result
    }

    /// Returns whether a signal has been handled that the kernel's own sleep has not seen.
    fn is_interrupted(&self) -> bool {
        self.handled.is_more_now()
    }

    /// Returns whether the rings have an event.
    fn is_anything_there(&self) -> bool {
        remote::drive();
        self.ours.iter().any(|ours| self.ready(ours) != 0)
    }

    /// Returns the rings' events of a socket, among those that the program asks for.
    fn ready(&self, ours: &Ours) -> c_short {
        let asked = self.set[ours.index].events;
        if let Some((_, inbox)) = ours.datagram() {
            return if inbox.is_empty() { 0 } else { asked & IN };
        }
        let Some((stream, end)) = ours.stream().and_then(|s| Some((s, s.link()?))) else {
            return 0;
        };
        let (mut now, reported) = stream.readiness(end);
        if stream.has_early_end(end) {
            now &= !((libc::POLLHUP | libc::POLLRDHUP) as u32);
        }
        let ended = (libc::POLLERR | libc::POLLHUP | libc::POLLRDHUP) as u32;
        (now & (reported | ended)) as c_short & (asked | libc::POLLERR | libc::POLLHUP)
    }

    /// Asks the kernel, and translates the result for the program. The kernel is asked again about
    /// connections that have moved between memory and TCP meanwhile: their bytes were not yet, or
    /// no longer, where they were looked for.
    fn ask(
        &mut self,
        timeout_ns: Option<u64>,
        sleep: &mut dyn FnMut(&mut [pollfd], Option<u64>) -> c_int,
    ) -> c_int {
        let mut timeout_ns = timeout_ns;
        loop {
            for ours in &mut self.ours {
                ours.carriers = ours.carriers_now();
            }
            let found = self.ask_once(timeout_ns, sleep);
            let has_moved = |ours: &Ours| ours.carriers != ours.carriers_now();
            if found < 0 || !self.ours.iter().any(has_moved) {
                return found;
            }
            timeout_ns = Some(0);
        }
    }

    /// Asks the kernel once, with sockets in memory registered for wakeups and their end alone.
    fn ask_once(
        &mut self,
        timeout_ns: Option<u64>,
        sleep: &mut dyn FnMut(&mut [pollfd], Option<u64>) -> c_int,
    ) -> c_int {
        let nothing = self.ours.iter().all(|ours| self.ready(ours) == 0);
        let mut timeout_ns = timeout_ns;
        for ours in &self.ours {
            let Some((stream, end)) = ours.stream().and_then(|s| Some((s, s.link()?))) else {
                continue;
            };
            let place = &mut self.set[ours.index];
            // Room for bytes that go over TCP is the kernel's to report.
            let asks_for_room = place.events & OUT != 0 && end.carrier_out() == Carrier::Tcp;
            let sleeps = nothing && timeout_ns != Some(0);
            if sleeps && !asks_for_room && stream.has_early_end(end) {
                // The kernel would report the end even if not asked.
                place.fd = -1;
                timeout_ns = Some(timeout_ns.map_or(SLEEP_NS, |timeout| timeout.min(SLEEP_NS)));
            }
            if end.carrier_in() == Carrier::Memory {
                // After the peer's end no wakeup comes, and the end itself would end each sleep at
                // once.
                let has_ended = stream.ended() & libc::EPOLLRDHUP.cast_unsigned() != 0;
                let wakeups = if has_ended { 0 } else { libc::POLLIN | libc::POLLRDHUP };
                place.events = place.events & !IN | wakeups;
            }
            if end.carrier_out() == Carrier::Memory {
                place.events &= !OUT;
            }
        }
        let slept = if nothing && timeout_ns != Some(0) {
            self.sleep_with_wakeup_fds(timeout_ns, sleep)
        } else {
            sleep(self.set, Some(0))
        };
        for ours in &self.ours {
            let place = &mut self.set[ours.index];
            (place.fd, place.events) = ours.asked;
        }
        self.disarm(); // This thread does not sleep any more.
        if slept < 0 {
            return slept;
        }
        self.tell()
    }

    /// Sleeps in the kernel, also on the wakeup descriptors of connections to other hosts.
    fn sleep_with_wakeup_fds(
        &mut self,
        timeout_ns: Option<u64>,
        sleep: &mut dyn FnMut(&mut [pollfd], Option<u64>) -> c_int,
    ) -> c_int {
        let all = self.ours.iter().filter_map(|ours| ours.stream()?.link()?.remote());
        let remotes: SmallVec<[&RemoteEnd; 8]> = all.collect();
        if remotes.is_empty() {
            return sleep(self.set, timeout_ns);
        }
        let wakeups = remotes.iter().map(|remote| {
            let fd = remote.wakeup_fd().as_fd().as_raw_fd();
            pollfd { fd, events: libc::POLLIN, revents: 0 }
        });
        let mut set: SmallVec<[pollfd; 16]> = self.set.iter().copied().chain(wakeups).collect();
        let slept = sleep(&mut set, timeout_ns);
        let (own, wakeups) = set.split_at(self.set.len());
        self.set.copy_from_slice(own);
        let rung =
            remotes.iter().zip(wakeups).filter(|(_, wakeup)| slept > 0 && wakeup.revents != 0);
        rung.for_each(|(remote, _)| remote.clear_wakeup());
        slept
    }

    /// Combines the kernel's events with the rings'. Returns how many descriptors are ready.
    fn tell(&mut self) -> c_int {
        if self.set.iter().any(|place| place.revents & libc::POLLNVAL != 0) {
            self.ours.retain(|ours| self.set[ours.index].revents & libc::POLLNVAL == 0);
        }
        for ours in &self.ours {
            let place = self.set[ours.index];
            if let Some((datagram, inbox)) = ours.datagram() {
                if place.revents & IN == 0 {
                    datagram.kernel_is_empty(inbox);
                }
                self.set[ours.index].revents |= self.ready(ours);
                continue;
            }
            let Some((stream, end)) = ours.stream().and_then(|s| Some((s, s.link()?))) else {
                continue;
            };
            let mut reported = place.revents & !(IN | OUT);
            if stream.has_early_end(end) && reported & libc::POLLERR == 0 {
                reported &= !(libc::POLLHUP | libc::POLLRDHUP);
            }
            if end.carrier_in() == Carrier::Memory {
                if place.revents & !OUT != 0 {
                    stream.settle(place.fd, u32::from(place.revents.cast_unsigned()));
                }
            } else if place.revents & IN != 0 && !is_left_wakeup(end, place.fd) {
                reported |= place.revents & IN;
            }
            if end.carrier_out() == Carrier::Tcp {
                reported |= place.revents & OUT;
            }
            stream.follow_error(place.fd);
            reported |= self.ready(ours);
            let always = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
            self.set[ours.index].revents = reported & (place.events | always);
        }
        let ready = self.set.iter().filter(|place| place.revents != 0).count();
        c_int::try_from(ready).unwrap_or(c_int::MAX)
    }

    /// Returns whether only peers can end the wait, by writing or by closing.
    fn can_futex_wait(&self) -> bool {
        let waits_for_bytes = |ours: &Ours| {
            let asked = self.set[ours.index].events & !(IN | libc::POLLPRI | libc::POLLRDHUP);
            let end = ours.stream().and_then(Stream::end);
            asked == 0 && end.is_some_and(|end| end.carrier_in() == Carrier::Memory)
        };
        self.ours.len() == self.set.len()
            && self.ours.len() <= FUTEX_WAIT_ENDS_MAX
            && self.ours.iter().all(waits_for_bytes)
    }

    fn futex_wait(&self, time: u64) -> Result<(), Errno> {
        for ours in &self.ours {
            if let Some(end) = ours.stream().and_then(Stream::end) {
                end.acknowledge(Descriptor::of(self.set[ours.index].fd).as_fd());
            }
        }
        futex_wait::on_ends(self.ours.iter().filter_map(|ours| ours.stream()?.end()), time)
    }

    /// Has connections fall back to TCP whose peers make no room. Returns whether there were any.
    fn leave_stalled(&self) -> bool {
        let leaves = |ours: &&Ours| {
            let place = &self.set[ours.index];
            let stream = ours.stream().filter(|stream| stream.lacks_room());
            place.events & OUT != 0 && stream.is_some_and(|it| it.fall_back_if_stalled(place.fd))
        };
        self.ours.iter().filter(leaves).count() > 0
    }

    /// Has the peers notify. Returns the longest time to sleep: a peer that has to make room may be
    /// unable to notify, or may have stopped reading.
    fn arm(&mut self) -> Option<u64> {
        let _section = Section::begin(); // A handler may jump, and then `disarm` follows.
        self.is_armed = true;
        let mut longest = None;
        for ours in &self.ours {
            if let Some((datagram, inbox)) = ours.datagram() {
                datagram.log_received(self.set[ours.index].fd);
                inbox.begin_sleep();
            }
            let Some(end) = ours.stream().and_then(Stream::link) else { continue };
            let place = &self.set[ours.index];
            end.acknowledge(Descriptor::of(place.fd).as_fd());
            end.begin_sleep();
            if place.events & OUT != 0 && end.carrier_out() == Carrier::Memory {
                end.want_room();
                let most = if end.can_be_woken() { STALL_NS } else { SLEEP_NS };
                longest = Some(longest.map_or(most, |longest: u64| longest.min(most)));
            }
        }
        longest
    }

    fn disarm(&mut self) {
        let _section = Section::begin();
        if !std::mem::take(&mut self.is_armed) {
            return;
        }
        for ours in &self.ours {
            if let Some((_, inbox)) = ours.datagram() {
                inbox.end_sleep();
            }
            if let Some(end) = ours.stream().and_then(Stream::link) {
                end.end_sleep();
            }
        }
    }
}

/// Returns whether the readable bytes that the kernel has found are only wakeups of a connection
/// that has fallen back to TCP since the call began.
fn is_left_wakeup(end: AnyEnd<'_>, fd: RawFd) -> bool {
    end.drain_wakeups_if_left(Descriptor::of(fd).as_fd())
        && !descriptor::is_ready(fd, PollFlags::IN)
}

/// The poll events that correspond to the three sets of `select(2)`.
pub(crate) const ASKED: [c_short; 3] = [IN, OUT, libc::POLLPRI];

/// Executes `select(2)` by polling the descriptors below `count`. The sets change only if it
/// succeeds. `None`: no descriptor is known.
///
/// # Safety
/// Each set is NULL, or readable and writable for `count` descriptors.
pub(crate) unsafe fn select(
    count: c_int,
    sets: [*mut libc::fd_set; 3],
    timeout_ns: Option<u64>,
    sleep: &mut dyn FnMut(&mut [pollfd], Option<u64>) -> c_int,
) -> Option<c_int> {
    // The poll events for which the kernel's select reports each set (fs/select.c).
    const MEANT: [c_short; 3] = [
        libc::POLLIN | libc::POLLRDNORM | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL,
        libc::POLLOUT | libc::POLLWRNORM | libc::POLLERR | libc::POLLNVAL,
        libc::POLLPRI | libc::POLLNVAL,
    ];
    let fds = 0..usize::try_from(count).ok()?.min(FDS_MAX);
    // SAFETY: `fd` is below `count`, for which the caller guarantees the set.
    let is_in = |set: *mut libc::fd_set, fd: usize| unsafe { contains(set, fd) };
    let asked = |fd: usize| {
        let wanted = sets.iter().zip(ASKED).filter(|(set, _)| is_in(**set, fd));
        wanted.fold(0, |events, (_, asked)| events | asked)
    };
    let is_ours = |fd: usize| open::knows(c_int::try_from(fd).unwrap_or(-1)) && asked(fd) != 0;
    if !fds.clone().any(is_ours) {
        return None;
    }
    let mut list: SmallVec<[pollfd; 16]> = fds
        .filter(|&fd| asked(fd) != 0)
        .map(|fd| pollfd { fd: c_int::try_from(fd).unwrap_or(-1), events: asked(fd), revents: 0 })
        .collect();
    // A descriptor that is closed meanwhile counts as ready; one that was not open is an error.
    let are_wrong = |list: &[pollfd]| list.iter().any(|it| it.revents & libc::POLLNVAL != 0);
    let were_wrong = std::cell::Cell::new(None);
    let mut sleep = |list: &mut [pollfd], timeout| {
        let found = sleep(list, timeout);
        if were_wrong.get().is_none() {
            were_wrong.set(Some(timeout == Some(0) && are_wrong(list)));
        }
        found
    };
    let meaning = |place: &pollfd| {
        let fd = usize::try_from(place.fd).unwrap_or(0);
        let all = sets.iter().zip(MEANT);
        all.filter(|(set, _)| is_in(**set, fd)).fold(0, |meant, (_, means)| meant | means)
    };
    let deadline = timeout_ns.map(|timeout| wait::now().saturating_add(timeout));
    let left = || deadline.map(|deadline| deadline.saturating_sub(wait::now()));
    let mut found = poll(&mut list, timeout_ns, &mut sleep)?;
    while found > 0 && list.iter().all(|place| place.revents & meaning(place) == 0) {
        // Poll reports a hang-up even if not asked, but select does not wait for one.
        let most = left().map_or(HANG_UP_NS, |left| left.min(HANG_UP_NS));
        found = ask_others(&mut list, most, &mut sleep);
        if found == 0 && left() != Some(0) {
            let left = left();
            found = poll(&mut list, left, &mut sleep).unwrap_or_else(|| sleep(&mut list, left));
        }
    }
    if found < 0 {
        return Some(found);
    }
    if are_wrong(&list) && were_wrong.get() == Some(true) {
        return Some(errno::fail(Errno::BADF));
    }
    let mut total = 0;
    for place in &list {
        let fd = usize::try_from(place.fd).unwrap_or(0);
        for (set, meant) in sets.iter().zip(MEANT) {
            if !is_in(*set, fd) {
                continue;
            }
            if place.revents & meant == 0 {
                // SAFETY: `fd` is below `count`, for which the caller guarantees the set.
                unsafe { remove(*set, fd) };
            } else {
                total += 1;
            }
        }
    }
    Some(total)
}

/// Polls all descriptors except those that have been reported.
fn ask_others(
    list: &mut [pollfd],
    timeout_ns: u64,
    sleep: &mut dyn FnMut(&mut [pollfd], Option<u64>) -> c_int,
) -> c_int {
    let mut others: SmallVec<[pollfd; 16]> = list.iter().copied().collect();
    others.iter_mut().filter(|place| place.revents != 0).for_each(|place| place.fd = -1);
    let timeout = Some(timeout_ns);
    let found = poll(&mut others, timeout, sleep).unwrap_or_else(|| sleep(&mut others, timeout));
    for (place, other) in list.iter_mut().zip(&others) {
        place.revents = other.revents;
    }
    found
}

/// Number of descriptors in a word of a set.
pub(crate) const BITS: usize = libc::c_ulong::BITS as usize;

/// # Safety
/// The set is NULL, or readable for `fd`.
unsafe fn contains(set: *mut libc::fd_set, fd: usize) -> bool {
    if set.is_null() {
        return false;
    }
    // SAFETY: a set is an array of words, and the caller guarantees the one of `fd`.
    let word = unsafe { set.cast::<libc::c_ulong>().add(fd / BITS) };
    // SAFETY: a set is an array of words, and the caller guarantees the one of `fd`.
    let word = unsafe { word.read() };
    word >> (fd % BITS) & 1 == 1
}

/// # Safety
/// The set is writable for `fd`.
unsafe fn remove(set: *mut libc::fd_set, fd: usize) {
    // SAFETY: a set is an array of words, and the caller guarantees the one of `fd`.
    let place = unsafe { set.cast::<libc::c_ulong>().add(fd / BITS) };
    // SAFETY: a set is an array of words, and the caller guarantees the one of `fd`.
    let word = unsafe { place.read() };
    // SAFETY: a set is an array of words, and the caller guarantees the one of `fd`.
    unsafe { place.write(word & !(1 << (fd % BITS))) };
}

#[cfg(test)]
mod tests {
    use std::os::fd::RawFd;

    use libc::{
        POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLPRI, POLLRDHUP, c_int, c_short, fd_set,
        pollfd,
    };
    use rustix::io::Errno;

    use super::{contains, remove, select};
    use crate::errno;
    use crate::kernel::{Host, Kernel as _, fake};
    use crate::program::{self, Program, Socket, poll_all, start};
    use crate::wait::timespec;

    const DONTWAIT: c_int = libc::MSG_DONTWAIT;

    /// Runs a test with a connection in memory, and with one on TCP.
    fn for_both_carriers(test: fn(&Program, [Socket; 2])) {
        for in_memory in [true, false] {
            let program = start();
            let ends = program.connect_in_memory();
            if !in_memory {
                ends.iter().for_each(Socket::fall_back_to_tcp);
            }
            test(&program, ends);
        }
    }

    /// Polls one socket without a limit.
    fn wait(fd: RawFd, events: c_short) -> (c_int, c_short) {
        let mut set = [pollfd { fd, events, revents: 0 }];
        (poll_all(&mut set, None), set[0].revents)
    }

    /// Runs `select(2)`, and returns its result with the descriptors left in each set.
    fn select_all(sets: [&[RawFd]; 3], limit: Option<u64>) -> (c_int, [Vec<RawFd>; 3]) {
        let mut places = sets.map(|fds| {
            // SAFETY: an array of integers, for which zero is valid.
            let mut set: fd_set = unsafe { std::mem::zeroed() };
            // SAFETY: the set is a local variable, and the numbers are below its length.
            fds.iter().for_each(|&fd| unsafe { libc::FD_SET(fd, &raw mut set) });
            set
        });
        let pointers = places.each_mut().map(std::ptr::from_mut);
        let mut kernel = |set: &mut [pollfd], limit: Option<u64>| {
            Host::poll_as_program(set, limit.map(timespec).as_ref())
        };
        // SAFETY: each set has room for 1,024 descriptors.
        let found = unsafe { select(1_024, pointers, limit, &mut kernel) }.expect("one is ours");
        // SAFETY: `fd` is below the 1,024 descriptors of a set.
        let is_in = |set, fd: usize| unsafe { contains(set, fd) };
        let left = pointers
            .map(|set| (0..1_024).filter(|&fd| is_in(set, fd)).map(|fd| fd as RawFd).collect());
        (found, left)
    }

    #[test]
    fn readiness_matches_the_kernels() {
        for_both_carriers(|_, [one, other]| {
            assert_eq!(one.ready(POLLIN | POLLOUT), POLLOUT);
            other.send(b"x").expect("sent");
            assert_eq!(one.ready(POLLIN | POLLOUT), POLLIN | POLLOUT);
            assert_eq!((one.ready(POLLPRI), one.ready(POLLOUT)), (0, POLLOUT));
            one.recv(1).expect("a byte");
            assert_eq!(one.ready(POLLIN), 0);
            other.shutdown(libc::SHUT_WR);
            assert_eq!(one.ready(POLLIN | POLLRDHUP), POLLIN | POLLRDHUP);
            assert_eq!(one.ready(POLLIN), POLLIN);
            one.shutdown(libc::SHUT_WR);
            assert_eq!(one.ready(POLLOUT), POLLOUT | POLLHUP);
        });
    }

    #[test]
    fn reset_is_reported_without_being_requested() {
        for_both_carriers(|_, [one, _other]| {
            fake::reset(one.fd);
            assert_eq!(one.ready(0), POLLERR | POLLHUP);
        });
    }

    #[test]
    fn full_connection_is_writable_when_the_peer_has_read() {
        for_both_carriers(|_, [one, other]| {
            while program::send(one.fd, &[0; 50_000], DONTWAIT).is_ok() {}
            assert_eq!(one.ready(POLLOUT), 0);
            let reader = other.fd;
            fake::while_asleep(move || while program::recv(reader, 1 << 20, DONTWAIT).is_ok() {});
            assert_eq!(wait(one.fd, POLLOUT), (1, POLLOUT));
            assert_eq!(fake::acts_left(), 0);
        });
    }

    #[test]
    fn sleeper_wakes_for_bytes_and_for_eof() {
        for_both_carriers(|_, [one, other]| {
            for acts_before in 0..2 {
                // First the futex wait is woken, then the wait in the kernel.
                (0..acts_before).for_each(|_| fake::while_asleep(|| {}));
                let from = other.fd;
                fake::while_asleep(move || assert_eq!(program::send(from, b"x", 0), Ok(1)));
                assert_eq!(wait(one.fd, POLLIN), (1, POLLIN));
                assert_eq!((one.recv(9), fake::acts_left()), (Ok(b"x".to_vec()), 0));
            }
            let peer = other.fd;
            fake::while_asleep(move || program::close(peer));
            assert_eq!(wait(one.fd, POLLIN | POLLRDHUP), (1, POLLIN | POLLRDHUP));
        });
    }

    #[test]
    fn wakeups_are_not_reported_as_bytes() {
        let program = start();
        let [one, other] = program.connect_in_memory();
        let from = other.fd;
        fake::while_asleep(|| {});
        fake::while_asleep(move || assert_eq!(program::send(from, b"x", 0), Ok(1)));
        assert_eq!(wait(one.fd, POLLIN), (1, POLLIN));
        assert_eq!(one.recv(9), Ok(b"x".to_vec()));
        assert_eq!((one.ready(POLLIN), fake::unread(one.fd)), (0, 0));
    }

    #[test]
    fn wakeup_without_bytes_does_not_end_a_sleep() {
        let program = start();
        let [one, other] = program.connect_in_memory();
        let from = other.fd;
        fake::while_asleep(|| {});
        fake::while_asleep(move || assert_eq!(fake::send_now(from, b"!"), Ok(1)));
        fake::while_asleep(move || assert_eq!(program::send(from, b"x", 0), Ok(1)));
        assert_eq!(wait(one.fd, POLLIN), (1, POLLIN));
        assert_eq!((fake::acts_left(), one.recv_with(9, DONTWAIT)), (0, Ok(b"x".to_vec())));
    }

    #[test]
    fn poll_reports_the_ready_ones_of_several_sockets() {
        let program = start();
        let pairs: Vec<[Socket; 2]> = (0..3).map(|_| program.connect_in_memory()).collect();
        pairs[2][0].fall_back_to_tcp(); // One connection is on TCP.
        let mut set: Vec<pollfd> = pairs
            .iter()
            .map(|[one, _]| pollfd { fd: one.fd, events: POLLIN, revents: 0 })
            .chain([pollfd { fd: -1, events: POLLIN, revents: 77 }])
            .collect();
        assert_eq!(poll_all(&mut set, Some(0)), 0);
        for (ready, at) in [(1, 2), (2, 0)] {
            pairs[at][1].send(b"x").expect("sent");
            assert_eq!(poll_all(&mut set, None), ready);
        }
        let found: Vec<c_short> = set.iter().map(|place| place.revents).collect();
        assert_eq!(found, [POLLIN, 0, POLLIN, 0]);
        assert!(
            set.iter().all(|place| place.events == POLLIN),
            "poll must not change the requested events"
        );
    }

    #[test]
    fn closed_descriptor_is_pollnval() {
        let program = start();
        let [one, other] = program.connect_in_memory();
        let closed = 1 << 20; // Higher than any number that other tests open meanwhile.
        let mut set = [one.fd, closed].map(|fd| pollfd { fd, events: POLLIN, revents: 0 });
        assert_eq!((poll_all(&mut set, None), set[1].revents), (1, POLLNVAL));
        drop(other);
    }

    #[test]
    fn poll_ends_at_its_time_limit_and_for_a_signal() {
        for_both_carriers(|_, [one, _other]| {
            let mut set = [pollfd { fd: one.fd, events: POLLIN, revents: 0 }];
            let before = fake::time();
            assert_eq!(poll_all(&mut set, Some(2_000_000_000)), 0);
            assert!(fake::time() - before >= 2_000_000_000);
            fake::interrupt_sleep();
            assert_eq!((poll_all(&mut set, None), errno::last()), (-1, Errno::INTR));
        });
    }

    #[test]
    fn select_keeps_the_ready_descriptors() {
        for_both_carriers(|program, [one, other]| {
            let [third, _fourth] = program.connect_in_memory();
            let (a, b) = (one.fd, third.fd);
            let ready = select_all([&[a, b], &[b], &[a]], Some(0));
            assert_eq!(ready, (1, [vec![], vec![b], vec![]]));
            other.send(b"x").expect("sent");
            let ready = select_all([&[a, b], &[b], &[a]], Some(0));
            assert_eq!(ready, (2, [vec![a], vec![b], vec![]]));
            let nothing = select_all([&[b], &[], &[]], Some(1_000_000));
            assert_eq!(nothing, (0, [vec![], vec![], vec![]]));
        });
    }

    #[test]
    fn writer_sleeps_until_there_is_room_even_after_the_peers_eof() {
        for_both_carriers(|_, [one, other]| {
            while program::send(one.fd, &[0; 50_000], DONTWAIT).is_ok() {}
            let peer = other.fd;
            other.shutdown(libc::SHUT_WR);
            assert_eq!(select_all([&[], &[one.fd], &[]], Some(500_000_000)).0, 0);
            fake::while_asleep(move || while program::recv(peer, 1 << 20, DONTWAIT).is_ok() {});
            assert_eq!(
                select_all([&[], &[one.fd], &[]], None),
                (1, [vec![], vec![one.fd], vec![]])
            );
        });
    }

    #[test]
    fn bits_of_a_set_are_found_and_removed() {
        // SAFETY: an array of integers, for which zero is valid.
        let mut set: fd_set = unsafe { std::mem::zeroed() };
        let place = &raw mut set;
        for fd in [0, 63, 64, 1_023] {
            // SAFETY: `fd` is below the set's length.
            unsafe { libc::FD_SET(fd, place) };
            // SAFETY: `fd` is below the set's length.
            assert!(unsafe { contains(place, fd as usize) });
            // SAFETY: both numbers of a pair are below the set's length, which is even.
            assert!(!unsafe { contains(place, fd as usize ^ 1) });
            // SAFETY: `fd` is below the set's length.
            unsafe { remove(place, fd as usize) };
            // SAFETY: `fd` is below the set's length.
            assert!(!unsafe { libc::FD_ISSET(fd, place) });
        }
        // SAFETY: NULL is allowed.
        assert!(!unsafe { contains(std::ptr::null_mut(), 1) });
    }
}
