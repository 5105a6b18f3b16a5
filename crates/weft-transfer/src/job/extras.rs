//! What few requests have: options with values.
//!
//! Format: for each, its number u8, u16 and bytes. The numbers ascend.
//!
//! | number | value |
//! | ---: | --- |
//! | 1 | the changes of modes at the source, 8 bytes each |
//! | 2 | the most entries that the sink deletes, u64 |
//! | 3 | the suffix of what is replaced and kept; it may be empty |
//! | 4 | with 3: the directory for what is replaced |
//! | 5 | directories to whose files the sink may link, each u16 and bytes |
//! | 16 | the server to which the source connects data channels ([`SendsTo`]) |
//! | 17 | the only names that the source may create in the destination, each u16 and bytes |

use std::net::{IpAddr, SocketAddr};

use crate::limits::{CHANNELS_EACH_MAX, PATHS_MAX, THIRDS_MAX};
use crate::secure::{Cipher, PublicKey};
use crate::tree::modes::Modes;
use crate::wire::PipeSecret;
use crate::wire::record_bytes::{Reader, Short, push_counted_u16};

const MODES: u8 = 1;
const DELETIONS: u8 = 2;
const SUFFIX: u8 = 3;
const FOLDER: u8 = 4;
const THIRDS: u8 = 5;
const SENDS_TO: u8 = 16;
const ONLY: u8 = 17;

/// Why bytes are no valid extras.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ExtrasError {
    /// This version does not know them.
    Unknown,
    /// A limit is exceeded.
    TooMuch,
}

impl From<Short> for ExtrasError {
    fn from(_: Short) -> Self {
        Self::Unknown
    }
}

/// Options of a copy with values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extras {
    /// Changes of the modes that the source sends.
    pub modes: Modes,
    /// The most entries that the sink deletes.
    pub deletes_max: Option<u64>,
    /// What the sink keeps that is replaced or deleted, and how.
    pub keeps: Option<Keeps>,
    /// Directories to whose files the sink may link instead of copying equal ones. Their paths
    /// begin where that of [`Keeps`] does.
    pub thirds: Vec<Vec<u8>>,
    /// What a copy from one server to another one has.
    pub servers: ServerExtras,
}

/// What a copy from one server to another one has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerExtras {
    /// At the source: the server to which it connects the data channels.
    pub(super) sends_to: Option<Box<SendsTo>>,
    /// At the destination: the only names that the source may create there; `None` allows all.
    pub(super) only: Option<Vec<Vec<u8>>>,
}

/// A server to which another one connects data channels, for a client that has a grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SendsTo {
    /// Its address.
    pub address: SocketAddr,
    /// Its key.
    pub key: PublicKey,
    /// The secret of the grant.
    pub secret: PipeSecret,
    /// The cipher of the blocks, unless they are clear.
    pub cipher: Cipher,
    /// The most data channels.
    pub channels: u16,
    /// The most bytes of blocks per second.
    pub limit: Option<u64>,
}

impl SendsTo {
    fn emit(&self) -> Vec<u8> {
        let limit = self.limit.unwrap_or_default().to_be_bytes();
        let numbers = [self.channels, self.address.port()].map(u16::to_be_bytes);
        let address = self.address.ip().to_string();
        let parts: [&[u8]; 6] = [
            &self.key.to_bytes(),
            &self.secret.0,
            &[self.cipher as u8],
            &limit,
            numbers.as_flattened(),
            address.as_bytes(),
        ];
        parts.concat()
    }

    fn parse(value: &[u8]) -> Result<Self, ExtrasError> {
        let mut from = Reader::new(value);
        let (key, secret) = (PublicKey::from_bytes(from.array()?), PipeSecret(from.array()?));
        let cipher = Cipher::from_number(from.u8()?).ok_or(ExtrasError::Unknown)?;
        let limit = Some(from.u64()?).filter(|limit| *limit > 0);
        let (channels, port) = (from.u16()?, from.u16()?);
        let address = str::from_utf8(from.bytes(from.left())?).ok();
        let address = address.and_then(|text| text.parse::<IpAddr>().ok());
        let address = SocketAddr::new(address.ok_or(ExtrasError::Unknown)?, port);
        if port == 0 || !(1..=CHANNELS_EACH_MAX).contains(&channels) {
            return Err(ExtrasError::Unknown);
        }
        Ok(Self { address, key, secret, cipher, channels, limit })
    }
}

/// Returns names, each with its length.
fn emit_names(names: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for name in names {
        push_counted_u16(&mut out, name);
    }
    out
}

/// Parses at least one name, and at most `most`.
fn parse_names(value: &[u8], most: usize) -> Result<Vec<Vec<u8>>, ExtrasError> {
    let (mut names, mut from) = (Vec::new(), Reader::new(value));
    while from.left() > 0 {
        names.push(from.counted_u16()?.to_vec());
    }
    if names.is_empty() || names.len() > most { Err(ExtrasError::TooMuch) } else { Ok(names) }
}

/// How a sink keeps what is replaced or deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keeps {
    /// What is behind its name.
    pub suffix: Vec<u8>,
    /// The directory for it; without one it stays where it is. The path is that from the
    /// destination, at a server with shares from the top of the share if it begins with a slash.
    pub folder: Option<Vec<u8>>,
}

impl Extras {
    /// Returns their bytes; none if there are no extras.
    pub(super) fn emit(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut push = |number: u8, value: &[u8]| {
            out.push(number);
            push_counted_u16(&mut out, value);
        };
        if !self.modes.is_empty() {
            push(MODES, &self.modes.emit());
        }
        if let Some(most) = self.deletes_max {
            push(DELETIONS, &most.to_be_bytes());
        }
        if let Some(Keeps { suffix, folder }) = &self.keeps {
            push(SUFFIX, suffix);
            if let Some(folder) = folder {
                push(FOLDER, folder);
            }
        }
        if !self.thirds.is_empty() {
            push(THIRDS, &emit_names(&self.thirds));
        }
        if let Some(to) = &self.servers.sends_to {
            push(SENDS_TO, &to.emit());
        }
        if let Some(names) = &self.servers.only {
            push(ONLY, &emit_names(names));
        }
        out
    }

    /// Parses untrusted bytes.
    ///
    /// # Errors
    /// If they are no extras, or some that this version does not know.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, ExtrasError> {
        let (mut extras, mut from, mut last) = (Self::default(), Reader::new(bytes), 0);
        while from.left() > 0 {
            let (number, value) = (from.u8()?, from.counted_u16()?);
            if number <= last {
                return Err(ExtrasError::Unknown);
            }
            last = number;
            match number {
                MODES => {
                    let modes = Modes::parse_bytes(value).ok().filter(|modes| !modes.is_empty());
                    extras.modes = modes.ok_or(ExtrasError::Unknown)?;
                }
                DELETIONS => {
                    let most = value.try_into().map_err(|_| ExtrasError::Unknown)?;
                    extras.deletes_max = Some(u64::from_be_bytes(most));
                }
                SUFFIX => extras.keeps = Some(Keeps { suffix: value.to_vec(), folder: None }),
                FOLDER => {
                    let keeps = extras.keeps.as_mut().ok_or(ExtrasError::Unknown)?;
                    keeps.folder = Some(value.to_vec());
                }
                THIRDS => extras.thirds = parse_names(value, THIRDS_MAX)?,
                SENDS_TO => extras.servers.sends_to = Some(Box::new(SendsTo::parse(value)?)),
                ONLY => extras.servers.only = Some(parse_names(value, PATHS_MAX)?),
                _ => return Err(ExtrasError::Unknown),
            }
        }
        Ok(extras)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sends_to() -> SendsTo {
        SendsTo {
            address: "192.0.2.77:29338".parse().expect("an address"),
            key: PublicKey::from_bytes([7; 32]),
            secret: PipeSecret([9; 32]),
            cipher: Cipher::ChaCha20Poly1305,
            channels: CHANNELS_EACH_MAX,
            limit: None,
        }
    }

    fn of_servers(only: Option<Vec<u8>>, to: Option<SendsTo>) -> Extras {
        let only = only.map(|name| vec![name, b"two".to_vec()]);
        let servers = ServerExtras { sends_to: to.map(Box::new), only };
        Extras { servers, ..Extras::default() }
    }

    #[test]
    fn extras_round_trip() {
        let modes = Modes::parse("D755,F644,go-w").expect("modes");
        for extras in [
            Extras::default(),
            Extras { modes: modes.clone(), ..Extras::default() },
            Extras { deletes_max: Some(7), modes, ..Extras::default() },
            Extras {
                keeps: Some(Keeps { suffix: b"~".into(), folder: None }),
                ..Extras::default()
            },
            Extras {
                keeps: Some(Keeps { suffix: Vec::new(), folder: Some(b"../old".into()) }),
                deletes_max: Some(0),
                thirds: vec![b"../one".into(), b"/two".into()],
                ..Extras::default()
            },
            of_servers(Some(b"one".to_vec()), Some(sends_to())),
            of_servers(None, Some(SendsTo { limit: Some(7), ..sends_to() })),
        ] {
            assert_eq!(Extras::parse(&extras.emit()), Ok(extras));
        }
        for unknown in
            [&[9, 0, 0][..], &[4, 0, 0], &[2, 0, 1, 7], &[1, 0, 0], &[2, 0, 8], &[0, 0, 0]]
        {
            Extras::parse(unknown).expect_err("not known");
        }
        let value = sends_to().emit();
        let parsed = |value: &[u8]| SendsTo::parse(value).is_ok();
        assert!(parsed(&value));
        for (at, wrong) in [(64, 0), (64, 3), (74, 99), (76, 0), (77, b'x')] {
            let mut bytes = value.clone();
            bytes[at] = wrong;
            // A port has two bytes.
            bytes[75] = if at == 76 { 0 } else { bytes[75] };
            assert!(!parsed(&bytes), "{at}");
        }
        for len in 0..value.len() - 8 {
            assert!(!parsed(&value[..len]), "{len}");
        }
        let twice = [&[DELETIONS, 0, 8][..], &[0; 8]].concat().repeat(2);
        assert_eq!(Extras::parse(&twice), Err(ExtrasError::Unknown));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            if let Ok(extras) = Extras::parse(&bytes) {
                prop_assert_eq!(extras.emit(), bytes);
            }
        }
    }
}
