//! Reads frames from a stream, which may deliver any number of bytes at a time.

use std::fmt;
use std::io::{self, ErrorKind, Read};
use std::ops::{Deref, Range};

use weft_transfer::blocks::{Block, Pool};

use crate::limits::READ_AHEAD_LEN;
use crate::wire::{Frame, HEADER_LEN, Incoming, WireError};

/// The bytes of one buffer, in a block of a pool.
#[derive(Debug)]
pub(crate) struct Buffer {
    block: Block,
    len: usize,
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.block.bytes()[..self.len]
    }
}

/// Why a stream of frames cannot continue.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The result of a step.
pub(crate) enum Step {
    /// A buffer is complete.
    Buffer(Buffer),
    /// The unit has ended.
    UnitEnded,
    /// The stream has no more bytes now.
    Blocked,
    /// The stream has ended after a complete frame.
    Closed,
}

/// A reader of frames. It keeps incomplete frames between its steps.
#[derive(Debug, Default)]
pub(crate) struct FrameReader {
    ahead: Ahead,
    head: [u8; HEADER_LEN],
    head_filled: usize,
    body: Option<(Buffer, usize)>,
}

impl FrameReader {
    /// Reads until a frame is complete or the stream has no more bytes. Buffers are blocks of
    /// `pool`, which must have as many as the window of `incoming` and one more.
    pub(crate) fn step(
        &mut self,
        incoming: &mut Incoming,
        pool: &Pool,
        stream: &mut impl Read,
    ) -> Result<Step, Broken> {
        loop {
            let unfilled = match &mut self.body {
                Some((buffer, filled)) => {
                    if *filled == buffer.len
                        && let Some((buffer, _)) = self.body.take()
                    {
                        return Ok(Step::Buffer(buffer));
                    }
                    let Some((buffer, filled)) = &mut self.body else { continue };
                    let len = buffer.len;
                    &mut buffer.block.bytes_mut()[*filled..len]
                }
                None => &mut self.head[self.head_filled..],
            };
            let count = match self.ahead.read(stream, unfilled) {
                Ok(0) if self.body.is_none() && self.head_filled == 0 => return Ok(Step::Closed),
                Ok(0) => return Err(io::Error::from(ErrorKind::UnexpectedEof).into()),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(Step::Blocked),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            if let Some((_, filled)) = &mut self.body {
                *filled += count;
                continue;
            }
            self.head_filled += count;
            if self.head_filled == HEADER_LEN {
                self.head_filled = 0;
                match incoming.accept(self.head)? {
                    Frame::End => return Ok(Step::UnitEnded),
                    Frame::Buffer(len) => {
                        let block = pool.try_take();
                        let block = block.ok_or_else(|| io::Error::from(ErrorKind::OutOfMemory))?;
                        self.body = Some((Buffer { block, len }, 0));
                    }
                }
            }
        }
    }
}

/// Bytes that were read before they were needed.
struct Ahead {
    bytes: [u8; READ_AHEAD_LEN],
    unused: Range<usize>,
    /// The last read took everything that the stream had.
    is_drained: bool,
}

impl Default for Ahead {
    fn default() -> Self {
        Self { bytes: [0; READ_AHEAD_LEN], unused: 0..0, is_drained: false }
    }
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ahead").field("unused", &self.unused).finish_non_exhaustive()
    }
}

impl Ahead {
    /// Reads from a stream. After a read that has taken all of its bytes, the next one says that
    /// it would block, without a system call.
    fn read(&mut self, stream: &mut impl Read, to: &mut [u8]) -> io::Result<usize> {
        if !self.unused.is_empty() {
            let count = self.unused.len().min(to.len());
            to[..count].copy_from_slice(&self.bytes[self.unused.start..][..count]);
            self.unused.start += count;
            return Ok(count);
        }
        if std::mem::take(&mut self.is_drained) {
            return Err(ErrorKind::WouldBlock.into());
        }
        if to.len() >= self.bytes.len() {
            let count = stream.read(to)?;
            self.is_drained = 0 < count && count < to.len();
            return Ok(count);
        }
        let count = stream.read(&mut self.bytes)?;
        self.is_drained = 0 < count && count < self.bytes.len();
        let used = count.min(to.len());
        to[..used].copy_from_slice(&self.bytes[..used]);
        self.unused = used..count;
        Ok(used)
    }
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Buffer(_) => "Buffer",
            Self::UnitEnded => "UnitEnded",
            Self::Blocked => "Blocked",
            Self::Closed => "Closed",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Header, Kind};
    use proptest::prelude::*;

    /// A stream that delivers its bytes in pieces of these lengths; 0 means none for now.
    struct Pieces(Vec<u8>, Vec<usize>);

    impl Read for Pieces {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let piece = self.1.pop().unwrap_or(usize::MAX);
            if piece == 0 {
                return Err(ErrorKind::WouldBlock.into());
            }
            let len = piece.min(to.len()).min(self.0.len());
            to[..len].copy_from_slice(&self.0[..len]);
            self.0.drain(..len);
            Ok(len)
        }
    }

    fn frame(kind: Kind, unit: u32, bytes: &[u8]) -> Vec<u8> {
        let header = Header { kind, unit, len: bytes.len() as u32 };
        [&header.encode(), bytes].concat()
    }

    /// A stream that counts the calls.
    struct Counted<'a>(&'a [u8], u32);

    impl Read for Counted<'_> {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            self.1 += 1;
            if self.0.is_empty() { Err(ErrorKind::WouldBlock.into()) } else { self.0.read(to) }
        }
    }

    #[test]
    fn short_frames_need_one_call_and_long_ones_few() {
        let pool = Pool::new(4, 1 << 20).expect("memory");
        let mut incoming = Incoming::new(1, 1 << 20, 3);
        let mut reader = FrameReader::default();
        for (lens, most) in [([100, 200, 300], 1), ([1_000_000, 10, 0], 3)] {
            let frames: Vec<u8> =
                lens.iter().flat_map(|&len| frame(Kind::Buffer, 0, &vec![7; len])).collect();
            let mut stream = Counted(&frames, 0);
            for len in lens {
                let step = reader.step(&mut incoming, &pool, &mut stream).expect("a frame");
                let Step::Buffer(buffer) = step else { panic!("{step:?}") };
                assert_eq!(buffer.len(), len);
                incoming.acknowledge();
            }
            let step = reader.step(&mut incoming, &pool, &mut stream).expect("no end");
            assert!(matches!(step, Step::Blocked) && stream.1 <= most, "{} calls", stream.1);
        }
    }

    proptest! {
        #[test]
        fn frames_are_read_whole_however_they_are_cut(
            units in prop::collection::vec(prop::collection::vec(
                prop::collection::vec(any::<u8>(), 0..50), 0..5), 1..4),
            pieces in prop::collection::vec(0_usize..30, 0..100),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let mut bytes = Vec::new();
            for (unit, buffers) in units.iter().enumerate() {
                for buffer in buffers {
                    bytes.extend(frame(Kind::Buffer, unit as u32, buffer));
                }
                bytes.extend(frame(Kind::End, unit as u32, &[]));
            }
            let len = cut.map(|cut| cut.index(bytes.len()));
            bytes.truncate(len.unwrap_or(bytes.len()));
            let mut stream = Pieces(bytes, pieces);
            let pool = Pool::new(2, 64).expect("memory");
            let mut incoming = Incoming::new(units.len() as u32, 50, 1);
            let (mut reader, mut read) = (FrameReader::default(), vec![Vec::new()]);
            let result = loop {
                match reader.step(&mut incoming, &pool, &mut stream) {
                    Ok(Step::Buffer(buffer)) => {
                        incoming.acknowledge();
                        read.last_mut().expect("a unit").push(buffer.to_vec());
                    }
                    Ok(Step::UnitEnded) => read.push(Vec::new()),
                    Ok(Step::Blocked) => {}
                    Ok(Step::Closed) => break Ok(()),
                    Err(error) => break Err(error.to_string()),
                }
            };
            if len.is_none() {
                prop_assert!(incoming.is_complete() && result.is_ok());
                prop_assert_eq!(&read[..units.len()], &units[..]);
            } else {
                prop_assert!(!incoming.is_complete());
            }
            prop_assert!(pool.try_take().is_some());
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(0_u8..6, 0..200)) {
            let mut stream = Pieces(bytes, Vec::new());
            let pool = Pool::new(4, 64).expect("memory");
            let (mut reader, mut incoming) = (FrameReader::default(), Incoming::new(3, 60, 3));
            let mut kept = Vec::new();
            while let Ok(step) = reader.step(&mut incoming, &pool, &mut stream) {
                match step {
                    Step::Buffer(buffer) => kept.push(buffer),
                    Step::Closed => break,
                    Step::UnitEnded | Step::Blocked => {}
                }
            }
            prop_assert!(kept.len() <= 3);
        }
    }
}
