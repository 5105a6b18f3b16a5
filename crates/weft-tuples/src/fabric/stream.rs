//! A stream of bytes over the messages of an endpoint.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};

use weft_fabric::limits::VALUE_MAX;
use weft_fabric::{Buffer, Endpoint, Error, Fabric, Message, Operation};

use crate::limits::{FABRIC_BUFFERS_MAX, FABRIC_MESSAGE_LEN_MAX, FABRIC_SENDS_MAX};

/// A stream over the messages of an endpoint. It never waits: where a socket that does not block
/// says [`ErrorKind::WouldBlock`], it does, too.
#[derive(Debug)]
pub(crate) struct FabricStream {
    fabric: Fabric,
    endpoint: Endpoint,
    /// A message that was not read to its end, and how many of its bytes were read.
    message: Option<(Message, usize)>,
    /// Why nothing more will come.
    end: Option<Error>,
    /// What was sent and may not have arrived, in order.
    sends: VecDeque<Sending>,
    free: Vec<Buffer>,
    /// The owner wants to know when something that was sent has arrived.
    awaits_sends: bool,
}

/// A message that is being sent.
#[derive(Debug)]
enum Sending {
    Value(Operation<()>),
    Buffer(Operation<Buffer>),
}

impl Sending {
    /// The buffer of a message that has arrived, if it had one; `None` if it has not arrived.
    fn try_wait(&mut self) -> Option<Result<Option<Buffer>, Error>> {
        match self {
            Self::Value(operation) => operation.try_wait().map(|sent| sent.map(|()| None)),
            Self::Buffer(operation) => operation.try_wait().map(|sent| sent.map(Some)),
        }
    }

    fn wait(self) -> Result<Option<Buffer>, Error> {
        match self {
            Self::Value(operation) => operation.wait().map(|()| None),
            Self::Buffer(operation) => operation.wait().map(Some),
        }
    }
}

fn failed(error: Error) -> io::Error {
    match error {
        Error::Closed { .. } => ErrorKind::BrokenPipe.into(),
        error => io::Error::other(error),
    }
}

impl FabricStream {
    pub(super) fn new(fabric: Fabric, endpoint: Endpoint) -> Self {
        Self {
            fabric,
            endpoint,
            message: None,
            end: None,
            sends: VecDeque::with_capacity(FABRIC_SENDS_MAX),
            free: Vec::with_capacity(FABRIC_BUFFERS_MAX),
            awaits_sends: false,
        }
    }

    /// What one-sided operations of this connection need.
    pub(crate) fn parts(&self) -> (&Fabric, &Endpoint) {
        (&self.fabric, &self.endpoint)
    }

    /// Whether both ends share memory. It is known when something has been received.
    pub(crate) fn is_in_memory(&self) -> bool {
        matches!(self.endpoint.transport(), "shm" | "loopback")
    }

    /// Whether a read returns something else than [`ErrorKind::WouldBlock`].
    pub(crate) fn has_input(&mut self) -> bool {
        if self.message.is_none() && self.end.is_none() {
            match self.endpoint.receive().try_wait() {
                Some(message) => self.arrived(message),
                None => return false,
            }
        }
        true
    }

    fn arrived(&mut self, message: Result<Message, Error>) {
        match message {
            // A peer that keeps to the protocol sends none, and many of them would keep the reader
            // busy.
            Ok(message) if message.is_empty() => {
                self.end = Some(Error::Protocol { peer: self.endpoint.peer() });
            }
            Ok(message) => self.message = Some((message, 0)),
            Err(error) => self.end = Some(error),
        }
    }

    /// Whether something that was sent has arrived, or failed, since a write found no place or
    /// [`Self::is_sent`] was false.
    pub(crate) fn may_go_on(&mut self) -> bool {
        if !self.awaits_sends {
            return false;
        }
        let before = self.sends.len();
        // The next write finds the error.
        self.awaits_sends = self.reap().is_ok() && self.sends.len() == before;
        !self.awaits_sends
    }

    /// Whether all that was written has arrived. What has not is lost if the stream is dropped.
    pub(crate) fn is_sent(&mut self) -> bool {
        // What has failed will not arrive.
        self.awaits_sends = self.reap().is_ok() && !self.sends.is_empty();
        !self.awaits_sends
    }

    /// Forgets messages that have arrived.
    fn reap(&mut self) -> Result<(), Error> {
        while let Some(sent) = self.sends.front_mut().and_then(Sending::try_wait) {
            self.sends.pop_front();
            self.keep(sent?);
        }
        Ok(())
    }

    fn keep(&mut self, buffer: Option<Buffer>) {
        if self.free.len() < FABRIC_BUFFERS_MAX {
            self.free.extend(buffer);
        }
    }

    /// Has the descriptor become readable when there is something new. Returns `true` if there is
    /// already: then look, and arm again before waiting.
    pub(crate) fn arm(&self) -> bool {
        self.endpoint.arm()
    }

    /// Takes what has made the descriptor readable.
    pub(crate) fn turn(&self) {
        self.endpoint.turn();
    }

    fn buffer(&mut self) -> Result<Buffer, Error> {
        match self.free.pop() {
            Some(buffer) => Ok(buffer),
            None => self.fabric.alloc(FABRIC_MESSAGE_LEN_MAX),
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        let len = bytes.len().min(FABRIC_MESSAGE_LEN_MAX).min(self.endpoint.message_max());
        let sending = if len <= VALUE_MAX {
            Sending::Value(self.endpoint.send(&bytes[..len])?)
        } else {
            let mut buffer = self.buffer()?;
            buffer[..len].copy_from_slice(&bytes[..len]);
            Sending::Buffer(self.endpoint.send_buffer(buffer, ..len)?)
        };
        self.sends.push_back(sending);
        Ok(len)
    }
}

impl AsFd for FabricStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.endpoint.as_fd()
    }
}

impl Read for FabricStream {
    /// Reads all that has come, as far as there is room for it: after a short read nothing is left.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut len = 0;
        while len < bytes.len() && self.has_input() {
            let Some((message, used)) = &mut self.message else { break };
            let part = &message[*used..];
            let count = part.len().min(bytes.len() - len);
            bytes[len..len + count].copy_from_slice(&part[..count]);
            (len, *used) = (len + count, *used + count);
            if *used == message.len() {
                self.message = None;
            }
        }
        match &self.end {
            _ if len != 0 || bytes.is_empty() => Ok(len),
            Some(Error::Closed { .. }) => Ok(0),
            Some(error) => Err(io::Error::other(error.clone())),
            None => Err(ErrorKind::WouldBlock.into()),
        }
    }
}

impl Write for FabricStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Half of them at a time, since each look costs a lock.
        if self.sends.len() >= FABRIC_SENDS_MAX / 2 {
            self.reap().map_err(failed)?;
        }
        if self.sends.len() >= FABRIC_SENDS_MAX {
            self.awaits_sends = true;
            return Err(ErrorKind::WouldBlock.into());
        }
        if bytes.is_empty() { Ok(0) } else { self.send(bytes).map_err(failed) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A stream that waits.
#[derive(Debug)]
pub(crate) struct Blocking(pub(crate) FabricStream);

impl Read for Blocking {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if !bytes.is_empty() && !self.0.has_input() {
            let message = self.0.endpoint.receive().wait();
            self.0.arrived(message);
        }
        self.0.read(bytes)
    }
}

impl Write for Blocking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let Some(first) = self.0.sends.pop_front() else { continue };
                    let buffer = first.wait().map_err(failed)?;
                    self.0.keep(buffer);
                }
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
