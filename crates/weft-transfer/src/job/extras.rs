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

use crate::limits::THIRDS_MAX;
use crate::tree::modes::Modes;
use crate::wire::record_bytes::{Reader, Short, push_counted_u16};

const MODES: u8 = 1;
const DELETIONS: u8 = 2;
const SUFFIX: u8 = 3;
const FOLDER: u8 = 4;
const THIRDS: u8 = 5;

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
            let mut all = Vec::new();
            for third in &self.thirds {
                push_counted_u16(&mut all, third);
            }
            push(THIRDS, &all);
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
                THIRDS => {
                    let mut from = Reader::new(value);
                    while from.left() > 0 {
                        extras.thirds.push(from.counted_u16()?.to_vec());
                    }
                    if extras.thirds.is_empty() || extras.thirds.len() > THIRDS_MAX {
                        return Err(ExtrasError::TooMuch);
                    }
                }
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
        ] {
            assert_eq!(Extras::parse(&extras.emit()), Ok(extras));
        }
        for unknown in
            [&[9, 0, 0][..], &[4, 0, 0], &[2, 0, 1, 7], &[1, 0, 0], &[2, 0, 8], &[0, 0, 0]]
        {
            Extras::parse(unknown).expect_err("not known");
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
