//! The body of the answer to a request for a listener.

use std::fmt;

use super::super::cursor::Cursor;
use super::super::{Refusal, WireError};
use super::hello::{ACCEPTED, emit_refusal, emit_status, parse_status};
use crate::limits::TEXT_LEN_MAX;

/// The secret from which both ends derive the keys of the data channels beside a pipe.
#[derive(Clone, PartialEq, Eq)]
pub struct PipeSecret(pub [u8; 32]);

impl fmt::Debug for PipeSecret {
    /// Omits the bytes, so that logs do not reveal the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PipeSecret")
    }
}

/// The acceptor's answer to a request for a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListenReply {
    /// It listens for data channels.
    Accepted {
        /// The TCP port.
        port: u16,
        /// The secret of the data channels.
        secret: PipeSecret,
        /// The IP address as text.
        address: String,
    },
    /// It does not.
    Refused {
        /// The reason as a code.
        refusal: Refusal,
        /// The reason as text.
        text: String,
    },
}

impl ListenReply {
    pub(super) fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Self::Accepted { port, secret, address } => {
                emit_status(ACCEPTED, out);
                out.extend_from_slice(&port.to_be_bytes());
                out.extend_from_slice(&[0; 2]);
                out.extend_from_slice(&secret.0);
                out.extend_from_slice(address.as_bytes());
            }
            Self::Refused { refusal, text } => emit_refusal(*refusal, text, out),
        }
    }

    pub(super) fn parse(cursor: &mut Cursor<'_>) -> Result<Self, WireError> {
        if let Some((refusal, text)) = parse_status(cursor)? {
            return Ok(Self::Refused { refusal, text });
        }
        let port = cursor.u16("the port")?;
        if port == 0 {
            return Err(WireError::Value { field: "the port", value: 0 });
        }
        cursor.zero16("the reserved field of a listener")?;
        let secret = PipeSecret(cursor.array("the secret")?);
        let address = cursor.text("the address", TEXT_LEN_MAX)?;
        Ok(Self::Accepted { port, secret, address })
    }
}
