//! Bodies of the messages that open connections and sessions.

use super::super::cursor::Cursor;
use super::super::preface::versions;
use super::super::{Refusal, Token, WireError};
use super::bytes_of;
use crate::limits::{BLOCK_SIZE_MAX, BLOCK_SIZE_MIN, CHANNELS_MAX, JOB_LEN_MAX, TEXT_LEN_MAX};

/// The status of an accepted request.
pub(super) const ACCEPTED: u16 = 0;

/// The features that the initiator of a connection supports, and its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The lowest protocol version that it supports.
    pub version_min: u16,
    /// The highest protocol version that it supports.
    pub version_max: u16,
    /// The number of data channels that it asks for.
    pub channels: u16,
    /// The block size that it asks for, in bytes of payload.
    pub block_size: u32,
    /// Optional features: bits that the layers above define.
    pub features: u64,
    /// The name of its program, for logs.
    pub agent: String,
}

impl Hello {
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.version_min.to_be_bytes());
        out.extend_from_slice(&self.version_max.to_be_bytes());
        out.extend_from_slice(&self.channels.to_be_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.features.to_be_bytes());
        out.extend_from_slice(&self.block_size.to_be_bytes());
        out.extend_from_slice(self.agent.as_bytes());
    }

    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<Self, WireError> {
        let (version_min, version_max) = versions(cursor)?;
        let channels = channels(cursor)?;
        cursor.zero16("the reserved field of a hello")?;
        let features = cursor.u64("the features")?;
        let block_size = block_size(cursor)?;
        let agent = cursor.text("the agent", TEXT_LEN_MAX)?;
        Ok(Self { version_min, version_max, channels, block_size, features, agent })
    }
}

/// The agreed terms of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The protocol version.
    pub version: u16,
    /// The most data channels of the initiator at a time.
    pub channels: u16,
    /// The largest payload of a block in bytes.
    pub block_size: u32,
    /// The features that both ends support.
    pub features: u64,
    /// The token that the preface of each data channel must contain.
    pub token: Token,
    /// The name of the acceptor's program, for logs.
    pub agent: String,
}

/// The acceptor's answer to a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HelloReply {
    /// The acceptor accepts the connection on these terms.
    Accepted(Terms),
    /// The acceptor refuses the connection.
    Refused {
        /// The reason as a code.
        refusal: Refusal,
        /// The reason as text.
        text: String,
    },
}

impl HelloReply {
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Accepted(terms) => {
                emit_status(ACCEPTED, out);
                out.extend_from_slice(&terms.version.to_be_bytes());
                out.extend_from_slice(&terms.channels.to_be_bytes());
                out.extend_from_slice(&terms.features.to_be_bytes());
                out.extend_from_slice(&terms.block_size.to_be_bytes());
                out.extend_from_slice(&terms.token.0);
                out.extend_from_slice(terms.agent.as_bytes());
            }
            Self::Refused { refusal, text } => emit_refusal(*refusal, text, out),
        }
    }

    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<Self, WireError> {
        if let Some((refusal, text)) = parse_status(cursor)? {
            return Ok(Self::Refused { refusal, text });
        }
        let version = cursor.u16("the version")?;
        if version == 0 {
            return Err(WireError::Value { field: "the version", value: 0 });
        }
        Ok(Self::Accepted(Terms {
            version,
            channels: channels(cursor)?,
            features: cursor.u64("the features")?,
            block_size: block_size(cursor)?,
            token: Token(cursor.array("the token")?),
            agent: cursor.text("the agent", TEXT_LEN_MAX)?,
        }))
    }
}

/// The role of a session's initiator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It sends blocks.
    Source,
    /// It receives blocks.
    Sink,
}

/// The opening of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The role of the end that opens the session.
    pub role: Role,
    /// The description of the job, for the layers above.
    pub job: Vec<u8>,
}

impl Open {
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        let role: u16 = match self.role {
            Role::Source => 1,
            Role::Sink => 2,
        };
        out.extend_from_slice(&role.to_be_bytes());
        out.extend_from_slice(&[0; 2]);
        out.extend_from_slice(&self.job);
    }

    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<Self, WireError> {
        let role = match cursor.u16("the role")? {
            1 => Role::Source,
            2 => Role::Sink,
            value => return Err(WireError::Value { field: "the role", value: value.into() }),
        };
        cursor.zero16("the reserved field of an opening")?;
        Ok(Self { role, job: bytes_of(cursor, "the job", 0, JOB_LEN_MAX)? })
    }
}

/// The acceptor's answer to the opening of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenReply {
    /// The session is open.
    Accepted {
        /// The answer to the job, for the layers above.
        job: Vec<u8>,
    },
    /// The acceptor refuses the session.
    Refused {
        /// The reason as a code.
        refusal: Refusal,
        /// The reason as text.
        text: String,
    },
}

impl OpenReply {
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Accepted { job } => {
                emit_status(ACCEPTED, out);
                out.extend_from_slice(job);
            }
            Self::Refused { refusal, text } => emit_refusal(*refusal, text, out),
        }
    }

    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<Self, WireError> {
        if let Some((refusal, text)) = parse_status(cursor)? {
            return Ok(Self::Refused { refusal, text });
        }
        Ok(Self::Accepted { job: bytes_of(cursor, "the answer to a job", 0, JOB_LEN_MAX)? })
    }
}

pub(super) fn emit_status(status: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&status.to_be_bytes());
    out.extend_from_slice(&[0; 2]);
}

pub(super) fn emit_refusal(refusal: Refusal, text: &str, out: &mut Vec<u8>) {
    emit_status(refusal.number(), out);
    out.extend_from_slice(text.as_bytes());
}

/// Returns the refusal with its text; `None` if the request is accepted.
pub(super) fn parse_status(
    cursor: &mut Cursor<'_>,
) -> Result<Option<(Refusal, String)>, WireError> {
    let status = cursor.u16("the status")?;
    cursor.zero16("the reserved field of a reply")?;
    if status == ACCEPTED {
        return Ok(None);
    }
    Ok(Some((Refusal::of(status), cursor.text("the text of a refusal", TEXT_LEN_MAX)?)))
}

fn channels(cursor: &mut Cursor<'_>) -> Result<u16, WireError> {
    const FIELD: &str = "the number of data channels";
    let value = cursor.u16(FIELD)?;
    if value == 0 {
        return Err(WireError::TooSmall { field: FIELD, value: 0, least: 1 });
    }
    if value > CHANNELS_MAX {
        let limit = u64::from(CHANNELS_MAX);
        return Err(WireError::TooLarge { field: FIELD, value: value.into(), limit });
    }
    Ok(value)
}

fn block_size(cursor: &mut Cursor<'_>) -> Result<u32, WireError> {
    const FIELD: &str = "the block size";
    let value = cursor.at_most(FIELD, BLOCK_SIZE_MAX)?;
    if value < BLOCK_SIZE_MIN {
        let least = u64::from(BLOCK_SIZE_MIN);
        return Err(WireError::TooSmall { field: FIELD, value: value.into(), least });
    }
    Ok(value)
}
