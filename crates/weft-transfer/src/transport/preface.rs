//! What a TCP connection begins with: which channel it is.
//!
//! The end that connects sends 32 bytes:
//!
//! ```text
//! | bytes | what                                                          |
//! | 0-7   | `weft-tfr`                                                    |
//! | 8     | version, 1                                                    |
//! | 9     | kind: 1 control in clear, 2 control in TLS, 3 data            |
//! | 10-11 | number of the data channel, big endian; 0 of control channels |
//! | 12-15 | zero                                                          |
//! | 16-31 | token of the session, of data channels; otherwise zero        |
//! ```
//!
//! The ends agree on the token over the control channel. It leads a data channel to its session,
//! and proves nothing: blocks are sealed where the path is not trusted.

use super::channel::TransportError;

/// Bytes of a preface.
pub const PREFACE_LEN: usize = 32;
const MAGIC: &[u8; 8] = b"weft-tfr";
const VERSION: u8 = 1;
const CONTROL_CLEAR: u8 = 1;
const CONTROL_TLS: u8 = 2;
const DATA: u8 = 3;

/// What leads a data channel to its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub [u8; 16]);

/// Which channel a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Preface {
    /// A control channel, in clear or in TLS.
    Control {
        /// Whether a TLS handshake follows.
        tls: bool,
    },
    /// A data channel.
    Data {
        /// The session's token.
        token: Token,
        /// Which of the session's data channels it is.
        channel: u16,
    },
}

impl Preface {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; PREFACE_LEN] {
        let mut bytes = [0; PREFACE_LEN];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8] = VERSION;
        match self {
            Self::Control { tls } => bytes[9] = if *tls { CONTROL_TLS } else { CONTROL_CLEAR },
            Self::Data { token, channel } => {
                bytes[9] = DATA;
                bytes[10..12].copy_from_slice(&channel.to_be_bytes());
                bytes[16..].copy_from_slice(&token.0);
            }
        }
        bytes
    }

    /// What bytes of a peer say.
    ///
    /// # Errors
    /// `Protocol`, with what is wrong.
    pub fn decode(bytes: &[u8; PREFACE_LEN]) -> Result<Self, TransportError> {
        let wrong = |what| Err(TransportError::Protocol(what));
        if !bytes.starts_with(MAGIC) {
            return wrong("a stranger's connection");
        }
        if bytes[8] != VERSION {
            return wrong("another version of the preface");
        }
        let [high, low] = [bytes[10], bytes[11]];
        let mut token = [0; 16];
        token.copy_from_slice(&bytes[16..]);
        let preface = match bytes[9] {
            CONTROL_CLEAR => Self::Control { tls: false },
            CONTROL_TLS => Self::Control { tls: true },
            DATA => Self::Data { token: Token(token), channel: u16::from_be_bytes([high, low]) },
            _ => return wrong("an unknown kind of channel"),
        };
        // Whatever is not of this kind must be zero.
        if preface.encode() == *bytes { Ok(preface) } else { wrong("a preface with more in it") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn layout_is_as_documented() {
        let preface = Preface::Data { token: Token([9; 16]), channel: 0x0102 };
        let mut expected = *b"weft-tfr\x01\x03\x01\x02\0\0\0\0................";
        expected[16..].fill(9);
        assert_eq!(preface.encode(), expected);
    }

    proptest! {
        #[test]
        fn decoded_is_what_was_encoded(
            token in any::<[u8; 16]>(),
            channel in any::<u16>(),
            tls in any::<bool>(),
        ) {
            for preface in [
                Preface::Control { tls },
                Preface::Data { token: Token(token), channel },
            ] {
                prop_assert_eq!(Preface::decode(&preface.encode()).expect("ours"), preface);
            }
        }

        #[test]
        fn each_preface_has_one_encoding(
            mut bytes in any::<[u8; PREFACE_LEN]>(),
            kept in 0..PREFACE_LEN,
        ) {
            let ours = Preface::Control { tls: true }.encode();
            bytes[..kept].copy_from_slice(&ours[..kept]);
            if let Ok(preface) = Preface::decode(&bytes) {
                prop_assert_eq!(preface.encode(), bytes);
            }
        }
    }
}
