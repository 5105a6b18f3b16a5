//! Records what carries a connection, and why: for the counters of `weft stat`, and, with
//! `WEFT_LOG=info`, as one line on standard error for each connection and for each socket's
//! datagrams.
//!
//! A line is written where no lock is held and off the data path: where a connection begins, where
//! a receiver has waited, or at the latest when the socket is closed.

use std::io::{Cursor, Write as _};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use weft_stream::Carrier;
pub(crate) use weft_stream::Reason;
use weft_sys::calls;
use weft_sys::calls::io::Errno;

use crate::descriptor::{addresses, own_address};
use crate::kernel::End;
use crate::limits::LOG_LINE_MAX;
use crate::settings::wants_log;
use crate::{errno, identity};

/// The log line of a connection, which is written once.
#[derive(Debug)]
pub(crate) struct LogOnce(AtomicU32);

const NOTHING: u32 = u32::MAX;
const LOGGED: u32 = u32::MAX - 1;

impl LogOnce {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(NOTHING))
    }

    /// Notes why the kernel carries the connection from here on.
    pub(crate) fn note(&self, why: Reason) {
        let (before, now) = (NOTHING, why as u32);
        let _ = self.0.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Logs what is known by now, if it is enough. `at_last` says that this is the last chance.
    pub(crate) fn write(&self, fd: RawFd, end: Option<&End>, at_last: bool) {
        if !wants_log() {
            return;
        }
        let known = self.0.load(Ordering::Relaxed);
        let in_memory = || {
            let carried = |end: &End| end.bytes() != (0, 0) || end.carrier_out() == Carrier::Memory;
            end.is_some_and(carried)
        };
        let why = match Reason::ALL.get(known as usize) {
            Some(&why) => Some(why),
            None if known == LOGGED => return,
            None if in_memory() => None,
            None if at_last && end.is_some() => Some(Reason::Ended),
            None => return,
        };
        if self.0.compare_exchange(known, LOGGED, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            let ends = end.map(|end| end.tuple().addresses()).or_else(|| addresses(fd));
            // The kernel has no peer address of a connection that is over.
            match ends {
                Some((one, other)) => write_connection(Some(one), Some(other), why),
                None => write_connection(own_address(fd), None, why),
            }
        }
    }
}

/// Logs a connection that the kernel carries from the start.
pub(crate) fn log(ends: (SocketAddr, SocketAddr), why: Reason) {
    if wants_log() {
        write_connection(Some(ends.0), Some(ends.1), Some(why));
    }
}

/// Logs an accepted connection that stays on TCP because earlier ones were brief.
pub(crate) fn log_brief(fd: RawFd) {
    if wants_log()
        && let Some(ends) = addresses(fd)
    {
        log(ends, Reason::Brief);
    }
}

/// Writes the line of a connection: the known ends, and why the kernel carries it, unless it is in
/// shared memory.
fn write_connection(one: Option<SocketAddr>, other: Option<SocketAddr>, why: Option<Reason>) {
    write_line("connection", [("of", one), ("with", other)], why.map(|why| ("tcp", why.text())));
}

/// Writes a line: the subject, the known ends, and what carries it and why, unless it is in shared
/// memory.
#[cold]
pub(crate) fn write_line(
    what: &str,
    ends: [(&str, Option<SocketAddr>); 2],
    kernel: Option<(&str, &str)>,
) {
    write_with(|cursor| {
        write!(cursor, "{what}")?;
        for (word, end) in ends {
            if let Some(end) = end {
                let end = SocketAddr::new(end.ip().to_canonical(), end.port());
                write!(cursor, " {word} {end}")?;
            }
        }
        match kernel {
            None => write!(cursor, ": shared memory"),
            Some((carrier, why)) => write!(cursor, ": {carrier}, {why}"),
        }
    });
}

/// Logs once that no send is deferred, because userfaultfd is not available.
pub(crate) fn log_unprotected(why: Errno) {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if wants_log() && !LOGGED.swap(true, Ordering::Relaxed) {
        write_with(|cursor| {
            write!(cursor, "zero copy is not async but auto, without userfaultfd: {why}")
        });
    }
}

/// Logs a line of this process, truncated to the maximal length.
pub(crate) fn write_with(text: impl FnOnce(&mut Cursor<&mut [u8]>) -> std::io::Result<()>) {
    if !wants_log() {
        return;
    }
    let before = errno::get();
    let mut line = [0_u8; LOG_LINE_MAX];
    let mut cursor = Cursor::new(&mut line[..LOG_LINE_MAX - 1]);
    let _ = write!(cursor, "weft[{}] info: ", identity::number());
    let _ = text(&mut cursor);
    let len = usize::try_from(cursor.position()).unwrap_or(0);
    line[len] = b'\n';
    // A single write keeps lines of several processes apart. A failure cannot be reported.
    let _ = calls::io::write(calls::io::stderr(), &line[..=len]);
    errno::set_raw(before);
}
