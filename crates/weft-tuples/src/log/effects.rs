//! The bytes of effects.

use crate::limits::LIST_LEN_MAX;
use crate::model::{ClientId, Effect, Impossible, Service};
use crate::wire::{self, Answer, Malformed, Reader, Writer};

/// Appends an effect to `bytes`.
pub fn encode(bytes: &mut Vec<u8>, effect: &Effect) {
    let mut it = Writer(std::mem::take(bytes));
    match effect {
        Effect::Kept { element, criteria, last } => {
            it.u8(1);
            it.text(element);
            it.criteria(*criteria);
            it.stamp(*last);
        }
        Effect::Inserted { element, items, serial } => {
            it.u8(2);
            it.text(element);
            it.items(items);
            it.u64(serial.cast_unsigned());
        }
        Effect::Removed { element, end, count } => {
            it.u8(3);
            it.text(element);
            it.end(*end);
            it.u32(*count);
        }
        Effect::Observed { element, ranks } => {
            it.u8(4);
            it.text(element);
            it.list(ranks, Writer::rank);
        }
        Effect::Deleted { element } => {
            it.u8(5);
            it.text(element);
        }
        Effect::Serial(serial) => {
            it.u8(6);
            it.u64(serial.cast_unsigned());
        }
        Effect::Entered { client, confirmed } => {
            it.u8(7);
            it.0.extend_from_slice(client);
            it.u64(*confirmed);
        }
        Effect::Answered { client, confirmed, number, outcome } => {
            it.u8(8);
            it.0.extend_from_slice(client);
            it.u64(*confirmed);
            it.0.extend(wire::frame(*number, &Answer::Outcome(outcome.clone())));
        }
        Effect::Forgotten { client } => {
            it.u8(9);
            it.0.extend_from_slice(client);
        }
        Effect::Dropped { element, ranks } => {
            it.u8(10);
            it.text(element);
            it.list(ranks, Writer::rank);
        }
    }
    *bytes = it.0;
}

/// Effects that are none, or that do not fit the state.
#[derive(Debug)]
pub struct Unfit;

impl From<Malformed> for Unfit {
    fn from(_: Malformed) -> Self {
        Self
    }
}

impl From<Impossible> for Unfit {
    fn from(_: Impossible) -> Self {
        Self
    }
}

/// Parses effects up to the end of `bytes`, and applies each to a service.
///
/// # Errors
///
/// If the bytes are no effects, or one does not fit the state. Those before it are applied.
pub fn replay(bytes: &[u8], service: &mut Service) -> Result<(), Unfit> {
    let mut reader = Reader(bytes);
    while reader.end().is_err() {
        service.apply(read(&mut reader)?)?;
    }
    Ok(())
}

fn read(it: &mut Reader<'_>) -> Result<Effect, Malformed> {
    let client = |it: &mut Reader<'_>| -> Result<ClientId, Malformed> { it.array() };
    Ok(match it.u8()? {
        1 => Effect::Kept { element: it.name()?, criteria: it.criteria()?, last: it.stamp()? },
        2 => Effect::Inserted {
            element: it.name()?,
            items: it.items()?,
            serial: it.u64()?.cast_signed(),
        },
        3 => Effect::Removed { element: it.name()?, end: it.end_of_element()?, count: it.u32()? },
        4 => Effect::Observed { element: it.name()?, ranks: it.list(LIST_LEN_MAX, Reader::rank)? },
        5 => Effect::Deleted { element: it.name()? },
        6 => Effect::Serial(it.u64()?.cast_signed()),
        7 => Effect::Entered { client: client(it)?, confirmed: it.u64()? },
        8 => {
            let (client, confirmed) = (client(it)?, it.u64()?);
            match Answer::decode(it.text()?)? {
                (number, Answer::Outcome(outcome)) => {
                    Effect::Answered { client, confirmed, number, outcome }
                }
                (_, Answer::Cancelled(_) | Answer::Tail(_)) => return Err(Malformed),
            }
        }
        9 => Effect::Forgotten { client: client(it)? },
        10 => Effect::Dropped { element: it.name()?, ranks: it.list(LIST_LEN_MAX, Reader::rank)? },
        _ => return Err(Malformed),
    })
}
