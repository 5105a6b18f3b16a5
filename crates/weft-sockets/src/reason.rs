//! What carries a connection, and why: for the counters that `weft stat` shows, and, with
//! `WEFT_LOG=info`, in one line on standard error for each connection, and each socket's datagrams.
//!
//! A line is written where no lock is held, and the data path is past: where a connection begins,
//! where a receiver has waited, or at the latest where it is closed.

use std::io::{Cursor, Write as _};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::io::Errno;
use weft_stream::Carrier;
pub(crate) use weft_stream::Reason;

use crate::descriptor::{addresses, own_address};
use crate::kernel::End;
use crate::limits::LOG_LINE_MAX;
use crate::settings::wants_log;
use crate::{errno, identity};

/// What is to be logged of a connection, once.
#[derive(Debug)]
pub(crate) struct LogOnce(AtomicU32);

const NOTHING: u32 = u32::MAX;
const LOGGED: u32 = u32::MAX - 1;

impl LogOnce {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(NOTHING))
    }

    /// It is the kernel's from here on.
    pub(crate) fn note(&self, why: Reason) {
        let (before, now) = (NOTHING, why as u32);
        let _ = self.0.compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Logs what is known by now. The last chance is `at_last`.
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
            // Of one that is over the kernel knows this end alone.
            match ends {
                Some((one, other)) => write_connection(Some(one), Some(other), why),
                None => write_connection(own_address(fd), None, why),
            }
        }
    }
}

/// Logs a connection that is the kernel's from the start.
pub(crate) fn log(ends: (SocketAddr, SocketAddr), why: Reason) {
    if wants_log() {
        write_connection(Some(ends.0), Some(ends.1), Some(why));
    }
}

/// Logs a connection just accepted that stays the kernel's because those before it were brief.
pub(crate) fn log_brief(fd: RawFd) {
    if wants_log()
        && let Some(ends) = addresses(fd)
    {
        log(ends, Reason::Brief);
    }
}

/// The line of a connection: its ends, as far as they are known, and why it is the kernel's, unless
/// it is in shared memory.
fn write_connection(one: Option<SocketAddr>, other: Option<SocketAddr>, why: Option<Reason>) {
    write_line("connection", [("of", one), ("with", other)], why.map(|why| ("tcp", why.text())));
}

/// A line: what it is about, its ends, as far as they are known, and what carries it and why,
/// unless that is shared memory.
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

/// Logs once that no send is deferred, because memory cannot be protected here.
pub(crate) fn log_unprotected(why: Errno) {
    static LOGGED: AtomicBool = AtomicBool::new(false);
    if wants_log() && !LOGGED.swap(true, Ordering::Relaxed) {
        write_with(|cursor| {
            write!(cursor, "zero copy is not async but auto, without userfaultfd: {why}")
        });
    }
}

/// A line of this process, of what is written into it; what is longer than a line is cut.
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
    // One write, so that lines of several processes do not mix. Nobody to tell if it fails.
    let _ = rustix::io::write(rustix::stdio::stderr(), &line[..=len]);
    errno::set_raw(before);
}
