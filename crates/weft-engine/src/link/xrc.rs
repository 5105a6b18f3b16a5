//! Extended reliable connections: which shared receive queue a message is for.
//!
//! A Send or Immediate Data names the queue in the word of DDP's header that Send with Invalidate
//! has its STag in; between Weft peers only, and zero (as RFC 5040 has it) on other connections.

use weft_wire::error::ProtocolError;
use weft_wire::rdmap;

use super::Link;
use super::fault::Handled;
use super::host::Host;
use super::service::Service;

impl<H: Host> Link<H> {
    /// Receives come from the shared receive queue that a message names. One that is not there is
    /// the peer's mistake.
    pub(super) fn select_queue(&mut self, srqn: u32, host: &H) -> Handled {
        if matches!(self.service, Service::Extended) {
            let missing = ProtocolError::NoBuffer { qn: rdmap::queue::SEND };
            self.receiver.current.queue = Some(host.find_queue(srqn).ok_or(missing)?);
        }
        Ok(())
    }

    /// The number of the shared receive queue that the oldest waiting message waits for.
    pub(crate) fn awaited_queue(&self) -> Option<u32> {
        self.rnr.messages.front().map(|message| message.srqn)
    }
}
