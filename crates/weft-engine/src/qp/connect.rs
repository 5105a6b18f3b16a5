//! The connection of a queue pair, as the code that makes and ends connections uses it.

use std::net::IpAddr;
use std::sync::Weak;

use super::conn::Connection;
use super::work::{WORK_DRAIN, WORK_RECEIVE, WORK_SEND};
use super::{Monitor, Qp};
use crate::attr::QpState;
use crate::device::{Gid, address_of, gid_of};
use crate::hello::Identity;
#[cfg(test)]
use crate::link::Link;
use crate::{Errno, Result, shm};

impl Qp {
    /// The identity that a Weft peer needs to reach this queue pair.
    #[must_use]
    pub fn identity(&self) -> Identity {
        Identity {
            qp_num: self.number,
            ack_stag: self.ack_stag,
            gid: self.own_gid(),
            process: *shm::own_id(),
        }
    }

    /// Attaches a connection to the queue pair; data flows as soon as the state allows.
    ///
    /// # Errors
    /// `EISCONN` if it is connected already; `EINVAL` for a queue pair of datagrams; the errors of
    /// registering the socket.
    pub fn attach(&self, connection: Connection) -> Result<()> {
        if self.datagram.is_some() {
            return Err(Errno::INVAL);
        }
        let opened = self.conn.lock().open(self, connection);
        // Even after an error, do the work that other threads left in `pending_work` while this
        // thread held the lock.
        self.drive(WORK_RECEIVE | WORK_DRAIN | WORK_SEND);
        opened
    }

    /// Sets the monitor, which is notified of the connection's end.
    pub fn set_monitor(&self, monitor: Weak<dyn Monitor>) {
        *self.monitor.lock() = Some(monitor);
    }

    /// Closes the connection in an orderly way: sends what has been handed over, and then closes
    /// the stream. The state does not change.
    pub fn disconnect(&self) {
        self.conn.lock().link.close();
        self.drive(WORK_SEND);
    }

    /// Whether the program has completions of this queue pair to take.
    pub(crate) fn has_unread(&self) -> bool {
        [self.send_cq(), self.recv_cq()].iter().any(|cq| cq.has_any_of(self.number))
    }

    /// The GID by which peers know this queue pair.
    pub(crate) fn own_gid(&self) -> Gid {
        let index = self.attr.lock().ah_attr.global.map_or(0, |route| route.sgid_index);
        let gids = self.context().device().gids();
        gids.get(usize::from(index)).or_else(|| gids.first()).copied().unwrap_or_default()
    }

    /// The peer that the program named: its GID and queue pair number. `None` before RTR.
    pub(crate) fn wanted_peer(&self) -> Option<(Gid, u32)> {
        if !matches!(self.state(), QpState::Rtr | QpState::Rts | QpState::Sqd) {
            return None;
        }
        let attr = self.attr.lock();
        let gid = match attr.ah_attr.global {
            Some(route) => route.dgid,
            None => gid_of(self.context().device().address_of_lid(attr.ah_attr.dlid)?),
        };
        Some((gid, attr.dest_qp_num))
    }

    /// The address of [`Qp::own_gid`].
    pub(crate) fn own_address(&self) -> IpAddr {
        address_of(self.own_gid())
    }

    /// The read depths of this side as responder and as requester (IRD and ORD).
    pub(crate) fn depths(&self) -> (u16, u16) {
        let attr = self.attr.lock();
        (attr.max_dest_rd_atomic.into(), attr.max_rd_atomic.into())
    }

    /// Handles an unreachable peer: requests fail as after a card's last retry.
    pub(crate) fn unreachable(&self, error: Errno) {
        let errno = error.raw_os_error().unsigned_abs();
        self.conn.lock().fail_unreachable(self, errno);
        self.drive(WORK_SEND);
    }

    /// Gives the simulation the protocol state, without a socket.
    #[cfg(test)]
    pub(crate) fn with_link<R>(&self, look: impl FnOnce(&mut Link<Self>) -> R) -> R {
        look(&mut self.conn.lock().link)
    }
}
