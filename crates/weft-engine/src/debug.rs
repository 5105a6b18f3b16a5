//! Reports the state of this process's queue pairs to `weft ps` and `weft dump`.
//!
//! A process that connects to the abstract Unix socket `weft-debug.PID` receives one JSON document
//! and then EOF. Only the same user and root get an answer.

use std::fmt::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use weft_sys::calls::net::{SocketAddrUnix, SocketType};
use weft_sys::calls::process::{getpid, getuid};
use weft_sys::{Forkable, Lock, peer_credentials};

use crate::limits::DEBUG_BACKLOG;
use crate::qp::{self, Qp};
use crate::reactor::{Handle, Source};
use crate::strangers::{Listener, Permit, Stranger};
use crate::watched::Watched;
use crate::{Errno, Result, device, ud};

static SERVED: Forkable<Lock<bool>> = Forkable::new(|| Lock::new(false));

/// Starts to serve, once per process. If that fails (no descriptor left), the process goes without.
pub(crate) fn serve() {
    let mut served = SERVED.get().lock();
    if !std::mem::replace(&mut *served, true) {
        let _ = start();
    }
}

fn start() -> Result<()> {
    let name = format!("weft-debug.{}", getpid().as_raw_nonzero());
    let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
    Listener::serve_unix(
        Handle::of_process(),
        &address,
        SocketType::STREAM,
        DEBUG_BACKLOG,
        Answer::start,
    )
}

/// A document that is being sent to a client, until the client has all of it or sending fails.
#[derive(Debug)]
struct Answer {
    rest: Lock<Option<Rest>>,
}

#[derive(Debug)]
struct Rest {
    socket: Watched,
    text: Vec<u8>,
    sent: usize,
    _permit: Permit,
}

impl Answer {
    fn start(reactor: Handle, socket: OwnedFd, permit: Permit) {
        let allowed = peer_credentials(socket.as_fd())
            .is_ok_and(|(_, user)| user == 0 || user == getuid().as_raw());
        if !allowed {
            return;
        }
        let answer = Arc::new(Self { rest: Lock::new(None) });
        permit.set_holder(Arc::downgrade(&answer) as _);
        if let Ok(socket) = Watched::new(reactor, socket, Arc::clone(&answer) as _) {
            let text = state().into_bytes();
            *answer.rest.lock() = Some(Rest { socket, text, sent: 0, _permit: permit });
            answer.ready();
        }
    }
}

impl Source for Answer {
    fn ready(&self) {
        let mut guard = self.rest.lock();
        let Some(Rest { socket, text, sent, .. }) = &mut *guard else { return };
        while *sent < text.len() {
            match weft_sys::send(socket.as_fd(), &text[*sent..]) {
                Ok(count) => *sent += count,
                Err(Errno::AGAIN) => return,
                Err(_) => break,
            }
        }
        *guard = None;
    }
}

impl Stranger for Answer {
    fn evict(&self) {
        *self.rest.lock() = None;
    }
}

/// The JSON document: devices, and queue pairs with their peers, queues and counters.
fn state() -> String {
    let devices = device::list().unwrap_or_default();
    let names: Vec<String> = devices.iter().map(|device| quoted(&device.name)).collect();
    let pairs: Vec<String> = qp::all().iter().map(|qp| describe(qp)).collect();
    format!(
        "{{\"version\":{},\"devices\":[{}],\"queue_pairs\":[{}]}}\n",
        quoted(env!("CARGO_PKG_VERSION")),
        names.join(","),
        pairs.join(",")
    )
}

fn describe(qp: &Qp) -> String {
    let qp::Snapshot {
        transport,
        one_sided,
        peer,
        peer_is_weft,
        sends_posted,
        sends_waiting,
        receives_posted,
        messages_sent,
        messages_placed_there,
        messages_placed_here,
        messages_dropped,
        bytes_waiting,
        bytes_in,
        bytes_out,
        datagrams,
    } = qp.snapshot();
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        "{{\"number\":\"{:#08x}\",\"type\":{},\"device\":{},\"state\":{},\
         \"transport\":{},\"one_sided\":{},\"peer\":{},\
         \"peer_is_weft\":{peer_is_weft},\"sends_posted\":{sends_posted},\
         \"sends_waiting\":{sends_waiting},\"receives_posted\":{receives_posted},\
         \"messages_sent\":{messages_sent},\"placed_at_peer\":{messages_placed_there},\
         \"placed_here\":{messages_placed_here},\"dropped_here\":{messages_dropped},\
         \"bytes_waiting\":{bytes_waiting},\
         \"bytes_in\":{bytes_in},\"bytes_out\":{bytes_out}",
        qp.number(),
        quoted(qp.qp_type().name()),
        quoted(&qp.context().device().name),
        quoted(&format!("{:?}", qp.state()).to_uppercase()),
        quoted(transport),
        one_sided.map_or_else(|| "null".into(), quoted),
        peer.map_or_else(|| "null".into(), |peer| quoted(&peer.to_string())),
    );
    if let Some(counted) = datagrams {
        describe_datagrams(&counted, &mut text);
    }
    text.push('}');
    text
}

fn describe_datagrams(counted: &ud::Counted, text: &mut String) {
    let ud::Counted {
        sent,
        refused_by_network,
        received,
        wrong_qkey,
        no_receive,
        receive_too_small,
        port_unknown,
        port_malformed,
    } = counted;
    // Writing to a String cannot fail.
    let _ = write!(
        text,
        ",\"datagrams\":{{\"sent\":{sent},\"refused_by_network\":{refused_by_network},\
         \"received\":{received},\"wrong_qkey\":{wrong_qkey},\"no_receive\":{no_receive},\
         \"receive_too_small\":{receive_too_small},\"port_unknown\":{port_unknown},\
         \"port_malformed\":{port_malformed}}}"
    );
}

/// Quotes a JSON string. Interface names may contain any byte except `/` and white space.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if u32::from(c) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_strings_are_escaped() {
        assert_eq!(quoted("a\"b\\c\n"), "\"a\\\"b\\\\c\\u000a\"");
    }
}
