//! Limits of the formats: maximum values of fields, and of what a peer may have outstanding.

/// The largest ULPDU that may be sent, in bytes.
//= rfc5044#section-3
//# The sending DDP MUST NOT post a ULPDU larger than 64768 octets to MPA.
pub const ULPDU_MAX: usize = 64768;
/// Maximum number of bytes behind a ULPDU: pad and CRC.
pub const TRAILER_MAX: usize = 7;
/// Maximum length of a frame's private data, including the four bytes of
/// [`Enhanced`](crate::mpa::frame::Enhanced).
//= rfc5044#section-7.1.1
//# This field MUST contain the length in octets of the Private Data field.
//= rfc5044#section-7.1.1
//# The Private Data field MUST be between 0 and 512 octets in length.
pub const PRIVATE_DATA_MAX: usize = 512;
/// Maximum IRD and ORD: 14 bits, without the value for "not negotiated here".
pub const DEPTH_MAX: u16 = 0x3ffe;
/// Number of sequences, from the first missing one on, that a receiver accepts; as many can be
/// acknowledged selectively.
pub const WINDOW_MAX: u16 = 1024;
/// Number of words of received sequences in the body of an Ack. The first word is in the header.
pub const WORDS_MAX: usize = WINDOW_MAX as usize / 64 - 1;
/// Bytes of private data of a connection of reliable datagrams: as many as one of queue pairs has
/// between Weft hosts.
pub const FRAME_DATA_MAX: usize = 452;
/// Maximum payload of one datagram over IPv4, with a CRC.
pub const PAYLOAD_MAX: usize = 65_469;
