//! Collects the bytes of one frame.

use crate::mpa::frame::{Frame, FrameError, Kind, Parsed};

/// A frame of which a part has been received.
#[derive(Debug, Clone)]
pub(super) struct Inbound {
    kind: Kind,
    bytes: Vec<u8>,
    done: bool,
}

impl Inbound {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, bytes: Vec::new(), done: false }
    }

    /// Takes bytes of the frame, and none beyond it. The frame's length bounds what is stored here.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(usize, Option<Frame>), FrameError> {
        let mut taken = 0;
        while !self.done {
            match Frame::parse(self.kind, &self.bytes)? {
                Parsed::Complete { frame, .. } => {
                    self.done = true;
                    self.bytes = Vec::new();
                    return Ok((taken, Some(frame)));
                }
                Parsed::Incomplete { needed } => {
                    let rest = &bytes[taken..];
                    if rest.is_empty() {
                        break;
                    }
                    let more = rest.len().min(needed - self.bytes.len());
                    self.bytes.extend_from_slice(&rest[..more]);
                    taken += more;
                }
            }
        }
        Ok((taken, None))
    }
}
