//! The request that an initiator sends when it opens a session.
//!
//! Format: version u8, flags u64, new name (u16 and bytes; empty for none), name of the congestion
//! control (u16 and bytes) if its flag is set, origins (u16 and 16 bytes each) if their flag is
//! set, extras (u16 and bytes) if their flag is set, number of patterns u16, for each: 1 to include
//! or 0 to exclude u8, u16 and bytes; number of paths u16, for each: u16 and bytes.

use super::extras::{Extras, ExtrasError};
use crate::limits::{JOB_LEN_MAX, PATHS_MAX, PATTERNS_MAX};
use crate::transport::tcp::Congestion;
use crate::wire::record_bytes::{Reader, Short, push_counted_u16};

const VERSION: u8 = 1;

/// What identifies a directory for an end that may be on the same host, and tells others nothing.
pub type Origin = [u8; 16];

/// Flags of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u64);

impl Flags {
    /// Skip files with equal size and time.
    pub const SKIPS: Self = Self(1);
    /// Resume from the leftovers of an earlier copy.
    pub const RESUMES: Self = Self(1 << 1);
    /// Delete entries that the source does not have.
    pub const DELETES: Self = Self(1 << 2);
    /// Send BLAKE3 digests with the data, which the sink verifies.
    pub const VERIFIES: Self = Self(1 << 3);
    /// Keep owners, if the sink has the privileges.
    pub const OWNERS: Self = Self(1 << 4);
    /// Keep extended attributes.
    pub const XATTRS: Self = Self(1 << 5);
    /// The destination is a directory, and is created if it does not exist.
    pub const FOLDER: Self = Self(1 << 6);
    /// Write nothing; the sink reports the predicted changes.
    pub const DRY_RUN: Self = Self(1 << 7);
    /// The initiator's end is a standard stream: the other end is a single file.
    pub const STREAM: Self = Self(1 << 8);
    /// Compress blocks while that pays.
    pub const COMPRESSES: Self = Self(1 << 9);
    /// Compress all blocks that become smaller, with [`Flags::COMPRESSES`].
    pub const COMPRESSES_ALWAYS: Self = Self(1 << 10);
    /// The data channels are those beside the pipe.
    pub const BESIDE: Self = Self(1 << 11);
    /// Read and write large files past the page cache.
    pub const DIRECT: Self = Self(1 << 12);
    /// Read and write all files through the page cache.
    pub const CACHED: Self = Self(1 << 13);
    /// Blocks are not sealed, between hosts.
    pub const CLEAR: Self = Self(1 << 14);
    /// The request names a congestion control for data channels over TCP.
    const CONGESTION: Self = Self(1 << 15);
    /// The congestion control of data channels over TCP is the system's.
    const SYSTEM_CONGESTION: Self = Self(1 << 16);
    /// Remove the partial files of all earlier copies from the destination.
    pub const CLEANS: Self = Self(1 << 17);
    /// Replace entries of other types, directories too. Deletion does so as well.
    pub const FORCES: Self = Self(1 << 18);
    /// The initiator copies once more what has failed and may succeed then.
    pub const RETRIES: Self = Self(1 << 19);
    /// With [`Flags::DRY_RUN`] and [`Flags::DELETES`]: the sink deletes, and reports nothing else.
    pub const ONLY_DELETES: Self = Self(1 << 20);
    /// The request says which directories the initiator sends.
    const ORIGINS: Self = Self(1 << 21);
    /// Sync the files and directories that are written.
    pub const SYNCS: Self = Self(1 << 22);
    /// Skip files that are newer at the destination, besides those with equal size and time.
    pub const UPDATES: Self = Self(1 << 23);
    /// Skip files with equal contents, whatever their times.
    pub const CHECKSUM: Self = Self(1 << 24);
    /// Skip files with equal sizes, whatever their times.
    pub const SIZE_ONLY: Self = Self(1 << 25);
    /// Skip everything that exists at the destination.
    pub const KEEPS_EXISTING: Self = Self(1 << 26);
    /// With [`Flags::OWNERS`]: keep the numbers of owners, whatever their names.
    pub const NUMERIC_OWNERS: Self = Self(1 << 27);
    /// Copy pipes, sockets and devices.
    pub const SPECIALS: Self = Self(1 << 28);
    /// The sink lists the changes that it makes.
    pub const LISTS: Self = Self(1 << 29);
    /// Leave out what is mounted in the trees.
    pub const ONE_FILE_SYSTEM: Self = Self(1 << 30);
    /// The data channels are those over the fabric.
    pub const FABRIC: Self = Self(1 << 31);
    /// With [`Flags::FABRIC`]: blocks are not sealed, as all channels are memory of both ends.
    pub const UNSEALED: Self = Self(1 << 32);
    /// The request has extras.
    const EXTRAS: Self = Self(1 << 33);
    /// Copy what symbolic links lead to in their place.
    pub const FOLLOWS: Self = Self(1 << 34);
    /// Write into files that exist, instead of replacing them.
    pub const IN_PLACE: Self = Self(1 << 35);
    /// With [`Flags::IN_PLACE`]: files that exist get only what they lack at the end.
    pub const APPENDS: Self = Self(1 << 36);
    /// With [`Flags::APPENDS`]: what files have counts as what the source has.
    pub const TRUSTS: Self = Self(1 << 37);
    /// Remove from the source what the sink has.
    pub const REMOVES: Self = Self(1 << 38);
    /// Of large files that the sink has in another version, only what differs is sent.
    pub const VERSIONS: Self = Self(1 << 40);
    /// The data channels are those of a grant: the source is another server.
    pub const GRANTED: Self = Self(1 << 45);
    const ALL: u64 = ((1 << 39) - 1) | Self::VERSIONS.0 | Self::GRANTED.0;
    /// The flags with any of which the source asks about each file.
    pub const ASKING: Self = Self(1 | 1 << 1 | 0b1111 << 23 | 1 << 36);

    /// Whether the sink lists changes, made or predicted.
    #[must_use]
    pub fn lists_changes(self) -> bool {
        self.has(Self::DRY_RUN) || self.has(Self::LISTS)
    }

    /// Whether all flags of `other` are set.
    #[must_use]
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the flags without those of `other`.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the flags with `other` added if `is` is true.
    #[must_use]
    pub fn with(self, other: Self, is: bool) -> Self {
        if is { Self(self.0 | other.0) } else { self }
    }
}

/// A request for a copy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The flags.
    pub flags: Flags,
    /// The new name of a single source at the sink.
    pub new_name: Option<Vec<u8>>,
    /// The congestion control of the source's end, over TCP.
    pub congestion: Congestion,
    /// Patterns that include (true) or exclude names. The first match decides.
    pub patterns: Vec<(bool, String)>,
    /// The directories among the sources of an initiator, by what only their host knows.
    pub origins: Vec<Origin>,
    /// Options with values.
    pub extras: Extras,
    /// Paths at the acceptor: the destination or all sources. At a server they begin with a share's
    /// name.
    pub paths: Vec<Vec<u8>>,
}

/// Why bytes are no valid request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The bytes end within a field.
    #[error("the request ends within a field")]
    Short,
    /// Bytes follow the last field.
    #[error("bytes follow the request")]
    Long,
    /// The version or a flag is unknown.
    #[error("this version does not know the request")]
    Unknown,
    /// A limit is exceeded.
    #[error("too many paths or patterns, or too long ones")]
    TooMuch,
}

impl From<Short> for RequestError {
    fn from(_: Short) -> Self {
        Self::Short
    }
}

impl From<ExtrasError> for RequestError {
    fn from(error: ExtrasError) -> Self {
        match error {
            ExtrasError::Unknown => Self::Unknown,
            ExtrasError::TooMuch => Self::TooMuch,
        }
    }
}

impl Request {
    /// Returns the request's bytes.
    ///
    /// # Errors
    /// If a limit is exceeded.
    pub fn emit(&self) -> Result<Vec<u8>, RequestError> {
        let mut out = vec![VERSION];
        let (flag, congestion) = match &self.congestion {
            Congestion::ByPath => (Flags::default(), None),
            Congestion::System => (Flags::SYSTEM_CONGESTION, None),
            Congestion::Named(name) => (Flags::CONGESTION, Some(name)),
        };
        let extras = self.extras.emit();
        let flags = self.flags.with(flag, true).with(Flags::ORIGINS, !self.origins.is_empty());
        let flags = flags.with(Flags::EXTRAS, !extras.is_empty());
        out.extend_from_slice(&flags.0.to_be_bytes());
        let patterns = self.patterns.iter().map(|(_, pattern)| pattern.len());
        let lens = patterns.chain(self.paths.iter().map(Vec::len));
        let all: usize = lens.map(|len| len + 4).sum();
        let name = self.new_name.as_deref().unwrap_or_default();
        let is_much = self.paths.len() > PATHS_MAX || self.patterns.len() > PATTERNS_MAX;
        let names =
            name.len() + congestion.map_or(0, String::len) + self.origins.as_flattened().len();
        if is_much || all + names + extras.len() + 18 > JOB_LEN_MAX {
            return Err(RequestError::TooMuch);
        }
        let count = |count: usize| u16::try_from(count).unwrap_or(u16::MAX).to_be_bytes();
        push_counted_u16(&mut out, name);
        if let Some(congestion) = congestion {
            push_counted_u16(&mut out, congestion.as_bytes());
        }
        if !self.origins.is_empty() {
            push_counted_u16(&mut out, self.origins.as_flattened());
        }
        if !extras.is_empty() {
            push_counted_u16(&mut out, &extras);
        }
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

    /// Parses an untrusted request.
    ///
    /// # Errors
    /// If the bytes are no valid request.
    pub fn parse(bytes: &[u8]) -> Result<Self, RequestError> {
        let mut from = Reader::new(bytes);
        if from.u8()? != VERSION {
            return Err(RequestError::Unknown);
        }
        let flags = Flags(from.u64()?);
        if flags.0 & !Flags::ALL != 0 {
            return Err(RequestError::Unknown);
        }
        let name = from.counted_u16()?;
        let new_name = (!name.is_empty()).then(|| name.to_vec());
        let is_named = flags.has(Flags::CONGESTION);
        let congestion = match flags.has(Flags::SYSTEM_CONGESTION) {
            true if is_named => return Err(RequestError::Unknown),
            true => Congestion::System,
            false if is_named => {
                let name = str::from_utf8(from.counted_u16()?).ok();
                let named = name.and_then(|name| Congestion::named(name).ok());
                named.ok_or(RequestError::Unknown)?
            }
            false => Congestion::ByPath,
        };
        let (origins, rest) = match flags.has(Flags::ORIGINS) {
            true => from.counted_u16()?.as_chunks(),
            false => (&[][..], &[][..]),
        };
        if !rest.is_empty() {
            return Err(RequestError::Unknown);
        }
        let origins = origins.to_vec();
        let extras = match flags.has(Flags::EXTRAS) {
            true => Extras::parse(from.counted_u16()?)?,
            false => Extras::default(),
        };
        let flags = flags.without(Flags::CONGESTION).without(Flags::SYSTEM_CONGESTION);
        let flags = flags.without(Flags::ORIGINS).without(Flags::EXTRAS);
        let mut request = Self { flags, new_name, congestion, origins, extras, ..Self::default() };
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
    fn requests_round_trip() {
        let request = Request {
            flags: Flags::SKIPS.with(Flags::FOLDER, true),
            new_name: Some(b"new\xff".to_vec()),
            congestion: Congestion::Named("reno".into()),
            origins: vec![[1; 16], [2; 16]],
            extras: Extras { deletes_max: Some(7), ..Extras::default() },
            patterns: vec![(true, "keep".into()), (false, "*.o".into())],
            paths: vec![b"share/a\n".to_vec(), b"share".to_vec()],
        };
        let bytes = request.emit().expect("short");
        assert_eq!(Request::parse(&bytes), Ok(request));
        for congestion in [Congestion::ByPath, Congestion::System] {
            let request = Request { congestion, ..Request::default() };
            assert_eq!(Request::parse(&request.emit().expect("short")), Ok(request));
        }
        let much = Request { paths: vec![vec![1; 60_000]; 2], ..Request::default() };
        assert_eq!(much.emit(), Err(RequestError::TooMuch));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(request) = Request::parse(&bytes) {
                prop_assert!(request.emit().is_ok());
            }
        }
    }
}
