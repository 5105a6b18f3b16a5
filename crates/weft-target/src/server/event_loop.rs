//! An event loop: a thread that waits for the sockets of its connections, and serves them.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send, sockopt};

use super::event::{Event, Observer};
use super::waiting::Waiting;
use super::wakeup::Wakeup;
use crate::limits::{
    KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES_MAX, LOGIN_SWEEP_INTERVAL,
    LOOP_EVENTS_MAX, SERVE_ROUNDS_MAX, UNACKNOWLEDGED_TIME_MAX,
};
use crate::session::{Addresses, Closed, Connection, Done, Portal, Wake};
use weft_sys::{HostCount, lock};

/// The key of the wakeup.
const WAKEUP: u64 = 0;

/// The part of a loop that other threads use.
pub(super) struct Handle {
    wakeup: Wakeup,
    added: Mutex<Vec<Accepted>>,
    /// Connections whose session may have been closed by another one.
    woken: Mutex<Vec<u64>>,
    /// Results of jobs, with their connections.
    done: Mutex<Vec<(u64, Done)>>,
    connections: AtomicUsize,
    /// Seconds that initiators have to log out, once the loop is to end.
    drain: Mutex<Option<u16>>,
    is_stopped: AtomicBool,
}

/// An accepted connection.
pub(super) struct Accepted {
    pub(super) socket: TcpStream,
    pub(super) from: SocketAddr,
    /// Its place among those that have not logged in.
    pub(super) permit: HostCount,
}

impl Handle {
    /// How many connections the loop has.
    pub(super) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Gives the loop a connection.
    pub(super) fn add(&self, accepted: Accepted) {
        self.connections.fetch_add(1, Ordering::Relaxed);
        lock(&self.added).push(accepted);
        self.wakeup.notify();
    }

    /// Asks all initiators to log out within this many seconds, and ends the loop when all have.
    pub(super) fn drain(&self, seconds: u16) {
        *lock(&self.drain) = Some(seconds);
        self.wakeup.notify();
    }

    /// Ends the loop with its connections.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        self.wakeup.notify();
    }

    fn complete(&self, key: u64, done: Done) {
        let is_first = {
            let mut all = lock(&self.done);
            all.push((key, done));
            all.len() == 1
        };
        // The first one has woken the loop.
        if is_first {
            self.wakeup.notify();
        }
    }

    fn wake(&self, key: u64) {
        lock(&self.woken).push(key);
        self.wakeup.notify();
    }
}

/// A loop.
pub(super) struct EventLoop {
    portal: Arc<Portal>,
    observer: Observer,
    handle: Arc<Handle>,
    epoll: OwnedFd,
    waiting: Waiting,
    served: HashMap<u64, Served>,
    /// Connections that have not logged in.
    logins: usize,
    last_key: u64,
    login_time: Duration,
    is_draining: bool,
}

/// A connection with its socket.
struct Served {
    socket: TcpStream,
    from: SocketAddr,
    connection: Connection,
    /// The events that epoll waits for.
    interest: EventFlags,
    since: Instant,
    /// `None` once the initiator has logged in.
    permit: Option<HostCount>,
}

impl EventLoop {
    /// Returns a loop without connections.
    pub(super) fn new(
        portal: Arc<Portal>,
        observer: Observer,
        login_time: Duration,
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wakeup = Wakeup::new()?;
        epoll::add(&epoll, &wakeup, EventData::new_u64(WAKEUP), EventFlags::IN)?;
        let handle = Arc::new(Handle {
            wakeup,
            added: Mutex::default(),
            woken: Mutex::default(),
            done: Mutex::default(),
            connections: AtomicUsize::new(0),
            drain: Mutex::default(),
            is_stopped: AtomicBool::new(false),
        });
        Ok(Self {
            portal,
            observer,
            handle,
            epoll,
            waiting: Waiting::new(),
            served: HashMap::new(),
            logins: 0,
            last_key: WAKEUP,
            login_time,
            is_draining: false,
        })
    }

    /// The part that other threads use.
    pub(super) fn handle(&self) -> Arc<Handle> {
        Arc::clone(&self.handle)
    }

    /// Serves until the handle stops it, or until all initiators have logged out after they were
    /// asked to.
    pub(super) fn run(mut self) {
        let mut events = Vec::with_capacity(LOOP_EVENTS_MAX);
        let mut next_sweep = Instant::now();
        while !self.handle.is_stopped.load(Ordering::Acquire) && !self.is_drained() {
            let has_logins = self.logins > 0;
            let timeout = has_logins.then(|| LOGIN_SWEEP_INTERVAL.try_into().ok()).flatten();
            if self.waiting.wait(&self.epoll, &mut events, timeout.as_ref()).is_err() {
                // The epoll instance and the buffer are valid.
                return;
            }
            for event in &events {
                match event.data.u64() {
                    WAKEUP => self.take_notifications(),
                    key => self.serve(key, event.flags),
                }
            }
            if has_logins && Instant::now() >= next_sweep {
                self.end_late_logins();
                next_sweep = Instant::now() + LOGIN_SWEEP_INTERVAL;
            }
        }
        let keys: Vec<u64> = self.served.keys().copied().collect();
        keys.into_iter().for_each(|key| self.end(key, Some(Closed::Stopped)));
    }

    fn is_drained(&self) -> bool {
        self.is_draining && self.served.is_empty()
    }

    fn take_notifications(&mut self) {
        self.handle.wakeup.clear();
        let added = std::mem::take(&mut *lock(&self.handle.added));
        for accepted in added {
            if let Err(error) = self.add(accepted) {
                self.handle.connections.fetch_sub(1, Ordering::Relaxed);
                (self.observer)(Event::NotAccepted(error));
            }
        }
        let mut woken = std::mem::take(&mut *lock(&self.handle.woken));
        let done = std::mem::take(&mut *lock(&self.handle.done));
        for (key, done) in done {
            // The connection may have ended meanwhile.
            let Some(served) = self.served.get_mut(&key) else { continue };
            served.connection.complete(done);
            if !woken.contains(&key) {
                woken.push(key);
            }
        }
        for key in woken {
            self.serve(key, EventFlags::empty());
        }
        let drain = lock(&self.handle.drain).take();
        if let Some(seconds) = drain {
            self.drain(seconds);
        }
    }

    fn drain(&mut self, seconds: u16) {
        self.is_draining = true;
        let keys: Vec<u64> = self.served.keys().copied().collect();
        for key in keys {
            let Some(served) = self.served.get_mut(&key) else { continue };
            match served.connection.ask_to_log_out(seconds) {
                Ok(()) => self.serve(key, EventFlags::empty()),
                Err(closed) => self.end(key, Some(closed)),
            }
        }
    }

    fn add(&mut self, accepted: Accepted) -> io::Result<()> {
        let Accepted { socket, from, permit } = accepted;
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        end_when_gone(&socket)?;
        let local = socket.local_addr()?;
        self.last_key += 1;
        let key = self.last_key;
        let handle = Arc::clone(&self.handle);
        let wake = Wake::new(move || handle.wake(key));
        let addresses = Addresses { local, remote: from };
        let connection = Connection::new(Arc::clone(&self.portal), addresses, wake);
        let interest = EventFlags::IN;
        epoll::add(&self.epoll, &socket, EventData::new_u64(key), interest)?;
        let (since, permit) = (Instant::now(), Some(permit));
        let served = Served { socket, from, connection, interest, since, permit };
        self.served.insert(key, served);
        self.logins += 1;
        Ok(())
    }

    fn serve(&mut self, key: u64, flags: EventFlags) {
        let Some(served) = self.served.get_mut(&key) else { return };
        let had_permit = served.permit.is_some();
        let result = served.serve(flags);
        while let Some(job) = served.connection.next_job() {
            let handle = Arc::clone(&self.handle);
            job.start(move |done| handle.complete(key, done));
        }
        self.logins -= usize::from(had_permit && served.permit.is_none());
        let progress = match result {
            Ok(progress) => progress,
            Err(closed) => return self.end(key, Some(closed)),
        };
        if progress == Progress::Gone {
            return self.end(key, None);
        }
        if let Err(error) = served.update_interest(&self.epoll, key) {
            (self.observer)(Event::NotAccepted(error));
            return self.end(key, None);
        }
        if progress == Progress::HasMore {
            // It goes on after the connections that are ready now.
            self.handle.wake(key);
        }
    }

    fn end(&mut self, key: u64, closed: Option<Closed>) {
        let Some(served) = self.served.remove(&key) else { return };
        self.handle.connections.fetch_sub(1, Ordering::Relaxed);
        self.logins -= usize::from(served.permit.is_some());
        let from = served.from;
        // The session ends before the socket does.
        drop(served.connection);
        drop(served.socket);
        (self.observer)(Event::Ended(from, closed));
    }

    fn end_late_logins(&mut self) {
        let time = self.login_time;
        let is_late = |served: &Served| served.permit.is_some() && served.since.elapsed() > time;
        let late: Vec<u64> =
            self.served.iter().filter(|(_, each)| is_late(each)).map(|(key, _)| *key).collect();
        for key in late {
            self.end(key, Some(Closed::Protocol("no login in time")));
        }
    }
}

/// Lets the kernel end the connection of an initiator that is gone without a word: its session
/// would stay for ever, and count.
fn end_when_gone(socket: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES_MAX)?;
    let time = u32::try_from(UNACKNOWLEDGED_TIME_MAX.as_millis()).unwrap_or(u32::MAX);
    Ok(sockopt::set_tcp_user_timeout(socket, time)?)
}

/// How far a connection has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// It waits for its socket.
    Waits,
    /// It can go on at once, but others have their turn first.
    HasMore,
    /// The initiator is gone.
    Gone,
}

impl Served {
    /// Receives, handles and sends, a few times at most: an initiator that sends as fast as it is
    /// served must not keep the others waiting.
    fn serve(&mut self, flags: EventFlags) -> Result<Progress, Closed> {
        if flags.intersects(EventFlags::HUP | EventFlags::ERR) && !self.connection.wants_input() {
            // Nothing would be received that says so, and the event would come again at once.
            return Ok(Progress::Gone);
        }
        let may_read = flags.intersects(EventFlags::IN | EventFlags::HUP | EventFlags::ERR);
        let mut reads = may_read;
        for _ in 0..SERVE_ROUNDS_MAX {
            let mut was_full = false;
            if reads && self.connection.wants_input() {
                let space = self.connection.space();
                let room = space.len();
                match recv(&self.socket, space, RecvFlags::empty()) {
                    Ok((0, _)) => return Ok(Progress::Gone),
                    Ok((len, _)) => {
                        self.connection.received(len);
                        was_full = len == room;
                    }
                    Err(Errno::AGAIN | Errno::INTR) => {}
                    Err(_) => return Ok(Progress::Gone),
                }
                reads = was_full;
            }
            let has_more = self.connection.handle()?;
            // The place is free before the initiator learns that it is logged in.
            if self.connection.is_logged_in() {
                self.permit = None;
            }
            match self.send() {
                Some(true) => {}
                Some(false) => return Ok(Progress::Waits),
                None => return Ok(Progress::Gone),
            }
            if !was_full && !has_more {
                return Ok(Progress::Waits);
            }
        }
        Ok(Progress::HasMore)
    }

    /// Sends the output. `Some(false)` if the socket is full, `None` if the initiator is gone.
    fn send(&mut self) -> Option<bool> {
        while !self.connection.output().is_empty() {
            match send(&self.socket, self.connection.output(), SendFlags::NOSIGNAL) {
                Ok(len) => self.connection.sent(len),
                Err(Errno::AGAIN) => return Some(false),
                Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        Some(true)
    }

    /// Waits for what is needed now.
    fn update_interest(&mut self, epoll: &OwnedFd, key: u64) -> io::Result<()> {
        let mut wanted = EventFlags::empty();
        if self.connection.wants_input() {
            wanted |= EventFlags::IN;
        }
        if !self.connection.output().is_empty() {
            wanted |= EventFlags::OUT;
        }
        if wanted != self.interest {
            epoll::modify(epoll, &self.socket, EventData::new_u64(key), wanted)?;
            self.interest = wanted;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Write as _};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::security::Access;
    use crate::server::RANDOM;

    #[test]
    fn an_initiator_that_has_sent_much_does_not_keep_others_waiting() {
        let (mut initiator, socket) = UnixStream::pair().unwrap();
        initiator.set_nonblocking(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        let portal = Arc::new(Portal::new(Vec::new(), Access::default(), RANDOM));
        let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let addresses = Addresses { local: anywhere, remote: anywhere };
        let mut served = Served {
            socket: OwnedFd::from(socket).into(),
            from: anywhere,
            connection: Connection::new(portal, addresses, Wake::new(|| ())),
            interest: EventFlags::IN,
            since: Instant::now(),
            permit: None,
        };
        let text = b"InitiatorName=iqn.a\0SessionType=Discovery\0\0\0\0\0\0\0";
        let mut login = vec![0; 48];
        (login[0], login[1], login[7]) = (0x43, 0x87, 42);
        login.extend_from_slice(&text[..44]);
        initiator.write_all(&login).unwrap();
        assert_eq!(served.serve(EventFlags::IN).unwrap(), Progress::Waits);
        assert!(served.connection.is_logged_in());
        // Pings that want no answer.
        let mut ping = vec![0; 48 + 4_096];
        (ping[0], ping[1], ping[6]) = (0x40, 0x80, 16);
        ping[16..20].fill(0xff);
        let flood = ping.repeat(64);
        let mut sent = 0;
        loop {
            match initiator.write(&flood[sent % flood.len()..]) {
                Ok(len) => sent += len,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => panic!("{error}"),
            }
        }
        let mut turns = 1;
        while served.serve(EventFlags::IN).unwrap() == Progress::HasMore {
            turns += 1;
        }
        let most = SERVE_ROUNDS_MAX * crate::limits::INPUT_BUFFER_LEN;
        assert!(turns > 1 && turns >= sent / most, "{sent} bytes in {turns} turns");
        assert_eq!(rustix::io::ioctl_fionread(&served.socket).unwrap(), 0);
    }
}
