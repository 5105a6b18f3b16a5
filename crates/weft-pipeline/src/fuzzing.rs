//! Bodies of the fuzz targets: a worker reads what a stranger or a peer may send, and a model says
//! what it must make of it. `fuzz/` runs them with libFuzzer, `tests/fuzz.rs` without.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read};

use weft_transfer::blocks::Pool;

use crate::control::{FromWorker, ToWorker, receive};
use crate::frames::{Buffer, FrameReader, Step};
use crate::merge::{Merge, Taken};
use crate::schedule::{Policy, Scheduler};
use crate::wire::{Acks, HEADER_LEN, HELLO_LEN, Header, Hello, Incoming, Kind, Token};

/// Takes the next byte of an input as a number below `limit`.
fn below(input: &mut &[u8], limit: usize) -> Option<usize> {
    let (&first, rest) = input.split_first()?;
    *input = rest;
    Some(usize::from(first) % limit)
}

/// Takes the next bytes of an input, fewer at its end.
fn bytes<'input>(input: &mut &'input [u8], count: usize) -> &'input [u8] {
    let (first, rest) = input.split_at(count.min(input.len()));
    *input = rest;
    first
}

/// A stranger's first message. What is accepted is written back unchanged, except for two bytes
/// that are reserved, and no secret but the right one is known.
///
/// # Panics
/// If the hello is wrong.
pub fn hello(input: &[u8]) {
    let Some((first, rest)) = input.split_first_chunk::<HELLO_LEN>() else { return };
    let Ok(hello) = Hello::decode(first) else { return };
    let mut written = hello.encode();
    written[14..16].copy_from_slice(&first[14..16]);
    assert_eq!(&written, first);
    let mut token = Token::default();
    let known = rest.len().min(token.len());
    token[..known].copy_from_slice(&rest[..known]);
    assert_eq!(hello.knows(&token), first[16..] == token);
}

/// Messages of the process that runs the pipeline, and of a worker.
pub fn messages(input: &[u8]) {
    let mut unread = input;
    while let Ok(Some(_)) = receive::<FromWorker>(&mut unread) {}
    let mut unread = input;
    while let Ok(Some(_)) = receive::<ToWorker>(&mut unread) {}
}

/// The bytes that have arrived from a producer.
#[derive(Debug, Default)]
struct Arrived(VecDeque<u8>);

impl Read for Arrived {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.0.read(to)
    }
}

/// The rules of a stream.
#[derive(Clone, Copy, Debug)]
struct Rules {
    units: u32,
    len_max: u32,
    window: u32,
}

/// The state that a consumer must have after a producer's bytes.
#[derive(Debug, Default)]
struct Model {
    unread: VecDeque<u8>,
    /// The length of a buffer whose header has come.
    awaited: Option<usize>,
    unit: u32,
    unacknowledged: u32,
    is_refused: bool,
    /// The buffers that are not taken; `None` ends a unit.
    items: VecDeque<Option<Vec<u8>>>,
    taken_units: u32,
}

impl Model {
    fn arrived(&mut self, bytes: &[u8], rules: Rules) {
        self.unread.extend(bytes);
        while !self.is_refused {
            let len = self.awaited.unwrap_or(HEADER_LEN);
            if self.unread.len() < len {
                return;
            }
            let piece: Vec<u8> = self.unread.drain(..len).collect();
            if self.awaited.take().is_some() {
                self.items.push_back(Some(piece));
                continue;
            }
            let word = |at: usize| {
                piece[at..at + 4].iter().fold(0_u32, |word, &byte| word << 8 | u32::from(byte))
            };
            let is_of_unit = self.unit < rules.units && word(4) == self.unit;
            match (word(0), word(8)) {
                (1, len) if is_of_unit && len <= rules.len_max => {
                    self.is_refused = self.unacknowledged == rules.window;
                    self.unacknowledged += 1;
                    self.awaited = Some(len as usize);
                }
                (2, 0) if is_of_unit => {
                    self.unit += 1;
                    self.items.push_back(None);
                }
                _ => self.is_refused = true,
            }
        }
    }
}

/// A consumer with several producers, one of which may break the rules.
struct Consumer {
    rules: Rules,
    pool: Pool,
    merge: Merge<Buffer>,
    producers: Vec<(FrameReader, Incoming, Model)>,
    unit: u32,
}

impl Consumer {
    /// Delivers bytes of a producer. Returns whether the stream goes on.
    fn deliver(&mut self, index: usize, bytes: &[u8]) -> bool {
        let (reader, incoming, model) = &mut self.producers[index];
        model.arrived(bytes, self.rules);
        let mut stream = Arrived(bytes.iter().copied().collect());
        loop {
            match reader.step(incoming, &self.pool, &mut stream) {
                Ok(Step::Buffer(buffer)) => self.merge.push(index, buffer),
                Ok(Step::UnitEnded) => self.merge.push_end(index),
                Ok(Step::Blocked) => break,
                Ok(Step::Closed) => unreachable!("the stream was not closed"),
                Err(error) => {
                    assert!(model.is_refused, "{error}");
                    return false;
                }
            }
        }
        assert!(!model.is_refused, "it should be refused");
        assert_eq!(incoming.is_complete(), model.unit == self.rules.units);
        true
    }

    /// Takes a buffer as a filter does. Returns whether there may be more.
    fn take(&mut self) -> bool {
        match self.merge.take() {
            Some(Taken::Item(index, buffer)) => {
                let (_, incoming, model) = &mut self.producers[index];
                incoming.acknowledge();
                model.unacknowledged -= 1;
                assert_eq!(model.items.pop_front(), Some(Some(buffer.to_vec())));
                assert_eq!(model.taken_units, self.unit);
            }
            Some(Taken::UnitEnded) => {
                self.end_units();
                self.unit += 1;
                assert!(self.producers.iter().all(|(.., model)| model.taken_units == self.unit));
            }
            Some(Taken::Finished) => assert_eq!(self.unit, self.rules.units),
            None => {
                self.end_units();
                let waits = |model: &Model| model.taken_units == self.unit;
                assert!(self.producers.iter().any(|(.., model)| waits(model)));
                let is_empty = |model: &Model| !waits(model) || model.items.is_empty();
                assert!(self.producers.iter().all(|(.., model)| is_empty(model)));
                return false;
            }
        }
        self.unit < self.rules.units
    }

    /// Takes the ends of the current unit out of the model.
    fn end_units(&mut self) {
        for (.., model) in &mut self.producers {
            if model.taken_units == self.unit && model.items.front() == Some(&None) {
                model.items.pop_front();
                model.taken_units += 1;
            }
        }
    }
}

/// Producers send buffers, ends of units and other bytes, in pieces; the filter takes buffers
/// meanwhile. Exactly the frames that the rules allow arrive, and the blocks suffice for them.
///
/// # Panics
/// If the consumer and the model differ.
pub fn frames(mut input: &[u8]) {
    let input = &mut input;
    let mut number = |limit| below(input, limit);
    let (Some(units), Some(len_max), Some(window), Some(count)) =
        (number(4), number(40), number(4), number(3))
    else {
        return;
    };
    let rules =
        Rules { units: units as u32 + 1, len_max: len_max as u32, window: window as u32 + 1 };
    let (window, count) = (window + 1, count + 1);
    let Ok(pool) = Pool::new(count * window + 1, len_max.max(1)) else { return };
    let producer = || {
        let incoming = Incoming::new(rules.units, rules.len_max, rules.window);
        (FrameReader::default(), incoming, Model::default())
    };
    let producers = (0..count).map(|_| producer()).collect();
    let merge = Merge::new(count, rules.units, window);
    let mut consumer = Consumer { rules, pool, merge, producers, unit: 0 };
    // The bytes that a producer has sent and that have not arrived.
    let mut sent: Vec<Vec<u8>> = vec![Vec::new(); count];
    let mut sent_units = vec![0; count];
    while let (Some(action), Some(len)) = (below(input, 256), below(input, 64)) {
        let index = action / 8 % count;
        let mut header = |kind, unit, len: usize| {
            sent[index].extend(Header { kind, unit, len: len as u32 }.encode());
        };
        match action % 8 {
            0 | 1 => {
                let content = bytes(input, len.min(len_max));
                header(Kind::Buffer, sent_units[index], content.len());
                sent[index].extend(content);
            }
            2 => {
                header(Kind::End, sent_units[index], 0);
                sent_units[index] += 1;
            }
            3 => {
                let bytes = bytes(input, len);
                sent[index].extend(bytes);
            }
            4 | 5 => {
                let sent = &mut sent[index];
                let rest = sent.split_off(len.min(sent.len()));
                let bytes = std::mem::replace(sent, rest);
                if !consumer.deliver(index, &bytes) {
                    return;
                }
            }
            _ => {
                consumer.take();
            }
        }
    }
    for (index, sent) in sent.iter().enumerate() {
        if !consumer.deliver(index, sent) {
            return;
        }
    }
    while consumer.take() {}
}

/// Consumers acknowledge buffers, or send other bytes, in pieces. A producer counts exactly the
/// acknowledgements of buffers that it has sent, and refuses everything else.
///
/// # Panics
/// If the producer and the count differ.
pub fn acks(mut input: &[u8]) {
    let input = &mut input;
    let mut number = |limit| below(input, limit);
    let (Some(count), Some(window), Some(policy)) = (number(4), number(4), number(2)) else {
        return;
    };
    let (count, window) = (count + 1, window as u32 + 1);
    let policy = [Policy::Demand, Policy::RoundRobin][policy];
    let mut scheduler = Scheduler::new(policy, count, window);
    let mut readers: Vec<Acks> = (0..count).map(|_| Acks::default()).collect();
    let (mut unread, mut missing) = (vec![Vec::new(); count], vec![0_u32; count]);
    let ack = Header { kind: Kind::Ack, unit: 0, len: 0 }.encode();
    while let (Some(action), Some(len)) = (below(input, 256), below(input, 64)) {
        let copy = action / 4 % count;
        let piece = match action % 4 {
            0 => match scheduler.pick() {
                Some(copy) => {
                    scheduler.sent(copy);
                    missing[copy] += 1;
                    assert!(missing[copy] <= window);
                    continue;
                }
                None => continue,
            },
            1 => &ack[..len.min(HEADER_LEN)],
            2 => &ack[HEADER_LEN - len.min(HEADER_LEN)..],
            _ => bytes(input, len),
        };
        unread[copy].extend_from_slice(piece);
        let result = readers[copy].read(piece);
        let whole = unread[copy].len() / HEADER_LEN * HEADER_LEN;
        let is_ack = |frame: &[u8]| frame[..4] == ack[..4] && frame[8..] == ack[8..];
        let is_right = unread[copy][..whole].chunks(HEADER_LEN).all(is_ack);
        assert_eq!(result.is_ok(), is_right, "{result:?}");
        let Ok(acks) = result else { return };
        assert_eq!(acks as usize, whole / HEADER_LEN);
        unread[copy].drain(..whole);
        for _ in 0..acks {
            let was_missing = scheduler.acknowledged(copy);
            assert_eq!(was_missing, missing[copy] > 0);
            if !was_missing {
                return;
            }
            missing[copy] -= 1;
        }
        assert_eq!(scheduler.unacknowledged(copy), missing[copy]);
    }
}
