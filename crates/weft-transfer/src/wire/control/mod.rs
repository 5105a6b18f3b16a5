//! Control messages: a header, and a body that depends on the type.
//!
//! ```text
//!      0       2       4       6       8
//!   0  | session       | type  | zero  |
//!   8  | length of body| zero          |
//!  16  | body …                        |
//! ```

mod hello;
mod listen;
mod parts;
#[cfg(test)]
mod tests;

pub use hello::{Hello, HelloReply, Open, OpenReply, Role, Terms};
pub use listen::{ListenReply, PipeSecret};
pub use parts::{Cancel, Complete, Credit, Credits, Notice, Range};

use super::WireError;
use super::cursor::Cursor;
use crate::limits::{BODY_LEN_MAX, RECORDS_LEN_MAX};

/// The header of a control message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlHeader {
    /// The session, or 0 for the connection itself.
    pub session: u32,
    /// The type of the message.
    pub kind: u16,
    /// Bytes of the body.
    pub len: u32,
}

impl ControlHeader {
    /// Length in bytes.
    pub const LEN: usize = 16;

    /// Returns the header's bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.session.to_be_bytes());
        bytes[4..6].copy_from_slice(&self.kind.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    /// Parses a header, which tells where its message ends in a stream.
    ///
    /// # Errors
    /// If the bytes are no valid header, or the body would be too long.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new(bytes);
        let session = cursor.u32("the session")?;
        let kind = cursor.u16("the type")?;
        cursor.zero16("the flags of a message")?;
        let len = cursor.at_most("the length of a message", BODY_LEN_MAX)?;
        cursor.zero16("the reserved field of a message")?;
        cursor.zero16("the reserved field of a message")?;
        cursor.end()?;
        Ok(Self { session, kind, len })
    }
}

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The session, or 0 for the connection itself.
    pub session: u32,
    /// The body.
    pub body: Body,
}

/// The body of a control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// The initiator's first message: what it supports and asks for.
    Hello(Hello),
    /// The acceptor's first message: the agreed terms or a refusal.
    HelloReply(HelloReply),
    /// The initiator opens a session.
    Open(Open),
    /// Whether the acceptor accepts the session.
    OpenReply(OpenReply),
    /// The source has no credits left. At most one request is outstanding.
    CreditRequest,
    /// From the sink: new credits, and acknowledgements.
    Credits(Credits),
    /// From the source, if the sink does not see arrivals: a block has been written.
    Notice(Notice),
    /// Records of the layer above, which this layer does not parse.
    Records(Vec<u8>),
    /// The bytes of records that the layer above has taken since the session began.
    RecordsTaken(u64),
    /// The sender has closed a data channel. A sink acknowledges all blocks that arrived there
    /// before it sends this.
    ChannelLost(u16),
    /// From the source: the totals of its blocks. From the sink: it has processed all of them.
    Complete(Complete),
    /// Cancels the session, or with session 0 the connection.
    Cancel(Cancel),
    /// After `Cancel` of either end: the sender will not touch the session's buffers any more.
    Closed,
    /// Asks the peer for a pong.
    Ping(u64),
    /// Answers a ping, with its number.
    Pong(u64),
    /// From the initiator, before the first session: asks the acceptor of a pipe to listen for data
    /// channels over TCP.
    Listen,
    /// The acceptor's answer to this and to the next one.
    ListenReply(ListenReply),
    /// From the initiator, before the first session: asks the acceptor to take the data channels of
    /// another server, which has this Ed25519 key.
    Grant([u8; 32]),
}

impl Body {
    /// The number of the message's type.
    #[must_use]
    pub const fn kind(&self) -> u16 {
        match self {
            Self::Hello(_) => 1,
            Self::HelloReply(_) => 2,
            Self::Open(_) => 3,
            Self::OpenReply(_) => 4,
            Self::CreditRequest => 5,
            Self::Credits(_) => 6,
            Self::Notice(_) => 7,
            Self::Records(_) => 8,
            Self::RecordsTaken(_) => 9,
            Self::ChannelLost(_) => 10,
            Self::Complete(_) => 11,
            Self::Cancel(_) => 12,
            Self::Closed => 13,
            Self::Ping(_) => 14,
            Self::Pong(_) => 15,
            Self::Listen => 16,
            Self::ListenReply(_) => 17,
            Self::Grant(_) => 18,
        }
    }

    fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => hello.emit(out),
            Self::HelloReply(reply) => reply.emit(out),
            Self::Open(open) => open.emit(out),
            Self::OpenReply(reply) => reply.emit(out),
            Self::CreditRequest | Self::Closed | Self::Listen => {}
            Self::Credits(credits) => credits.emit(out),
            Self::Notice(notice) => notice.emit(out),
            Self::Records(records) => out.extend_from_slice(records),
            Self::RecordsTaken(number) | Self::Ping(number) | Self::Pong(number) => {
                out.extend_from_slice(&number.to_be_bytes());
            }
            Self::ChannelLost(channel) => {
                out.extend_from_slice(&channel.to_be_bytes());
                out.extend_from_slice(&[0; 2]);
            }
            Self::Complete(complete) => complete.emit(out),
            Self::Cancel(cancel) => cancel.emit(out),
            Self::ListenReply(reply) => reply.emit(out),
            Self::Grant(key) => out.extend_from_slice(key),
        }
    }

    fn parse(kind: u16, body: &[u8]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new(body);
        let body = match kind {
            1 => Self::Hello(Hello::parse(&mut cursor)?),
            2 => Self::HelloReply(HelloReply::parse(&mut cursor)?),
            3 => Self::Open(Open::parse(&mut cursor)?),
            4 => Self::OpenReply(OpenReply::parse(&mut cursor)?),
            5 => Self::CreditRequest,
            6 => Self::Credits(Credits::parse(&mut cursor)?),
            7 => Self::Notice(Notice::parse(&mut cursor)?),
            8 => Self::Records(bytes_of(&mut cursor, "records", 1, RECORDS_LEN_MAX)?),
            9 => Self::RecordsTaken(cursor.u64("the number of bytes")?),
            10 => {
                let channel = cursor.u16("the channel")?;
                cursor.zero16("the reserved field of a lost channel")?;
                Self::ChannelLost(channel)
            }
            11 => Self::Complete(Complete::parse(&mut cursor)?),
            12 => Self::Cancel(Cancel::parse(&mut cursor)?),
            13 => Self::Closed,
            14 => Self::Ping(cursor.u64("the number of a ping")?),
            15 => Self::Pong(cursor.u64("the number of a pong")?),
            16 => Self::Listen,
            17 => Self::ListenReply(ListenReply::parse(&mut cursor)?),
            18 => Self::Grant(cursor.array("the key of a server")?),
            kind => return Err(WireError::Type(kind)),
        };
        cursor.end()?;
        Ok(body)
    }

    /// Whether the body is allowed in a message of the connection, and in one of a session.
    const fn places(&self) -> (bool, bool) {
        match self {
            Self::Hello(_)
            | Self::HelloReply(_)
            | Self::Ping(_)
            | Self::Pong(_)
            | Self::Listen
            | Self::ListenReply(_)
            | Self::Grant(_) => (true, false),
            Self::Cancel(_) => (true, true),
            _ => (false, true),
        }
    }
}

impl Message {
    /// Creates a message of a session.
    #[must_use]
    pub const fn of(session: u32, body: Body) -> Self {
        Self { session, body }
    }

    /// Returns the bytes of header and body.
    ///
    /// # Panics
    /// If the body exceeds its limit. The bodies that `session` creates do not.
    #[must_use]
    pub fn emit(&self) -> Vec<u8> {
        let mut bytes = vec![0; ControlHeader::LEN];
        self.body.emit(&mut bytes);
        let len = u32::try_from(bytes.len() - ControlHeader::LEN).unwrap_or(u32::MAX);
        assert!(len <= BODY_LEN_MAX, "a control message of {len} bytes");
        let header = ControlHeader { session: self.session, kind: self.body.kind(), len };
        bytes[..ControlHeader::LEN].copy_from_slice(&header.emit());
        bytes
    }

    /// Parses a whole message: a header with all of its body.
    ///
    /// # Errors
    /// If the bytes are no valid message. Nothing after them can be trusted then.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let (header, body) = bytes.split_first_chunk().ok_or(WireError::Truncated("the header"))?;
        let ControlHeader { session, kind, len } = ControlHeader::parse(header)?;
        let len = len as usize;
        if body.len() < len {
            return Err(WireError::Truncated("the body"));
        }
        if body.len() > len {
            return Err(WireError::TrailingBytes(body.len() - len));
        }
        let body = Body::parse(kind, body)?;
        let (of_connection, of_session) = body.places();
        if !(if session == 0 { of_connection } else { of_session }) {
            return Err(WireError::Session { kind, session });
        }
        Ok(Self { session, body })
    }
}

/// Returns all remaining bytes, which must be `least` to `limit` many.
fn bytes_of(
    cursor: &mut Cursor<'_>,
    field: &'static str,
    least: usize,
    limit: usize,
) -> Result<Vec<u8>, WireError> {
    let bytes = cursor.rest();
    let (value, least, limit) = (bytes.len() as u64, least as u64, limit as u64);
    if value < least {
        return Err(WireError::TooSmall { field, value, least });
    }
    if value > limit {
        return Err(WireError::TooLarge { field, value, limit });
    }
    Ok(bytes.to_vec())
}
