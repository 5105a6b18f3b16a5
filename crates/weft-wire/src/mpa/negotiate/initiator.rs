//! The side that connects.

use super::inbound::Inbound;
use super::{
    NegotiateError, Negotiated, Params, REVISION_BASIC, REVISION_ENHANCED, RtrKind, RtrKinds,
    crc_in_use, depth, emit, lower,
};
use crate::mpa::frame::{DEPTH_MAX, Enhanced, Frame, Kind};

/// The initiator's exchange.
#[derive(Debug, Clone)]
pub struct Initiator {
    params: Params,
    request: Vec<u8>,
    reply: Inbound,
}

/// The end of an initiator's exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InitiatorOutcome {
    /// The connection stands.
    Accepted(Negotiated),
    /// The responder refused; the connection is to be closed.
    Rejected {
        /// The application's private data from the reply.
        private_data: Vec<u8>,
    },
}

impl Initiator {
    /// An exchange that has not begun.
    ///
    /// # Errors
    /// [`NegotiateError::PrivateData`] when the private data does not fit: 512 bytes for revision
    /// 1, 508 for revision 2; [`NegotiateError::NoMatchingRtr`] when peer-to-peer setup is asked
    /// for with no kind of RTR message.
    pub fn new(params: Params, private_data: &[u8]) -> Result<Self, NegotiateError> {
        let peer_to_peer = params.enhanced && params.peer_to_peer;
        //= rfc6581#section-9.2
        //% An initiator that sets A offers at least one kind of RTR message.
        if peer_to_peer && params.rtr == RtrKinds::default() {
            return Err(NegotiateError::NoMatchingRtr);
        }
        //= rfc6581#section-5
        //% Enhanced setup is the exchange of RFC 5044 with connection data before the private data.
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
            //% Rev is 1 in a frame of RFC 5044.
            //= rfc6581#section-6
            //% Rev is 2 in a frame of RFC 6581.
            revision: if params.enhanced { REVISION_ENHANCED } else { REVISION_BASIC },
            private_data: private_data.to_vec(),
        };
        let request = emit(&frame)?;
        Ok(Self { params, request, reply: Inbound::new(Kind::Reply) })
    }

    /// The MPA Request, to be sent once and before anything else.
    //= rfc5044#section-7.1.2
    //% The initiator sends its MPA Request first, and no FPDU before it has a valid MPA Reply.
    pub fn request(&self) -> &[u8] {
        &self.request
    }

    /// Takes bytes from the responder: how many of them it took, and the outcome once the reply is
    /// whole. After that it takes none.
    ///
    /// # Errors
    /// [`NegotiateError`]; the connection is to be closed, after a Terminate where
    /// [`crate::error::ProtocolError::from_negotiate`] names one.
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
        //% A reply with R set refuses the connection, whatever its revision.
        if reply.reject {
            return Ok(InitiatorOutcome::Rejected { private_data: reply.private_data });
        }
        //= rfc6581#section-10
        //% A responder of revision 1 takes the four enhanced bytes for the application's, so there
        //% is no going on in revision 1 with what a revision 2 request began.
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
            //% The initiator lowers its ORD to the IRD of the reply; if it cannot serve the ORD of
            //% the reply it ends the connection with "insufficient IRD resources".
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
    //% If the reply has A set, the initiator sends an RTR message of a kind that the reply has
    //% chosen from those offered; if there is none, it ends with "no matching RTR option".
    fn rtr(&self, reply: &Enhanced) -> Result<Option<RtrKind>, NegotiateError> {
        if !(self.params.peer_to_peer && reply.peer_to_peer) {
            return Ok(None);
        }
        let common = self.params.rtr.and(RtrKinds::of(reply));
        common.first().map(Some).ok_or(NegotiateError::NoMatchingRtr)
    }
}
