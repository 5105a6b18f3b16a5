//! Tests that every misbehaviour has the code that its RFC defines.

use weft_wire::ddp::{DdpError, Header};
use weft_wire::error::ProtocolError as E;
use weft_wire::mpa::fpdu::FpduError;
use weft_wire::mpa::frame::{FrameError, Kind};
use weft_wire::mpa::marker::MarkerError;
use weft_wire::rdmap::{Opcode, RdmapError, ReadRequest};

//= type=test
//= rfc5040#section-4.8
//# Figure 9, "Terminate Control Field Values", defines the valid values that MUST be used for this
//# field.
//= rfc5041#section-7.2
//# The following error numbers MUST be used when reporting errors to the ULP.
//= rfc5044#section-8
//# The following errors MUST be detected by MPA and the codes SHOULD be provided to DDP or other
//# Consumer:
//= rfc6581#section-8
//# Enhanced RDMA connection establishment extends the error codes defined in [RFC5044] by adding
//# three new error codes.
//= rfc7306#section-8.2
//# On incoming Atomic Requests, Atomic Responses, Immediate Data, and Immediate Data with Solicited
//# Event, the following MUST be validated: o The DDP layer MUST validate all DDP Segment fields. o
//# The RDMA OpCode MUST be valid. o The RDMA Version MUST be valid.
//= rfc7306#section-8.2
//# In the case of an error, the RDMAP layer MUST generate a Terminate Message indicating RDMA Layer
//# Remote Operation Error with Error Code Name "Catastrophic error, localized to RDMAP Stream" as
//# described in Section 4.8 of RFC 5040.
#[test]
fn errors_have_the_codes_of_the_rfcs() {
    let crc = FpduError::Crc { received: 0, computed: 1 };
    let table: [(E, (u8, u8, u8)); 45] = [
        (E::StreamLost, (2, 0, 1)),
        (crc.into(), (2, 0, 2)),
        (MarkerError::Fpdu(crc).into(), (2, 0, 2)),
        (MarkerError::Pointer { pointer: 4, distance: 8 }.into(), (2, 0, 3)),
        (FrameError::WrongKey(Kind::Reply).into(), (2, 0, 4)),
        (E::MpaCatastrophic, (2, 0, 5)),
        (E::InsufficientIrd, (2, 0, 6)),
        (E::NoMatchingRtr, (2, 0, 7)),
        (E::DdpCatastrophic, (1, 0, 0)),
        (E::TaggedInvalidStag { stag: 1 }, (1, 1, 0)),
        (E::TaggedBounds { stag: 1 }, (1, 1, 1)),
        (E::MismatchedReadResponse { stag: 1 }, (1, 1, 1)),
        (E::TaggedNotAssociated { stag: 1 }, (1, 1, 2)),
        (E::TaggedWrap, (1, 1, 3)),
        (DdpError::TaggedVersion(0).into(), (1, 1, 4)),
        (E::InvalidQueue { qn: 4 }, (1, 2, 1)),
        (E::NoBuffer { qn: 0 }, (1, 2, 2)),
        (DdpError::Msn { received: 2, expected: 1 }.into(), (1, 2, 3)),
        (DdpError::Mo { received: 2, expected: 1 }.into(), (1, 2, 4)),
        (DdpError::MessageTooLong { length: 2, limit: 1 }.into(), (1, 2, 5)),
        (DdpError::UntaggedVersion(0).into(), (1, 2, 6)),
        (DdpError::TooShort(3).into(), (0, 2, 0xff)),
        (E::RdmapCatastrophic, (0, 0, 0)),
        (E::InvalidStag { stag: 1 }, (0, 1, 0)),
        (E::Bounds { stag: 1 }, (0, 1, 1)),
        (E::AccessRights { stag: 1 }, (0, 1, 2)),
        (E::NotAssociated { stag: 1 }, (0, 1, 3)),
        (E::Wrap, (0, 1, 4)),
        (E::Protection, (0, 1, 0xff)),
        (RdmapError::Version(0).into(), (0, 2, 5)),
        (RdmapError::Opcode(15).into(), (0, 2, 6)),
        (RdmapError::Misplaced(Opcode::Write).into(), (0, 2, 6)),
        (RdmapError::AtomicOp(3).into(), (0, 2, 6)),
        (RdmapError::Length { received: 1, expected: 28 }.into(), (0, 2, 0xff)),
        (E::UnexpectedReadResponse, (0, 2, 6)),
        (E::UnexpectedAtomicResponse, (0, 2, 6)),
        (E::AtomicUnaligned { to: 1 }, (0, 2, 7)),
        (E::StreamCatastrophic, (0, 2, 7)),
        (E::GlobalCatastrophic, (0, 2, 8)),
        (E::CannotInvalidate { stag: 1 }, (0, 2, 9)),
        (E::Operation, (0, 2, 0xff)),
        (E::FpduStart, (2, 0, 3)),
        (E::Frame(FrameError::PrivateDataTooLong(513)), (2, 0, 4)),
        (E::Frame(FrameError::EnhancedTooShort(3)), (2, 0, 4)),
        (E::Ddp(DdpError::TooShort(0)), (0, 2, 0xff)),
    ];
    for (error, code) in table {
        assert_eq!(error.terminate_code(), code, "{error}");
    }
}

//= type=test
//= rfc5040#section-4.8
//# The DDP Header is not present if the Terminate Error Type is a Local Catastrophic Error.
//= rfc5040#section-4.8
//# The Terminated RDMA Header is only sent back if the terminate is associated with an RDMA Read
//# Request Message.
#[test]
fn terminate_copies_headers_as_the_rfc_says() {
    let header = Header::Tagged { last: true, ulp: 0x40, stag: 1, to: 2 };
    let read = ReadRequest { sink_stag: 1, sink_to: 2, size: 3, source_stag: 4, source_to: 5 };
    let copied = |error: E| {
        let terminate = error.terminate(Some((20, header)), Some(read));
        (terminate.segment_len, terminate.ddp_header.is_some(), terminate.read_request.is_some())
    };
    assert_eq!(copied(E::Bounds { stag: 4 }), (Some(20), true, true));
    assert_eq!(copied(E::CannotInvalidate { stag: 4 }), (Some(20), true, true));
    assert_eq!(copied(E::TaggedBounds { stag: 1 }), (Some(20), true, false));
    assert_eq!(copied(E::InvalidQueue { qn: 9 }), (Some(20), true, false));
    for error in [E::DdpCatastrophic, E::RdmapCatastrophic, E::FpduStart, E::InsufficientIrd] {
        assert_eq!(copied(error), (None, false, false));
    }
    assert_eq!(E::Bounds { stag: 4 }.terminate(None, Some(read)).read_request, None);
}
