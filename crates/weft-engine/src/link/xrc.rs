//! Extended reliable connections: selecting the shared receive queue of a message.
//!
//! A Send or Immediate Data message names the queue in the DDP header's word that holds the STag of
//! a Send with Invalidate. This is so only between Weft peers; on other connections the word is
//! zero, as in RFC 5040.

use weft_wire::error::ProtocolError;
use weft_wire::rdmap;

use super::Link;
use super::fault::Handled;
use super::host::Host;
use super::service::Service;

impl<H: Host> Link<H> {
    /// Selects the shared receive queue that a message names. A number without a queue is the
    /// peer's error.
    pub(super) fn select_queue(&mut self, srqn: u32, host: &H) -> Handled {
        if matches!(self.service, Service::Extended) {
            let missing = ProtocolError::NoBuffer { qn: rdmap::queue::SEND };
            self.receiver.current.queue = Some(host.find_queue(srqn).ok_or(missing)?);
        }
        Ok(())
    }

    /// The number of the shared receive queue of the oldest waiting message.
    pub(crate) fn awaited_queue(&self) -> Option<u32> {
        self.rnr.messages.front().map(|message| message.srqn)
    }
}
