//! The initiator of a connection.

use super::inbound::Inbound;
use super::{
    NegotiateError, Negotiated, Params, REVISION_BASIC, REVISION_ENHANCED, RtrKind, RtrKinds,
    crc_in_use, depth, emit, lower,
};
use crate::mpa::frame::{DEPTH_MAX, Enhanced, Frame, Kind};

/// The initiator's side of the exchange.
#[derive(Debug, Clone)]
pub struct Initiator {
    params: Params,
    request: Vec<u8>,
    reply: Inbound,
}

/// Result of the initiator's exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InitiatorOutcome {
    /// The connection is established.
    Accepted(Negotiated),
    /// The responder refused. The connection has to be closed.
    Rejected {
        /// The application's private data from the reply.
        private_data: Vec<u8>,
    },
}

impl Initiator {
    /// Starts an exchange.
    ///
    /// # Errors
    /// [`NegotiateError::PrivateData`] if the private data does not fit (512 bytes for revision 1,
    /// 508 for revision 2); [`NegotiateError::NoMatchingRtr`] if peer-to-peer setup is requested
    /// without a kind of RTR message.
    pub fn new(params: Params, private_data: &[u8]) -> Result<Self, NegotiateError> {
        let peer_to_peer = params.enhanced && params.peer_to_peer;
        //= rfc6581#section-9.2
        //# The initiator MUST set each Control Flag B, C, and D to 1 for each of the options it
        //# supports, if Control Flag A is set to 1.
        if peer_to_peer && params.rtr == RtrKinds::default() {
            return Err(NegotiateError::NoMatchingRtr);
        }
        //= rfc6581#section-5
        //# The RDMA connection initiator sends an MPA Request, as specified in [RFC5044]; the new
        //# format defined here allows for: o Standardized negotiation of ORD and IRD.
        let enhanced = params.enhanced.then(|| Enhanced {
            ird: params.ird.min(DEPTH_MAX),
            ord: params.ord.min(DEPTH_MAX),
            peer_to_peer,
            ..params.rtr.filter(peer_to_peer).flags()
        });
        let frame = Frame {
            kind: Kind::Request,
            markers: params.markers_wanted,
            crc: params.crc,
            reject: false,
            enhanced,
            //= rfc5044#section-7.1.1
            //# For this version of the specification, senders MUST set this field to one.
            //= rfc6581#section-6
            //# To use any enhanced connection establishment feature, this MUST be set to two or
            //# higher.
            revision: if params.enhanced { REVISION_ENHANCED } else { REVISION_BASIC },
            private_data: private_data.to_vec(),
        };
        let request = emit(&frame)?;
        Ok(Self { params, request, reply: Inbound::new(Kind::Reply) })
    }

    /// The MPA Request. It must be sent once, before anything else.
    //= rfc5044#section-7.1.2
    //# When MPA is started in the Initiator mode, the MPA implementation MUST send a valid MPA
    //# Request Frame.
    //= rfc5044#section-7.1.2
    //# MPA Initiator mode implementations MUST receive and validate an MPA Reply Frame.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Takes bytes from the responder. Returns how many it took, and the outcome once the reply is
    /// complete; after that it takes none.
    ///
    /// # Errors
    /// [`NegotiateError`]. The connection has to be closed then, after a Terminate if
    /// [`crate::error::ProtocolError::from_negotiate`] returns one.
    pub fn input(
        &mut self,
        bytes: &[u8],
    ) -> Result<(usize, Option<InitiatorOutcome>), NegotiateError> {
        let (taken, reply) = self.reply.push(bytes)?;
        let Some(reply) = reply else { return Ok((taken, None)) };
        Ok((taken, Some(self.outcome(reply)?)))
    }

    fn outcome(&self, reply: Frame) -> Result<InitiatorOutcome, NegotiateError> {
        let params = &self.params;
        //= rfc5044#section-7.1.2
        //# If the MPA Reply Frame is properly formatted but is the Private Data is not acceptable,
        //# or if the Rejected Connection bit is set to '1', the implementation MUST exit MPA,
        //# leaving the TCP connection open. The ULP may close TCP or use the connection for other
        //# purposes.
        if reply.reject {
            return Ok(InitiatorOutcome::Rejected { private_data: reply.private_data });
        }
        //= rfc6581#section-10
        //# an unenhanced responder treats the enhanced request as incorrectly formatted and closes
        //# the TCP connection.
        //= rfc6581#section-10
        //# If the responder receives an enhanced MPA message, it MUST respond with an enhanced MPA
        //# message.
        let expected = if params.enhanced { REVISION_ENHANCED } else { REVISION_BASIC };
        if reply.revision != expected {
            return Err(NegotiateError::Revision { received: reply.revision, expected });
        }
        if params.enhanced && reply.enhanced.is_none() {
            return Err(NegotiateError::NotEnhanced);
        }
        let mut negotiated = Negotiated {
            revision: reply.revision,
            crc: crc_in_use(params.crc, reply.crc),
            tx_markers: reply.markers,
            rx_markers: params.markers_wanted,
            ird: params.ird,
            ord: params.ord,
            rtr: None,
            peer_private_data: reply.private_data,
        };
        if let Some(enhanced) = &reply.enhanced {
            //= rfc6581#section-9.1
            //# Upon receiving the MPA Accept Frame from the responder, the initiator MUST set its
            //# IRD at least to the responder ORD and its ORD at most to the responder IRD. If the
            //# initiator does not have sufficient resources for the required IRD, it MUST send a
            //# TERM message to the responder indicating insufficient resources and terminate the
            //# connection due to insufficient resources.
            if let Some(ord) = depth(enhanced.ord).filter(|&ord| ord > params.ird) {
                return Err(NegotiateError::InsufficientIrd { ord, ird: params.ird });
            }
            negotiated.ord = lower(params.ord, depth(enhanced.ird));
            negotiated.rtr = self.rtr(enhanced)?;
            if negotiated.rtr == Some(RtrKind::Read) {
                negotiated.ord = negotiated.ord.max(1);
            }
        }
        Ok(InitiatorOutcome::Accepted(negotiated))
    }

    //= rfc6581#section-9.2
    //# Upon receiving the MPA Accept Frame with Control Flag A set to 1, the initiator MUST
    //# generate one of the negotiated RTR indications. If the initiator is not able to generate any
    //# of the responder-supported RTR indications, then it MUST send a TERM message to the
    //# responder indicating failure to negotiate a mutually compatible connection model or RTR
    //# option, and terminate the connection.
    //= rfc6581#section-9.3
    //# After the initiator modifies its ORD/IRD to match the responder's values as stated above,
    //# the initiator sends the first message of the negotiated RTR indication option. If no
    //# matching RTR indication option exists, then the initiator sends a TERM message.
    fn rtr(&self, reply: &Enhanced) -> Result<Option<RtrKind>, NegotiateError> {
        if !(self.params.peer_to_peer && reply.peer_to_peer) {
            return Ok(None);
        }
        let common = self.params.rtr.and(RtrKinds::of(reply));
        common.first().map(Some).ok_or(NegotiateError::NoMatchingRtr)
    }
}
