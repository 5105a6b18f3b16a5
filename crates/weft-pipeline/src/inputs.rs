//! The streams that a copy reads: one connection for each copy of each producer.
//!
//! The thread that waits for a buffer reads the connections itself, so that a buffer needs no
//! handover. While the filter computes, a helper thread reads ahead, up to the window of each
//! connection: buffers that are larger than the kernel's then arrive, too, and a slow copy does
//! not block its producer in the middle of a buffer. The helper wakes only while the filter is in
//! use.

use std::io::{ErrorKind, Write as _};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;
use weft_transfer::blocks::Pool;

use crate::counters::Counters;
use crate::failure::Failure;
use crate::frames::{Buffer, FrameReader, Step};
use crate::limits::{READ_AHEAD_IDLE, READ_AHEAD_TICK};
use crate::merge::{Merge, Taken};
use crate::wire::Incoming;

/// Connections of which one wait learns. The next wait has the others.
const EVENTS_AT_ONCE: usize = 16;

/// The form of the streams of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) units: u32,
    pub(crate) window: u32,
    pub(crate) buffer_len: usize,
}

struct Connection {
    socket: TcpStream,
    /// The producer, for errors.
    peer: String,
    reader: FrameReader,
    incoming: Incoming,
}

struct State {
    connections: Vec<Connection>,
    merge: Merge<Buffer>,
    pool: Pool,
    failure: Option<Failure>,
    /// The producer of the buffer that the filter processes, until that is acknowledged.
    unacknowledged: Option<usize>,
}

struct SharedInputs {
    state: Mutex<State>,
    epoll: OwnedFd,
    /// Counts the begins and ends of waits: odd while the filter waits.
    turns: AtomicU64,
    helper_sleeps: AtomicBool,
    is_closed: AtomicBool,
    counters: Arc<Counters>,
}

/// The inputs of a copy.
pub(crate) struct Inputs {
    shared: Arc<SharedInputs>,
    /// Wakes the helper.
    wake: SyncSender<()>,
}

impl Inputs {
    /// Takes connections with the names of their producers.
    pub(crate) fn new(
        connections: Vec<(TcpStream, String)>,
        shape: Shape,
        counters: Arc<Counters>,
    ) -> Result<Self, Failure> {
        let Shape { units, window, buffer_len } = shape;
        let count = connections.len();
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(Failure::filter)?;
        for (index, (socket, peer)) in connections.iter().enumerate() {
            let data = EventData::new_u64(index as u64);
            let added = epoll::add(&epoll, socket, data, EventFlags::IN);
            socket.set_nonblocking(true).map_err(|error| Failure::lost(peer, error))?;
            added.map_err(Failure::filter)?;
        }
        // Besides those in the windows, the filter holds one buffer.
        let blocks = count * window as usize + 1;
        let pool = Pool::new(blocks, buffer_len).map_err(|error| {
            Failure::filter(format!(
                "no memory for {blocks} buffers of {buffer_len} bytes: {error}"
            ))
        })?;
        let connection = |(socket, peer)| Connection {
            socket,
            peer,
            reader: FrameReader::default(),
            // The limit of the length was checked when the description was read.
            incoming: Incoming::new(units, buffer_len as u32, window),
        };
        let state = State {
            connections: connections.into_iter().map(connection).collect(),
            merge: Merge::new(count, units, window as usize),
            pool,
            failure: None,
            unacknowledged: None,
        };
        let shared = Arc::new(SharedInputs {
            state: Mutex::new(state),
            epoll,
            turns: AtomicU64::new(0),
            helper_sleeps: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            counters,
        });
        let helped = Arc::clone(&shared);
        let (wake, wakeups) = sync_channel(1);
        let helper = thread::Builder::new().name("read ahead".into());
        helper.spawn(move || helped.read_ahead(&wakeups)).map_err(Failure::filter)?;
        Ok(Self { shared, wake })
    }

    /// Returns the next buffer of the current unit, or its end. Waits until there is one. The
    /// buffer is acknowledged when the filter asks for the next one, or a few milliseconds after it
    /// was returned: sending the acknowledgement takes as long as short work.
    pub(crate) fn next(&self) -> Result<Taken<Buffer>, Failure> {
        self.shared.turns.fetch_add(1, SeqCst);
        let result = self.shared.next();
        self.shared.turns.fetch_add(1, SeqCst);
        if self.shared.helper_sleeps.swap(false, SeqCst) {
            // A wakeup that has not been taken yet serves as well.
            let _ = self.wake.try_send(());
        }
        result
    }
}

impl Drop for Inputs {
    /// Closes the connections. The producers wait for that after the last unit.
    fn drop(&mut self) {
        self.shared.is_closed.store(true, SeqCst);
        self.shared.lock().connections.clear();
    }
}

impl SharedInputs {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic ends the run.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Result<Taken<Buffer>, Failure> {
        let mut state = self.lock();
        state.acknowledge()?;
        let mut since = None;
        let taken = loop {
            if let Some(failure) = state.failure.clone() {
                return Err(failure);
            }
            if let Some(taken) = state.merge.take() {
                break taken;
            }
            since.get_or_insert_with(Instant::now);
            let mut events = [MaybeUninit::uninit(); EVENTS_AT_ONCE];
            let events = wait(&self.epoll, &mut events, None)?;
            state.read(events, &self.epoll, &self.counters);
        };
        if let Some(since) = since {
            self.counters.waited_in(since.elapsed());
        }
        if let Taken::Item(producer, buffer) = &taken {
            self.counters.took(buffer.len());
            state.unacknowledged = Some(*producer);
        }
        Ok(taken)
    }

    /// The helper's thread: reads while the filter has computed for longer than an interval.
    fn read_ahead(&self, wakeups: &Receiver<()>) {
        let (mut last, mut idle) = (0, 0);
        while !self.is_closed.load(SeqCst) {
            thread::sleep(READ_AHEAD_TICK);
            let turns = self.turns.load(SeqCst);
            let waits = turns % 2 == 1;
            if turns != last {
                (last, idle) = (turns, 0);
            } else if waits && idle == READ_AHEAD_IDLE {
                self.helper_sleeps.store(true, SeqCst);
                // The filter may have begun to compute before it could see the flag.
                if self.turns.load(SeqCst) == turns && !self.is_closed.load(SeqCst) {
                    // An error means that the inputs are dropped.
                    let _ = wakeups.recv();
                }
                self.helper_sleeps.store(false, SeqCst);
                idle = 0;
            } else if waits {
                idle += 1;
            } else {
                let mut events = [MaybeUninit::uninit(); EVENTS_AT_ONCE];
                let events = wait(&self.epoll, &mut events, Some(READ_AHEAD_TICK));
                if let Ok(events) = events
                    && self.turns.load(SeqCst) == turns
                {
                    self.lock().read_ahead(events, &self.epoll, &self.counters);
                }
            }
        }
    }
}

impl State {
    /// Acknowledges the buffer that the filter processes, if it is not yet acknowledged.
    fn acknowledge(&mut self) -> Result<(), Failure> {
        match self.unacknowledged.take() {
            Some(producer) => self.connections[producer].acknowledge(),
            None => Ok(()),
        }
    }

    /// Does what can be done while the filter processes a buffer.
    fn read_ahead(&mut self, events: &[epoll::Event], epoll: &OwnedFd, counters: &Counters) {
        if let Err(failure) = self.acknowledge() {
            self.failure.get_or_insert(failure);
        }
        self.read(events, epoll, counters);
    }

    /// Reads all connections that have something, until they have nothing more.
    fn read(&mut self, events: &[epoll::Event], epoll: &OwnedFd, counters: &Counters) {
        for event in events {
            let index = event.data.u64() as usize;
            // Dropping the inputs removes the connections.
            let Some(connection) = self.connections.get_mut(index) else { continue };
            loop {
                let Connection { socket, peer, reader, incoming } = connection;
                match reader.step(incoming, &self.pool, &mut &*socket) {
                    Ok(Step::Buffer(buffer)) => self.merge.push(index, buffer),
                    Ok(Step::UnitEnded) => self.merge.push_end(index),
                    Ok(Step::Blocked) => break,
                    Ok(Step::Closed) if incoming.is_complete() => {
                        // Otherwise the descriptor would end each wait.
                        let _ = epoll::delete(epoll, socket);
                        break;
                    }
                    Ok(Step::Closed) => {
                        let why = "it was closed before the end of the last unit";
                        self.failure.get_or_insert_with(|| Failure::lost(peer, why));
                        let _ = epoll::delete(epoll, socket);
                        break;
                    }
                    Err(error) => {
                        self.failure.get_or_insert_with(|| Failure::lost(peer, error));
                        let _ = epoll::delete(epoll, socket);
                        break;
                    }
                }
            }
        }
        counters.queued(self.merge.len());
    }
}

impl Connection {
    fn acknowledge(&mut self) -> Result<(), Failure> {
        let ack = self.incoming.acknowledge().encode();
        loop {
            // The producer reads acknowledgements before it sends more buffers, so they fit into
            // the socket.
            match (&self.socket).write(&ack) {
                Ok(written) if written == ack.len() => return Ok(()),
                Ok(_) => return Err(Failure::lost(&self.peer, "it takes no acknowledgements")),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Failure::lost(&self.peer, error)),
            }
        }
    }
}

/// Waits until connections have something, or for `time`.
fn wait<'events>(
    epoll: &OwnedFd,
    events: &'events mut [MaybeUninit<epoll::Event>; EVENTS_AT_ONCE],
    time: Option<Duration>,
) -> Result<&'events [epoll::Event], Failure> {
    let time = time.map(|time| Timespec {
        tv_sec: time.as_secs() as i64,
        tv_nsec: time.subsec_nanos().into(),
    });
    match epoll::wait(epoll, events, time.as_ref()) {
        Ok((ready, _)) => Ok(ready),
        Err(Errno::INTR) => Ok(&[]),
        Err(error) => Err(Failure::filter(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;

    use super::*;
    use crate::wire::{HEADER_LEN, Header, Kind};

    /// Returns inputs with one connection, and the producer's end of it.
    fn inputs() -> (Inputs, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("a port");
        let producer = TcpStream::connect(address).expect("it listens");
        producer.set_read_timeout(Some(Duration::from_secs(240))).expect("a socket");
        let (consumer, _) = listener.accept().expect("a connection");
        let shape = Shape { units: 1, window: 4, buffer_len: 100 };
        let inputs = Inputs::new(vec![(consumer, "a".to_owned())], shape, Arc::default());
        (inputs.expect("inputs"), producer)
    }

    fn send(mut producer: &TcpStream, kind: Kind, bytes: &[u8]) {
        let header = Header { kind, unit: 0, len: bytes.len() as u32 };
        producer.write_all(&[&header.encode(), bytes].concat()).expect("room");
    }

    fn acknowledgement(mut producer: &TcpStream) {
        let mut bytes = [0; HEADER_LEN];
        producer.read_exact(&mut bytes).expect("an acknowledgement");
        assert_eq!(bytes, Header { kind: Kind::Ack, unit: 0, len: 0 }.encode());
    }

    #[test]
    fn a_buffer_is_acknowledged_while_the_filter_still_processes_it() {
        let (inputs, producer) = inputs();
        for _ in 0..3 {
            send(&producer, Kind::Buffer, b"some bytes");
            assert!(matches!(inputs.next(), Ok(Taken::Item(0, _))));
            // The filter does not ask for the next one.
            acknowledgement(&producer);
        }
    }

    #[test]
    fn a_filter_that_asks_for_the_next_buffer_has_acknowledged_the_last_one() {
        let (inputs, producer) = inputs();
        for _ in 0..3 {
            send(&producer, Kind::Buffer, b"some bytes");
        }
        send(&producer, Kind::End, b"");
        while let Ok(Taken::Item(..)) = inputs.next() {}
        drop(inputs);
        (0..3).for_each(|_| acknowledgement(&producer));
    }
}
