//! Progress: which thread looks at the sockets, and when.
//!
//! The thread that waits makes the progress. A thread that polls a completion queue
//! ([`Reactor::poll`]) or waits for an event (`Reactor::wait`) reads and writes the sockets itself,
//! so that a message needs no hand-over to another thread. One service thread does the rest,
//! because one-sided operations must go on while the program computes. It avoids competing with the
//! program's threads:
//!
//! * It sleeps until a socket is ready, so that an idle program uses no CPU. Its wakeup does not
//!   consume the event.
//! * If a thread of the program has just polled, or is in a wait that polls, the service thread
//!   leaves the event to it and *stands by*: it sleeps without a look at the sockets, first for
//!   `STANDBY_MIN`, and for up to `STANDBY` at a time while it finds that the program keeps
//!   polling.
//! * Otherwise the service thread does the work.
//!
//! A waiting thread spins for a short while before it sleeps, if its last wait was short: a wakeup
//! costs more than that, both to the sleeper and to the waker, which is often the peer (`spin.rs`).
//!
//! Work may be deferred to the next poll (to send many small messages by one system call) only
//! while the service thread stands by. A pass then follows within `STANDBY`.
//!
//! A program may exit with deferred work, such as the acknowledgement of a message that it has just
//! taken: the peer would wait for it, and fail. So the service thread makes some last passes then.
//!
//! Sockets are registered once, edge-triggered and for all events. A source must therefore work
//! until it would block, or queue itself again ([`Reactor::requeue`]).

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use weft_sys::calls;
use weft_sys::calls::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd};
use weft_sys::calls::time::{ClockId, Timespec, clock_gettime};
use weft_sys::calls::{
    Sharing, epoll_event, futex_wait, futex_wake, poll, sched_yield, take_events,
};
use weft_sys::{
    Forkable, Lock, Spin, TIMED_SLEEP, YieldKind, YieldPolicy, at_exit, consume, in_forked_child,
    neutralise, notify, spawn_quiet, thread_number, wait_readable,
};

use crate::clock::yield_until;
use crate::limits::EPOLL_EVENTS_MAX;
use crate::{Errno, Result, presence};

/// Longest time that the service thread stands by without a look at the sockets.
const STANDBY: Duration = Duration::from_micros(500);
/// How long a waiting thread makes progress itself before it leaves that to the service thread, in
/// nanoseconds.
const WAIT_DRIVE_NS: u64 = 2_000_000;
/// How long a thread whose wait has ended may take before it waits again, in nanoseconds.
const REWAIT_NS: u64 = 20_000;
/// Shortest time that the service thread stands by. A program that polls only now and then, and
/// computes or spins on its memory in between, waits that long for work that it left undone.
const STANDBY_MIN: Duration = Duration::from_micros(10);
/// Age in nanoseconds from which a poll is no longer a sign that another will follow.
const POLLING_NS: u64 = 10_000;
/// A program that polls at least once in this time counts as polling without pause, even if it has
/// the core for only a part of the time.
const PAUSE: Duration = Duration::from_micros(4);
/// How long the end of the process waits for the last passes.
const LAST_PASSES_TIME: Duration = Duration::from_secs(1);
/// Maximum number of the last passes. A peer may keep sending.
const LAST_PASSES: u32 = 16;
/// Value of `polled_at` while a thread of the program is at the sockets.
const BUSY: u64 = u64::MAX;
/// Events after which the peer sends no more, or the connection has failed.
const ENDED: epoll::EventFlags =
    epoll::EventFlags::RDHUP.union(epoll::EventFlags::HUP).union(epoll::EventFlags::ERR);
/// Passes over the rings, which need no system call, for each pass over the sockets.
const SOCKETS_EVERY: u32 = 16;
/// Passes over the rings for each pass over the sockets, once [`IDLE_PASSES`] passes over the
/// sockets have found nothing. That many take longer than an answer from another host.
const IDLE_SOCKETS_EVERY: u32 = 256;
const IDLE_PASSES: u32 = 256;
/// By how much the kernel may delay the ends of the service thread's sleeps.
const TIMER_SLACK_NS: NonZero<u32> = NonZero::new(1_000).expect("above 0");
/// Polls for each reading of the clock. A program that polls rarely then looks like one that does
/// not poll, and the service thread does the work, as it should.
const CLOCK_EVERY: u32 = 16;

/// A descriptor's owner, which the reactor calls.
pub trait Source: Send + Sync + fmt::Debug {
    /// Called when the descriptor may be readable or writable, or has failed. Does everything that
    /// does not block. Any thread may call it, two at the same time too, and also without a reason.
    fn ready(&self);

    /// Like [`Source::ready`], for sources that need to know whether the stream has `ended`: if it
    /// has not, a read that does not fill its buffer has emptied the socket.
    fn ready_to(&self, ended: bool) {
        let _ = ended;
        self.ready();
    }

    /// Does what was deferred by [`Reactor::defer`].
    fn flush(&self) {}

    /// Continues where a pass stopped ([`Reactor::requeue`]).
    fn requeued(&self) {}

    /// Called when a timer of this source has expired; `now` is the current time.
    fn expired(&self, now: Instant) {
        let _ = now;
    }
}

/// Something in memory that each pass of the reactor polls.
pub trait Polled: Send + Sync + fmt::Debug {
    /// Whether there is something to do. Called very often, by any thread.
    fn is_ready(&self) -> bool;

    /// Does it. May be called without a reason.
    fn run(&self);
}

/// Identifies a registered source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// The reactor that the source is registered with ([`Reactor::number`]).
    reactor: u32,
    slot: u64,
}

/// Identifies a running timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimerId(Instant, u64);

impl TimerId {
    /// When the timer expires.
    pub(crate) fn deadline(self) -> Instant {
        self.0
    }
}

#[derive(Clone, Copy)]
enum Dirty {
    Deferred,
    Requeued,
}

struct Slot {
    generation: u32,
    fd: RawFd,
    source: Option<Arc<dyn Source>>,
}

#[derive(Default)]
struct Sources {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

/// A source with an event.
struct Ready {
    source: Arc<dyn Source>,
    ended: bool,
}

/// State of the driving thread, kept so that a pass allocates nothing.
#[derive(Default)]
struct Driver {
    batch: Vec<Ready>,
    dirty: Vec<(Dirty, Arc<dyn Source>)>,
    /// A copy of the reactor's rings at version `rings_version`.
    rings: Vec<Arc<dyn Polled>>,
    rings_version: u32,
    /// Polls since the last pass over the sockets.
    without_sockets: u32,
    /// Consecutive passes over the sockets that found nothing.
    quiet_looks: u32,
    /// Polls since the clock was last read.
    without_clock: u32,
    /// Consecutive polls that found nothing since the thread last yielded its core.
    empty_passes: u32,
}

impl Driver {
    fn sockets_every(&self) -> u32 {
        if self.quiet_looks < IDLE_PASSES { SOCKETS_EVERY } else { IDLE_SOCKETS_EVERY }
    }
}

/// The engine's event loop: a process's sockets, rings and timers.
pub struct Reactor {
    /// Unique among the reactors of this process and of its parents.
    number: u32,
    epoll: OwnedFd,
    wake: OwnedFd,
    sources: Lock<Sources>,
    rings: Lock<Vec<Arc<dyn Polled>>>,
    rings_version: AtomicU32,
    driver: Lock<Driver>,
    /// The thread of the program that makes a pass, while it does; otherwise 0.
    passing: AtomicUsize,
    dirty: Lock<Vec<(Dirty, Arc<dyn Source>)>>,
    dirty_len: AtomicUsize,
    timers: Lock<BTreeMap<TimerId, Arc<dyn Source>>>,
    timer_serial: AtomicU64,
    /// When a thread of the program was last at the sockets, in nanoseconds of the monotonic clock,
    /// or [`BUSY`].
    polled_at: AtomicU64,
    /// Polls that got the driver lock, modulo 2^32.
    polls: AtomicU32,
    /// Set when a thread was woken, perhaps for a socket: the next poll makes a pass over the
    /// sockets.
    sockets_due: AtomicBool,
    /// The time until which a thread in [`Reactor::wait`] makes progress. It expires by itself if
    /// that thread is cancelled.
    driven_until: AtomicU64,
    yields: YieldPolicy,
    /// Spinning of the service thread.
    service_spin: Spin,
    /// 1 while the service thread stands by; also the futex that it sleeps on.
    standing_by: AtomicU32,
    started: AtomicBool,
    /// Whether the process is about to end, and whether the last passes have been made.
    ending: AtomicBool,
    ended: AtomicBool,
}

static REACTOR: Forkable<Reactor> = Forkable::new(Reactor::new);

/// An object's reference to the reactor, taken when the object is made. In a forked child it refers
/// to the child's own reactor, so that an inherited object does not touch what the parent's reactor
/// watches.
#[derive(Clone, Copy)]
pub struct Handle(&'static Forkable<Reactor>);

impl Handle {
    /// The process's reactor, for an object that belongs to no other object: a context, a channel
    /// of the connection manager, or a socket of the process itself.
    #[must_use]
    pub fn of_process() -> Self {
        Self(&REACTOR)
    }

    /// The reactor, for one call.
    #[must_use]
    pub fn get(self) -> &'static Reactor {
        self.0.get()
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("reactor::Handle")
    }
}

/// Marks a thread of the program as being at the sockets; dropping it records the time.
#[derive(Debug)]
pub struct Busy<'a> {
    reactor: &'a Reactor,
    /// The time to record, or [`BUSY`] to read the clock.
    then: u64,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let now = if self.then == BUSY { now_ns() } else { self.then };
        self.reactor.polled_at.store(now, Ordering::Relaxed);
    }
}

/// Marks the calling thread as making a pass, until dropped. It has the driver lock meanwhile.
#[derive(Debug)]
struct Passing<'a>(&'a Reactor);

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.0.passing.store(0, Ordering::Relaxed);
    }
}

impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reactor").field("standing_by", &self.standing_by).finish_non_exhaustive()
    }
}

/// Detaches a forked child from the parent's sockets. The child has none of the parent's threads
/// and makes its own reactor. The parent's connections must end with the parent, so the child must
/// not keep them open.
extern "C" fn detach_from_parents_sockets() {
    // If another thread of the parent held the lock at the fork, the sockets stay open in the
    // child.
    if let Some(sources) = REACTOR.inherited().and_then(|reactor| reactor.sources.try_lock()) {
        neutralise(sources.slots.iter().filter(|slot| slot.source.is_some()).map(|slot| slot.fd));
    }
}

/// Does deferred work when the process exits.
extern "C" fn finish_work() {
    if let Some(reactor) = REACTOR.existing() {
        reactor.finish();
    }
}

impl Reactor {
    fn new() -> Self {
        static NUMBERS: AtomicU32 = AtomicU32::new(0);
        // Without these two descriptors nothing works, and no caller could handle the error.
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("a descriptor for epoll");
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .expect("a descriptor for wake-ups");
        Self {
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            epoll,
            wake,
            sources: Lock::new(Sources::default()),
            rings: Lock::new(Vec::new()),
            rings_version: AtomicU32::new(0),
            driver: Lock::new(Driver::default()),
            passing: AtomicUsize::new(0),
            dirty: Lock::new(Vec::new()),
            dirty_len: AtomicUsize::new(0),
            timers: Lock::new(BTreeMap::new()),
            timer_serial: AtomicU64::new(0),
            polled_at: AtomicU64::new(0),
            polls: AtomicU32::new(0),
            sockets_due: AtomicBool::new(false),
            driven_until: AtomicU64::new(0),
            yields: YieldPolicy::new(),
            service_spin: Spin::beside(),
            standing_by: AtomicU32::new(0),
            started: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            ended: AtomicBool::new(false),
        }
    }

    /// Starts to watch `fd` for `source`. The descriptor must be non-blocking.
    ///
    /// # Errors
    /// The errors of `epoll_ctl(2)`; `EAGAIN` if the service thread cannot start.
    pub fn watch(&'static self, fd: BorrowedFd<'_>, source: Arc<dyn Source>) -> Result<Token> {
        self.start()?;
        let token = {
            let mut sources = self.sources.lock();
            let index = match sources.free.pop() {
                Some(index) => index,
                None => {
                    sources.slots.push(Slot { generation: 0, fd: -1, source: None });
                    u32::try_from(sources.slots.len() - 1).map_err(|_| Errno::NOMEM)?
                }
            };
            let slot = &mut sources.slots[index as usize];
            slot.source = Some(source);
            slot.fd = fd.as_raw_fd();
            let slot = u64::from(slot.generation) << 32 | u64::from(index);
            Token { reactor: self.number, slot }
        };
        let flags = epoll::EventFlags::IN
            | epoll::EventFlags::OUT
            | epoll::EventFlags::RDHUP
            | epoll::EventFlags::ET;
        if let Err(error) =
            epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token.slot), flags)
        {
            self.forget(token);
            return Err(error);
        }
        Ok(token)
    }

    /// Stops watching a source. A thread that is in a pass may still call it once.
    pub fn unwatch(&self, fd: BorrowedFd<'_>, token: Token) {
        // Fails only if the descriptor was never added, and then there is nothing to remove.
        let _ = epoll::delete(&self.epoll, fd);
        self.forget(token);
    }

    /// Starts to poll a ring in each pass.
    pub fn add_ring(&self, ring: Arc<dyn Polled>) {
        self.rings.lock().push(ring);
        self.rings_version.fetch_add(1, Ordering::Release);
    }

    /// Stops polling a ring. A thread that is in a pass may still run it once.
    pub fn remove_ring(&self, ring: &Arc<dyn Polled>) {
        self.rings.lock().retain(|other| !Arc::ptr_eq(other, ring));
        self.rings_version.fetch_add(1, Ordering::Release);
    }

    /// Runs the rings that are ready. Returns whether any was.
    fn scan_rings(&self, driver: &mut Driver) -> bool {
        let version = self.rings_version.load(Ordering::Acquire);
        if version != driver.rings_version {
            driver.rings_version = version;
            driver.rings.clone_from(&self.rings.lock());
        }
        let mut worked = false;
        for ring in driver.rings.iter().filter(|ring| ring.is_ready()) {
            ring.run();
            worked = true;
        }
        worked
    }

    /// Whether a ring is ready. A thread that is about to sleep asks this.
    fn rings_are_ready(&self) -> bool {
        self.rings.lock().iter().any(|ring| ring.is_ready())
    }

    /// Calls [`Source::expired`] at `deadline`, or up to `STANDBY` later.
    pub fn start_timer(&'static self, deadline: Instant, source: Arc<dyn Source>) -> TimerId {
        let id = TimerId(deadline, self.timer_serial.fetch_add(1, Ordering::Relaxed));
        let soonest = {
            let mut timers = self.timers.lock();
            timers.insert(id, source);
            timers.first_key_value().is_some_and(|(&first, _)| first == id)
        };
        if soonest {
            // A timer has no caller that could handle a failure to start; watching a socket reports
            // it.
            let _ = self.start();
            self.end_standby();
            notify(&self.wake);
        }
        id
    }

    /// Stops a timer that has not expired.
    pub fn stop_timer(&self, id: TimerId) {
        let stopped = self.timers.lock().remove(&id);
        // Drop the source without the lock, because its destructor may stop timers of its own.
        drop(stopped);
    }

    /// Makes one pass for a polling thread. Returns at once if another thread is in a pass.
    pub fn poll(&self) {
        let then = self.polled_at.load(Ordering::Relaxed);
        let mut busy = self.busy();
        let Some(mut driver) = self.driver.try_lock() else { return };
        self.passing.store(thread_number(), Ordering::Relaxed);
        let passing = Passing(self);
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        // Reading the clock costs as much as polling a ring.
        driver.without_clock += 1;
        if !driver.rings.is_empty() && driver.without_clock < CLOCK_EVERY {
            busy.then = then;
        } else {
            driver.without_clock = 0;
        }
        self.flush_dirty(&mut driver);
        let found = self.scan_rings(&mut driver);
        let may_wait = driver.without_sockets < driver.sockets_every()
            && !self.sockets_due.load(Ordering::Relaxed);
        if !driver.rings.is_empty() && may_wait {
            driver.without_sockets += 1;
            if found {
                driver.empty_passes = 0;
                return;
            }
        } else {
            driver.without_sockets = 0;
            self.sockets_due.store(false, Ordering::Relaxed);
            // An `epoll_wait` that finds nothing takes no socket's lock, so frequent calls do not
            // delay incoming packets.
            self.take_events(&mut driver.batch);
            let is_quiet = driver.batch.is_empty();
            driver.quiet_looks = if is_quiet { driver.quiet_looks.saturating_add(1) } else { 0 };
            if found || !is_quiet {
                driver.empty_passes = 0;
                return run_batch(&mut driver.batch);
            }
        }
        driver.empty_passes += 1;
        if driver.empty_passes >= self.yields.polls_before_yield() {
            driver.empty_passes = 0;
            drop((passing, driver, busy));
            self.offer_core();
        }
    }

    fn offer_core(&self) {
        let before = now_ns();
        if self.yields.kind(before) == YieldKind::TimedSleep {
            return self.sleep_briefly();
        }
        sched_yield();
        let now = now_ns();
        self.yields.learn(now - before, now);
    }

    /// Sleeps for a short time, or until a peer or thread of this process wakes the reactor.
    fn sleep_briefly(&self) {
        let _sleeping = presence::own().map(|presence| presence.begin_sleep());
        if !self.rings_are_ready() && self.dirty_len.load(Ordering::SeqCst) == 0 {
            let mut fds = [PollFd::new(&self.epoll, PollFlags::IN)];
            // An interrupted sleep counts as an event. This is not the C library's `poll`, because
            // that is a cancellation point, which no program expects in `ibv_poll_cq`.
            let _ = poll(&mut fds, Some(&timespec(TIMED_SLEEP)));
            self.sockets_due.store(true, Ordering::Relaxed);
        }
    }

    /// Keeps the service thread standing by while the caller, a thread of the program, is at a
    /// socket.
    pub fn busy(&self) -> Busy<'_> {
        self.polled_at.store(BUSY, Ordering::Relaxed);
        Busy { reactor: self, then: BUSY }
    }

    /// Takes what `attempt` finds. If `blocks`, waits for it as [`Reactor::wait`] does; otherwise
    /// just makes a pass over the sockets.
    ///
    /// # Errors
    /// `EAGAIN` if nothing is found and the descriptor is non-blocking; `EINTR` after a signal.
    pub(crate) fn take<T>(
        &self,
        fd: BorrowedFd<'_>,
        blocks: bool,
        spin: &Spin,
        mut attempt: impl FnMut(&dyn Fn()) -> Option<T>,
    ) -> Result<T> {
        match blocks {
            true => self.wait(fd, spin, attempt),
            false => attempt(&|| self.poll()).ok_or(Errno::AGAIN),
        }
    }

    /// Waits until `attempt` returns a value, and makes progress meanwhile. `attempt` is called
    /// whenever `fd` is readable or a socket is ready; its argument makes a pass over the sockets.
    /// `spin` belongs to the object that is waited on. The thread holds no lock while it sleeps, so
    /// it may be cancelled there.
    ///
    /// # Errors
    /// `EINTR` after a signal.
    pub(crate) fn wait<T>(
        &self,
        fd: BorrowedFd<'_>,
        spin: &Spin,
        mut attempt: impl FnMut(&dyn Fn()) -> Option<T>,
    ) -> Result<T> {
        let start = now_ns();
        let look = spin.ns(self.yields.are_cores_scarce(start));
        // With few cores, skip the yield: a sleep gives the core to the threads that have work, and
        // they wake this thread sooner.
        let mut offered = self.yields.are_cores_scarce(start);
        self.driven_until.store(start + WAIT_DRIVE_NS, Ordering::Relaxed);
        loop {
            let found = attempt(&|| self.poll());
            let waited = now_ns() - start;
            if let Some(found) = found {
                spin.learn(waited);
                // The thread may come back at once, or not at all.
                self.driven_until.store(start + waited + REWAIT_NS, Ordering::Relaxed);
                return Ok(found);
            }
            if waited >= WAIT_DRIVE_NS {
                break;
            }
            if waited >= look && !std::mem::replace(&mut offered, true) {
                // The thread that is waited for may only need this core.
                self.offer_core();
            } else if waited >= look {
                let limit = Some(Duration::from_nanos(WAIT_DRIVE_NS - waited));
                let _sleeping = presence::own().map(|presence| presence.begin_sleep());
                if !self.rings_are_ready() {
                    wait_readable([fd, self.epoll.as_fd()], limit)?;
                    self.sockets_due.store(true, Ordering::Relaxed);
                }
            }
        }
        spin.learn(WAIT_DRIVE_NS);
        self.driven_until.store(0, Ordering::Relaxed);
        self.about_to_wait();
        loop {
            wait_readable([fd], None)?;
            if let Some(found) = attempt(&|| ()) {
                return Ok(found);
            }
        }
    }

    /// Makes the service thread take over, because the program is about to sleep where we do not
    /// see it.
    pub fn about_to_wait(&self) {
        self.end_standby();
    }

    /// Whether a pass will follow soon, so that deferred work needs no wakeup.
    #[must_use]
    pub fn may_defer(&self) -> bool {
        self.standing_by.load(Ordering::SeqCst) == 1
    }

    /// Calls [`Source::flush`] in the next pass. Allowed only if [`Reactor::may_defer`].
    pub fn defer(&self, source: Arc<dyn Source>) {
        self.add_dirty(Dirty::Deferred, source);
    }

    /// Calls [`Source::requeued`] in the next pass, which follows soon.
    pub fn requeue(&self, source: Arc<dyn Source>) {
        self.add_dirty(Dirty::Requeued, source);
    }

    fn add_dirty(&self, why: Dirty, source: Arc<dyn Source>) {
        let mut dirty = self.dirty.lock();
        dirty.push((why, source));
        self.dirty_len.store(dirty.len(), Ordering::SeqCst);
        drop(dirty);
        // The service thread may have ended its standby since the caller asked.
        if !self.may_defer() {
            notify(&self.wake);
        }
    }

    /// Runs the sources on the dirty list once; sources that are added meanwhile wait for the next
    /// pass. Returns whether the list had any.
    fn flush_dirty(&self, driver: &mut Driver) -> bool {
        if self.dirty_len.load(Ordering::SeqCst) == 0 {
            return false;
        }
        {
            let mut dirty = self.dirty.lock();
            std::mem::swap(&mut *dirty, &mut driver.dirty);
            self.dirty_len.store(0, Ordering::SeqCst);
        }
        for (why, source) in driver.dirty.drain(..) {
            match why {
                Dirty::Deferred => source.flush(),
                Dirty::Requeued => source.requeued(),
            }
        }
        true
    }

    /// Frees the slot of a source. Does nothing for a token of another reactor, which an object
    /// inherited by a forked child has.
    fn forget(&self, token: Token) {
        if token.reactor != self.number {
            return;
        }
        let mut sources = self.sources.lock();
        let (index, generation) = split(token.slot);
        if let Some(slot) = sources.slots.get_mut(index as usize)
            && slot.generation == generation
        {
            *slot = Slot { generation: generation.wrapping_add(1), fd: -1, source: None };
            sources.free.push(index);
        }
    }

    /// Takes the pending events and appends their sources to `batch`.
    fn take_events(&self, batch: &mut Vec<Ready>) {
        let mut space = [epoll_event { events: 0, u64: 0 }; EPOLL_EVENTS_MAX];
        // An interrupted or failed call counts as no event; the next pass asks again.
        let count = take_events(&self.epoll, &mut space).unwrap_or(0);
        if count == 0 {
            return;
        }
        let sources = self.sources.lock();
        for event in &space[..count] {
            let (index, generation) = split(event.u64);
            if let Some(slot) = sources.slots.get(index as usize)
                && let Some(source) = &slot.source
                && slot.generation == generation
            {
                let ended = event.events & ENDED.bits() != 0;
                batch.push(Ready { source: Arc::clone(source), ended });
            }
        }
    }

    fn start(&'static self) -> Result<()> {
        if self.started.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        static HANDLED: AtomicBool = AtomicBool::new(false);
        if !HANDLED.swap(true, Ordering::AcqRel) {
            in_forked_child(detach_from_parents_sockets)?;
            at_exit(finish_work);
        }
        let started = spawn_quiet("weft", || self.serve());
        if started.is_err() {
            self.started.store(false, Ordering::Release);
        }
        started
    }

    fn end_standby(&self) {
        if self.standing_by.swap(0, Ordering::SeqCst) == 1 {
            futex_wake(&self.standing_by, Sharing::Threads, 1);
        }
    }

    /// Has the service thread do what has been deferred, and waits for that. The caller does not do
    /// it, because it may have been interrupted by a signal while it held any lock.
    fn finish(&self) {
        // Nobody can go on with a pass of this very thread, which a signal has interrupted.
        let is_passing = self.passing.load(Ordering::Relaxed) == thread_number();
        if !is_passing && !self.is_done() {
            self.ending.store(true, Ordering::SeqCst);
            self.end_standby();
            notify(&self.wake);
            yield_until(LAST_PASSES_TIME, || self.ended.load(Ordering::Acquire));
        }
    }

    /// Whether nothing is left to do. A pass that is under way may have taken its work off the
    /// lists and not done it, or may yet defer some, so the lists count only between passes.
    fn is_done(&self) -> bool {
        let Some(_between_passes) = self.driver.try_lock() else { return false };
        let Some(rings) = self.rings.try_lock() else { return false };
        rings.iter().all(|ring| !ring.is_ready()) && self.dirty_len.load(Ordering::SeqCst) == 0
    }

    /// Passes until there is nothing more to do, up to a bound.
    fn make_last_passes(&self) {
        let _more = (0..LAST_PASSES).all(|_| self.pass());
        self.ended.store(true, Ordering::Release);
    }

    /// The loop of the service thread.
    fn serve(&self) {
        // The timed sleeps are short; the default timer slack of 50 us would double them.
        let _ = calls::thread::set_timer_slack(TIMER_SLACK_NS);
        loop {
            let start = now_ns();
            if !self.spin_for_work(start) {
                self.sleep_until_ready();
            }
            self.service_spin.learn(now_ns() - start);
            self.expire_timers();
            if self.is_driven() {
                self.stand_by();
            }
            self.pass();
            if self.ending.load(Ordering::SeqCst) {
                self.make_last_passes();
            }
        }
    }

    /// Works as long as there is something to do every few microseconds. Returns false when it is
    /// time to sleep.
    fn spin_for_work(&self, start: u64) -> bool {
        let look = self.service_spin.ns(self.yields.are_cores_scarce(start));
        while now_ns() - start < look && !self.is_driven() {
            if self.pass() {
                return true;
            }
        }
        false
    }

    /// Whether a thread of the program polls, or waits in [`Reactor::wait`] and makes progress.
    fn is_driven(&self) -> bool {
        let now = now_ns();
        now.saturating_sub(self.polled_at.load(Ordering::Relaxed)) < POLLING_NS
            || now < self.driven_until.load(Ordering::Relaxed)
    }

    /// Sleeps until a socket may be ready, a timer is due, or another thread notifies `wake`. It
    /// consumes no event, so that a polling thread still finds it.
    fn sleep_until_ready(&self) {
        if self.dirty_len.load(Ordering::SeqCst) != 0 {
            return;
        }
        let timeout = {
            let timers = self.timers.lock();
            let first = timers.first_key_value();
            first.map(|(id, _)| timespec(id.0.saturating_duration_since(now())))
        };
        let _sleeping = presence::own().map(|presence| presence.begin_sleep());
        if self.rings_are_ready() {
            return;
        }
        let mut fds =
            [PollFd::new(&self.epoll, PollFlags::IN), PollFd::new(&self.wake, PollFlags::IN)];
        // An interrupted or failed sleep counts as an event; the pass finds out.
        let _ = poll(&mut fds, timeout.as_ref());
        if fds[1].revents().contains(PollFlags::IN) {
            consume(&self.wake);
        }
    }

    /// Sleeps without a look at the sockets as long as the program makes progress, or until another
    /// thread ends the standby.
    fn stand_by(&self) {
        let mut sleep = STANDBY_MIN;
        loop {
            let before = self.polled_at.load(Ordering::Relaxed);
            let polls_before = self.polls.load(Ordering::Relaxed);
            self.standing_by.store(1, Ordering::SeqCst);
            let time = timespec(sleep);
            let _ = futex_wait(&self.standing_by, Sharing::Threads, 1, Some(&time));
            let called = self.standing_by.swap(0, Ordering::SeqCst) == 0;
            self.expire_timers();
            let now = now_ns();
            let polls = self.polls.load(Ordering::Relaxed).wrapping_sub(polls_before);
            let idle = polls == 0
                && self.polled_at.load(Ordering::Relaxed) == before
                && before != BUSY
                && now >= self.driven_until.load(Ordering::Relaxed);
            if called || idle {
                return;
            }
            // A program that polls now and then may look only at its memory for the rest of the
            // time, so it gets short standbys. A thread in `wait` keeps polling until
            // `driven_until`, and must not be disturbed.
            let is_promised = now < self.driven_until.load(Ordering::Relaxed);
            let is_dense = u128::from(polls) * PAUSE.as_nanos() >= sleep.as_nanos();
            // A thread that finds a completion at each poll posts work in between, but looks at
            // nothing else.
            let polled_at = self.polled_at.load(Ordering::Relaxed);
            let is_at_it = u128::from(now.saturating_sub(polled_at)) < PAUSE.as_nanos();
            let stays = is_promised || is_dense || is_at_it;
            sleep = if stays { STANDBY.min(sleep * 2) } else { STANDBY_MIN };
        }
    }

    /// One pass of the service thread. Returns whether there was anything to do.
    fn pass(&self) -> bool {
        let mut driver = self.driver.lock();
        let flushed = self.flush_dirty(&mut driver);
        let found = self.scan_rings(&mut driver);
        self.take_events(&mut driver.batch);
        let worked = flushed || found || !driver.batch.is_empty();
        run_batch(&mut driver.batch);
        worked
    }

    fn expire_timers(&self) {
        let now = now();
        loop {
            let source = {
                let mut timers = self.timers.lock();
                match timers.first_entry() {
                    Some(first) if first.key().0 <= now => first.remove(),
                    _ => return,
                }
            };
            source.expired(now);
        }
    }
}

fn run_batch(batch: &mut Vec<Ready>) {
    for Ready { source, ended } in batch.drain(..) {
        source.ready_to(ended);
    }
}

/// The time of the timers. The reactor's callers read it here once, and hand it on: protocol code
/// gets the time as an argument.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The monotonic clock in nanoseconds.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

fn split(token: u64) -> (u32, u32) {
    let [a, b, c, d, e, f, g, h] = token.to_le_bytes();
    (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]))
}

fn timespec(duration: Duration) -> Timespec {
    Timespec {
        tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(duration.subsec_nanos()),
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;

    #[derive(Debug)]
    struct Counted(AtomicUsize);

    impl Source for Counted {
        fn ready(&self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Creates a reactor without a service thread.
    fn alone() -> &'static Reactor {
        let reactor = Reactor::new();
        reactor.started.store(true, Ordering::Release);
        Box::leak(Box::new(reactor))
    }

    /// In a forked child, objects that were inherited from the parent hold the parent's tokens.
    #[test]
    fn token_of_another_reactor_ends_no_watch() {
        let [parents, childs] = [alone(), alone()];
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (socket, peer) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("sockets");
        let counted = Arc::new(Counted(AtomicUsize::new(0)));
        let old = parents.watch(peer.as_fd(), Arc::clone(&counted) as _).expect("watched");
        childs.watch(socket.as_fd(), Arc::clone(&counted) as _).expect("watched");
        childs.unwatch(peer.as_fd(), old);
        childs.pass();
        assert_eq!(counted.0.load(Ordering::SeqCst), 1, "the socket is writable");
    }

    /// Deferred work that is not done before the end of the process waits for it.
    #[derive(Debug)]
    struct Slow {
        reactor: &'static Reactor,
        begun: AtomicBool,
        done: AtomicBool,
    }

    impl Source for Slow {
        fn ready(&self) {}

        fn flush(&self) {
            self.begun.store(true, Ordering::SeqCst);
            while !self.reactor.ending.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            self.done.store(true, Ordering::SeqCst);
        }
    }

    /// Ends the process in the middle of a pass, as a signal handler that calls `exit` may.
    #[derive(Debug)]
    struct Ending(&'static Reactor);

    impl Source for Ending {
        fn ready(&self) {}

        fn flush(&self) {
            self.0.finish();
        }
    }

    #[test]
    fn end_does_not_wait_for_the_pass_that_it_interrupts() {
        let reactor = alone();
        reactor.defer(Arc::new(Ending(reactor)));
        reactor.poll();
        assert!(!reactor.ending.load(Ordering::SeqCst), "it has waited for its own pass");
        assert_eq!(reactor.passing.load(Ordering::SeqCst), 0, "the pass is over");
    }

    #[test]
    fn end_waits_for_a_pass_that_is_under_way() {
        let reactor = alone();
        let slow =
            Arc::new(Slow { reactor, begun: AtomicBool::new(false), done: AtomicBool::new(false) });
        reactor.defer(Arc::clone(&slow) as _);
        thread::scope(|scope| {
            scope.spawn(|| {
                reactor.pass();
                reactor.make_last_passes();
            });
            while !slow.begun.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            reactor.finish();
            let was_done = slow.done.load(Ordering::SeqCst);
            reactor.ending.store(true, Ordering::SeqCst); // The pass ends if the test fails, too.
            assert!(was_done, "the process ended before its work");
        });
    }
}
