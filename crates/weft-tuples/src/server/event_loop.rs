//! Waits for sockets and serves them.

use std::collections::{BTreeSet, HashMap};
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{self, Wake};
use std::time::{Duration, Instant, SystemTime};

use mio::event::Event;
use mio::{Events, Poll, Token, Waker};

use super::polled::Polled;
use super::replica::{Replica, Standing};
use super::served::Served;
use super::socket::{Listener, Socket};
use super::unproven::Unproven;
use crate::access::Guard;
use crate::limits::{ACCEPT_PAUSE, BATCH_LEN_MAX, FABRIC_CONNECTIONS_MAX, LOOP_EVENTS_MAX};
use crate::log::{Log, LogError};
use crate::model::{ClientId, Now, Refusal, Service, Space, Ticket};
use crate::resp::Roster;
use crate::tail::Tails;

/// The token of the wakeup. Listeners follow, then connections.
const WAKEUP: usize = 0;

/// Ends a server from another thread.
#[derive(Debug)]
pub struct Stop {
    waker: Waker,
    is_stopped: AtomicBool,
}

impl Stop {
    /// Ends it.
    ///
    /// # Errors
    ///
    /// If the kernel refuses to wake the server.
    pub fn stop(&self) -> io::Result<()> {
        self.is_stopped.store(true, Ordering::Release);
        self.wake()
    }

    /// Has the server look at its replica.
    ///
    /// # Errors
    ///
    /// If the kernel refuses to wake the server.
    pub fn wake(&self) -> io::Result<()> {
        self.waker.wake()
    }
}

/// Wakes the server because there may be a connection by the fabric to accept.
struct Called(Arc<Stop>);

impl Wake for Called {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // An eventfd takes a number that fits (eventfd(2)).
        let _ = self.0.waker.wake();
    }
}

/// Why a server has ended.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The kernel refuses to wait.
    #[error("event loop")]
    Wait(#[from] io::Error),
    /// The log cannot be written. Clients that wait for answers have got an error, as far as their
    /// sockets took it.
    #[error(transparent)]
    Log(#[from] LogError),
}

/// A server of a tuple space.
#[derive(Debug)]
pub struct Server {
    poll: Poll,
    stop: Arc<Stop>,
    listeners: Vec<Listener>,
    guard: Guard,
    service: Service,
    roster: Roster,
    log: Option<Log>,
    replica: Option<Box<dyn Replica>>,
    standing: Standing,
    served: HashMap<usize, Served>,
    unproven: Unproven,
    last_key: usize,
    connections: usize,
    /// The connections whose operations wait.
    tickets: HashMap<Ticket, usize>,
    clients: HashMap<ClientId, usize>,
    /// Connections that have something to do.
    ready: BTreeSet<usize>,
    polled: Polled,
    fabric_connections: usize,
    /// Once a client has asked for a tail.
    tails: Option<Tails>,
    /// Listeners that may have more connections; those that failed are tried again later.
    accepting: BTreeSet<usize>,
    start: Instant,
}

impl Server {
    /// Makes a server that has at most this many connections.
    ///
    /// # Errors
    ///
    /// If the kernel refuses it.
    pub fn new(space: Space, mut listeners: Vec<Listener>, connections: usize) -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), Token(WAKEUP))?;
        let stop = Arc::new(Stop { waker, is_stopped: AtomicBool::new(false) });
        let called = task::Waker::from(Arc::new(Called(Arc::clone(&stop))));
        let mut accepting = BTreeSet::new();
        for (at, listener) in listeners.iter_mut().enumerate() {
            listener.register(poll.registry(), Token(WAKEUP + 1 + at), called.clone())?;
            accepting.insert(WAKEUP + 1 + at);
        }
        Ok(Self {
            poll,
            stop,
            last_key: listeners.len() + WAKEUP,
            listeners,
            guard: Guard::default(),
            service: Service::new(space),
            roster: Roster::default(),
            log: None,
            replica: None,
            standing: Standing::Leads,
            served: HashMap::new(),
            unproven: Unproven::default(),
            connections,
            tickets: HashMap::new(),
            clients: HashMap::new(),
            ready: BTreeSet::new(),
            polled: Polled::new(),
            fabric_connections: 0,
            tails: None,
            accepting,
            start: Instant::now(),
        })
    }

    /// Serves only clients that get past this guard.
    #[must_use]
    pub fn with_guard(mut self, guard: Guard) -> Self {
        self.guard = guard;
        self
    }

    /// Keeps the state in a log. `open` opens it, and restores the state that it has led to.
    ///
    /// # Errors
    ///
    /// Those of `open`.
    pub fn with_log(
        mut self,
        open: impl FnOnce(&mut Service) -> Result<Log, LogError>,
    ) -> Result<Self, LogError> {
        self.log = Some(open(&mut self.service)?);
        Ok(self)
    }

    /// Keeps the state together with other servers. `start` makes the server one of them, and
    /// restores the state.
    ///
    /// # Errors
    ///
    /// Those of `start`.
    pub fn with_replica<R: Replica + 'static, E>(
        mut self,
        start: impl FnOnce(&mut Service) -> Result<R, E>,
    ) -> Result<Self, E> {
        self.replica = Some(Box::new(start(&mut self.service)?));
        self.standing = Standing::Follows(None);
        Ok(self)
    }

    /// The log.
    #[must_use]
    pub fn log(&self) -> Option<&Log> {
        self.log.as_ref()
    }

    /// Returns what ends the server.
    #[must_use]
    pub fn stop(&self) -> Arc<Stop> {
        Arc::clone(&self.stop)
    }

    /// Serves until it is stopped.
    ///
    /// # Errors
    ///
    /// If the kernel refuses to wait, or to write the log.
    pub fn run(mut self) -> Result<(), ServerError> {
        let mut events = Events::with_capacity(LOOP_EVENTS_MAX);
        // From now on listeners tell when there is more.
        self.accept();
        while !self.stop.is_stopped.load(Ordering::Acquire) {
            let (timeout, waiting) = (self.timeout(), (&mut self.poll, &mut events));
            self.polled.wait(waiting, timeout, &mut self.served, &mut self.ready)?;
            for event in &events {
                self.take(event);
            }
            self.accept();
            self.follow()?;
            self.turn()?;
        }
        Ok(self.commit(false)?)
    }

    fn take(&mut self, event: &Event) {
        let key = event.token().0;
        if key == WAKEUP {
            for (at, listener) in self.listeners.iter().enumerate() {
                if matches!(listener, Listener::Fabric(_)) {
                    self.accepting.insert(WAKEUP + 1 + at);
                }
            }
        } else if key <= self.listeners.len() {
            self.accepting.insert(key);
        } else if let Some(served) = self.served.get_mut(&key) {
            if served.is_by_fabric() {
                served.take_event();
                self.polled.insert(key);
                if served.look() {
                    self.ready.insert(key);
                }
                return;
            }
            served.is_closing |= event.is_read_closed() || event.is_error();
            served.is_readable |= event.is_readable() || served.is_closing;
            self.ready.insert(key);
        }
    }

    fn now(&self) -> Now {
        let day = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let ms = u64::try_from(day.as_millis()).unwrap_or(u64::MAX);
        Now { clock: self.start.elapsed(), ms }
    }

    fn timeout(&mut self) -> Option<Duration> {
        if !self.ready.is_empty() || self.service.effects_len() != 0 {
            return Some(Duration::ZERO);
        }
        let pause = (!self.accepting.is_empty()).then_some(ACCEPT_PAUSE);
        let deadline = self.service.space().next_deadline();
        let deadline = deadline.into_iter().chain(self.unproven.deadline()).min();
        let left = deadline.map(|deadline| deadline.saturating_sub(self.start.elapsed()));
        pause.into_iter().chain(left).min()
    }

    fn accept(&mut self) {
        for at in std::mem::take(&mut self.accepting) {
            if self.accept_at(at) {
                self.accepting.insert(at);
            }
        }
    }

    /// Accepts the connections of a listener. Returns whether it has to be tried again.
    fn accept_at(&mut self, at: usize) -> bool {
        loop {
            let has_fabric_place = self.fabric_connections < FABRIC_CONNECTIONS_MAX
                && self.served.len() < self.connections;
            match self.listeners[at - WAKEUP - 1].accept(has_fabric_place) {
                // One connection too many is closed at once.
                Ok(_) if self.served.len() >= self.connections => {}
                Ok(socket) => self.begin(socket),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                // Too few descriptors: the listener is tried again after a pause.
                Err(_) => return true,
            }
        }
    }

    /// Begins to serve a connection.
    fn begin(&mut self, mut socket: Socket) {
        self.last_key += 1;
        let key = self.last_key;
        if socket.register(self.poll.registry(), Token(key)).is_err() {
            return;
        }
        let served = Served::new(socket, self.guard.clone());
        self.fabric_connections += usize::from(served.is_by_fabric());
        let is_admitted = served.is_admitted();
        self.served.insert(key, served);
        self.ready.insert(key);
        if !is_admitted {
            let now = self.now();
            self.unproven.insert(key, now.clock);
            self.end_unproven(now);
        }
    }

    /// Ends connections of clients that have not shown in time that they may use the server.
    fn end_unproven(&mut self, now: Now) {
        while let Some(key) = self.unproven.next(now.clock) {
            self.close(now, key);
        }
    }

    /// Serves the connections that have something to do. One write to disk is for all of them, and
    /// nothing is sent before it.
    fn turn(&mut self) -> Result<(), LogError> {
        let now = self.now();
        self.service.space().expire(now);
        self.end_unproven(now);
        let mut touched = std::mem::take(&mut self.ready);
        for key in &touched {
            if self.service.effects_len() >= BATCH_LEN_MAX {
                self.ready.insert(*key);
                continue;
            }
            if let Some(served) = self.served.get_mut(key) {
                served.receive();
            }
            self.handle(now, *key);
        }
        self.answer(now, &mut touched);
        let is_answering =
            touched.iter().any(|key| self.served.get(key).is_some_and(Served::tells));
        self.commit(is_answering)?;
        self.publish(&touched);
        for key in &touched {
            let Some(served) = self.served.get_mut(key) else { continue };
            let can_go_on = served.send();
            if served.is_admitted() {
                self.unproven.remove(*key);
            }
            if served.is_by_fabric() {
                self.polled.insert(*key);
            }
            if served.is_gone {
                self.close(now, *key);
            } else if can_go_on || served.may_receive() {
                self.ready.insert(*key);
            }
        }
        // What closed connections have left.
        let mut more = BTreeSet::new();
        self.answer(now, &mut more);
        self.ready.extend(more);
        Ok(())
    }

    /// Takes up what the servers have agreed on, if there are several.
    fn follow(&mut self) -> Result<(), LogError> {
        let Some(replica) = &mut self.replica else { return Ok(()) };
        let before = std::mem::replace(&mut self.standing, replica.follow(&mut self.service)?);
        match (before, &self.standing) {
            (Standing::Leads, Standing::Follows(_)) => self.drop_clients(),
            (Standing::Follows(_), Standing::Leads) => self.service.arrive(self.now()),
            _ => {}
        }
        Ok(())
    }

    /// Ends all connections: what their clients have seen and wait for is of another leader.
    fn drop_clients(&mut self) {
        for (key, mut served) in std::mem::take(&mut self.served) {
            served.fail(Refusal::Elsewhere);
            if served.is_by_fabric() {
                served.deregister(self.poll.registry());
                self.polled.remove(key);
            }
        }
        self.fabric_connections = 0;
        self.unproven = Unproven::default();
        self.tickets.clear();
        self.clients.clear();
        self.ready.clear();
    }

    /// Writes what operations have changed to disk, or has the other servers do so.
    fn commit(&mut self, is_answering: bool) -> Result<(), LogError> {
        if let Some(replica) = &mut self.replica {
            let is_leader = self.standing == Standing::Leads;
            if is_leader && !replica.commit(&mut self.service, is_answering)? {
                self.standing = Standing::Follows(None);
                self.drop_clients();
            }
            return Ok(());
        }
        let Some(log) = &mut self.log else { return Ok(()) };
        let committed = log.commit(&mut self.service);
        if committed.is_err() {
            self.served.values_mut().for_each(|served| served.fail(Refusal::Log));
        }
        committed
    }

    /// Writes the tails that have changed before any answer says so, and tells clients where they
    /// can read one. All that they show is on disk. A server of several tells no places: a client
    /// would not notice that another one leads. Neither does one with users that may not read all
    /// elements: the memory of all tails is one registration.
    fn publish(&mut self, touched: &BTreeSet<usize>) {
        let space = self.service.space();
        if let Some(tails) = &mut self.tails {
            tails.publish(space);
        }
        for key in touched {
            let Some(served) = self.served.get_mut(key) else { continue };
            while let Some((number, name)) = served.next_tail() {
                let may_have = self.replica.is_none() && self.guard.is_for_all();
                if self.tails.is_none() && may_have && served.is_by_fabric() {
                    let fabric = |listener: &Listener| match listener {
                        Listener::Fabric(listener) => Tails::new(listener.fabric()).ok(),
                        Listener::Tcp(_) | Listener::Tls(..) | Listener::Unix(..) => None,
                    };
                    self.tails = self.listeners.iter().find_map(fabric);
                }
                let tails = self.tails.as_mut().filter(|_| served.is_by_fabric());
                let place = tails.and_then(|tails| tails.place_of(&name, space));
                served.answer_tail(number, place);
            }
        }
    }

    fn handle(&mut self, now: Now, key: usize) {
        let Some(served) = self.served.get_mut(&key) else { return };
        if let Standing::Follows(leader) = &self.standing {
            served.refuse(now, &mut self.service, &self.roster, leader.as_deref());
            return;
        }
        for ticket in served.handle(now, &mut self.service, &self.roster) {
            self.tickets.insert(ticket, key);
        }
        let client = served.client();
        served.entered = client.or(served.entered);
        if let Some(id) = client
            && let Some(earlier) = self.clients.insert(id, key).filter(|earlier| *earlier != key)
            && let Some(earlier_served) = self.served.get_mut(&earlier)
        {
            earlier_served.replaced();
            self.ready.insert(earlier);
        }
    }

    /// Hands out the outcomes of operations that have waited.
    fn answer(&mut self, now: Now, touched: &mut BTreeSet<usize>) {
        while let Some((ticket, outcome)) = self.service.poll() {
            let Some(key) = self.tickets.remove(&ticket) else { continue };
            if let Some(served) = self.served.get_mut(&key) {
                served.answer(ticket, outcome);
                touched.insert(key);
                // It may go on with what has arrived meanwhile.
                self.handle(now, key);
            }
        }
    }

    fn close(&mut self, now: Now, key: usize) {
        let Some(mut served) = self.served.remove(&key) else { return };
        self.unproven.remove(key);
        if served.is_by_fabric() {
            served.deregister(self.poll.registry());
            self.polled.remove(key);
            self.fabric_connections -= 1;
        }
        if let Some(id) = served.entered.filter(|id| self.clients.get(id) == Some(&key)) {
            self.clients.remove(&id);
        }
        served.leave(now, &mut self.service);
    }
}
