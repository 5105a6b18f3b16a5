//! The preface: the first bytes of every connection, never encrypted.

use super::WireError;
use super::cursor::Cursor;

/// The magic number of each connection. It is neither text nor the beginning of TLS or SSH.
const MAGIC: [u8; 8] = *b"\x89WEFTCP\n";

/// Random bytes of the acceptor that bind a data channel to its control channel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Token(pub [u8; 16]);

impl std::fmt::Debug for Token {
    /// Omits the bytes, so that logs do not reveal the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token")
    }
}

/// The kind of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It carries control messages.
    Control,
    /// It carries blocks.
    Data {
        /// The token of its control channel.
        token: Token,
        /// The initiator's number of this channel, which is unique for the life of the control
        /// channel.
        channel: u16,
    },
}

/// The encoding of what follows the preface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Messages or blocks in clear. Single blocks may be sealed.
    Clear,
    /// A TLS handshake, then everything inside TLS.
    Tls,
}

/// The preface, which the initiator of each connection sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preface {
    /// The lowest protocol version that the initiator supports.
    pub version_min: u16,
    /// The highest protocol version that it supports.
    pub version_max: u16,
    /// The kind of the connection.
    pub kind: Kind,
    /// The encoding of what follows.
    pub mode: Mode,
}

impl Preface {
    /// Length in bytes.
    pub const LEN: usize = 32;

    /// Returns the preface's bytes.
    #[must_use]
    pub fn emit(&self) -> [u8; Self::LEN] {
        let (kind, channel, token) = match self.kind {
            Kind::Control => (1, 0, Token::default()),
            Kind::Data { token, channel } => (2, channel, token),
        };
        let mode = match self.mode {
            Mode::Clear => 0,
            Mode::Tls => 1,
        };
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.version_min.to_be_bytes());
        bytes[10..12].copy_from_slice(&self.version_max.to_be_bytes());
        bytes[12] = kind;
        bytes[13] = mode;
        bytes[14..16].copy_from_slice(&channel.to_be_bytes());
        bytes[16..].copy_from_slice(&token.0);
        bytes
    }

    /// Parses a preface.
    ///
    /// # Errors
    /// If the bytes are no valid preface.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self, WireError> {
        let mut cursor = Cursor::new(bytes);
        if cursor.array("the magic")? != MAGIC {
            return Err(WireError::Magic);
        }
        let (version_min, version_max) = versions(&mut cursor)?;
        let kind = cursor.u8("the kind")?;
        let mode = match cursor.u8("the mode")? {
            0 => Mode::Clear,
            1 => Mode::Tls,
            value => return Err(WireError::Value { field: "the mode", value: value.into() }),
        };
        let channel = cursor.u16("the channel")?;
        let token = Token(cursor.array("the token")?);
        let kind = match kind {
            1 if channel != 0 || token != Token::default() => {
                return Err(WireError::Reserved("the channel or token of a control channel"));
            }
            1 => Kind::Control,
            2 => Kind::Data { token, channel },
            value => return Err(WireError::Value { field: "the kind", value: value.into() }),
        };
        cursor.end()?;
        Ok(Self { version_min, version_max, kind, mode })
    }
}

/// Reads a range of versions.
pub(super) fn versions(cursor: &mut Cursor<'_>) -> Result<(u16, u16), WireError> {
    let (least, most) = (cursor.u16("the version")?, cursor.u16("the version")?);
    if least == 0 || least > most {
        return Err(WireError::Versions(least, most));
    }
    Ok((least, most))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Kind, Mode, Preface, Token, WireError};

    const CONTROL: Preface =
        Preface { version_min: 1, version_max: 2, kind: Kind::Control, mode: Mode::Tls };

    #[test]
    fn a_control_channel_begins_with_the_specified_bytes() {
        let mut expected = *b"\x89WEFTCP\n\0\x01\0\x02\x01\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
        assert_eq!(CONTROL.emit(), expected);
        assert_eq!(Preface::parse(&expected), Ok(CONTROL));
        expected[31] = 1;
        let reserved = WireError::Reserved("the channel or token of a control channel");
        assert_eq!(Preface::parse(&expected), Err(reserved));
    }

    #[test]
    fn each_invalid_field_is_named() {
        let with = |at: usize, value: u8| {
            let mut bytes = CONTROL.emit();
            bytes[at] = value;
            Preface::parse(&bytes)
        };
        assert_eq!(with(0, b'W'), Err(WireError::Magic));
        assert_eq!(with(9, 0), Err(WireError::Versions(0, 2)));
        assert_eq!(with(9, 3), Err(WireError::Versions(3, 2)));
        assert_eq!(with(12, 0), Err(WireError::Value { field: "the kind", value: 0 }));
        assert_eq!(with(13, 2), Err(WireError::Value { field: "the mode", value: 2 }));
    }

    #[test]
    fn a_token_is_not_printed() {
        assert_eq!(format!("{:?}", Token([7; 16])), "Token");
    }

    proptest! {
        #[test]
        fn prefaces_are_emitted_unchanged(bytes: [u8; 32], keeps_magic: bool, token: [u8; 16]) {
            let mut bytes = bytes;
            if keeps_magic {
                bytes[..8].copy_from_slice(&super::MAGIC);
                bytes[12] %= 3;
                bytes[13] %= 2;
            }
            if let Ok(preface) = Preface::parse(&bytes) {
                prop_assert_eq!(preface.emit(), bytes);
            }
            let data = Preface { kind: Kind::Data { token: Token(token), channel: 7 }, ..CONTROL };
            prop_assert_eq!(Preface::parse(&data.emit()), Ok(data));
        }
    }
}
