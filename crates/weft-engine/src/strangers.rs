//! Connections whose peers are not known yet, and what of the process they may hold.
//!
//! Anybody can connect to a port. Until a connection has found its queue pair or its program it
//! has a place in a [`Room`], which is a share of the process's descriptors, and a timer. When a
//! room is full, the stranger that came first has to leave, if it has had its time; otherwise those
//! who come wait in the kernel, and are called when a place is free. Who has something to say says
//! it at once, so peers get in beside any number of others who are silent.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use rustix::process::{Resource, getrlimit};
use weft_sys::{Forkable, Lock};

use crate::limits::{
    ACCEPT_RETRY, ACCEPTS_MAX, HALF_OPEN_SHARE, HALF_OPEN_TIME, HELD_SHARE, REQUESTED_SHARE,
    SESSIONS_SHARE, STRANGERS_MAX, STRANGERS_MIN,
};
use crate::reactor::{self, Handle, Source};
use crate::{Errno, Result};

/// Of every socket here.
const SOCKET_FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// TCP connections whose MPA request has not come in whole.
pub(crate) static HALF_OPEN: Room = Room::new(HALF_OPEN_SHARE, Some(HALF_OPEN_TIME));
/// Requests for queue pairs that want no peer yet. Their peers dial again when they are closed.
pub(crate) static HELD: Room = Room::new(HELD_SHARE, Some(Duration::ZERO));
/// Connection requests that the program has not taken.
pub(crate) static REQUESTED: Room = Room::new(REQUESTED_SHARE, None);
/// Unix sockets of processes that have not said what they want.
pub(crate) static SESSIONS: Room = Room::new(SESSIONS_SHARE, Some(HALF_OPEN_TIME));

/// One whose peer is not known.
pub(crate) trait Stranger: Send + Sync {
    /// Its place has been given to another: it closes its connection. Called without a lock.
    fn turn_out(&self);
}

/// Places for strangers of one kind.
pub(crate) struct Room {
    /// It has one in so many of the descriptors that the process may open.
    share: u64,
    /// After this time a stranger leaves for another; `None`: never.
    time: Option<Duration>,
    guests: Forkable<Lock<Guests>>,
}

#[derive(Default)]
struct Guests {
    /// By number, so that the first came first.
    inside: BTreeMap<u64, Guest>,
    /// Listeners to be called when there is a place.
    waiting: Vec<Caller>,
}

struct Guest {
    since: Instant,
    /// `None` until it has come.
    stranger: Option<Weak<dyn Stranger>>,
}

/// A listener that its reactor calls.
struct Caller {
    reactor: Handle,
    listener: Weak<dyn Source>,
}

impl Caller {
    fn call(&self) {
        if let Some(listener) = self.listener.upgrade() {
            self.reactor.get().requeue(listener);
        }
    }
}

/// A place in a room, until dropped.
pub(crate) struct Place {
    room: &'static Room,
    number: u64,
    since: Instant,
}

impl Room {
    const fn new(share: u64, time: Option<Duration>) -> Self {
        Self { share, time, guests: Forkable::new(|| Lock::new(Guests::default())) }
    }

    /// How many places there are. The program may change the limit at any time.
    fn len(&self) -> usize {
        let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let places = (descriptors / self.share).clamp(STRANGERS_MIN, STRANGERS_MAX);
        usize::try_from(places).unwrap_or(usize::MAX)
    }

    /// A place for one more, who comes `now`.
    ///
    /// # Errors
    /// When the room is full: since when somebody is there who will leave, if anybody will.
    pub(crate) fn enter(
        &'static self,
        now: Instant,
    ) -> std::result::Result<Place, Option<Instant>> {
        self.enter_or_wait(now, None)
    }

    /// The same for a listener, which is called when there is a place.
    fn enter_or_wait(
        &'static self,
        now: Instant,
        waiter: Option<(Handle, &Weak<dyn Source>)>,
    ) -> std::result::Result<Place, Option<Instant>> {
        static NUMBERS: AtomicU64 = AtomicU64::new(0);
        let len = self.len();
        let mut guests = self.guests.get().lock();
        let mut leaving = None;
        if guests.inside.len() >= len {
            let due = guests.due(self.time);
            if due.is_none_or(|due| due > now) {
                if let Some((reactor, listener)) = waiter
                    && !guests.waiting.iter().any(|other| other.listener.ptr_eq(listener))
                {
                    guests.waiting.push(Caller { reactor, listener: Weak::clone(listener) });
                }
                return Err(due);
            }
            leaving = guests.inside.pop_first().and_then(|(_, guest)| guest.stranger);
        }
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        guests.inside.insert(number, Guest { since: now, stranger: None });
        drop(guests);
        if let Some(stranger) = leaving.and_then(|stranger| stranger.upgrade()) {
            stranger.turn_out();
        }
        Ok(Place { room: self, number, since: now })
    }
}

impl Guests {
    /// When the first has had its time.
    fn due(&self, time: Option<Duration>) -> Option<Instant> {
        let (_, first) = self.inside.first_key_value()?;
        time.map(|time| first.since + time)
    }
}

impl Place {
    /// When it was taken.
    pub(crate) fn since(&self) -> Instant {
        self.since
    }

    /// The stranger has come.
    pub(crate) fn give_to(&self, stranger: Weak<dyn Stranger>) {
        if let Some(guest) = self.room.guests.get().lock().inside.get_mut(&self.number) {
            guest.stranger = Some(stranger);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let waiting = {
            let mut guests = self.room.guests.get().lock();
            match guests.inside.remove(&self.number) {
                Some(_) => std::mem::take(&mut guests.waiting),
                // Given to another already.
                None => return,
            }
        };
        waiting.iter().for_each(Caller::call);
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place").field("number", &self.number).finish_non_exhaustive()
    }
}

/// A listening socket whose connections all go to one function, as far as there are places.
#[derive(Debug)]
pub(crate) struct Listener {
    this: Weak<Self>,
    socket: OwnedFd,
    gate: Gate,
    start: fn(Handle, OwnedFd, Place),
}

impl Listener {
    /// Gives the connections of a socket that listens to `start`, for as long as the process lives.
    ///
    /// # Errors
    /// What [`Reactor::watch`](crate::reactor::Reactor::watch) reports; the socket is closed then.
    pub(crate) fn serve(
        reactor: Handle,
        socket: OwnedFd,
        room: &'static Room,
        start: fn(Handle, OwnedFd, Place),
    ) -> Result<()> {
        let gate = Gate::new(reactor, room);
        let listener =
            Arc::new_cyclic(|this| Self { this: Weak::clone(this), socket, gate, start });
        reactor.get().watch(listener.socket.as_fd(), Arc::clone(&listener) as _).map(drop)
    }

    /// The same for a new Unix socket, among the [`SESSIONS`].
    ///
    /// # Errors
    /// `EADDRINUSE` and the like.
    pub(crate) fn serve_unix(
        reactor: Handle,
        address: &SocketAddrUnix,
        kind: SocketType,
        backlog: i32,
        start: fn(Handle, OwnedFd, Place),
    ) -> Result<()> {
        let socket = socket_with(AddressFamily::UNIX, kind, SOCKET_FLAGS, None)?;
        bind(&socket, address)?;
        listen(&socket, backlog)?;
        Self::serve(reactor, socket, &SESSIONS, start)
    }

    /// Accepts while there are connections and places for them; it is `now`.
    fn accept(&self, now: Instant) {
        let me: Weak<dyn Source> = Weak::clone(&self.this) as _;
        let accept = || accept_with(&self.socket, SOCKET_FLAGS);
        self.gate.pass(now, &me, accept, |socket, place| {
            (self.start)(self.gate.reactor, socket, place);
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

/// What a listener accepts by. A listener's socket tells of each connection once, so one that is
/// not accepted must be looked for again: when there is a place, when a descriptor may be free, or
/// when others have had their turn. The listener does so in [`Source::requeued`] and, behind
/// [`Gate::open`], in [`Source::expired`].
pub(crate) struct Gate {
    reactor: Handle,
    room: &'static Room,
    /// A timer runs.
    closed: AtomicBool,
}

impl Gate {
    pub(crate) fn new(reactor: Handle, room: &'static Room) -> Self {
        Self { reactor, room, closed: AtomicBool::new(false) }
    }

    /// A timer of the listener's has expired.
    pub(crate) fn open(&self) {
        self.closed.store(false, Ordering::Release);
    }

    /// Has `accept` take connections of the listener `me` and gives them to `start`, as far as
    /// there are places for them; it is `now`.
    pub(crate) fn pass<T>(
        &self,
        now: Instant,
        me: &Weak<dyn Source>,
        mut accept: impl FnMut() -> Result<T>,
        mut start: impl FnMut(T, Place),
    ) {
        for _ in 0..ACCEPTS_MAX {
            let place = match self.room.enter_or_wait(now, Some((self.reactor, me))) {
                Ok(place) => place,
                Err(due) => return self.close(me, due),
            };
            match accept() {
                Ok(connection) => start(connection, place),
                Err(Errno::AGAIN) => return,
                // One that went away before it was accepted does not stop the others.
                Err(Errno::CONNABORTED | Errno::INTR) => {}
                // Most likely there is no descriptor left, which nobody tells when there is.
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
    struct Guest {
        is_out: AtomicBool,
    }

    impl Stranger for Guest {
        fn turn_out(&self) {
            self.is_out.store(true, Ordering::Relaxed);
        }
    }

    fn come(place: &Place) -> Arc<Guest> {
        let guest = Arc::new(Guest::default());
        place.give_to(Arc::downgrade(&guest) as _);
        guest
    }

    /// So large a share that the bound is [`STRANGERS_MIN`] everywhere.
    const SHARE: u64 = 1 << 40;

    #[test]
    fn the_first_leaves_for_another_when_it_has_had_its_time() {
        const TIME: Duration = Duration::from_millis(100);
        static ROOM: Room = Room::new(SHARE, Some(TIME));
        let start = Instant::now();
        let places: Vec<Place> = (0..STRANGERS_MIN).map(|_| ROOM.enter(start).unwrap()).collect();
        let guests: Vec<_> = places.iter().map(come).collect();
        let early = start + TIME - Duration::from_nanos(1);
        assert_eq!(ROOM.enter(early).unwrap_err(), Some(start + TIME));
        let another = ROOM.enter(start + TIME).expect("the first has had its time");
        let is_out = |guest: &Arc<Guest>| guest.is_out.load(Ordering::Relaxed);
        assert_eq!(guests.iter().map(is_out).collect::<Vec<_>>(), [true, false, false, false]);
        // The place of one that has left for another is not free again.
        let len = || ROOM.guests.get().lock().inside.len() as u64;
        drop(places);
        assert_eq!(len(), 1);
        drop(another);
        assert_eq!(len(), 0);
    }

    #[test]
    fn nobody_leaves_a_room_without_a_time() {
        static ROOM: Room = Room::new(SHARE, None);
        let now = Instant::now();
        let places: Vec<Place> = (0..STRANGERS_MIN).map(|_| ROOM.enter(now).unwrap()).collect();
        assert_eq!(ROOM.enter(now).unwrap_err(), None);
        drop(places);
        ROOM.enter(now).expect("room again");
    }
}
