//! The MPA exchange that opens a connection, for both sides.
//!
//! The initiator sends [`Initiator::request`] and feeds [`Initiator::input`] with what comes back.
//! The responder feeds [`Responder::input`], shows the [`Request`] to the application, and answers
//! with [`Responder::accept`] or [`Responder::reject`]. Bytes may be cut anywhere, and bytes behind
//! the frame are left alone: `input` says how many it took.
//!
//! Who may send the first FPDU is a rule of its own, the caller's to keep:
//! the initiator sends first (its RTR message if [`Negotiated::rtr`] says so), and
//! **the responder sends no FPDU before it has received the first one**.
//!
//! Nothing here panics, whatever the peer sends and whatever the parameters are.

mod inbound;
mod initiator;
mod responder;

use thiserror::Error;

use super::frame::{
    DEPTH_UNNEGOTIATED, ENHANCED_LEN, Enhanced, Frame, FrameError, PRIVATE_DATA_MAX,
};
pub use initiator::{Initiator, InitiatorOutcome};
pub use responder::{Limits, Request, Responder};

/// MPA of RFC 5044.
pub const REVISION_BASIC: u8 = 1;
/// MPA of RFC 6581: read depths and peer-to-peer setup.
pub const REVISION_ENHANCED: u8 = 2;

/// What one side wants of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Params {
    /// We want CRCs; one side's wish is enough.
    pub crc: bool,
    /// We want markers in what we receive.
    pub markers_wanted: bool,
    /// RDMA Reads and Atomics from the peer that we can serve at once, at most
    /// [`DEPTH_MAX`](super::frame::DEPTH_MAX).
    pub ird: u16,
    /// RDMA Reads and Atomics that we want to have under way at once, at most
    /// [`DEPTH_MAX`](super::frame::DEPTH_MAX).
    pub ord: u16,
    /// Initiator: use revision 2. The responder follows the request.
    pub enhanced: bool,
    /// Initiator: ask for peer-to-peer setup; responder: agree to it. Revision 2 only.
    pub peer_to_peer: bool,
    /// The kinds of RTR message that we can send (initiator) or receive (responder).
    pub rtr: RtrKinds,
}

/// A kind of ready-to-receive message, which the initiator sends first in peer-to-peer setup so
/// that the responder may send. All are zero bytes long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RtrKind {
    /// A Send, which takes a posted receive.
    Send,
    /// An RDMA Write.
    Write,
    /// An RDMA Read, which is answered and takes one read of the depth.
    Read,
}

/// A set of [`RtrKind`]s.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RtrKinds {
    /// [`RtrKind::Send`].
    pub send: bool,
    /// [`RtrKind::Write`].
    pub write: bool,
    /// [`RtrKind::Read`].
    pub read: bool,
}

/// What both sides agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiated {
    /// 1 or 2.
    pub revision: u8,
    /// FPDUs carry CRCs, both ways.
    pub crc: bool,
    /// We insert markers.
    pub tx_markers: bool,
    /// We receive markers.
    pub rx_markers: bool,
    /// RDMA Reads and Atomics that the peer may have under way at once.
    pub ird: u16,
    /// RDMA Reads and Atomics that we may have under way at once.
    pub ord: u16,
    /// The message that the initiator sends before all others. `None`: the application's first
    /// message plays this part, and the initiator's application must be the first to send.
    pub rtr: Option<RtrKind>,
    /// The application's private data from the peer's frame.
    pub peer_private_data: Vec<u8>,
}

/// Why there is no connection.
///
/// [`crate::error::ProtocolError::from_negotiate`] says for which of these a Terminate is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NegotiateError {
    /// The peer's bytes are not an MPA frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A request of a revision that we do not speak, or a reply of another than we asked for.
    #[error("MPA revision {received} from the peer, {expected} expected")]
    Revision {
        /// Revision of the peer's frame.
        received: u8,
        /// Ours; of a request the highest that we speak.
        expected: u8,
    },
    /// The request was enhanced, the reply, though of revision 2, is not.
    #[error("the reply to an enhanced MPA request is not enhanced")]
    NotEnhanced,
    /// The peer's application sent more private data than [`Limits`] allow.
    #[error("{received} bytes of private data, more than {limit}")]
    PeerPrivateData {
        /// Bytes of the application's private data.
        received: usize,
        /// What was allowed.
        limit: usize,
    },
    /// The responder wants to have more reads under way than we can serve.
    #[error("the peer wants {ord} RDMA Reads under way, we can serve {ird}")]
    InsufficientIrd {
        /// ORD of the reply.
        ord: u16,
        /// Our IRD.
        ird: u16,
    },
    /// Peer-to-peer setup, and no kind of RTR message that both sides can handle.
    #[error("no kind of ready-to-receive message suits both sides")]
    NoMatchingRtr,
    /// Our own application's private data does not fit a frame.
    #[error("{length} bytes of private data do not fit an MPA frame, at most {limit} do")]
    PrivateData {
        /// What the application gave.
        length: usize,
        /// What fits.
        limit: usize,
    },
    /// Asked to answer before a request had come in whole, or twice.
    #[error("there is no MPA request to answer")]
    NoRequest,
}

impl RtrKinds {
    /// Every kind.
    pub const ALL: Self = Self { send: true, write: true, read: true };

    /// The set with one member.
    pub fn only(kind: RtrKind) -> Self {
        Self {
            send: kind == RtrKind::Send,
            write: kind == RtrKind::Write,
            read: kind == RtrKind::Read,
        }
    }

    fn of(enhanced: &Enhanced) -> Self {
        Self { send: enhanced.rtr_send, write: enhanced.rtr_write, read: enhanced.rtr_read }
    }

    fn flags(self) -> Enhanced {
        Enhanced {
            rtr_send: self.send,
            rtr_write: self.write,
            rtr_read: self.read,
            ..Enhanced::default()
        }
    }

    fn filter(self, keep: bool) -> Self {
        if keep { self } else { Self::default() }
    }

    fn and(self, other: Self) -> Self {
        Self {
            send: self.send && other.send,
            write: self.write && other.write,
            read: self.read && other.read,
        }
    }

    /// The kind to prefer: a Write costs the responder nothing, a Read an answer, a Send one of the
    /// application's receives.
    fn first(self) -> Option<RtrKind> {
        let kinds =
            [(self.write, RtrKind::Write), (self.read, RtrKind::Read), (self.send, RtrKind::Send)];
        kinds.iter().find(|(offered, _)| *offered).map(|&(_, kind)| kind)
    }
}

//= rfc5044#section-7.1.1
//# When this bit is '1' in either the MPA Request Frame or MPA Reply Frame, CRCs MUST be generated
//# and checked by both endpoints.
fn crc_in_use(ours: bool, theirs: bool) -> bool {
    ours || theirs
}

fn depth(field: u16) -> Option<u16> {
    (field != DEPTH_UNNEGOTIATED).then_some(field)
}

fn lower(ours: u16, theirs: Option<u16>) -> u16 {
    theirs.map_or(ours, |theirs| ours.min(theirs))
}

fn emit(frame: &Frame) -> Result<Vec<u8>, NegotiateError> {
    let limit = PRIVATE_DATA_MAX - if frame.enhanced.is_some() { ENHANCED_LEN } else { 0 };
    let length = frame.private_data.len();
    if length > limit {
        return Err(NegotiateError::PrivateData { length, limit });
    }
    let mut bytes = Vec::new();
    frame.emit(&mut bytes);
    Ok(bytes)
}
