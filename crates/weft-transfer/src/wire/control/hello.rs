//! Bodies of the messages that begin connections and sessions.

use super::super::cursor::Cursor;
use super::super::preface::versions;
use super::super::{Refusal, Token, WireError};
use super::bytes_of;
use crate::limits::{BLOCK_SIZE_MAX, BLOCK_SIZE_MIN, CHANNELS_MAX, JOB_LEN_MAX, TEXT_LEN_MAX};

/// The status of what is accepted.
const ACCEPTED: u16 = 0;

/// What the initiator of a connection can do and wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The lowest version that it speaks.
    pub version_min: u16,
    /// The highest one.
    pub version_max: u16,
    /// How many data channels it wants.
    pub channels: u16,
    /// Bytes of payload of a block that it wants.
    pub block_size: u32,
    /// What else it can do: bits that the layers above define.
    pub features: u64,
    /// Which program it is, for people.
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

/// What holds for a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The version.
    pub version: u16,
    /// How many data channels the initiator may have at a time.
    pub channels: u16,
    /// Bytes of payload of a block, at most.
    pub block_size: u32,
    /// The features that both ends have.
    pub features: u64,
    /// What the preface of each data channel has to show.
    pub token: Token,
    /// Which program the acceptor is, for people.
    pub agent: String,
}

/// The acceptor's answer to a hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HelloReply {
    /// This holds.
    Accepted(Terms),
    /// The connection ends.
    Refused {
        /// Why.
        refusal: Refusal,
        /// The same for people.
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

/// What the initiator of a session is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It sends the blocks.
    Source,
    /// It receives them.
    Sink,
}

/// A session begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// What the end that opens the session is in it.
    pub role: Role,
    /// What is to be done, for the layers above.
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

/// The answer to an opening.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenReply {
    /// The session has begun.
    Accepted {
        /// The answer to the job, for the layers above.
        job: Vec<u8>,
    },
    /// There is no such session.
    Refused {
        /// Why.
        refusal: Refusal,
        /// The same for people.
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

fn emit_status(status: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&status.to_be_bytes());
    out.extend_from_slice(&[0; 2]);
}

fn emit_refusal(refusal: Refusal, text: &str, out: &mut Vec<u8>) {
    emit_status(refusal.number(), out);
    out.extend_from_slice(text.as_bytes());
}

/// The refusal, with its text, unless it is accepted.
fn parse_status(cursor: &mut Cursor<'_>) -> Result<Option<(Refusal, String)>, WireError> {
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
