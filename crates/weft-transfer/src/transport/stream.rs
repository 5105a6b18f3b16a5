//! A control channel over a stream: TCP with or without TLS, or a Unix socket.
//!
//! Messages follow one another. The header of each contains its length.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, getsockname, recv, send, shutdown};

use super::channel::{Control, ControlEvent, TransportError};
use super::incoming::Incoming;
use crate::limits::{CONTROL_LEN_MAX, CONTROL_READ_LEN};
use crate::secure::{Cipher, Direction, PublicKey, Secret, SecureError, Tls};
use weft_sys::calls::tcp_round_trip;
use weft_sys::lock;

/// One end of a control channel over a stream.
pub struct StreamControl {
    socket: OwnedFd,
    /// A sending thread holds `outgoing`, and `tls` only while it encrypts. A receiving thread
    /// holds `incoming`, and `tls` only while it decrypts. So neither blocks the other while the
    /// socket is full or empty.
    tls: Option<Mutex<Tls>>,
    outgoing: Mutex<Vec<u8>>,
    incoming: Mutex<Incoming>,
    is_closed: AtomicBool,
    /// The longest wait of a send for room.
    stall: Duration,
}

impl fmt::Debug for StreamControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamControl").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl StreamControl {
    /// Creates a channel over a connected stream without TLS. A send fails after `stall` without
    /// progress.
    #[must_use]
    pub fn new(socket: OwnedFd, stall: Duration) -> Self {
        Self::with(socket, None, Incoming::default(), stall)
    }

    /// Creates a channel over a connected stream with TLS, after the handshake.
    ///
    /// # Errors
    /// If bytes that came with the handshake's end are not valid TLS.
    pub fn in_tls(socket: OwnedFd, mut tls: Tls, stall: Duration) -> Result<Self, TransportError> {
        let mut incoming = Incoming::default();
        // The peer's first messages may have come with the end of its handshake. They are in the
        // TLS session already, so the socket does not become readable for them.
        incoming.has_ended = tls.decrypt(&[], incoming.room())?;
        Ok(Self::with(socket, Some(tls), incoming, stall))
    }

    fn with(socket: OwnedFd, tls: Option<Tls>, incoming: Incoming, stall: Duration) -> Self {
        Self {
            socket,
            tls: tls.map(Mutex::new),
            outgoing: Mutex::default(),
            incoming: Mutex::new(incoming),
            is_closed: AtomicBool::new(false),
            stall,
        }
    }

    /// Returns the address of this end; `None` if it is not an IP address.
    #[must_use]
    pub fn local_address(&self) -> Option<SocketAddr> {
        getsockname(&self.socket).ok()?.try_into().ok()
    }

    /// Returns the peer's key, if the channel uses TLS.
    #[must_use]
    pub fn peer(&self) -> Option<PublicKey> {
        self.tls.as_ref().map(|tls| lock(tls).peer())
    }

    /// Exports the secrets of a session's blocks, outgoing and incoming, if the channel uses TLS.
    /// Call it once for each session, in the order of their numbers.
    ///
    /// # Errors
    /// `ExportedBefore`, or an error of TLS.
    pub fn block_secrets(
        &self,
        session: u32,
        cipher: Cipher,
    ) -> Result<Option<(Secret, Secret)>, SecureError> {
        let Some(tls) = &self.tls else { return Ok(None) };
        let mut tls = lock(tls);
        let (outgoing, incoming) = (tls.outgoing(), tls.incoming());
        let mut secret = |direction: Direction| tls.block_secret(session, cipher, direction);
        Ok(Some((secret(outgoing)?, secret(incoming)?)))
    }

    #[cfg(test)]
    pub(super) fn socket(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends all bytes, and waits for room when the socket is full.
    fn send_all(&self, mut bytes: &[u8]) -> Result<(), TransportError> {
        while !bytes.is_empty() {
            match send(&self.socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if !wait_for(self.socket.as_fd(), PollFlags::OUT, Some(self.stall))? {
                        return Err(TransportError::Stalled(self.stall));
                    }
                }
                Err(error) => return Err(self.failed(error)),
            }
        }
        Ok(())
    }

    fn failed(&self, error: Errno) -> TransportError {
        if self.is_closed.load(Ordering::SeqCst) {
            TransportError::Closed
        } else if error == Errno::TIMEDOUT {
            // The kernel's time limit for the peer's acknowledgements is the stall time, too.
            TransportError::Stalled(self.stall)
        } else {
            io::Error::from(error).into()
        }
    }

    /// Reads what the socket has received.
    fn read(&self, incoming: &mut Incoming) -> Result<(), TransportError> {
        let mut buffer = [0; CONTROL_READ_LEN];
        let len = match recv(&self.socket, &mut buffer, RecvFlags::DONTWAIT) {
            Ok((len, _)) => len,
            Err(Errno::INTR | Errno::AGAIN) => return Ok(()),
            Err(error) => return Err(self.failed(error)),
        };
        let came = &buffer[..len];
        let Some(tls) = &self.tls else {
            incoming.room().extend_from_slice(came);
            incoming.has_ended = len == 0;
            return Ok(());
        };
        incoming.has_ended = lock(tls).decrypt(came, incoming.room())?;
        if len == 0 && !incoming.has_ended {
            return Err(SecureError::Cut.into());
        }
        Ok(())
    }
}

impl Control for StreamControl {
    fn round_trip(&self) -> Option<Duration> {
        // A Unix socket has none.
        tcp_round_trip(&self.socket).ok().flatten()
    }

    fn send(&self, message: &[u8]) -> Result<(), TransportError> {
        if message.len() > CONTROL_LEN_MAX {
            return Err(TransportError::MessageTooLong(message.len()));
        }
        let mut outgoing = lock(&self.outgoing);
        if self.is_closed.load(Ordering::SeqCst) {
            return Err(TransportError::Closed);
        }
        match &self.tls {
            None => self.send_all(message),
            Some(tls) => {
                outgoing.clear();
                lock(tls).encrypt(message, &mut outgoing)?;
                self.send_all(&outgoing)
            }
        }
    }

    fn receive(
        &self,
        message: &mut Vec<u8>,
        wait: Option<Duration>,
    ) -> Result<ControlEvent, TransportError> {
        let mut incoming = lock(&self.incoming);
        let end = wait.and_then(|time| Instant::now().checked_add(time));
        loop {
            if incoming.take(message)? {
                return Ok(ControlEvent::Message);
            }
            if incoming.has_ended {
                return match self.is_closed.load(Ordering::SeqCst) {
                    true => Err(TransportError::Closed),
                    false if incoming.is_empty() => Ok(ControlEvent::Ended),
                    false => Err(TransportError::Truncated),
                };
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if !wait_for(self.socket.as_fd(), PollFlags::IN, left)? {
                return Ok(ControlEvent::TimedOut);
            }
            if self.is_closed.load(Ordering::SeqCst) {
                return Err(TransportError::Closed);
            }
            self.read(&mut incoming)?;
        }
    }

    fn close(&self) {
        if self.is_closed.swap(true, Ordering::SeqCst) {
            return;
        }
        if let Some(tls) = &self.tls
            && let Ok(mut outgoing) = self.outgoing.try_lock()
        {
            outgoing.clear();
            // If the socket is full or another thread is sending, the connection ends without
            // `close_notify`.
            if lock(tls).end(&mut outgoing).is_ok() {
                let _ = send(&self.socket, &outgoing, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            }
        }
        // The shutdown wakes the threads that wait for this socket.
        let _ = shutdown(&self.socket, Shutdown::Both);
    }
}

impl Drop for StreamControl {
    fn drop(&mut self) {
        self.close();
    }
}

/// Waits for at most `time` until a socket is ready. Returns whether it is.
pub(super) fn wait_for(
    socket: std::os::fd::BorrowedFd<'_>,
    events: PollFlags,
    time: Option<Duration>,
) -> Result<bool, TransportError> {
    let end = time.and_then(|time| Instant::now().checked_add(time));
    loop {
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let mut fds = [PollFd::from_borrowed_fd(socket, events)];
        match poll(&mut fds, left.as_ref()) {
            Err(Errno::INTR) => {}
            Ok(count) => return Ok(count > 0),
            Err(error) => return Err(io::Error::from(error).into()),
        }
    }
}
