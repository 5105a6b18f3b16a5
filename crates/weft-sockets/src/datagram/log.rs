//! Logs once for each direction what carries a socket's datagrams, and why (`WEFT_LOG=info`): for
//! sending when it first finds an inbox, for receiving when it waits after some have come through
//! memory, and for both at the latest when it is closed.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Datagram;
use crate::descriptor::own_address;
use crate::reason::write_line;
use crate::settings::wants_log;

/// Why the kernel carries a socket's datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum DatagramReason {
    Rule,
    Remote,
    Receiver,
    Senders,
    Address,
    Multicast,
    Room,
    Option,
    Watched,
    PassedOn,
    Stdio,
    Shutdown,
    Seccomp,
}

impl DatagramReason {
    const ALL: [Self; 13] = [
        Self::Rule,
        Self::Remote,
        Self::Receiver,
        Self::Senders,
        Self::Address,
        Self::Multicast,
        Self::Room,
        Self::Option,
        Self::Watched,
        Self::PassedOn,
        Self::Stdio,
        Self::Shutdown,
        Self::Seccomp,
    ];

    /// Returns whether the reason holds for sending, too.
    fn is_of_all(self) -> bool {
        use DatagramReason::{Option, PassedOn, Seccomp, Shutdown, Stdio, Watched};
        matches!(self, Option | Watched | PassedOn | Stdio | Shutdown | Seccomp)
    }

    fn text(self) -> &'static str {
        match self {
            Self::Rule => "a rule selects UDP",
            Self::Remote => "the receiver is on another host",
            Self::Receiver => "the receiver does not run on weft, or belongs to another user",
            Self::Senders => "none has come by memory",
            Self::Address => "an address that only the kernel serves",
            Self::Multicast => "multicast",
            Self::Room => "no inbox is free",
            Self::Option => "a socket option that only the kernel implements",
            Self::Watched => "it is in several epoll instances, or in a nested one",
            Self::PassedOn => "the socket was passed to another process",
            Self::Stdio => "the C library's stdio uses the socket",
            Self::Shutdown => "the socket was shut down",
            Self::Seccomp => "the program installs a seccomp filter",
        }
    }
}

const NOTHING: u32 = u32::MAX;
const LOGGED: u32 = u32::MAX - 1;

/// The log line of one direction, which is written once.
#[derive(Debug)]
pub(super) struct LogOnce(AtomicU32);

impl LogOnce {
    pub(super) fn new() -> Self {
        Self(AtomicU32::new(NOTHING))
    }

    /// Notes why the kernel carries datagrams, unless the line has been written.
    pub(super) fn note(&self, why: DatagramReason) {
        let note = |known| (known != LOGGED).then_some(why as u32);
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, note);
    }

    fn noted(&self) -> Option<DatagramReason> {
        DatagramReason::ALL.get(self.0.load(Ordering::Relaxed) as usize).copied()
    }

    fn write(&self, ends: [(&str, Option<SocketAddr>); 2], why: Option<DatagramReason>) {
        if self.0.swap(LOGGED, Ordering::Relaxed) != LOGGED {
            write_line("datagrams", ends, why.map(|why| ("udp", why.text())));
        }
    }
}

impl Datagram {
    /// Logs that the socket has found an inbox to send to. The caller holds no lock.
    pub(super) fn log_sent(&self, from: SocketAddr, to: SocketAddr) {
        if wants_log() {
            self.sent_log.write([("from", Some(from)), ("to", Some(to))], None);
        }
    }

    /// Logs that the socket receives through memory, before it waits. The caller holds no lock but
    /// an epoll instance's.
    pub(crate) fn log_received(&self, fd: RawFd) {
        if wants_log() && self.has_received() {
            self.received_log.write([("at", own_address(fd)), ("", None)], None);
        }
    }

    /// Logs both directions before the socket is closed.
    pub(crate) fn log_at_close(&self, fd: RawFd) {
        if !wants_log() {
            return;
        }
        self.log_received(fd);
        let unused = self.inbox.get().map(|_| DatagramReason::Senders);
        if let Some(why) = self.received_log.noted().or(unused) {
            let word = if why.is_of_all() { "of" } else { "at" };
            self.received_log.write([(word, own_address(fd)), ("", None)], Some(why));
        }
        if let Some(why) = self.sent_log.noted() {
            self.sent_log.write([("from", own_address(fd)), ("", None)], Some(why));
        }
    }

    fn has_received(&self) -> bool {
        self.inbox.get().is_some_and(|inbox| inbox.received() > 0)
    }
}
