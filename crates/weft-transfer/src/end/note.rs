//! Notes: the messages that the ends exchange as records. `docs/transfer-protocol.md` has the
//! format.

use super::loads::Loads;
use crate::limits::NOTE_PATH_LEN_MAX;
use crate::tree::apply::{Change, EntryKind, Summary};
use crate::tree::delta::Signature;
use crate::wire::record::Time;
use crate::wire::record_bytes::{Reader, Short, push_counted_u16};
use crate::wire::record_wants::{Wants, WantsError};

/// The sink's result.
pub type Outcome = Summary;

/// A change of one entry of the destination, which a dry run predicts or a copy has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// The change.
    pub change: Change,
    /// The type of the entry.
    pub kind: EntryKind,
    /// The size of a file in bytes.
    pub size: u64,
    /// The path at the destination; empty for the destination itself.
    pub path: Vec<u8>,
}

/// An entry that a source has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The type of the entry.
    pub kind: EntryKind,
    /// The size of a file in bytes.
    pub size: u64,
    /// The mode, without the type.
    pub mode: u16,
    /// The time of the last change of the contents.
    pub mtime: Time,
    /// Where a symbolic link leads.
    pub target: Option<Vec<u8>>,
    /// The path; empty for the directory of which the source sends the contents.
    pub path: Vec<u8>,
}

impl Planned {
    /// Length of its encoding in a note.
    pub(super) fn len(&self) -> usize {
        12 + self.path.len().min(NOTE_PATH_LEN_MAX)
    }
}

/// How far a source is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reached {
    /// Bytes of blocks that have arrived.
    pub(super) bytes: u64,
    /// Bytes of the files that it has found so far.
    pub(super) planned: u64,
    /// The entries that it has found so far.
    pub(super) entries: u64,
    /// Whether it has found all entries.
    pub(super) is_planned: bool,
    /// Bytes of payloads before compression.
    pub(super) plain: u64,
    /// Bytes of payloads after it.
    pub(super) sent: u64,
}

/// A message from one end to the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// The sink's answer to offers.
    Wants(Wants),
    /// A problem with an entry, at the sink or at the source.
    Problem { path: Vec<u8>, text: String, is_warning: bool },
    /// The sink's final result.
    Outcome(Outcome),
    /// The path of an entry at the sink that is to be copied once more; empty for all of them.
    Again(Vec<u8>),
    /// The load of an end.
    Loads(Loads),
    /// The changes that the sink would make, or has made.
    Plan(Vec<Planned>),
    /// The numbers of entries that the sink has, which the source may remove.
    Confirmed { numbers: Vec<u64>, is_last: bool },
    /// Some blocks of the version that the sink has of an offered file, in their order.
    Version { file: u64, block_len: u32, blocks: Vec<(u64, u64)> },
    /// After the last of these: the entries that the source could not remove.
    Removed { failed: u64 },
    /// How far a source is, for the client that passes its messages on.
    Progress(Reached),
}

/// Why bytes are no valid note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoteError {
    #[error("the note ends within a field")]
    Short,
    #[error("unknown note kind {0}")]
    Kind(u8),
    #[error("bytes follow the note")]
    Long,
    #[error("a text of the note is not UTF-8")]
    Text,
    #[error("unknown change or entry type {0}")]
    Number(u8),
    #[error(transparent)]
    Wants(#[from] WantsError),
}

impl From<Short> for NoteError {
    fn from(_: Short) -> Self {
        Self::Short
    }
}

const WANTS: u8 = 1;
const PROBLEM: u8 = 2;
const OUTCOME: u8 = 3;
const LOADS: u8 = 4;
const PLAN: u8 = 5;
const AGAIN: u8 = 6;
const CONFIRMED: u8 = 7;
const REMOVED: u8 = 8;
const VERSION: u8 = 9;
const PROGRESS: u8 = 20;

impl Note {
    pub(super) fn emit(&self) -> Vec<u8> {
        match self {
            Self::Wants(wants) => [&[WANTS][..], &wants.emit()].concat(),
            Self::Problem { path, text, is_warning } => {
                let mut out = vec![PROBLEM, u8::from(*is_warning)];
                let text = &text.as_bytes()[..text.floor_char_boundary(255)];
                crate::wire::record_bytes::push_counted_u8(&mut out, text);
                out.extend_from_slice(&path[..path.len().min(NOTE_PATH_LEN_MAX)]);
                out
            }
            Self::Outcome(outcome) => {
                let Summary { copied, bytes, unchanged, deleted, failed, warnings, again } =
                    *outcome;
                let mut out = vec![OUTCOME];
                for number in [copied, bytes, unchanged, deleted, failed, warnings, again] {
                    out.extend_from_slice(&number.to_be_bytes());
                }
                out
            }
            Self::Again(path) => [&[AGAIN], &path[..path.len().min(NOTE_PATH_LEN_MAX)]].concat(),
            Self::Loads(loads) => {
                let mut out = vec![LOADS];
                for share in [loads.disk, loads.cpu, loads.network] {
                    out.extend_from_slice(&share.to_be_bytes());
                }
                out
            }
            Self::Plan(all) => {
                let mut out = vec![PLAN];
                for Planned { change, kind, size, path } in all {
                    out.extend_from_slice(&[*change as u8, *kind as u8]);
                    out.extend_from_slice(&size.to_be_bytes());
                    push_counted_u16(&mut out, &path[..path.len().min(NOTE_PATH_LEN_MAX)]);
                }
                out
            }
            Self::Confirmed { numbers, is_last } => {
                let mut out = vec![CONFIRMED, u8::from(*is_last)];
                out.extend(numbers.iter().flat_map(|number| number.to_be_bytes()));
                out
            }
            Self::Removed { failed } => [&[REMOVED][..], &failed.to_be_bytes()].concat(),
            Self::Version { file, block_len, blocks } => [
                &[VERSION][..],
                &file.to_be_bytes(),
                &block_len.to_be_bytes(),
                &Signature::bytes_of(blocks),
            ]
            .concat(),
            Self::Progress(Reached { bytes, planned, entries, is_planned, plain, sent }) => {
                let numbers = [bytes, planned, entries, plain, sent].map(|it| it.to_be_bytes());
                [&[PROGRESS, u8::from(*is_planned)], numbers.as_flattened()].concat()
            }
        }
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, NoteError> {
        let mut from = Reader::new(bytes);
        let kind = from.u8()?;
        let note = match kind {
            WANTS => return Ok(Self::Wants(Wants::parse(&bytes[1..])?)),
            PROBLEM => {
                let is_warning = from.u8()? != 0;
                let text = from.counted_u8()?.to_vec();
                let text = String::from_utf8(text).map_err(|_| NoteError::Text)?;
                let path = from.bytes(from.left())?.to_vec();
                Self::Problem { path, text, is_warning }
            }
            OUTCOME => Self::Outcome(Summary {
                copied: from.u64()?,
                bytes: from.u64()?,
                unchanged: from.u64()?,
                deleted: from.u64()?,
                failed: from.u64()?,
                warnings: from.u64()?,
                again: from.u64()?,
            }),
            AGAIN => Self::Again(from.bytes(from.left())?.to_vec()),
            LOADS => {
                Self::Loads(Loads { disk: from.u16()?, cpu: from.u16()?, network: from.u16()? })
            }
            PLAN => {
                let mut all = Vec::new();
                while from.left() > 0 {
                    let (change, kind) = (from.u8()?, from.u8()?);
                    all.push(Planned {
                        change: Change::from_number(change).ok_or(NoteError::Number(change))?,
                        kind: EntryKind::from_number(kind).ok_or(NoteError::Number(kind))?,
                        size: from.u64()?,
                        path: from.counted_u16()?.to_vec(),
                    });
                }
                Self::Plan(all)
            }
            CONFIRMED => {
                let (is_last, mut numbers) = (from.u8()? != 0, Vec::new());
                while from.left() > 0 {
                    numbers.push(from.u64()?);
                }
                Self::Confirmed { numbers, is_last }
            }
            REMOVED => Self::Removed { failed: from.u64()? },
            VERSION => Self::Version {
                file: from.u64()?,
                block_len: from.u32()?,
                blocks: Signature::parse_blocks(from.bytes(from.left())?)?,
            },
            PROGRESS => Self::Progress(Reached {
                is_planned: from.u8()? != 0,
                bytes: from.u64()?,
                planned: from.u64()?,
                entries: from.u64()?,
                plain: from.u64()?,
                sent: from.u64()?,
            }),
            other => return Err(NoteError::Kind(other)),
        };
        if from.left() > 0 { Err(NoteError::Long) } else { Ok(note) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn notes_round_trip() {
        let text = "cannot be read at the source".to_owned();
        for note in [
            Note::Wants(Wants { first: 7, wanted: vec![true, false], have: Vec::new() }),
            Note::Problem { path: b"a\xff/b\n".to_vec(), text, is_warning: true },
            Note::Outcome(Summary { copied: 1, bytes: 2, failed: 3, ..Summary::default() }),
            Note::Again(b"a/\xff".to_vec()),
            Note::Loads(Loads { disk: 1, cpu: 2, network: 1_000 }),
            Note::Confirmed { numbers: vec![1, 1 << 50], is_last: false },
            Note::Confirmed { numbers: Vec::new(), is_last: true },
            Note::Removed { failed: 3 },
            Note::Version {
                file: 1 << 50,
                block_len: 1 << 13,
                blocks: vec![(1 << 16, u64::MAX), (0, 7)],
            },
            Note::Progress(Reached {
                bytes: 1,
                planned: 2,
                entries: 1 << 40,
                is_planned: true,
                plain: 3,
                sent: 4,
            }),
            Note::Plan(vec![
                Planned {
                    change: Change::Update,
                    kind: EntryKind::File,
                    size: 1 << 40,
                    path: b"a/\xff".to_vec(),
                },
                Planned {
                    change: Change::Delete,
                    kind: EntryKind::Directory,
                    size: 0,
                    path: Vec::new(),
                },
            ]),
        ] {
            assert_eq!(Note::parse(&note.emit()), Ok(note));
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = Note::parse(&bytes);
        }
    }
}
