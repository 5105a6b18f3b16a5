//! The MPA exchange that opens a connection, for both sides.
//!
//! The initiator sends [`Initiator::request`] and passes the answer to [`Initiator::input`]. The
//! responder passes what it receives to [`Responder::input`], shows the [`Request`] to the
//! application, and answers with [`Responder::accept`] or [`Responder::reject`]. Bytes may be split
//! anywhere, and bytes behind the frame are not taken: `input` returns how many it took.
//!
//! The caller must observe which side sends the first FPDU: the initiator sends first (its RTR
//! message if [`Negotiated::rtr`] has one), and **the responder sends no FPDU before it has
//! received the first one**.
//!
//! No function here panics, whatever the peer sends and whatever the parameters are.

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

/// What one side wants from a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Params {
    /// Whether this side wants CRCs. They are used if either side wants them.
    pub crc: bool,
    /// Whether this side wants markers in what it receives.
    pub markers_wanted: bool,
    /// Number of RDMA Reads and Atomics of the peer that this side can serve at once, at most
    /// [`DEPTH_MAX`](super::frame::DEPTH_MAX).
    pub ird: u16,
    /// Number of RDMA Reads and Atomics that this side wants to have outstanding, at most
    /// [`DEPTH_MAX`](super::frame::DEPTH_MAX).
    pub ord: u16,
    /// Initiator: use revision 2. The responder follows the request.
    pub enhanced: bool,
    /// Initiator: request peer-to-peer setup. Responder: agree to it. Revision 2 only.
    pub peer_to_peer: bool,
    /// The kinds of RTR message that this side can send (initiator) or receive (responder).
    pub rtr: RtrKinds,
}

/// A kind of ready-to-receive message. In peer-to-peer setup the initiator sends it first, so that
/// the responder may send. All kinds are zero bytes long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RtrKind {
    /// A Send, which consumes a posted receive.
    Send,
    /// An RDMA Write.
    Write,
    /// An RDMA Read, which needs an answer and a read depth of one.
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

/// What both sides have agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiated {
    /// The MPA revision: 1 or 2.
    pub revision: u8,
    /// Whether FPDUs carry CRCs, in both directions.
    pub crc: bool,
    /// Whether this side inserts markers.
    pub tx_markers: bool,
    /// Whether this side receives markers.
    pub rx_markers: bool,
    /// Number of RDMA Reads and Atomics that the peer may have outstanding.
    pub ird: u16,
    /// Number of RDMA Reads and Atomics that this side may have outstanding.
    pub ord: u16,
    /// The message that the initiator sends first. With `None` the application's first message
    /// takes this role, so the initiator's application must send first.
    pub rtr: Option<RtrKind>,
    /// The application's private data from the peer's frame.
    pub peer_private_data: Vec<u8>,
}

/// Why a connection was not established.
///
/// [`crate::error::ProtocolError::from_negotiate`] decides which of these are reported by a
/// Terminate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NegotiateError {
    /// The peer's bytes are not an MPA frame.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A request has an unsupported revision, or a reply another one than requested.
    #[error("MPA revision {received} from the peer, {expected} expected")]
    Revision {
        /// The revision of the peer's frame.
        received: u8,
        /// The expected revision; for a request the highest supported one.
        expected: u8,
    },
    /// The request was enhanced, but the reply, although of revision 2, is not.
    #[error("the reply to an enhanced MPA request is not enhanced")]
    NotEnhanced,
    /// The peer's application has sent more private data than [`Limits`] allow.
    #[error("{received} bytes of private data, more than {limit}")]
    PeerPrivateData {
        /// Bytes of the application's private data.
        received: usize,
        /// The maximum.
        limit: usize,
    },
    /// The responder wants more outstanding reads than this side can serve.
    #[error("the peer wants {ord} RDMA Reads under way, we can serve {ird}")]
    InsufficientIrd {
        /// The ORD in the reply.
        ord: u16,
        /// The IRD of this side.
        ird: u16,
    },
    /// There is no kind of RTR message for peer-to-peer setup that both sides support.
    #[error("no kind of ready-to-receive message suits both sides")]
    NoMatchingRtr,
    /// The local application's private data does not fit a frame.
    #[error("{length} bytes of private data do not fit an MPA frame, at most {limit} do")]
    PrivateData {
        /// Length of the private data in bytes.
        length: usize,
        /// The maximum.
        limit: usize,
    },
    /// An answer was requested before the request was complete, or a second time.
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

    /// The preferred kind: a Write costs the responder nothing, a Read needs an answer, and a Send
    /// consumes one of the application's receives.
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
