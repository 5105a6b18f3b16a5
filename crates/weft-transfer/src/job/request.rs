//! What the initiator of a session asks for: the job of an opening.
//!
//! Bytes: version u8, flags u32, new name (u16 and bytes; none is empty), number of patterns u16,
//! for each: 1 to include or 0 to exclude u8, u16 and bytes; number of paths u16, for each: u16 and
//! bytes.

use crate::limits::{JOB_LEN_MAX, PATHS_MAX, PATTERNS_MAX};
use crate::wire::record_bytes::{Reader, Short, push_counted_u16};

const VERSION: u8 = 1;

/// How to copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u32);

impl Flags {
    /// Files that are the same by size and time are left out.
    pub const SKIPS: Self = Self(1);
    /// What an earlier copy has left is used.
    pub const RESUMES: Self = Self(1 << 1);
    /// What is at the destination and not at the source is deleted.
    pub const DELETES: Self = Self(1 << 2);
    /// Data goes with BLAKE3 digests, which the sink compares.
    pub const VERIFIES: Self = Self(1 << 3);
    /// Owners are kept, where the sink may do that.
    pub const OWNERS: Self = Self(1 << 4);
    /// Extended attributes are kept.
    pub const XATTRS: Self = Self(1 << 5);
    /// The destination is a directory, and made if it is not there.
    pub const FOLDER: Self = Self(1 << 6);
    /// Nothing is done: the sink says what would be.
    pub const DRY_RUN: Self = Self(1 << 7);
    const ALL: u32 = (1 << 8) - 1;

    /// Whether these are among them.
    #[must_use]
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// With these, if `is`.
    #[must_use]
    pub fn with(self, other: Self, is: bool) -> Self {
        if is { Self(self.0 | other.0) } else { self }
    }
}

/// What is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// How.
    pub flags: Flags,
    /// The name that the one source gets at the sink, if not its own.
    pub new_name: Option<Vec<u8>>,
    /// Patterns of names to include (true) or to leave out; the first that fits decides.
    pub patterns: Vec<(bool, String)>,
    /// Paths at the acceptor: the destination, or all sources. They begin with the share's name.
    pub paths: Vec<Vec<u8>>,
}

/// Why bytes are no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// They end early.
    #[error("the job ends early")]
    Short,
    /// Bytes follow.
    #[error("bytes behind the job")]
    Long,
    /// This program does not know it.
    #[error("a job that this version does not know")]
    Unknown,
    /// There is too much of it.
    #[error("too many paths or patterns, or too long ones")]
    TooMuch,
}

impl From<Short> for RequestError {
    fn from(_: Short) -> Self {
        Self::Short
    }
}

impl Request {
    /// The bytes.
    ///
    /// # Errors
    /// If there are too many.
    pub fn emit(&self) -> Result<Vec<u8>, RequestError> {
        let mut out = vec![VERSION];
        out.extend_from_slice(&self.flags.0.to_be_bytes());
        let patterns = self.patterns.iter().map(|(_, pattern)| pattern.len());
        let lens = patterns.chain(self.paths.iter().map(Vec::len));
        let all: usize = lens.map(|len| len + 4).sum();
        let name = self.new_name.as_deref().unwrap_or_default();
        let is_much = self.paths.len() > PATHS_MAX || self.patterns.len() > PATTERNS_MAX;
        if is_much || all + name.len() + 16 > JOB_LEN_MAX {
            return Err(RequestError::TooMuch);
        }
        let count = |count: usize| u16::try_from(count).unwrap_or(u16::MAX).to_be_bytes();
        push_counted_u16(&mut out, name);
        out.extend_from_slice(&count(self.patterns.len()));
        for (includes, pattern) in &self.patterns {
            out.push(u8::from(*includes));
            push_counted_u16(&mut out, pattern.as_bytes());
        }
        out.extend_from_slice(&count(self.paths.len()));
        for path in &self.paths {
            push_counted_u16(&mut out, path);
        }
        Ok(out)
    }

    /// Reads a request, which is a stranger's.
    ///
    /// # Errors
    /// If it is none.
    pub fn parse(bytes: &[u8]) -> Result<Self, RequestError> {
        let mut from = Reader::new(bytes);
        if from.u8()? != VERSION {
            return Err(RequestError::Unknown);
        }
        let flags = Flags(from.u32()?);
        if flags.0 & !Flags::ALL != 0 {
            return Err(RequestError::Unknown);
        }
        let name = from.counted_u16()?;
        let new_name = (!name.is_empty()).then(|| name.to_vec());
        let mut request = Self { flags, new_name, ..Self::default() };
        let patterns = from.u16()?;
        for _ in 0..patterns {
            let includes = from.u8()? != 0;
            let pattern = String::from_utf8(from.counted_u16()?.to_vec());
            request.patterns.push((includes, pattern.map_err(|_| RequestError::Unknown)?));
        }
        let paths = from.u16()?;
        for _ in 0..paths {
            request.paths.push(from.counted_u16()?.to_vec());
        }
        if request.paths.len() > PATHS_MAX || request.patterns.len() > PATTERNS_MAX {
            return Err(RequestError::TooMuch);
        }
        if from.left() > 0 { Err(RequestError::Long) } else { Ok(request) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_survive_their_bytes() {
        let request = Request {
            flags: Flags::SKIPS.with(Flags::FOLDER, true),
            new_name: Some(b"new\xff".to_vec()),
            patterns: vec![(true, "keep".into()), (false, "*.o".into())],
            paths: vec![b"share/a\n".to_vec(), b"share".to_vec()],
        };
        let bytes = request.emit().expect("short");
        assert_eq!(Request::parse(&bytes), Ok(request));
        let much = Request { paths: vec![vec![1; 60_000]; 2], ..Request::default() };
        assert_eq!(much.emit(), Err(RequestError::TooMuch));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(request) = Request::parse(&bytes) {
                prop_assert!(request.emit().is_ok());
            }
        }
    }
}
