//! The responder of a connection.

use super::inbound::Inbound;
use super::{
    NegotiateError, Negotiated, Params, REVISION_BASIC, REVISION_ENHANCED, RtrKind, RtrKinds,
    crc_in_use, depth, emit, lower,
};
use crate::mpa::frame::{DEPTH_MAX, Enhanced, Frame, Kind};

/// The responder's side of the exchange.
#[derive(Debug, Clone)]
pub struct Responder {
    limits: Limits,
    inbound: Inbound,
    request: Option<Frame>,
}

/// A connection request, for the responder's application.
//= rfc5044#section-7.1.1
//# Otherwise, the MPA receiver should pass the PD_Length value and Private Data to the ULP.
//= rfc5044#section-7.1.4.1
//# This document allows for small amounts of Private Data to be exchanged as part of the MPA
//# startup sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The MPA revision: 1 or 2.
    pub revision: u8,
    /// Whether the initiator wants CRCs.
    pub crc: bool,
    /// Whether the initiator wants markers in what it receives.
    pub markers: bool,
    /// Number of Reads that the initiator can serve at once, which limits the local ORD. `None` if
    /// not stated.
    pub ird: Option<u16>,
    /// Number of Reads that the initiator wants to have outstanding. `None` if not stated.
    pub ord: Option<u16>,
    /// The kinds of RTR message that the initiator can send. `None` without peer-to-peer setup.
    pub rtr: Option<RtrKinds>,
    /// The application's private data.
    pub private_data: Vec<u8>,
}

/// Limits of what an initiator may send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum length of the application's private data, in bytes.
    pub private_data_max: usize,
}

impl Responder {
    /// Starts an exchange.
    pub fn new(limits: Limits) -> Self {
        Self { limits, inbound: Inbound::new(Kind::Request), request: None }
    }

    /// Takes bytes from the initiator. Returns how many it took, and the request once it is
    /// complete; after that it takes none. An initiator that sends more before the reply violates
    /// RFC 5044.
    ///
    /// # Errors
    /// [`NegotiateError`]. The connection has to be closed then, without a reply.
    pub fn input(&mut self, bytes: &[u8]) -> Result<(usize, Option<Request>), NegotiateError> {
        let (taken, frame) = self.inbound.push(bytes)?;
        let Some(frame) = frame else { return Ok((taken, None)) };
        //= rfc5044#section-7.1.1
        //# If the MPA receiver cannot interoperate with the received version, then it MUST close
        //# the connection and report an error locally.
        let expected = REVISION_ENHANCED;
        if !(REVISION_BASIC..=expected).contains(&frame.revision) {
            return Err(NegotiateError::Revision { received: frame.revision, expected });
        }
        let (received, limit) = (frame.private_data.len(), self.limits.private_data_max);
        if received > limit {
            return Err(NegotiateError::PeerPrivateData { received, limit });
        }
        let enhanced = frame.enhanced.as_ref();
        let request = Request {
            revision: frame.revision,
            crc: frame.crc,
            markers: frame.markers,
            ird: enhanced.and_then(|e| depth(e.ird)),
            ord: enhanced.and_then(|e| depth(e.ord)),
            //= rfc6581#section-9.2
            //# On reception, if Control Flag A is set to 0, then Control Flags B, C, and D MUST be
            //# ignored.
            rtr: enhanced.filter(|e| e.peer_to_peer).map(RtrKinds::of),
            private_data: frame.private_data.clone(),
        };
        self.request = Some(frame);
        Ok((taken, Some(request)))
    }

    /// Accepts the request. Returns the MPA Reply to send, and the agreed parameters. The first
    /// FPDU may come at once; none may be sent before it.
    ///
    /// # Errors
    /// [`NegotiateError::NoMatchingRtr`], after which [`Self::reject`] is the right answer;
    /// [`NegotiateError::PrivateData`], [`NegotiateError::NoRequest`]. The request stays unanswered
    /// in each case.
    //= rfc5044#section-7.1.2
    //# MPA Responder mode implementations MUST receive and validate at least one FPDU before
    //# sending any FPDUs or Markers.
    pub fn accept(
        &mut self,
        params: Params,
        private_data: &[u8],
    ) -> Result<(Vec<u8>, Negotiated), NegotiateError> {
        let request = self.request.as_ref().ok_or(NegotiateError::NoRequest)?;
        let mut negotiated = Negotiated {
            revision: request.revision,
            crc: crc_in_use(params.crc, request.crc),
            tx_markers: request.markers,
            rx_markers: params.markers_wanted,
            ird: params.ird,
            ord: params.ord,
            rtr: None,
            peer_private_data: request.private_data.clone(),
        };
        if let Some(asked) = &request.enhanced {
            //= rfc6581#section-9.1
            //# The responder MUST set its ORD at most to the initiator IRD.
            //= rfc6581#section-9.1
            //# The responder IRD is the maximum number of simultaneous inbound RDMA Read Requests
            //# that the responder actually can support for the requested connection.
            negotiated.ird = lower(params.ird, depth(asked.ord));
            negotiated.ord = lower(params.ord, depth(asked.ird));
            negotiated.rtr = choose_rtr(&params, asked)?;
            if negotiated.rtr == Some(RtrKind::Read) {
                negotiated.ird = negotiated.ird.max(1);
            }
        }
        let reply = Frame {
            kind: Kind::Reply,
            markers: params.markers_wanted,
            // The result for the whole connection: siw refuses a reply with 0 to a request with 1.
            crc: negotiated.crc,
            reject: false,
            //= rfc6581#section-10
            //# If the responder receives an enhanced MPA message, it MUST respond with an enhanced
            //# MPA message.
            //= rfc6581#section-10
            //# If the responder receives an unenhanced MPA message ('S' is set to 0), it MUST
            //# respond with an unenhanced MPA message.
            enhanced: request.enhanced.map(|_| Enhanced {
                ird: negotiated.ird.min(DEPTH_MAX),
                ord: negotiated.ord.min(DEPTH_MAX),
                peer_to_peer: negotiated.rtr.is_some(),
                ..negotiated.rtr.map(RtrKinds::only).unwrap_or_default().flags()
            }),
            revision: request.revision,
            private_data: private_data.to_vec(),
        };
        let reply = emit(&reply)?;
        self.request = None;
        Ok((reply, negotiated))
    }

    /// Refuses the request. Returns the MPA Reply to send before closing.
    ///
    /// # Errors
    /// [`NegotiateError::PrivateData`], [`NegotiateError::NoRequest`]. The request stays
    /// unanswered.
    //= rfc5044#section-7.1.2
    //# The Responder SHOULD return an MPA Reply Frame with the "Reject Connection" bit set to '1'
    //# if the validation of the Private Data is not acceptable to the ULP.
    pub fn reject(&mut self, private_data: &[u8]) -> Result<Vec<u8>, NegotiateError> {
        let request = self.request.as_ref().ok_or(NegotiateError::NoRequest)?;
        let reply = emit(&Frame {
            kind: Kind::Reply,
            markers: false,
            crc: request.crc,
            reject: true,
            // Enhanced replies need the four bytes, here zero: a Linux kernel crashes without them.
            enhanced: request.enhanced.map(|_| Enhanced::default()),
            revision: request.revision,
            private_data: private_data.to_vec(),
        })?;
        self.request = None;
        Ok(reply)
    }
}

//= rfc6581#section-9.2
//# For each initiator-supported RTR indication option, the responder SHOULD set the corresponding
//# Control Flag if the responder can support that option in an MPA reply. The responder is not
//# required to specify all RTR indication options it supports.
//= rfc6581#section-9.2
//# If Control Flag A is 1 in the MPA Request message, then the responder MUST set Control Flag A to
//# 1 in the MPA reply message.
fn choose_rtr(params: &Params, asked: &Enhanced) -> Result<Option<RtrKind>, NegotiateError> {
    if !(params.peer_to_peer && asked.peer_to_peer) {
        return Ok(None);
    }
    let common = params.rtr.and(RtrKinds::of(asked));
    common.first().map(Some).ok_or(NegotiateError::NoMatchingRtr)
}
