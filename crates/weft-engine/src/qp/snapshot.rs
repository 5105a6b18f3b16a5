//! A snapshot of a queue pair's state, for `weft dump`.

use std::net::SocketAddr;

use super::Qp;
use super::conn::Conn;
use crate::ud;
use crate::ud::Datagram;

/// A snapshot of a queue pair's state, for `weft dump`.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) transport: &'static str,
    /// How one-sided operations reach the peer's memory, if memory is shared.
    pub(crate) one_sided: Option<&'static str>,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) peer_is_weft: bool,
    pub(crate) sends_posted: usize,
    pub(crate) sends_waiting: u64,
    pub(crate) receives_posted: usize,
    pub(crate) messages_sent: u64,
    pub(crate) messages_placed_there: u64,
    pub(crate) messages_placed_here: u64,
    pub(crate) messages_dropped: u64,
    pub(crate) bytes_waiting: usize,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_out: u64,
    pub(crate) datagrams: Option<ud::Counted>,
}

impl Qp {
    /// The transport of the connection, as `weft dump` names it.
    #[must_use]
    pub fn transport(&self) -> &'static str {
        let transport = self.transport_of(&self.conn.lock());
        self.drive(0); // Do the work that other threads left to the lock's holder.
        transport
    }

    pub(super) fn transport_of(&self, conn: &Conn) -> &'static str {
        if self.datagram.is_some() { "udp" } else { conn.transport() }
    }

    /// Takes a snapshot.
    pub(crate) fn snapshot(&self) -> Snapshot {
        let conn = self.conn.lock();
        let (messages_sent, messages_placed_there, messages_placed_here, bytes_waiting) =
            conn.link.counters();
        let (bytes_in, bytes_out) = conn.link.byte_counters();
        let (sends_posted, sends_waiting) = {
            let sq = self.sq.lock();
            (sq.len(), sq.unsent())
        };
        let snapshot = Snapshot {
            transport: self.transport_of(&conn),
            one_sided: conn.link.reach(),
            peer: conn.peer(),
            peer_is_weft: conn.link.is_weft_peer(),
            sends_posted,
            sends_waiting,
            receives_posted: self.rq.lock().len(),
            messages_sent,
            messages_placed_there,
            messages_placed_here,
            messages_dropped: conn.link.messages_dropped(),
            bytes_waiting,
            bytes_in,
            bytes_out,
            datagrams: self.datagram.as_ref().map(Datagram::counted),
        };
        drop(conn);
        self.drive(0); // Likewise.
        snapshot
    }
}
