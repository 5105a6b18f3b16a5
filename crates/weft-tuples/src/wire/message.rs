//! Whole messages.

use std::time::Duration;

use weft_fabric::RemoteKey;

use super::bytes::{Malformed, Reader, Writer};
use super::{FIRST, VERSION};
use crate::limits::{FRAME_LEN_MAX, LIST_LEN_MAX, NAMES_MAX, PUT_TUPLES_MAX, TOKEN_LEN_MAX};
use crate::model::{ClientId, Criteria, Name, Operation, Outcome, Refusal};

/// The first bytes of both ends, before the version.
const MAGIC: [u8; 5] = [FIRST, b'W', b'T', b'U', b'P'];

/// The first message of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// The client.
    pub id: ClientId,
    /// Whether it was connected before.
    pub returns: bool,
    /// What the server knows its clients by; empty if the client has none.
    pub token: Vec<u8>,
}

impl Hello {
    /// Its length in bytes without a token.
    pub const LEN: usize = 24;

    /// Returns its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let has_token = !self.token.is_empty();
        let flags = [VERSION, u8::from(self.returns), u8::from(has_token)];
        let mut writer = Writer([&MAGIC[..], &flags, &self.id].concat());
        if has_token {
            writer.text(&self.token);
        }
        writer.0
    }

    /// Parses the one that bytes begin with. Returns its length, too. `None` if it is not complete.
    ///
    /// # Errors
    ///
    /// If it is none, one of another version, or too long.
    pub fn split(bytes: &[u8]) -> Result<Option<(Self, usize)>, Malformed> {
        let Some((head, rest)) = bytes.split_at_checked(Self::LEN) else { return Ok(None) };
        let mut reader = Reader(head);
        if reader.array()? != MAGIC || reader.u8()? != VERSION {
            return Err(Malformed);
        }
        let (returns, has_token) = (reader.flag()?, reader.flag()?);
        let mut hello = Self { id: reader.array()?, returns, token: Vec::new() };
        if !has_token {
            return Ok(Some((hello, Self::LEN)));
        }
        let Some(token) = split(rest, TOKEN_LEN_MAX)? else { return Ok(None) };
        token.clone_into(&mut hello.token);
        Ok(Some((hello, Self::LEN + 4 + token.len())))
    }
}

/// The server's answer to [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome(pub Result<(), Refusal>);

impl Welcome {
    /// Its length in bytes.
    pub const LEN: usize = 8;

    /// Returns its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = Writer([&MAGIC[..], &[VERSION]].concat());
        match self.0 {
            Ok(()) => writer.u8(0),
            Err(refusal) => writer.refusal(refusal),
        }
        writer.u8(0);
        writer.0
    }

    /// Parses it.
    ///
    /// # Errors
    ///
    /// If it is none, or one of another version.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        if reader.array()? != MAGIC || reader.u8()? != VERSION {
            return Err(Malformed);
        }
        let refusal = reader.refusal()?;
        if reader.u8()? != 0 {
            return Err(Malformed);
        }
        reader.end()?;
        Ok(Self(refusal.map_or(Ok(()), Err)))
    }
}

/// The address of the leader, which follows [`Welcome`] with [`Refusal::Elsewhere`]. It is empty if
/// the server does not know the leader.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leader(pub String);

impl Leader {
    /// Its longest length in bytes, without the length in front of it.
    pub const LEN_MAX: usize = 1 << 10;

    /// Returns its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        framed(|it| it.0.extend_from_slice(self.0.as_bytes()))
    }

    /// Parses it, without the length in front of it.
    ///
    /// # Errors
    ///
    /// If it is no text.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let text = std::str::from_utf8(bytes).map_err(|_| Malformed)?;
        Ok(Self(text.to_owned()))
    }
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Do this. It may wait for so long; `None` is for ever.
    Do(Operation, Option<Duration>),
    /// Cancel the request with this number.
    Cancel(u64),
    /// The client will not come back.
    Part,
    /// Where the tail of this element can be read.
    Tail(Name),
}

/// Where the tail of an element can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TailPlace {
    /// The memory of all tails.
    pub key: RemoteKey,
    /// Where in it this one begins.
    pub offset: u64,
    /// The number of the use of the place, which is in each tail there.
    pub usage: u64,
}

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestFrame {
    /// Its number.
    pub number: u64,
    /// The answers of all requests up to this number have arrived.
    pub confirmed: u64,
    /// The operation.
    pub action: Action,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To [`Action::Do`].
    Outcome(Outcome),
    /// To [`Action::Cancel`]: whether it was waiting.
    Cancelled(bool),
    /// To [`Action::Tail`]. `None` if there is no place for another tail, or no way to read one.
    Tail(Option<TailPlace>),
}

/// The kinds of the request for a tail and of its answer.
const TAIL: u8 = 32;

/// Puts the length in front of a message.
fn framed(write: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let mut writer = Writer(vec![0; 4]);
    write(&mut writer);
    let len = u32::try_from(writer.0.len() - 4).unwrap_or(u32::MAX);
    writer.0[..4].copy_from_slice(&len.to_be_bytes());
    writer.0
}

/// Returns the first frame of the bytes without its length. `None` if it is not complete.
///
/// # Errors
///
/// If it is longer than `len_max`.
pub fn split(bytes: &[u8], len_max: usize) -> Result<Option<&[u8]>, Malformed> {
    let Some((len, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let len = u32::from_be_bytes(*len) as usize;
    if len > len_max {
        return Err(Malformed);
    }
    Ok(rest.get(..len))
}

/// Returns the frame of an answer.
#[must_use]
pub fn frame(number: u64, answer: &Answer) -> Vec<u8> {
    framed(|it| {
        it.u64(number);
        answer.write(it);
    })
}

impl RequestFrame {
    /// The longest one in bytes, without its length.
    pub const LEN_MAX: usize = FRAME_LEN_MAX;

    /// Returns its frame.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        framed(|it| {
            it.u64(self.number);
            it.u64(self.confirmed);
            match &self.action {
                Action::Do(operation, wait) => {
                    write_operation(it, operation);
                    let ms = |wait: &Duration| u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                    it.u64(wait.as_ref().map_or(u64::MAX, ms));
                }
                Action::Cancel(number) => {
                    it.u8(10);
                    it.u64(*number);
                }
                Action::Part => it.u8(11),
                Action::Tail(name) => {
                    it.u8(TAIL);
                    it.text(name);
                }
            }
        })
    }

    /// Parses a frame without its length.
    ///
    /// # Errors
    ///
    /// If it is no request.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut it = Reader(bytes);
        let (number, confirmed) = (it.u64()?, it.u64()?);
        let action = match it.u8()? {
            10 => Action::Cancel(it.u64()?),
            11 => Action::Part,
            TAIL => Action::Tail(it.name()?),
            kind => {
                let operation = read_operation(kind, &mut it)?;
                let ms = it.u64()?;
                Action::Do(operation, (ms != u64::MAX).then(|| Duration::from_millis(ms)))
            }
        };
        it.end()?;
        Ok(Self { number, confirmed, action })
    }
}

fn write_operation(it: &mut Writer, operation: &Operation) {
    match operation {
        Operation::Create { element, criteria } => {
            it.u8(1);
            it.text(element);
            it.criteria(*criteria);
        }
        Operation::Put { element, end, tuples, is_append, criteria: _ } => {
            it.u8(2);
            it.text(element);
            it.end(*end);
            it.u8(u8::from(*is_append));
            it.list(tuples, Writer::tuple);
        }
        Operation::Take { elements, end, count } => {
            it.u8(3);
            it.list(elements, |it, name| it.text(name));
            it.end(*end);
            it.count(*count);
        }
        Operation::Observe { elements, count } => {
            it.u8(4);
            it.list(elements, |it, (name, after)| {
                it.text(name);
                it.u8(u8::from(after.is_some()));
                if let Some(after) = after {
                    it.rank(after);
                }
            });
            it.count(*count);
        }
        Operation::Transfer { from, to } => {
            it.u8(5);
            for (name, end) in [from, to] {
                it.text(name);
                it.end(*end);
            }
        }
        Operation::Read { element, selection, count } => {
            it.u8(6);
            it.text(element);
            it.selection(selection);
            it.u32(*count);
        }
        Operation::Describe { element } => {
            it.u8(7);
            it.text(element);
        }
        Operation::List => it.u8(8),
        Operation::Delete { element } => {
            it.u8(9);
            it.text(element);
        }
    }
}

fn read_operation(kind: u8, it: &mut Reader<'_>) -> Result<Operation, Malformed> {
    Ok(match kind {
        1 => Operation::Create { element: it.name()?, criteria: it.criteria()? },
        2 => {
            let (element, end) = (it.name()?, it.end_of_element()?);
            let (is_append, tuples) = (it.flag()?, it.list(PUT_TUPLES_MAX, Reader::tuple)?);
            Operation::Put { element, criteria: Criteria::default(), end, tuples, is_append }
        }
        3 => Operation::Take {
            elements: it.list(NAMES_MAX, Reader::name)?,
            end: it.end_of_element()?,
            count: it.count()?,
        },
        4 => {
            let elements = it.list(NAMES_MAX, |it| {
                let name = it.name()?;
                Ok((name, if it.flag()? { Some(it.rank()?) } else { None }))
            })?;
            Operation::Observe { elements, count: it.count()? }
        }
        5 => Operation::Transfer {
            from: (it.name()?, it.end_of_element()?),
            to: (it.name()?, it.end_of_element()?),
        },
        6 => Operation::Read { element: it.name()?, selection: it.selection()?, count: it.u32()? },
        7 => Operation::Describe { element: it.name()? },
        8 => Operation::List,
        9 => Operation::Delete { element: it.name()? },
        _ => return Err(Malformed),
    })
}

fn read_place(it: &mut Reader<'_>) -> Result<TailPlace, Malformed> {
    let key = RemoteKey::from_bytes(it.take(RemoteKey::LEN)?).ok_or(Malformed)?;
    Ok(TailPlace { key, offset: it.u64()?, usage: it.u64()? })
}

impl Answer {
    fn write(&self, it: &mut Writer) {
        let outcome = match self {
            Self::Outcome(outcome) => outcome,
            Self::Cancelled(was_waiting) => {
                it.u8(13);
                return it.u8(u8::from(*was_waiting));
            }
            Self::Tail(place) => {
                it.u8(TAIL);
                it.u8(u8::from(place.is_some()));
                if let Some(TailPlace { key, offset, usage }) = place {
                    it.0.extend_from_slice(&key.to_bytes());
                    it.u64(*offset);
                    it.u64(*usage);
                }
                return;
            }
        };
        match outcome {
            Outcome::Created(is_new) => {
                it.u8(1);
                it.u8(u8::from(*is_new));
            }
            Outcome::Put(rank, len) => {
                it.u8(2);
                it.rank(rank);
                it.u64(*len as u64);
            }
            Outcome::Taken(at, items) => {
                it.u8(3);
                it.u32(*at as u32);
                it.items(items);
            }
            Outcome::Observed(found) => {
                it.u8(4);
                it.list(found, |it, (at, items)| {
                    it.u32(*at as u32);
                    it.items(items);
                });
            }
            Outcome::Transferred(item) => {
                it.u8(5);
                it.item(item);
            }
            Outcome::Read(items) => {
                it.u8(6);
                it.items(items);
            }
            Outcome::Described(description) => {
                it.u8(7);
                it.u8(u8::from(description.is_some()));
                if let Some(description) = description {
                    it.description(description);
                }
            }
            Outcome::Listed(all) => {
                it.u8(8);
                it.list(all, Writer::description);
            }
            Outcome::Deleted(existed) => {
                it.u8(9);
                it.u8(u8::from(*existed));
            }
            Outcome::Nothing => it.u8(10),
            Outcome::Cancelled => it.u8(11),
            Outcome::Refused(refusal) => {
                it.u8(12);
                it.refusal(*refusal);
            }
        }
    }

    /// Parses a frame without its length. Returns the number of the request, too.
    ///
    /// # Errors
    ///
    /// If it is no answer.
    pub fn decode(bytes: &[u8]) -> Result<(u64, Self), Malformed> {
        let mut it = Reader(bytes);
        let number = it.u64()?;
        let outcome = match it.u8()? {
            1 => Outcome::Created(it.flag()?),
            2 => {
                let rank = it.rank()?;
                Outcome::Put(rank, usize::try_from(it.u64()?).map_err(|_| Malformed)?)
            }
            3 => Outcome::Taken(it.u32()? as usize, it.items()?),
            4 => Outcome::Observed(it.list(NAMES_MAX, |it| Ok((it.u32()? as usize, it.items()?)))?),
            5 => Outcome::Transferred(it.item()?),
            6 => Outcome::Read(it.items()?),
            7 => {
                let exists = it.flag()?;
                Outcome::Described(if exists { Some(it.description()?) } else { None })
            }
            8 => Outcome::Listed(it.list(LIST_LEN_MAX, Reader::description)?),
            9 => Outcome::Deleted(it.flag()?),
            10 => Outcome::Nothing,
            11 => Outcome::Cancelled,
            12 => Outcome::Refused(it.refusal()?.ok_or(Malformed)?),
            13 => {
                let was_waiting = it.flag()?;
                it.end()?;
                return Ok((number, Self::Cancelled(was_waiting)));
            }
            TAIL => {
                let place = if it.flag()? { Some(read_place(&mut it)?) } else { None };
                it.end()?;
                return Ok((number, Self::Tail(place)));
            }
            _ => return Err(Malformed),
        };
        it.end()?;
        Ok((number, Self::Outcome(outcome)))
    }
}
