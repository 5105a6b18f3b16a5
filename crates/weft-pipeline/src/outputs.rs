//! The streams that a copy writes: for each consumer one stream, which its copies share.

use std::io::{self, ErrorKind, IoSlice, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::counters::Counters;
use crate::failure::Failure;
use crate::schedule::{Policy, Scheduler};
use crate::wire::{Acks, HEADER_LEN, Header, Kind, WireError};

/// A connection to one copy of a consumer.
#[derive(Debug)]
pub(crate) struct ConsumerLink {
    pub(crate) socket: TcpStream,
    /// The consumer, for errors.
    pub(crate) peer: String,
    acks: Acks,
}

impl ConsumerLink {
    pub(crate) fn new(socket: TcpStream, peer: String) -> Self {
        Self { socket, peer, acks: Acks::default() }
    }
}

/// A stream to all copies of a consumer.
#[derive(Debug)]
struct Stream {
    links: Vec<ConsumerLink>,
    scheduler: Scheduler,
}

/// The outputs of a copy.
#[derive(Debug)]
pub(crate) struct Outputs {
    streams: Vec<Stream>,
    unit: u32,
    buffer_len: usize,
    counters: Arc<Counters>,
    /// Whether buffers go to standard output, because nothing consumes them.
    prints: bool,
    /// The filter's lines in the summary.
    note: Option<String>,
}

impl Outputs {
    /// Takes, for each consumer, the connections to its copies.
    pub(crate) fn new(
        streams: Vec<Vec<ConsumerLink>>,
        policy: Policy,
        window: u32,
        buffer_len: usize,
        counters: Arc<Counters>,
        prints: bool,
    ) -> Result<Self, Failure> {
        let stream = |links: Vec<ConsumerLink>| {
            for link in &links {
                let set = link.socket.set_nonblocking(true);
                set.map_err(|error| Failure::lost(&link.peer, error))?;
            }
            let scheduler = Scheduler::new(policy, links.len(), window);
            Ok(Stream { links, scheduler })
        };
        let streams = streams.into_iter().map(stream).collect::<Result<_, Failure>>()?;
        Ok(Self { streams, unit: 0, buffer_len, counters, prints, note: None })
    }

    /// The longest buffer.
    pub(crate) fn buffer_len(&self) -> usize {
        self.buffer_len
    }

    /// Sends a buffer to one copy of each consumer. Waits while all windows are full.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        if bytes.len() > self.buffer_len {
            let (len, most) = (bytes.len(), self.buffer_len);
            return Err(Failure::filter(format!("wrote {len} bytes; a buffer has at most {most}")));
        }
        if self.streams.is_empty() {
            return self.print(bytes);
        }
        let header = Header { kind: Kind::Buffer, unit: self.unit, len: bytes.len() as u32 };
        for stream in &mut self.streams {
            stream.send(header, bytes, &self.counters)?;
            self.counters.sent(bytes.len());
        }
        Ok(())
    }

    fn print(&self, bytes: &[u8]) -> Result<(), Failure> {
        if !self.prints {
            return Err(Failure::filter("wrote a buffer, but no filter has it as its input"));
        }
        let mut out = io::stdout().lock();
        out.write_all(bytes)
            .and_then(|()| out.flush())
            .map_err(|error| Failure::filter(format!("standard output: {error}")))
    }

    /// Ends the unit for all copies of all consumers.
    pub(crate) fn end_unit(&mut self) -> Result<(), Failure> {
        let end = Header { kind: Kind::End, unit: self.unit, len: 0 };
        for stream in &mut self.streams {
            for copy in 0..stream.links.len() {
                stream.send_all(copy, end, &[], &self.counters)?;
            }
        }
        self.unit += 1;
        self.counters.ended_unit();
        Ok(())
    }

    /// Sets the filter's line in the summary.
    pub(crate) fn note(&mut self, line: String) {
        self.note = Some(line);
    }

    /// Waits until the consumers have processed all units. Returns the note.
    pub(crate) fn finish(self) -> Result<Option<String>, Failure> {
        // A socket that is closed with unread acknowledgements would reset the connection, and
        // the consumer could lose buffers.
        for link in self.streams.iter().flat_map(|stream| &stream.links) {
            let shut = link.socket.shutdown(Shutdown::Write);
            let shut = shut.and_then(|()| link.socket.set_nonblocking(false));
            shut.map_err(|error| Failure::lost(&link.peer, error))?;
        }
        let since = Instant::now();
        for mut stream in self.streams {
            for copy in 0..stream.links.len() {
                while stream.take_acks(copy)? {}
                if stream.scheduler.unacknowledged(copy) > 0 {
                    let why = "it was closed before all buffers were processed";
                    return Err(Failure::lost(&stream.links[copy].peer, why));
                }
            }
        }
        self.counters.waited_out(since.elapsed());
        Ok(self.note)
    }
}

impl Stream {
    /// Sends a buffer to the copy that the scheduler selects.
    fn send(&mut self, header: Header, bytes: &[u8], counters: &Counters) -> Result<(), Failure> {
        let mut since = None;
        // With one copy there is no choice, so they matter only once the window is full.
        let mut needs_acks = self.links.len() > 1;
        let copy = loop {
            for copy in 0..self.links.len() {
                if needs_acks && self.scheduler.unacknowledged(copy) > 0 {
                    self.take_new_acks(copy)?;
                }
            }
            if let Some(copy) = self.scheduler.pick() {
                break copy;
            }
            if !std::mem::replace(&mut needs_acks, true) {
                continue;
            }
            since.get_or_insert_with(Instant::now);
            self.wait(None)?;
            self.take_all_acks()?;
        };
        if let Some(since) = since {
            counters.waited_out(since.elapsed());
        }
        self.scheduler.sent(copy);
        self.send_all(copy, header, bytes, counters)
    }

    /// Sends a whole frame to a copy, and takes acknowledgements while it waits.
    fn send_all(
        &mut self,
        copy: usize,
        header: Header,
        bytes: &[u8],
        counters: &Counters,
    ) -> Result<(), Failure> {
        let header = header.encode();
        let mut done = 0;
        while done < header.len() + bytes.len() {
            let link = &self.links[copy];
            let head = &header[done.min(header.len())..];
            let body = &bytes[done.saturating_sub(header.len())..];
            match (&link.socket).write_vectored(&[IoSlice::new(head), IoSlice::new(body)]) {
                Ok(count) => done += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let since = Instant::now();
                    self.wait(Some(copy))?;
                    self.take_all_acks()?;
                    counters.waited_out(since.elapsed());
                }
                Err(error) => return Err(Failure::lost(&link.peer, error)),
            }
        }
        Ok(())
    }

    /// Waits for acknowledgements, or until `writable` can take more bytes.
    fn wait<'links>(&'links self, writable: Option<usize>) -> Result<(), Failure> {
        let fd = |(copy, link): (usize, &'links ConsumerLink)| {
            let write = if writable == Some(copy) { PollFlags::OUT } else { PollFlags::empty() };
            PollFd::new(&link.socket, PollFlags::IN | write)
        };
        let mut fds: Vec<_> = self.links.iter().enumerate().map(fd).collect();
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(Failure::filter(error)),
        }
    }

    fn take_all_acks(&mut self) -> Result<(), Failure> {
        (0..self.links.len()).try_for_each(|copy| self.take_new_acks(copy))
    }

    /// Takes the acknowledgements of a copy that have arrived. The end of the stream is an error.
    fn take_new_acks(&mut self, copy: usize) -> Result<(), Failure> {
        if self.take_acks(copy)? {
            return Ok(());
        }
        let why = "it was closed before the end of the last unit";
        Err(Failure::lost(&self.links[copy].peer, why))
    }

    /// Takes acknowledgements of a copy by one read. Returns whether the stream goes on.
    fn take_acks(&mut self, copy: usize) -> Result<bool, Failure> {
        let link = &mut self.links[copy];
        let lost =
            |link: &ConsumerLink, why: &dyn std::fmt::Display| Failure::lost(&link.peer, why);
        let mut bytes = [0; 32 * HEADER_LEN];
        let count = match (&link.socket).read(&mut bytes) {
            Ok(0) => return Ok(false),
            Ok(count) => count,
            Err(error) => {
                return match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(true),
                    _ => Err(lost(link, &error)),
                };
            }
        };
        let acks = link.acks.read(&bytes[..count]).map_err(|error| lost(link, &error))?;
        for _ in 0..acks {
            if !self.scheduler.acknowledged(copy) {
                return Err(lost(link, &WireError::Ack));
            }
        }
        Ok(true)
    }
}
