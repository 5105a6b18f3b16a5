//! Options of TCP sockets.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt;

use super::congestion::Congestion;
use crate::limits::{HANDSHAKE_TIME, STALL_TIME};
use weft_sys::calls::tcp_round_trip;

/// The settings of TCP connections.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpSettings {
    /// The congestion control of data channels.
    pub congestion: Congestion,
    /// The size of the socket buffers of data channels. By default the kernel adapts it to the
    /// path, up to the system's limits.
    pub buffer: Option<usize>,
    /// The time without progress after which a channel has failed.
    pub stall: Duration,
    /// The time limit for connecting and for the handshake.
    pub handshake: Duration,
}

impl Default for TcpSettings {
    fn default() -> Self {
        Self {
            congestion: Congestion::default(),
            buffer: None,
            stall: STALL_TIME,
            handshake: HANDSHAKE_TIME,
        }
    }
}

impl TcpSettings {
    pub(super) fn apply_to_control(&self, stream: &TcpStream) -> io::Result<()> {
        // Send each message at once.
        stream.set_nodelay(true)?;
        self.watch(stream)
    }

    pub(super) fn apply_to_data(&self, stream: &TcpStream) -> io::Result<()> {
        // Send the last, partly filled segment of a block at once.
        stream.set_nodelay(true)?;
        // A call that makes no progress for this time fails, and its thread reports a stall.
        stream.set_write_timeout(Some(self.stall))?;
        stream.set_read_timeout(Some(self.stall))?;
        if let Some(len) = self.buffer {
            sockopt::set_socket_send_buffer_size(stream, len)?;
            sockopt::set_socket_recv_buffer_size(stream, len)?;
        }
        self.watch(stream)
    }

    /// Enables keepalive, so that the kernel detects that the peer's host is gone.
    fn watch(&self, stream: &TcpStream) -> io::Result<()> {
        let milliseconds = u32::try_from(self.stall.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(stream, milliseconds)?;
        sockopt::set_socket_keepalive(stream, true)?;
        // The idle time and the probe interval, a third of the stall time each, in whole seconds.
        let third = Duration::from_secs((self.stall.as_secs() / 3).max(1));
        sockopt::set_tcp_keepidle(stream, third)?;
        sockopt::set_tcp_keepintvl(stream, third)?;
        Ok(sockopt::set_tcp_keepcnt(stream, 2)?)
    }
}

/// Returns the shortest round trip that a connection has measured, if it is known.
#[must_use]
pub fn round_trip(stream: impl AsFd) -> Option<Duration> {
    tcp_round_trip(stream).ok().flatten()
}
