//! Options of TCP sockets.

use std::io;
use std::net::TcpStream;
use std::time::Duration;

use rustix::net::sockopt;

use crate::limits::{HANDSHAKE_TIME, STALL_TIME};

/// How TCP connections are set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TcpSettings {
    /// The congestion control of data channels, `bbr` for instance; otherwise the system's.
    pub congestion: Option<String>,
    /// The size of the socket buffers of data channels. Otherwise the kernel sizes them by the
    /// path, which it does well up to the system's limits.
    pub buffer: Option<usize>,
    /// Without progress for so long, a channel has failed.
    pub stall: Duration,
    /// How long connecting and shaking hands may take.
    pub handshake: Duration,
}

impl Default for TcpSettings {
    fn default() -> Self {
        Self { congestion: None, buffer: None, stall: STALL_TIME, handshake: HANDSHAKE_TIME }
    }
}

impl TcpSettings {
    pub(super) fn apply_to_control(&self, stream: &TcpStream) -> io::Result<()> {
        // Each message is wanted now.
        stream.set_nodelay(true)?;
        self.watch(stream)
    }

    pub(super) fn apply_to_data(&self, stream: &TcpStream) -> io::Result<()> {
        // The last segment of a block is not full, and the block is wanted now.
        stream.set_nodelay(true)?;
        // A thread that is in the middle of a block looks up so often.
        stream.set_write_timeout(Some(self.stall))?;
        stream.set_read_timeout(Some(self.stall))?;
        if let Some(name) = &self.congestion {
            sockopt::set_tcp_congestion(stream, name)?;
        }
        if let Some(len) = self.buffer {
            sockopt::set_socket_send_buffer_size(stream, len)?;
            sockopt::set_socket_recv_buffer_size(stream, len)?;
        }
        self.watch(stream)
    }

    /// Has the kernel find out that the peer's host is gone.
    fn watch(&self, stream: &TcpStream) -> io::Result<()> {
        let milliseconds = u32::try_from(self.stall.as_millis()).unwrap_or(u32::MAX);
        sockopt::set_tcp_user_timeout(stream, milliseconds)?;
        sockopt::set_socket_keepalive(stream, true)?;
        // A third of the time each, in whole seconds.
        let third = Duration::from_secs((self.stall.as_secs() / 3).max(1));
        sockopt::set_tcp_keepidle(stream, third)?;
        sockopt::set_tcp_keepintvl(stream, third)?;
        Ok(sockopt::set_tcp_keepcnt(stream, 2)?)
    }
}
