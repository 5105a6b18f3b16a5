//! What the messages between two connected endpoints are. The first byte of each says it.
//!
//! ```text
//! 0  a message of the program: its bytes
//! 1  a request to connect: the version, 1; private data
//! 2  that the connection is accepted: private data
//! 3  that it is refused: 1 by the program, 0 because nobody listens; private data
//! 4  that the sender ends the connection
//! 5  nothing: it asks whether the peer is there
//! ```

pub use crate::limits::FRAME_DATA_MAX;

const VERSION: u8 = 1;
const MESSAGE: u8 = 0;
const CALL: u8 = 1;
const ANSWER: u8 = 2;
const REFUSAL: u8 = 3;
const GOODBYE: u8 = 4;
const PING: u8 = 5;

/// A message between connected endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A message of the program.
    Message(&'a [u8]),
    /// A request to connect, with private data.
    Call(&'a [u8]),
    /// That the connection is accepted, with private data.
    Answer(&'a [u8]),
    /// That it is refused.
    Refusal {
        /// Whether the program has refused it; otherwise nobody listens.
        by_program: bool,
        /// What the program says.
        private_data: &'a [u8],
    },
    /// That the sender ends the connection.
    Goodbye,
    /// Nothing: that it arrives tells the sender that the peer is there.
    Ping,
}

impl<'a> Frame<'a> {
    /// What a message is; `None` if it is not one of this protocol.
    #[must_use]
    pub fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (&kind, rest) = bytes.split_first()?;
        let private = |data: &'a [u8]| (data.len() <= FRAME_DATA_MAX).then_some(data);
        Some(match (kind, rest) {
            (MESSAGE, bytes) => Self::Message(bytes),
            (CALL, [VERSION, data @ ..]) => Self::Call(private(data)?),
            (ANSWER, data) => Self::Answer(private(data)?),
            (REFUSAL, [by_program @ (0 | 1), data @ ..]) => {
                Self::Refusal { by_program: *by_program == 1, private_data: private(data)? }
            }
            (GOODBYE, []) => Self::Goodbye,
            (PING, []) => Self::Ping,
            _ => return None,
        })
    }

    /// The bytes to send.
    #[must_use]
    pub fn encode(&self) -> Box<[u8]> {
        match self {
            Self::Message(bytes) => [&[MESSAGE][..], bytes].concat(),
            Self::Call(data) => [&[CALL, VERSION][..], data].concat(),
            Self::Answer(data) => [&[ANSWER][..], data].concat(),
            Self::Refusal { by_program, private_data } => {
                [&[REFUSAL, u8::from(*by_program)][..], private_data].concat()
            }
            Self::Goodbye => vec![GOODBYE],
            Self::Ping => vec![PING],
        }
        .into()
    }

    /// The beginning of a message of the program, whose `len` bytes follow.
    #[must_use]
    pub fn message(len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(1 + len);
        bytes.push(MESSAGE);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_parsed() {
        let data = &[7; FRAME_DATA_MAX];
        for frame in [
            Frame::Message(b""),
            Frame::Message(&[5; 10_000]),
            Frame::Call(data),
            Frame::Answer(b""),
            Frame::Refusal { by_program: true, private_data: data },
            Frame::Refusal { by_program: false, private_data: b"" },
            Frame::Goodbye,
            Frame::Ping,
        ] {
            assert_eq!(Frame::parse(&frame.encode()), Some(frame));
        }
    }

    /// Every string of up to three bytes of small values, and longer ones: what is parsed is what
    /// would be encoded.
    #[test]
    fn nothing_else_is_parsed() {
        let mut parsed = 0;
        for number in 0..10_u32.pow(3) {
            let bytes = [number / 100, number / 10 % 10, number % 10].map(|byte| byte as u8);
            for len in 0..=3 {
                if let Some(frame) = Frame::parse(&bytes[..len]) {
                    assert_eq!(*frame.encode(), bytes[..len]);
                    parsed += 1;
                }
            }
        }
        assert_ne!(parsed, 0);
        let long = [&[ANSWER][..], &[0; FRAME_DATA_MAX + 1]].concat();
        assert_eq!(Frame::parse(&long), None);
        assert_eq!(Frame::parse(&[CALL, 2]), None);
    }
}
