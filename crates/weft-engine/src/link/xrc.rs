//! Extended reliable connections: which shared receive queue a message is for.
//!
//! A Send or Immediate Data names the queue in the word of DDP's header that Send with Invalidate
//! has its STag in; between Weft peers only, and zero (as RFC 5040 has it) on other connections.

use std::sync::Arc;

use weft_wire::error::ProtocolError;
use weft_wire::rdmap;

use super::{Link, Receiving, rx::Handled};
use crate::cq::Cq;
use crate::mr::Asker;
use crate::qp::Qp;
use crate::srq::Srq;

impl Link {
    /// Receives come from the shared receive queue that a message names. One that is not there is
    /// the peer's mistake.
    pub(super) fn aim(&mut self, srqn: u32, qp: &Qp) -> Handled {
        if let Some(domain) = qp.xrcd() {
            let queue = domain.find(srqn);
            let missing = ProtocolError::NoBuffer { qn: rdmap::queue::SEND };
            self.receiving.srq = Some(queue.ok_or(missing)?);
        }
        Ok(())
    }

    /// The shared receive queue that the oldest parked message waits for.
    pub(crate) fn awaited(&self, qp: &Qp) -> Option<Arc<Srq>> {
        qp.xrcd()?.find(self.parked.front()?.srqn)
    }
}

impl Receiving {
    /// Takes a posted receive.
    pub(super) fn take(&mut self, qp: &Qp) -> bool {
        match &self.srq {
            Some(srq) => srq.pop(&mut self.work),
            None => qp.pop_receive(&mut self.work),
        }
    }

    /// Where it completes.
    pub(super) fn cq<'a>(&'a self, qp: &'a Qp) -> &'a Arc<Cq> {
        self.srq.as_ref().and_then(|srq| srq.cq()).unwrap_or_else(|| qp.recv_cq())
    }

    /// Who asks for the memory of its list: the side that posted it.
    pub(super) fn asker<'a>(&'a self, qp: &'a Qp) -> Asker<'a> {
        let pd = self.srq.as_ref().map_or_else(|| qp.pd(), |srq| srq.pd());
        Asker { pd, xrcd: None, qp_num: qp.number() }
    }
}
