//! The background thread that connects queue pairs.
//!
//! The TCP connector from port P listens on RDMA port P; the TCP acceptor dials there. So the
//! dialling process is the one that uses the accepted socket, whichever of several preforked
//! processes that is, and a peer without Weft refuses. A peer that has refused is not asked again
//! for a while.
//!
//! Any user of either host may listen and dial there. So the acceptor dials only when it can prove
//! that it has the stream (see [`super::hello`]), and each end trusts the other only after such a
//! proof.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use weft_engine::cm::{Channel, Event, EventKind, Id, PortSpace, reject};
use weft_engine::pd::Pd;
use weft_engine::{Context, Errno, device};
use weft_stream::Role;
use weft_stream::remote::BYTES_MIN;
use weft_sys::calls;
use weft_sys::calls::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use weft_sys::calls::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use weft_sys::{Forkable, SignalLock, spawn_quiet};

use super::hello::Hello;
use super::lingering::Lingering;
use super::wire::{Made, Maker, RemoteEnd};

/// How long a connector listens. Its acceptor dials when the program first uses the socket.
const LISTEN: Duration = Duration::from_secs(5);
/// How long an attempt to dial may take.
const DIAL: Duration = Duration::from_secs(2);
/// Pauses before dialling again: the connector may not listen yet.
const PAUSES: [Duration; 3] =
    [Duration::from_millis(2), Duration::from_millis(20), Duration::from_millis(200)];
/// Shortest and longest interval between checks whether enough bytes have moved for a proof.
const TOO_EARLY: [Duration; 2] = [Duration::from_micros(500), Duration::from_millis(50)];
/// How long a host that has not answered is not asked again.
const UNREACHABLE_TIME: Duration = Duration::from_secs(30);

/// How often lingering connections are checked.
const LINGER_SLEEP: Duration = Duration::from_millis(1);

/// A connection that wants a queue pair.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) remote: Weak<RemoteEnd>,
    pub(super) role: Role,
    /// The addresses of the connector and of the acceptor.
    pub(super) ends: [SocketAddr; 2],
}

#[derive(Debug)]
enum Command {
    Connect(Wanted),
    Forget(Arc<Id>),
    Linger(Lingering),
    Answer(Weak<RemoteEnd>),
}

#[derive(Debug)]
struct Broker {
    commands: SignalLock<Vec<Command>>,
    wake: OwnedFd,
}

static BROKER: Forkable<Option<Arc<Broker>>> = Forkable::new(|| Broker::start().ok());

/// Requests a queue pair, in the background.
pub(super) fn want(wanted: Wanted) {
    match BROKER.get() {
        Some(broker) => broker.tell(Command::Connect(wanted)),
        None => give_up(&wanted),
    }
}

/// Waits in the background until everything that was sent has arrived.
pub(super) fn linger(lingering: Lingering) {
    if let Some(broker) = BROKER.get() {
        broker.tell(Command::Linger(lingering));
    }
}

/// The broker of the process, or of a forked child.
#[derive(Debug)]
struct Background;

impl Maker for Background {
    fn answer(&self, remote: &Weak<RemoteEnd>) {
        if let Some(broker) = BROKER.get() {
            broker.tell(Command::Answer(Weak::clone(remote)));
        }
    }

    fn forget(&self, id: &Arc<Id>) {
        if let Some(broker) = BROKER.get() {
            broker.tell(Command::Forget(Arc::clone(id)));
        }
    }
}

fn name(id: &Arc<Id>) -> usize {
    Arc::as_ptr(id) as usize
}

fn give_up(wanted: &Wanted) {
    if let Some(remote) = wanted.remote.upgrade() {
        remote.give_up();
    }
}

impl Broker {
    fn start() -> Result<Arc<Self>, Errno> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let broker = Arc::new(Self { commands: SignalLock::new(Vec::new()), wake });
        let channel = Channel::new()?;
        fcntl_setfl(&channel, fcntl_getfl(&channel)? | OFlags::NONBLOCK)?;
        let worker = Worker {
            broker: Arc::clone(&broker),
            channel,
            attempts: HashMap::new(),
            again: Vec::new(),
            early: Vec::new(),
            unreachable: HashMap::new(),
            domains: Vec::new(),
            lingering: Vec::new(),
        };
        spawn_quiet("weft-sockets", move || worker.run())?;
        Ok(broker)
    }

    fn tell(&self, command: Command) {
        self.commands.lock().push(command);
        // A full counter wakes the thread, too.
        let _ = calls::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

/// The state of an attempt.
#[derive(Debug)]
enum State {
    /// Listens for the acceptor.
    Listens,
    /// Connecting, with the peer's proved hello if the peer began, or with this end's own. The
    /// window outlives the queue pair: fields are dropped in this order.
    Joins(Box<Made>, Hello, Arc<RemoteEnd>),
    /// The connection's end has the queue pair.
    Joined,
}

#[derive(Debug)]
struct Attempt {
    id: Arc<Id>,
    wanted: Wanted,
    state: State,
    tries: usize,
    due: Option<Instant>,
}

/// An acceptor that cannot yet prove that it has the stream.
struct Early {
    wanted: Wanted,
    due: Instant,
    pause: Duration,
    end: Instant,
}

struct Worker {
    broker: Arc<Broker>,
    channel: Arc<Channel>,
    attempts: HashMap<usize, Attempt>,
    /// Attempts to repeat: when, for which connection, and how often it has been tried.
    again: Vec<(Instant, Wanted, usize)>,
    /// Acceptors whose streams have moved too few bytes for a proof.
    early: Vec<Early>,
    /// Hosts that have not answered, and until when they are not asked.
    unreachable: HashMap<IpAddr, Instant>,
    domains: Vec<Arc<Pd>>,
    /// Connections that the program has closed, and whose data still has to be delivered.
    lingering: Vec<Lingering>,
}

impl Worker {
    fn run(mut self) {
        loop {
            let commands = std::mem::take(&mut *self.broker.commands.lock());
            for command in commands {
                match command {
                    Command::Connect(wanted) => {
                        let now = Instant::now();
                        let [pause, _] = TOO_EARLY;
                        let early = Early { wanted, due: now, pause, end: now + LISTEN };
                        self.begin_in_time(early);
                    }
                    Command::Forget(id) => drop(self.attempts.remove(&name(&id))),
                    Command::Linger(lingering) => self.lingering.push(lingering),
                    Command::Answer(remote) => {
                        if let Some(remote) = remote.upgrade() {
                            remote.answer_leave();
                        }
                    }
                }
            }
            while let Ok(event) = self.channel.next_event(|_| ()) {
                self.happened(event);
            }
            self.look_at_clock();
            self.lingering.retain_mut(|lingering| !lingering.is_over());
            self.sleep();
        }
    }

    fn sleep(&self) {
        let dues = self.attempts.values().filter_map(|attempt| attempt.due);
        let dues = dues.chain(self.early.iter().map(|early| early.due));
        let next = dues.chain(self.again.iter().map(|(due, ..)| *due)).min();
        let left = next.map(|due| due.saturating_duration_since(Instant::now()));
        let sleep_time = (!self.lingering.is_empty()).then_some(LINGER_SLEEP);
        let left = left.into_iter().chain(sleep_time).min();
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut set = [
            PollFd::from_borrowed_fd(self.channel.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(self.broker.wake.as_fd(), PollFlags::IN),
        ];
        let _ = poll(&mut set, left.as_ref());
        let _ = calls::io::read(&self.broker.wake, &mut [0; 8]);
    }

    /// Begins an attempt: a connector listens at once, an acceptor dials when it can prove that it
    /// has the stream.
    fn begin_in_time(&mut self, early: Early) {
        let Some(remote) = early.wanted.remote.upgrade() else { return };
        let is_early = early.wanted.role == Role::Acceptor
            && remote.moved(Role::Acceptor).is_some_and(|moved| moved[0] + moved[1] < BYTES_MIN);
        drop(remote);
        let now = Instant::now();
        if !is_early {
            self.begin(early.wanted, 0);
        } else if now >= early.end {
            give_up(&early.wanted);
        } else {
            let pause = (2 * early.pause).min(TOO_EARLY[1]);
            self.early.push(Early { due: now + early.pause, pause, ..early });
        }
    }

    fn begin(&mut self, wanted: Wanted, tries: usize) {
        let peer = wanted.peer().ip();
        let now = Instant::now();
        if self.unreachable.get(&peer).is_some_and(|&until| now < until) {
            return give_up(&wanted);
        }
        let begun = match wanted.role {
            Role::Connector => self.listen(&wanted),
            Role::Acceptor => self.dial(&wanted),
        };
        let Ok((id, state)) = begun else { return give_up(&wanted) };
        let due = now + if wanted.role == Role::Connector { LISTEN } else { DIAL };
        self.attempts.insert(name(&id), Attempt { id, wanted, state, tries, due: Some(due) });
    }

    fn listen(&self, wanted: &Wanted) -> Result<(Arc<Id>, State), Errno> {
        let id = Id::new(&self.channel, PortSpace::Connected);
        let listening = id.bind(wanted.ends[0]).and_then(|()| id.listen(1));
        listening.inspect_err(|_| id.destroy())?;
        Ok((id, State::Listens))
    }

    fn dial(&mut self, wanted: &Wanted) -> Result<(Arc<Id>, State), Errno> {
        let remote = wanted.remote.upgrade().filter(|remote| !remote.is_off());
        let remote = remote.ok_or(Errno::NOTCONN)?;
        let [connector, acceptor] = wanted.ends;
        let domain = self.domain(acceptor.ip())?;
        let id = Id::new(&self.channel, PortSpace::Connected);
        let mut source = acceptor;
        source.set_port(0);
        let resolved =
            id.resolve_address(Some(source), connector).and_then(|()| id.resolve_route());
        resolved.inspect_err(|_| id.destroy())?;
        let made = Made::new(&id, &domain, &remote, &Background).inspect_err(|_| id.destroy())?;
        let moved = remote.moved(Role::Acceptor).unwrap_or([0, 0]);
        let hello = made.hello(wanted.ends, remote.window(), moved);
        let hello = hello.proved(&remote, Role::Acceptor, None).ok_or(Errno::ACCESS);
        let hello = hello.inspect_err(|_| id.destroy())?;
        made.connect(&hello)?;
        Ok((id, State::Joins(Box::new(made), hello, remote)))
    }

    /// Returns the protection domain of the device that has a local address.
    fn domain(&mut self, address: IpAddr) -> Result<Arc<Pd>, Errno> {
        let address = address.to_canonical();
        if let Some(known) = self.domains.iter().find(|pd| pd.context().device().owns(address)) {
            return Ok(Arc::clone(known));
        }
        let devices = device::list()?;
        let device = devices.iter().find(|device| device.owns(address)).ok_or(Errno::NODEV)?;
        let pd = Pd::new(&Context::open(device)?);
        self.domains.push(Arc::clone(&pd));
        Ok(pd)
    }

    fn happened(&mut self, event: Event) {
        match event.kind {
            EventKind::ConnectRequest => self.answer(&event),
            EventKind::Established => self.established(&event),
            EventKind::Disconnected => self.disconnected(&event),
            EventKind::Rejected | EventKind::Unreachable | EventKind::ConnectError => {
                let is_refused = event.status == reject::CONSUMER_DEFINED;
                self.failed(name(&event.id), is_refused);
            }
            _ => {}
        }
    }

    fn answer(&mut self, event: &Event) {
        if self.requested(event).is_none() {
            let _ = event.id.reject(&[]);
            event.id.destroy();
        }
    }

    /// Handles a connection request. `None`: it does not come from the acceptor of this connection.
    fn requested(&mut self, event: &Event) -> Option<()> {
        let listener = self.attempts.get(&name(event.listener.as_ref()?))?;
        let wanted = listener.wanted.clone();
        let hello = Hello::parse(&event.param.private_data)?;
        let from = event.id.peer()?.ip().to_canonical();
        if !hello.is_of(&wanted.ends) || from != wanted.ends[1].ip().to_canonical() {
            return None;
        }
        let remote = wanted.remote.upgrade().filter(|remote| !remote.is_off())?;
        if !hello.is_proved(&remote, Role::Acceptor, None) {
            // Or this end's program has not read that many bytes yet: the acceptor dials again.
            return None;
        }
        let domain = self.domain(event.id.local()?.ip()).ok()?;
        let made = Made::new(&event.id, &domain, &remote, &Background).ok()?;
        let answer = made.hello(wanted.ends, remote.window(), hello.moved);
        made.accept(&answer.proved(&remote, Role::Connector, Some(&hello))?).ok()?;
        let attempt = Attempt {
            id: Arc::clone(&event.id),
            wanted,
            state: State::Joins(Box::new(made), hello, remote),
            tries: PAUSES.len(),
            due: Some(Instant::now() + DIAL),
        };
        self.attempts.insert(name(&event.id), attempt);
        // Each connection has only one acceptor.
        if let Some(listener) = self.attempts.remove(&name(event.listener.as_ref()?)) {
            listener.id.destroy();
        }
        Some(())
    }

    fn established(&mut self, event: &Event) {
        let name = name(&event.id);
        let Some(attempt) = self.attempts.get_mut(&name) else { return };
        let State::Joins(made, known, remote) =
            std::mem::replace(&mut attempt.state, State::Joined)
        else {
            return;
        };
        attempt.due = None;
        let received = match attempt.wanted.role {
            Role::Connector => Some(known), // Its proof was checked before the answer.
            Role::Acceptor => Hello::parse(&event.param.private_data).filter(|answer| {
                answer.moved == known.moved
                    && answer.is_proved(&remote, Role::Connector, Some(&known))
            }),
        };
        let peer = received.filter(|hello| hello.is_of(&attempt.wanted.ends));
        // Otherwise the program has closed the connection meanwhile, or has it stay on TCP. The end
        // of the queue pair tells the peer.
        let is_wanted = Arc::strong_count(&remote) > 1 && !remote.is_off();
        match peer.filter(|_| is_wanted) {
            Some(peer) => remote.begin(made.connected(&peer, remote.window())),
            None => {
                drop(made);
                remote.give_up();
                self.attempts.remove(&name);
            }
        }
    }

    fn disconnected(&self, event: &Event) {
        let _ = event.id.disconnect();
        let joined = self.attempts.get(&name(&event.id));
        if let Some(remote) = joined.and_then(|attempt| attempt.wanted.remote.upgrade()) {
            remote.wakeup_fd().ring(); // Nothing else may wake the sleepers.
        }
    }

    /// Handles a failed attempt. `is_refused`: the peer has not accepted the proof. Its program may
    /// not have read that many bytes of the stream yet, so this says nothing against the host.
    fn failed(&mut self, name: usize, is_refused: bool) {
        let Some(attempt) = self.attempts.remove(&name) else { return };
        match (attempt.wanted.role, PAUSES.get(attempt.tries)) {
            (Role::Acceptor, Some(&pause)) if matches!(attempt.state, State::Joins(..)) => {
                self.again.push((Instant::now() + pause, attempt.wanted, attempt.tries + 1));
            }
            (Role::Acceptor, _) if !is_refused => self.note_unreachable(&attempt.wanted),
            (Role::Acceptor, _) => give_up(&attempt.wanted),
            (Role::Connector, _) => give_up(&attempt.wanted),
        }
    }

    /// Records that the peer's host does not answer.
    fn note_unreachable(&mut self, wanted: &Wanted) {
        let now = Instant::now();
        self.unreachable.retain(|_, until| now < *until);
        self.unreachable.insert(wanted.peer().ip(), now + UNREACHABLE_TIME);
        give_up(wanted);
    }

    fn look_at_clock(&mut self) {
        let now = Instant::now();
        let late =
            self.attempts.iter().filter(|(_, attempt)| attempt.due.is_some_and(|due| due <= now));
        let late: Vec<usize> = late.map(|(&name, _)| name).collect();
        for name in late {
            let Some(attempt) = self.attempts.remove(&name) else { continue };
            attempt.id.destroy();
            let is_off = attempt.wanted.remote.upgrade().is_some_and(|remote| remote.is_off());
            let is_listening = matches!(attempt.state, State::Listens);
            if !is_off && (is_listening || attempt.wanted.role == Role::Acceptor) {
                self.note_unreachable(&attempt.wanted);
            } else {
                give_up(&attempt.wanted);
            }
        }
        let early: Vec<_> = self.early.extract_if(.., |early| early.due <= now).collect();
        early.into_iter().for_each(|early| self.begin_in_time(early));
        let (due, later) = self.again.drain(..).partition(|(due, ..)| *due <= now);
        self.again = later;
        let due: Vec<_> = due;
        for (_, wanted, tries) in due {
            self.begin(wanted, tries);
        }
    }
}

impl Wanted {
    fn peer(&self) -> SocketAddr {
        match self.role {
            Role::Connector => self.ends[1],
            Role::Acceptor => self.ends[0],
        }
    }
}
