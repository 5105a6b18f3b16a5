//! The bytes of a stream, and the rules for the frames of one connection. No input or output.
//!
//! A frame is a header of 12 bytes, three big-endian words: kind, unit, length. Only a buffer has
//! bytes after it. `docs/pipelines.md` describes all of it.

/// Length of a header.
pub(crate) const HEADER_LEN: usize = 12;
/// Length of the first message of a connection.
pub(crate) const HELLO_LEN: usize = 32;
/// The version of the protocol.
pub(crate) const VERSION: u16 = 1;
const MAGIC: [u8; 8] = *b"weftpipe";

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// From the producer: a buffer of the unit.
    Buffer = 1,
    /// From the producer: it has no more buffers of the unit.
    End = 2,
    /// From the consumer: it has begun to process one more buffer.
    Ack = 3,
    /// To a program: a unit begins. Its bytes are the parameters.
    Begin = 4,
    /// From the consumer: the first answer. The unit is the version.
    Welcome = 5,
}

/// A violation of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error("no frame has the kind {0}")]
    Kind(u32),
    #[error("a frame {0:?} is not expected here")]
    Unexpected(Kind),
    #[error("a frame {0:?} has no bytes, but says {1}")]
    HasBytes(Kind, u32),
    #[error("a buffer of {0} bytes is longer than {1}")]
    TooLong(u32, u32),
    #[error("a frame of unit {0} within unit {1}")]
    Unit(u32, u32),
    #[error("more buffers than the window of {0}")]
    Window(u32),
    #[error("an acknowledgement without a buffer")]
    Ack,
    #[error("not a stream of weft pipeline")]
    Magic,
    #[error("version {0} of the protocol, not {VERSION}")]
    Version(u32),
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) kind: Kind,
    pub(crate) unit: u32,
    pub(crate) len: u32,
}

impl Header {
    pub(crate) fn encode(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&(self.kind as u32).to_be_bytes());
        bytes[4..8].copy_from_slice(&self.unit.to_be_bytes());
        bytes[8..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: [u8; HEADER_LEN]) -> Result<Self, WireError> {
        let [a, b, c, d, e, f, g, h, i, j, k, l] = bytes;
        let (unit, len) = (u32::from_be_bytes([e, f, g, h]), u32::from_be_bytes([i, j, k, l]));
        let kind = match u32::from_be_bytes([a, b, c, d]) {
            1 => Kind::Buffer,
            2 => Kind::End,
            3 => Kind::Ack,
            4 => Kind::Begin,
            5 => Kind::Welcome,
            other => return Err(WireError::Kind(other)),
        };
        if len > 0 && !matches!(kind, Kind::Buffer | Kind::Begin) {
            return Err(WireError::HasBytes(kind, len));
        }
        Ok(Self { kind, unit, len })
    }
}

/// The secret that producers of one run know.
pub(crate) type Token = [u8; 16];

/// The first message of a producer: which stream it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    /// The number of the stream among the inputs of the consumer.
    pub(crate) input: u16,
    /// The number of the producer's copy.
    pub(crate) copy: u16,
    pub(crate) token: Token,
}

impl Hello {
    pub(crate) fn encode(&self) -> [u8; HELLO_LEN] {
        let mut bytes = [0; HELLO_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_be_bytes());
        bytes[10..12].copy_from_slice(&self.input.to_be_bytes());
        bytes[12..14].copy_from_slice(&self.copy.to_be_bytes());
        bytes[16..].copy_from_slice(&self.token);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; HELLO_LEN]) -> Result<Self, WireError> {
        let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        if bytes[..8] != MAGIC {
            return Err(WireError::Magic);
        }
        if word(8) != VERSION {
            return Err(WireError::Version(word(8).into()));
        }
        let mut token = Token::default();
        token.copy_from_slice(&bytes[16..]);
        Ok(Self { input: word(10), copy: word(12), token })
    }

    /// Whether the producer knows the secret. The time does not depend on where it differs.
    pub(crate) fn knows(&self, token: &Token) -> bool {
        self.token.iter().zip(token).fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
    }
}

/// A frame that a consumer or the reader of a program has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frame {
    /// This many bytes of a buffer follow.
    Buffer(usize),
    /// The unit has ended.
    End,
}

/// The rules for the frames that one producer sends: buffers of the first unit, its end, and so on.
#[derive(Debug)]
pub(crate) struct Incoming {
    unit: u32,
    units: u32,
    len_max: u32,
    window: u32,
    unacknowledged: u32,
}

impl Incoming {
    pub(crate) fn new(units: u32, len_max: u32, window: u32) -> Self {
        Self { unit: 0, units, len_max, window, unacknowledged: 0 }
    }

    /// Checks the header of the next frame.
    pub(crate) fn accept(&mut self, header: [u8; HEADER_LEN]) -> Result<Frame, WireError> {
        let Header { kind, unit, len } = Header::decode(header)?;
        if self.is_complete() {
            return Err(WireError::Unexpected(kind));
        }
        if unit != self.unit {
            return Err(WireError::Unit(unit, self.unit));
        }
        match kind {
            Kind::Buffer if len > self.len_max => Err(WireError::TooLong(len, self.len_max)),
            Kind::Buffer if self.unacknowledged == self.window => {
                Err(WireError::Window(self.window))
            }
            Kind::Buffer => {
                self.unacknowledged += 1;
                Ok(Frame::Buffer(len as usize))
            }
            Kind::End => {
                self.unit += 1;
                Ok(Frame::End)
            }
            Kind::Ack | Kind::Begin | Kind::Welcome => Err(WireError::Unexpected(kind)),
        }
    }

    /// Records that the processing of a buffer starts. Returns the acknowledgement.
    pub(crate) fn acknowledge(&mut self) -> Header {
        debug_assert!(self.unacknowledged > 0, "no buffer");
        self.unacknowledged = self.unacknowledged.saturating_sub(1);
        Header { kind: Kind::Ack, unit: 0, len: 0 }
    }

    /// Whether all units have ended.
    pub(crate) fn is_complete(&self) -> bool {
        self.unit == self.units
    }
}

/// The reader of the acknowledgements of one consumer, which may arrive in pieces.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    head: [u8; HEADER_LEN],
    filled: usize,
}

impl Acks {
    /// Reads the next bytes. Returns how many acknowledgements are complete with them.
    pub(crate) fn read(&mut self, mut bytes: &[u8]) -> Result<u32, WireError> {
        let mut count = 0;
        while !bytes.is_empty() {
            let taken = bytes.len().min(HEADER_LEN - self.filled);
            self.head[self.filled..][..taken].copy_from_slice(&bytes[..taken]);
            (self.filled, bytes) = (self.filled + taken, &bytes[taken..]);
            if self.filled == HEADER_LEN {
                self.filled = 0;
                match Header::decode(self.head)?.kind {
                    Kind::Ack => count += 1,
                    other => return Err(WireError::Unexpected(other)),
                }
            }
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(kind: Kind, unit: u32, len: u32) -> [u8; HEADER_LEN] {
        Header { kind, unit, len }.encode()
    }

    #[test]
    fn frames_that_break_the_rules_are_refused() {
        use WireError::{HasBytes, TooLong, Unexpected, Unit, Window};
        let mut incoming = Incoming::new(2, 10, 1);
        let refused = [
            (header(Kind::Ack, 0, 0), Unexpected(Kind::Ack)),
            (header(Kind::Begin, 0, 0), Unexpected(Kind::Begin)),
            (header(Kind::End, 0, 1), HasBytes(Kind::End, 1)),
            (header(Kind::End, 1, 0), Unit(1, 0)),
            (header(Kind::Buffer, 0, 11), TooLong(11, 10)),
            ([0xff; HEADER_LEN], WireError::Kind(u32::MAX)),
        ];
        for (bytes, error) in refused {
            assert_eq!(incoming.accept(bytes), Err(error));
        }
        assert_eq!(incoming.accept(header(Kind::Buffer, 0, 10)), Ok(Frame::Buffer(10)));
        assert_eq!(incoming.accept(header(Kind::Buffer, 0, 10)), Err(Window(1)));
        incoming.acknowledge();
        assert_eq!(incoming.accept(header(Kind::Buffer, 0, 0)), Ok(Frame::Buffer(0)));
        assert_eq!(incoming.accept(header(Kind::End, 0, 0)), Ok(Frame::End));
        assert_eq!(incoming.accept(header(Kind::End, 1, 0)), Ok(Frame::End));
        assert!(incoming.is_complete());
        assert_eq!(incoming.accept(header(Kind::End, 2, 0)), Err(Unexpected(Kind::End)));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_an_error(bytes: [u8; HEADER_LEN], small: [u8; 3]) {
            // Mostly small numbers, which get further.
            let near = small.map(|byte| u32::from(byte % 7).to_be_bytes()).concat();
            for bytes in [bytes, near.try_into().expect("12 bytes")] {
                if let Ok(header) = Header::decode(bytes) {
                    prop_assert_eq!(header.encode(), bytes);
                }
                let mut incoming = Incoming::new(3, 5, 2);
                if let Ok(Frame::Buffer(len)) = incoming.accept(bytes) {
                    prop_assert!(len <= 5);
                }
            }
        }

        #[test]
        fn hello_is_read_as_it_was_written(
            input: u16, copy: u16, token: Token, at in 0..HELLO_LEN,
        ) {
            let hello = Hello { input, copy, token };
            let mut bytes = hello.encode();
            prop_assert_eq!(Hello::decode(&bytes), Ok(hello));
            prop_assert!(hello.knows(&token));
            bytes[at] ^= 1;
            let changed = Hello::decode(&bytes);
            prop_assert_eq!(changed.is_err(), at < 10);
            if at >= 16 {
                prop_assert!(!changed.expect("checked").knows(&token));
            }
        }
    }
}
