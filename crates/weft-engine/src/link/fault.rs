//! Why a message could not be processed: a protocol violation of the peer, with the segment that
//! shows it, or the peer's end.

use weft_wire::ddp::Header;
use weft_wire::error::ProtocolError;
use weft_wire::rdmap::{ReadRequest, Terminate};

use crate::Errno;
use crate::mr::AccessError;
use crate::wc::Status;

/// The result of processing a message.
pub(super) type Handled = Result<(), Fault>;

/// The reason for terminating the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) error: ProtocolError,
    segment: Option<(u16, Header)>,
    read_request: Option<ReadRequest>,
    /// Whether the peer has ended, and its memory with it, before the message was copied from
    /// there. That is the loss of the connection, and no violation.
    pub(crate) is_loss: bool,
}

impl Fault {
    /// The peer's memory could not be read.
    pub(crate) fn unreadable(error: Errno) -> Self {
        let is_loss = error == Errno::SRCH;
        Self { is_loss, ..Self::from(ProtocolError::RdmapCatastrophic) }
    }

    /// Adds the segment's header and length (`len`, including the header), for the Terminate
    /// message.
    //= rfc5040#section-4.8
    //# The length handed up by the DDP layer when the error was detected.
    pub(crate) fn in_segment(self, len: usize, header: Header) -> Self {
        let len = u16::try_from(len).unwrap_or(u16::MAX);
        Self { segment: self.segment.or(Some((len, header))), ..self }
    }

    pub(crate) fn of_request(error: ProtocolError, request: ReadRequest) -> Self {
        Self { read_request: Some(request), ..Self::from(error) }
    }

    pub(crate) fn terminate(&self) -> Terminate {
        self.error.terminate(self.segment, self.read_request)
    }

    /// Layer, type and code as one number, for `vendor_err`.
    pub(crate) fn code(&self) -> u32 {
        let (layer, etype, code) = self.error.terminate_code();
        terminate_number(layer, etype, code)
    }
}

impl<E: Into<ProtocolError>> From<E> for Fault {
    fn from(error: E) -> Self {
        Self { error: error.into(), segment: None, read_request: None, is_loss: false }
    }
}

fn terminate_number(layer: u8, etype: u8, code: u8) -> u32 {
    u32::from(layer) << 12 | u32::from(etype) << 8 | u32::from(code)
}

/// Maps a refused access of a tagged message to its error (RFC 5041 section 8.2, RFC 5040 section
/// 7.2).
pub(super) fn tagged(error: AccessError, stag: u32) -> ProtocolError {
    match error {
        AccessError::Key => ProtocolError::TaggedInvalidStag { stag },
        AccessError::Domain => ProtocolError::TaggedNotAssociated { stag },
        AccessError::Bounds => ProtocolError::TaggedBounds { stag },
        AccessError::Rights => ProtocolError::AccessRights { stag },
    }
}

/// Maps a refused access of a read or atomic request to its error (RFC 5040 section 7.2).
pub(super) fn requested(error: AccessError, stag: u32) -> ProtocolError {
    match error {
        AccessError::Key => ProtocolError::InvalidStag { stag },
        AccessError::Domain => ProtocolError::NotAssociated { stag },
        AccessError::Bounds => ProtocolError::Bounds { stag },
        AccessError::Rights => ProtocolError::AccessRights { stag },
    }
}

/// The status of our oldest request, and its `vendor_err`, after the peer's Terminate.
pub(super) fn status_of(terminate: &Terminate) -> (Status, u32) {
    const RDMAP: u8 = 0;
    const DDP: u8 = 1;
    let Terminate { layer, etype, code, .. } = *terminate;
    let status = match (layer, etype, code) {
        (RDMAP, 1, _) | (DDP, 1, 0..=3) => Status::RemAccessErr,
        (DDP, 2, 2 | 5) => Status::RemInvReqErr,
        (RDMAP, 2, 5 | 6) | (DDP, ..) => Status::RemInvReqErr,
        (RDMAP, ..) => Status::RemOpErr,
        _ => Status::RetryExcErr,
    };
    (status, terminate_number(layer, etype, code))
}
