//! The bounds of the formats: what a field may say at most, and what a peer may have under way.

/// The largest ULPDU that may be sent, in bytes.
//= rfc5044#section-3
//# The sending DDP MUST NOT post a ULPDU larger than 64768 octets to MPA.
pub const ULPDU_MAX: usize = 64768;
/// Bytes behind a ULPDU: pad and CRC.
pub const TRAILER_MAX: usize = 7;
/// Longest private data of a frame, the four bytes of [`Enhanced`](crate::mpa::frame::Enhanced)
/// included.
//= rfc5044#section-7.1.1
//# This field MUST contain the length in octets of the Private Data field.
//= rfc5044#section-7.1.1
//# The Private Data field MUST be between 0 and 512 octets in length.
pub const PRIVATE_DATA_MAX: usize = 512;
/// The largest IRD or ORD, 14 bits less the value that says "not negotiated here".
pub const DEPTH_MAX: u16 = 0x3ffe;
/// Sequences that a receiver looks ahead of the first one that is missing; as many can be
/// acknowledged selectively.
pub const WINDOW_MAX: u16 = 1024;
/// Words of received sequences in the body of an Ack: the first one is in the header.
pub const WORDS_MAX: usize = WINDOW_MAX as usize / 64 - 1;
/// Bytes of payload that fit one datagram over IPv4, with a CRC.
pub const PAYLOAD_MAX: usize = 65_469;
