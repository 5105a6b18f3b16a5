//! Admission of connections whose peers are not known yet.
//!
//! Any host can connect to a port. Until a connection has been matched with its queue pair or
//! program, it needs a permit from a [`Quota`], which is a share of the process's descriptors, and
//! runs a timer. When a quota is used up, the oldest connection is evicted if its time has passed;
//! otherwise new connections wait in the kernel's backlog, and their listener is notified when a
//! permit is free. Honest peers send their request at once, so they get in beside any number of
//! silent connections.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use weft_sys::calls::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use weft_sys::calls::process::{Resource, getrlimit};
use weft_sys::{Forkable, Lock};

use crate::limits::{
    ACCEPT_RETRY, ACCEPTS_MAX, HALF_OPEN_SHARE, HALF_OPEN_TIME, HELD_SHARE, REQUESTED_SHARE,
    SESSIONS_SHARE, STRANGERS_MAX, STRANGERS_MIN,
};
use crate::reactor::{self, Handle, Source};
use crate::{Errno, Result};

/// Flags of every socket here.
const SOCKET_FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// TCP connections whose MPA request is incomplete.
pub(crate) static HALF_OPEN: Quota = Quota::new(HALF_OPEN_SHARE, Some(HALF_OPEN_TIME));
/// Requests for queue pairs that do not want a peer yet. If they are closed, their peers dial
/// again.
pub(crate) static HELD: Quota = Quota::new(HELD_SHARE, Some(Duration::ZERO));
/// Connection requests that the program has not taken.
pub(crate) static REQUESTED: Quota = Quota::new(REQUESTED_SHARE, None);
/// Unix sockets of processes that have not yet sent their request.
pub(crate) static SESSIONS: Quota = Quota::new(SESSIONS_SHARE, Some(HALF_OPEN_TIME));

/// A connection whose peer is not known.
pub(crate) trait Stranger: Send + Sync {
    /// Closes the connection, because its permit goes to another. Called without a lock.
    fn evict(&self);
}

/// A bound on the strangers of one kind.
pub(crate) struct Quota {
    /// The bound is the process's descriptor limit divided by this.
    share: u64,
    /// Age from which a stranger may be evicted for another; `None`: never.
    time: Option<Duration>,
    admitted: Forkable<Lock<Admitted>>,
}

#[derive(Default)]
struct Admitted {
    /// By serial number, so that the oldest is first.
    permits: BTreeMap<u64, Holder>,
    /// Listeners to notify when a permit is free.
    waiters: Vec<Waiter>,
}

struct Holder {
    since: Instant,
    /// `None` until [`Permit::set_holder`].
    stranger: Option<Weak<dyn Stranger>>,
}

/// A listener that waits for a permit.
struct Waiter {
    reactor: Handle,
    listener: Weak<dyn Source>,
}

impl Waiter {
    fn notify(&self) {
        if let Some(listener) = self.listener.upgrade() {
            self.reactor.get().requeue(listener);
        }
    }
}

/// A permit of a quota, returned when dropped.
pub(crate) struct Permit {
    quota: &'static Quota,
    number: u64,
    since: Instant,
}

impl Quota {
    const fn new(share: u64, time: Option<Duration>) -> Self {
        Self { share, time, admitted: Forkable::new(|| Lock::new(Admitted::default())) }
    }

    /// The number of permits. The program may change the descriptor limit at any time.
    fn len(&self) -> usize {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let permits = (descriptors / self.share).clamp(STRANGERS_MIN, STRANGERS_MAX);
        usize::try_from(permits).unwrap_or(usize::MAX)
    }

    /// Takes a permit for a connection that arrives `now`.
    ///
    /// # Errors
    /// If the quota is used up: the time from which its oldest stranger may be evicted, if it ever
    /// may.
    pub(crate) fn acquire(
        &'static self,
        now: Instant,
    ) -> std::result::Result<Permit, Option<Instant>> {
        self.acquire_or_wait(now, None)
    }

    /// Like [`Quota::acquire`], for a listener, which is notified when a permit is free.
    fn acquire_or_wait(
        &'static self,
        now: Instant,
        waiter: Option<(Handle, &Weak<dyn Source>)>,
    ) -> std::result::Result<Permit, Option<Instant>> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let len = self.len();
        let mut admitted = self.admitted.get().lock();
        let mut evicted = None;
        if admitted.permits.len() >= len {
            let due = admitted.oldest_expiry(self.time);
            if due.is_none_or(|due| due > now) {
                if let Some((reactor, listener)) = waiter
                    && !admitted.waiters.iter().any(|other| other.listener.ptr_eq(listener))
                {
                    admitted.waiters.push(Waiter { reactor, listener: Weak::clone(listener) });
                }
                return Err(due);
            }
            evicted = admitted.permits.pop_first().and_then(|(_, guest)| guest.stranger);
        }
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        admitted.permits.insert(number, Holder { since: now, stranger: None });
        drop(admitted);
        if let Some(stranger) = evicted.and_then(|stranger| stranger.upgrade()) {
            stranger.evict();
        }
        Ok(Permit { quota: self, number, since: now })
    }
}

impl Admitted {
    /// When the oldest stranger may be evicted.
    fn oldest_expiry(&self, time: Option<Duration>) -> Option<Instant> {
        let (_, first) = self.permits.first_key_value()?;
        time.map(|time| first.since + time)
    }
}

impl Permit {
    /// When the permit was taken.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// Names the stranger to evict with this permit.
    pub(crate) fn set_holder(&self, stranger: Weak<dyn Stranger>) {
        if let Some(holder) = self.quota.admitted.get().lock().permits.get_mut(&self.number) {
            holder.stranger = Some(stranger);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let waiters = {
            let mut admitted = self.quota.admitted.get().lock();
            match admitted.permits.remove(&self.number) {
                Some(_) => std::mem::take(&mut admitted.waiters),
                // The permit has already been taken over by another stranger.
                None => return,
            }
        };
        waiters.iter().for_each(Waiter::notify);
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").field("number", &self.number).finish_non_exhaustive()
    }
}

/// A listening socket that hands each connection to one function, if there is a permit for it.
#[derive(Debug)]
pub(crate) struct Listener {
    this: Weak<Self>,
    socket: OwnedFd,
    gate: Gate,
    start: fn(Handle, OwnedFd, Permit),
}

impl Listener {
    /// Hands the connections of a listening socket to `start` for as long as the process lives.
    ///
    /// # Errors
    /// The errors of [`Reactor::watch`](crate::reactor::Reactor::watch); the socket is closed then.
    pub(crate) fn serve(
        reactor: Handle,
        socket: OwnedFd,
        quota: &'static Quota,
        start: fn(Handle, OwnedFd, Permit),
    ) -> Result<()> {
        let gate = Gate::new(reactor, quota);
        let listener =
            Arc::new_cyclic(|this| Self { this: Weak::clone(this), socket, gate, start });
        reactor.get().watch(listener.socket.as_fd(), Arc::clone(&listener) as _).map(drop)
    }

    /// Listens on a new Unix socket, with permits of [`SESSIONS`].
    ///
    /// # Errors
    /// `EADDRINUSE` and similar.
    pub(crate) fn serve_unix(
        reactor: Handle,
        address: &SocketAddrUnix,
        kind: SocketType,
        backlog: i32,
        start: fn(Handle, OwnedFd, Permit),
    ) -> Result<()> {
        let socket = socket_with(AddressFamily::UNIX, kind, SOCKET_FLAGS, None)?;
        bind(&socket, address)?;
        listen(&socket, backlog)?;
        Self::serve(reactor, socket, &SESSIONS, start)
    }

    /// Accepts while there are connections and permits for them.
    fn accept(&self, now: Instant) {
        let me: Weak<dyn Source> = Weak::clone(&self.this) as _;
        let accept = || accept_with(&self.socket, SOCKET_FLAGS);
        self.gate.pass(now, &me, accept, |socket, permit| {
            (self.start)(self.gate.reactor, socket, permit);
        });
    }
}

impl Source for Listener {
    fn ready(&self) {
        self.accept(reactor::now());
    }

    fn requeued(&self) {
        self.ready();
    }

    fn expired(&self, now: Instant) {
        self.gate.open();
        self.accept(now);
    }
}

/// Accepts connections for a listener within a quota. Epoll reports each connection once, so the
/// listener must accept again later if some were left: when a permit is free, when a descriptor may
/// be free, or when other sources have had their turn. The listener does so in [`Source::requeued`]
/// and, after [`Gate::open`], in [`Source::expired`].
pub(crate) struct Gate {
    reactor: Handle,
    quota: &'static Quota,
    /// Whether a timer runs.
    closed: AtomicBool,
}

impl Gate {
    pub(crate) fn new(reactor: Handle, quota: &'static Quota) -> Self {
        Self { reactor, quota, closed: AtomicBool::new(false) }
    }

    /// Called when the listener's timer has expired.
    pub(crate) fn open(&self) {
        self.closed.store(false, Ordering::Release);
    }

    /// Takes connections of the listener `me` with `accept`, and hands them to `start`, while there
    /// are permits.
    pub(crate) fn pass<T>(
        &self,
        now: Instant,
        me: &Weak<dyn Source>,
        mut accept: impl FnMut() -> Result<T>,
        mut start: impl FnMut(T, Permit),
    ) {
        for _ in 0..ACCEPTS_MAX {
            let permit = match self.quota.acquire_or_wait(now, Some((self.reactor, me))) {
                Ok(permit) => permit,
                Err(due) => return self.close(me, due),
            };
            match accept() {
                Ok(connection) => start(connection, permit),
                Err(Errno::AGAIN) => return,
                // A connection that was closed before it was accepted does not stop the others.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                // Most likely no descriptor is left, and nothing reports when one becomes free.
                Err(_) => return self.close(me, Some(now + ACCEPT_RETRY)),
            }
        }
        if let Some(me) = me.upgrade() {
            self.reactor.get().requeue(me);
        }
    }

    fn close(&self, me: &Weak<dyn Source>, until: Option<Instant>) {
        if let (Some(until), Some(me)) = (until, me.upgrade())
            && !self.closed.swap(true, Ordering::AcqRel)
        {
            self.reactor.get().start_timer(until, me);
        }
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").field("closed", &self.closed).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[derive(Default)]
    struct TestStranger {
        is_evicted: AtomicBool,
    }

    impl Stranger for TestStranger {
        fn evict(&self) {
            self.is_evicted.store(true, Ordering::Relaxed);
        }
    }

    fn add_stranger(permit: &Permit) -> Arc<TestStranger> {
        let stranger = Arc::new(TestStranger::default());
        permit.set_holder(Arc::downgrade(&stranger) as _);
        stranger
    }

    /// So large a share that the quota is [`STRANGERS_MIN`] on every machine.
    const SHARE: u64 = 1 << 40;

    #[test]
    fn oldest_stranger_is_evicted_once_its_time_has_passed() {
        const TIME: Duration = Duration::from_millis(100);
        static QUOTA: Quota = Quota::new(SHARE, Some(TIME));
        let start = Instant::now();
        let permits: Vec<Permit> =
            (0..STRANGERS_MIN).map(|_| QUOTA.acquire(start).unwrap()).collect();
        let strangers: Vec<_> = permits.iter().map(add_stranger).collect();
        let early = start + TIME - Duration::from_nanos(1);
        assert_eq!(QUOTA.acquire(early).unwrap_err(), Some(start + TIME));
        let another = QUOTA.acquire(start + TIME).expect("the first has had its time");
        let is_evicted = |stranger: &Arc<TestStranger>| stranger.is_evicted.load(Ordering::Relaxed);
        assert_eq!(
            strangers.iter().map(is_evicted).collect::<Vec<_>>(),
            [true, false, false, false]
        );
        // The permit of an evicted stranger is not free again.
        let len = || QUOTA.admitted.get().lock().permits.len() as u64;
        drop(permits);
        assert_eq!(len(), 1);
        drop(another);
        assert_eq!(len(), 0);
    }

    #[test]
    fn quota_without_a_time_evicts_nobody() {
        static QUOTA: Quota = Quota::new(SHARE, None);
        let now = Instant::now();
        let permits: Vec<Permit> =
            (0..STRANGERS_MIN).map(|_| QUOTA.acquire(now).unwrap()).collect();
        assert_eq!(QUOTA.acquire(now).unwrap_err(), None);
        drop(permits);
        QUOTA.acquire(now).expect("the permits are free again");
    }
}
