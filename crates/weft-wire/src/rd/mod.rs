//! Reliable datagrams (RD): DDP without MPA, over UDP.
//!
//! Datagram-iWARP (M. J. Rashti, "Improving the Performance and Scalability of Message Passing",
//! Queen's University 2010, chapter 6) keeps DDP and RDMAP, and leaves order and reliability to a
//! lower layer. This is the format of that layer. A datagram is a header, a body, and the CRC32C of
//! both, which MPA carries elsewhere. All fields are big-endian.
//!
//! ```text
//!  0                   1                   2                   3
//!  0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//! +---------------+-------+-+-+-+-+-------------------------------+
//! |    VERSION    |  kind |L|P|A|S| window; in a Reset, the reason |
//! +---------------+-------+-+-+-+-+-------------------------------+
//! |        source endpoint        |      destination endpoint     |
//! |                         source epoch                          |
//! |               destination epoch, 0 if not known               |
//! |                         source stream                         |
//! |          destination stream, of which A acknowledges          |
//! |                           sequence                            |
//! |              first sequence not yet received                  |
//! |     64 bits: the sequences behind that one, the nearest in    |
//! |     the lowest bit: 1 for received                            |
//! |                 timestamp in microseconds                     |
//! |             echo of the peer's timestamp, 0 for none          |
//! +---------------------------------------------------------------+
//! |     Data: a DDP segment (RFC 5041). Ack: further words of     |
//! |     received sequences. Otherwise nothing.                    |
//! +---------------------------------------------------------------+
//! |                            CRC32C                             |
//! +---------------------------------------------------------------+
//! ```
//!
//! An *epoch* is the number by which an endpoint identifies itself towards one address until it
//! restarts. A peer that repeats it has received something at that address. A *stream* is a
//! numbering of datagrams: an endpoint opens a new one, with a higher number, when it restarts at
//! sequence one.
//!
//! DDP's untagged header carries the length of the whole message in its word for RDMAP, which iWARP
//! uses only in Send with Invalidate.
//!
//! The answer to an Atomic Request (RFC 7306) is a Read Response of eight bytes: the value before,
//! big-endian. The request's identifier is in the place of a read's number.
//!
//! [`parse`] never panics; [`Header::emit`] panics on a buffer shorter than [`HEADER_LEN`].

mod failure;
mod frame;
mod header;

pub use failure::ReadFailure;
pub use frame::{FRAME_DATA_MAX, Frame};
pub use header::{
    Acknowledgement, CRC_LEN, HEADER_LEN, Header, Kind, RdEnd, RdError, Reason, VERSION,
    WINDOW_MAX, WORDS_MAX, parse, quoted, seal, words,
};
