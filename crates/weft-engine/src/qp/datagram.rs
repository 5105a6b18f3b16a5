//! Queue pairs for datagrams.

use std::net::IpAddr;
use std::sync::Arc;

use weft_sys::Arrival;
use weft_wire::datagram::Header;

use super::Qp;
use crate::attr::QpState;
use crate::device::{Gid, address_of};
use crate::queue::recv::{Fit, RecvWork};
use crate::reactor::Source;
use crate::ud::multicast::{self, Group};
use crate::ud::{DatagramTarget, Owner, Routes};
use crate::{Errno, Result};

impl Owner for Qp {
    fn number(&self) -> u32 {
        self.number
    }

    fn state(&self) -> QpState {
        Self::state(self)
    }

    fn qkey(&self) -> u32 {
        self.attr.lock().qkey
    }

    fn shares_receives(&self) -> bool {
        self.init.srq.is_some()
    }

    fn take_receive_for(&self, length: u64, work: &mut RecvWork) -> Fit {
        match &self.init.srq {
            Some(srq) => srq.pop_for(length, work),
            None => self.rq.lock().pop_for(length, work),
        }
    }

    fn fail(&self) {
        self.enter_error();
    }

    fn requeue(&self) {
        Self::requeue(self);
    }

    fn datagram_target(&self) -> Arc<dyn DatagramTarget> {
        self.me()
    }
}

impl DatagramTarget for Qp {
    fn number(&self) -> u32 {
        self.number
    }

    fn is_sender(&self, number: u32, address: IpAddr) -> bool {
        self.number == number && self.context().device().owns(address)
    }

    fn receive(&self, header: &Header, arrival: &Arrival, payload: &[u8]) -> bool {
        let Some(datagram) = &self.datagram else { return false };
        datagram.receive(self, header, arrival, payload);
        true
    }

    fn has_room(&self) {
        self.flush();
    }
}

impl Qp {
    /// `ibv_attach_mcast`: lets this queue pair receive a group's datagrams. Attaching again has no
    /// effect.
    ///
    /// # Errors
    /// `EINVAL` for a GID that is not a multicast group, or a queue pair that takes no datagrams;
    /// `ENOMEM` for too many groups or members; the system's errors, such as `ENOBUFS`.
    pub fn attach_multicast(&self, gid: Gid) -> Result<()> {
        let group = self.group_of(gid)?;
        multicast::attach(self.reactor(), &self.datagram_target(), group, ROUTES)
    }

    /// `ibv_detach_mcast`.
    ///
    /// # Errors
    /// `EINVAL` if it is not attached.
    pub fn detach_multicast(&self, gid: Gid) -> Result<()> {
        multicast::detach(self, self.group_of(gid)?)
    }

    fn group_of(&self, gid: Gid) -> Result<Group> {
        let address = address_of(gid);
        if self.datagram.is_none() || !address.is_multicast() {
            return Err(Errno::INVAL);
        }
        Ok((address, self.context().device().index))
    }
}

/// Finds the receivers of datagrams that arrive at a port.
pub(super) const ROUTES: Routes =
    Routes { find: |number| Some(super::find(number)? as _), deliver_to_group: multicast::deliver };
