//! TLS over a socket that does not block.

use std::io::{self, ErrorKind, Read, Write};

use mio::net::TcpStream;
use rustls::ServerConnection;

use crate::access::TlsServer;
use crate::limits::{TLS_EMPTY_READS_MAX, TLS_OUTPUT_LEN_MAX};

/// A stream of bytes within TLS. It does the handshake by itself, while it is read.
#[derive(Debug)]
pub(crate) struct TlsStream<S = TcpStream> {
    socket: S,
    session: ServerConnection,
    /// The end of the stream was announced to the peer.
    is_closed: bool,
}

impl<S: Read + Write> TlsStream<S> {
    /// Begins as the server.
    pub(crate) fn new(socket: S, server: &TlsServer) -> io::Result<Self> {
        let mut session = server.accept().map_err(io::Error::other)?;
        session.set_buffer_limit(Some(TLS_OUTPUT_LEN_MAX));
        Ok(Self { socket, session, is_closed: false })
    }

    pub(super) fn socket(&self) -> &S {
        &self.socket
    }

    pub(super) fn socket_mut(&mut self) -> &mut S {
        &mut self.socket
    }

    /// Whether nobody has agreed on keys yet.
    pub(crate) fn is_handshaking(&self) -> bool {
        self.session.is_handshaking()
    }

    /// Tells the peer that nothing more comes. Returns whether all has been sent.
    pub(super) fn is_sent(&mut self) -> bool {
        if !self.is_closed {
            self.is_closed = true;
            self.session.send_close_notify();
        }
        // What cannot be sent never will be.
        !matches!(self.flush(), Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    /// Receives records, and answers those of the handshake.
    fn pull(&mut self) -> io::Result<()> {
        if self.session.read_tls(&mut self.socket)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let processed = self.session.process_new_packets();
        // Also the alert that says what was wrong.
        match self.flush() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
        processed.map(drop).map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
    }
}

impl<S: Read + Write> Read for TlsStream<S> {
    /// Reads all that has come, as far as there is room for it: after a short read nothing is left.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let (mut len, mut empty) = (0, 0);
        while len < bytes.len() {
            let pulled = match self.session.reader().read(&mut bytes[len..]) {
                // The peer has said that nothing more comes.
                Ok(0) => return Ok(len),
                Ok(count) => {
                    (len, empty) = (len + count, 0);
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.pull(),
                Err(error) => Err(error),
            };
            empty += 1;
            match pulled {
                Ok(()) if empty < TLS_EMPTY_READS_MAX => {}
                // Records without bytes would keep the server busy.
                Ok(()) => return Err(ErrorKind::InvalidData.into()),
                Err(error) => match error.kind() {
                    ErrorKind::Interrupted => {}
                    // The next read finds it again.
                    ErrorKind::WouldBlock | ErrorKind::UnexpectedEof if len != 0 => return Ok(len),
                    _ => return Err(error),
                },
            }
        }
        Ok(len)
    }
}

impl<S: Read + Write> Write for TlsStream<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let len = self.session.writer().write(bytes)?;
        match self.flush() {
            // It goes out when the socket has a place.
            Err(error) if error.kind() == ErrorKind::WouldBlock && len != 0 => Ok(len),
            Err(error) => Err(error),
            // The session had no place before.
            Ok(()) if len == 0 => self.session.writer().write(bytes),
            Ok(()) => Ok(len),
        }
    }

    /// Sends what there is, as far as the socket takes it.
    fn flush(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
