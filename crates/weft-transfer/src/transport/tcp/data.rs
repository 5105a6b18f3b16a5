//! Data channels over TCP.

use std::fmt;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::sendfile;
use rustix::io::{Errno, pread, retry_on_intr};
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recv, send, sendmsg};

use super::socket::TcpSettings;
use crate::blocks::Block;
use crate::limits::{DROP_READ_LEN, EXTENT_READ_LEN, HEAD_LEN_MAX};
use crate::transport::channel::{
    Arrival, Claim, DataSink, DataSource, Grants, Head, Payload, Received, TransportError, Write,
    Written,
};
use crate::transport::stream::wait_for;

/// The zeros that replace the bytes that a file does not have or cannot give.
const ZEROS: [u8; 4_096] = [0; 4_096];

/// A connection that another thread can close.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    is_closed: AtomicBool,
    stall: Duration,
}

impl Connection {
    fn new(stream: TcpStream, settings: &TcpSettings) -> Arc<Self> {
        Arc::new(Self { stream, is_closed: AtomicBool::new(false), stall: settings.stall })
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Repeats `step`, which returns the number of bytes that it has moved, until it has moved
    /// `len`.
    fn whole(
        &self,
        len: usize,
        mut step: impl FnMut(usize) -> Result<usize, Errno>,
    ) -> Result<(), TransportError> {
        let mut done = 0;
        while done < len {
            match step(done) {
                Ok(0) => return Err(self.explain(TransportError::Truncated)),
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                // The timeout of the socket is the stall time. A call that has moved some bytes
                // does not report the timeout, so this one is a stall. Where the kernel waits for
                // the peer to acknowledge or to take data, its own time limit may end first.
                Err(Errno::AGAIN | Errno::TIMEDOUT) => {
                    return Err(self.explain(TransportError::Stalled(self.stall)));
                }
                Err(error) => return Err(self.explain(io::Error::from(error).into())),
            }
        }
        Ok(())
    }

    /// Returns `Closed` instead of the error if this end has closed the channel.
    fn explain(&self, error: TransportError) -> TransportError {
        if self.is_closed.load(Ordering::SeqCst) { TransportError::Closed } else { error }
    }
}

/// The source's end of a data channel over TCP.
pub struct TcpSource {
    connection: Arc<Connection>,
    /// The payload is encrypted, so it must pass through this process's memory.
    is_sealed: bool,
}

impl fmt::Debug for TcpSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TcpSource").field("connection", &self.connection).finish_non_exhaustive()
    }
}

impl TcpSource {
    /// Creates the source's end from a connection of [`connect_data`](super::connect_data) or
    /// [`accept`](super::accept). A channel of sealed blocks does not accept extents.
    ///
    /// # Errors
    /// If the connection cannot use the congestion control.
    pub fn new(
        stream: TcpStream,
        settings: &TcpSettings,
        is_sealed: bool,
    ) -> Result<Self, TransportError> {
        settings.congestion.apply(&stream)?;
        let connection = Connection::new(stream, settings);
        Ok(Self { connection, is_sealed })
    }

    /// Sends the header and the payload. Returns how much of an extent the file had, if it was
    /// less.
    fn send(&self, write: &Write) -> Result<Option<usize>, TransportError> {
        let head = write.head.bytes();
        match &write.payload {
            Payload::Block { block, len } => {
                self.send_block(head, block, *len)?;
                Ok(None)
            }
            Payload::Extent { .. } if self.is_sealed => {
                Err(TransportError::Protocol("a sealed session cannot send extents"))
            }
            Payload::Extent { block, prefix, file, offset, len } => {
                self.send_block(head, block, *prefix)?;
                self.send_file(file, *offset, *len)
            }
        }
    }

    fn send_block(&self, head: &[u8], block: &Block, len: usize) -> Result<(), TransportError> {
        let socket = self.connection.stream.as_fd();
        self.connection.whole(head.len() + len, |done| {
            let head_left = &head[done.min(head.len())..];
            let sent = done.saturating_sub(head.len());
            let parts = [head_left, &block.bytes()[sent..len]].map(io::IoSlice::new);
            sendmsg(socket, &parts, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)
        })
    }

    /// Sends a part of a file. Returns how much of it the file had, if that is less.
    fn send_file(
        &self,
        file: &impl AsFd,
        offset: u64,
        len: usize,
    ) -> Result<Option<usize>, TransportError> {
        let stream = &self.connection.stream;
        let (mut is_refused, mut had, mut buffer) = (false, None, Vec::new());
        self.connection.whole(len, |done| {
            let (at, left) = (offset + done as u64, len - done);
            if !is_refused {
                match sendfile(stream, file, Some(&mut { at }), left) {
                    sent @ (Ok(1..) | Err(Errno::INTR | Errno::AGAIN | Errno::TIMEDOUT)) => {
                        return sent;
                    }
                    // The file has ended or cannot be read, its file system does not support this,
                    // or the connection has failed, which `send` will report.
                    _ => is_refused = true,
                }
            }
            buffer.resize(EXTENT_READ_LEN.min(left), 0);
            let got = match had {
                None => retry_on_intr(|| pread(file, &mut buffer[..], at)).unwrap_or(0),
                Some(_) => 0,
            };
            let part = match got {
                0 => {
                    // The sink still expects the whole block.
                    had.get_or_insert(done);
                    &ZEROS[..ZEROS.len().min(left)]
                }
                got => &buffer[..got],
            };
            send(stream, part, SendFlags::NOSIGNAL)
        })?;
        Ok(had)
    }
}

impl DataSource for TcpSource {
    fn takes_extents(&self) -> bool {
        !self.is_sealed
    }

    fn write(&mut self, write: Write) -> Written {
        let sent = self.send(&write);
        if sent.is_err() {
            // A part of the block may have been sent, so nothing can follow.
            self.connection.close();
        }
        write.ended(sent)
    }

    fn close(&mut self) {
        self.connection.close();
    }

    fn finish(&mut self) -> Result<(), TransportError> {
        Ok(self.connection.stream.shutdown(Shutdown::Write)?)
    }

    fn closer(&self) -> Arc<dyn Fn() + Send + Sync> {
        let connection = Arc::clone(&self.connection);
        Arc::new(move || connection.close())
    }
}

/// The sink's end of a data channel over TCP.
#[derive(Debug)]
pub struct TcpSink {
    connection: Arc<Connection>,
}

impl TcpSink {
    /// Creates the sink's end from a connection of [`connect_data`](super::connect_data) or
    /// [`accept`](super::accept).
    #[must_use]
    pub fn new(stream: TcpStream, settings: &TcpSettings) -> Self {
        Self { connection: Connection::new(stream, settings) }
    }

    /// Receives a header. Returns false if the source has ended the channel before it.
    fn receive_head(&self, head: &mut [u8]) -> Result<bool, TransportError> {
        let mut has_ended = false;
        let stream = &self.connection.stream;
        self.connection.whole(head.len(), |done| {
            match recv(stream, &mut head[done..], RecvFlags::WAITALL) {
                Ok((0, _)) if done == 0 => {
                    has_ended = true;
                    Ok(usize::MAX)
                }
                received => received.map(|(len, _)| len),
            }
        })?;
        Ok(!has_ended)
    }

    /// Reads and discards payload.
    fn drop_payload(&self, len: usize) -> Result<(), TransportError> {
        let mut room = [0; DROP_READ_LEN];
        let dropped = self.connection.whole(len, |done| {
            let part = &mut room[..DROP_READ_LEN.min(len - done)];
            recv(&self.connection.stream, part, RecvFlags::empty()).map(|(len, _)| len)
        });
        dropped.inspect_err(|_| self.connection.close())
    }
}

impl DataSink for TcpSink {
    fn receive(
        &mut self,
        grants: &dyn Grants,
        wait: Option<Duration>,
    ) -> Result<Received, TransportError> {
        let connection = &self.connection;
        if !wait_for(connection.stream.as_fd(), PollFlags::IN, wait)? {
            return Ok(Received::TimedOut);
        }
        let mut head = [0; HEAD_LEN_MAX];
        let head = &mut head[..grants.head_len()];
        if !self.receive_head(head)? {
            return match connection.is_closed.load(Ordering::SeqCst) {
                true => Err(TransportError::Closed),
                false => Ok(Received::Ended),
            };
        }
        match grants.claim(head) {
            Ok(Claim::Into { mut block, len }) => {
                let received = connection.whole(len, |done| {
                    let room = &mut block.bytes_mut()[done..len];
                    recv(&connection.stream, room, RecvFlags::WAITALL).map(|(len, _)| len)
                });
                if let Err(error) = received {
                    connection.close();
                    grants.give_back(head, block);
                    return Err(error);
                }
                Ok(Received::Block(Arrival { head: Head::new(head), block, len }))
            }
            Ok(Claim::Drop(len)) => self.drop_payload(len).map(|()| Received::Dropped),
            Err(refused) => {
                connection.close();
                Err(TransportError::Refused(refused))
            }
        }
    }

    fn closer(&self) -> Arc<dyn Fn() + Send + Sync> {
        let connection = Arc::clone(&self.connection);
        Arc::new(move || connection.close())
    }
}
