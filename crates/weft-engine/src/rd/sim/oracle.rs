//! The expected results of the requests that were posted.

use std::collections::{BTreeMap, HashMap};

use weft_wire::rd::Reason;

use super::host::{Host, word};
use crate::rd::request::Status;

/// An error message if a check failed.
pub(super) type Check = Result<(), String>;

macro_rules! ensure {
    ($holds:expr, $($message:tt)*) => {
        if !$holds {
            return Err(format!($($message)*));
        }
    };
}

/// The effect of a successful request.
#[derive(Debug)]
pub(super) enum Effect {
    /// The peer receives the message with this number.
    Sent { serial: u32 },
    /// The bytes are in the peer's memory.
    Written { at: usize, bytes: Vec<u8> },
    /// The peer's cell has this value, or one that was written later.
    Marked { at: usize, len: usize, value: u8 },
    /// The bytes are in our memory.
    Read { at: usize, bytes: Vec<u8> },
    /// The peer's word has one added to its field of two bits with this number, and what it was
    /// before is in our memory.
    Added { at: usize, field: u32, old_at: usize },
    /// The peer's word, which was 0, has this value, and the 0 is in our memory.
    Swapped { at: usize, value: u64, old_at: usize },
    /// It cannot succeed, because the peer refuses it.
    Refused(Reason),
    /// It cannot succeed, because the local memory is invalid.
    LocalFault(Reason),
}

#[derive(Debug)]
struct Open {
    from: usize,
    to: usize,
    effect: Effect,
}

#[derive(Debug)]
struct Message {
    bytes: Vec<u8>,
    /// The incarnations of the receiver that have received it.
    received: Vec<u32>,
    /// The receiver's incarnation when it was posted.
    posted_to: u32,
    done: bool,
}

/// The messages from one incarnation of a host to another host.
#[derive(Debug, Default)]
struct Channel {
    messages: Vec<Message>,
    /// The last message received, and the incarnation that received it.
    last: Option<(u32, u32)>,
}

/// The model of all hosts.
#[derive(Debug, Default)]
pub(super) struct Oracle {
    open: BTreeMap<u64, Open>,
    channels: HashMap<(usize, u32, usize), Channel>,
    /// Hosts that have restarted, and pairs of hosts whose path was cut for a while.
    pub(super) restarted: Vec<usize>,
    pub(super) cut: Vec<(usize, usize)>,
    /// Memory that failed requests may or may not have written: host, offset, length.
    allowed_partial: Vec<(usize, usize, usize)>,
    /// Words that are added to: host, offset, and the fields to which one was added for certain.
    words: BTreeMap<(usize, usize), u64>,
    pub(super) succeeded: usize,
    pub(super) failed: usize,
}

/// The upper bits of the fields of two bits of a word.
const TWICE: u64 = 0xaaaa_aaaa_aaaa_aaaa;
/// Length of the shortest message: its number and the sender's incarnation.
pub(super) const ID_LEN: usize = 8;

impl Oracle {
    /// Creates a unique message of `len` bytes.
    pub(super) fn message(
        &mut self,
        rng: &mut fastrand::Rng,
        from: usize,
        (incarnation, posted_to): (u32, u32),
        to: usize,
        len: usize,
    ) -> (u32, Vec<u8>) {
        let messages = &mut self.channels.entry((from, incarnation, to)).or_default().messages;
        let serial = messages.len() as u32;
        let mut bytes = vec![0; len.max(ID_LEN)];
        rng.fill(&mut bytes);
        bytes[..4].copy_from_slice(&serial.to_be_bytes());
        bytes[4..ID_LEN].copy_from_slice(&incarnation.to_be_bytes());
        let received = Vec::new();
        messages.push(Message { bytes: bytes.clone(), received, posted_to, done: false });
        (serial, bytes)
    }

    pub(super) fn posted(&mut self, id: u64, from: usize, to: usize, effect: Effect) {
        self.open.insert(id, Open { from, to, effect });
    }

    /// Drops the open requests of a host that has restarted.
    pub(super) fn restarted(&mut self, host: usize) {
        self.restarted.push(host);
        let (gone, open) = std::mem::take(&mut self.open)
            .into_iter()
            .partition::<BTreeMap<_, _>, _>(|(_, open)| open.from == host);
        self.open = open;
        gone.into_values().for_each(|open| self.allow_partial(open));
    }

    pub(super) fn received(
        &mut self,
        from: usize,
        to: usize,
        incarnation: u32,
        bytes: &[u8],
    ) -> Check {
        let place = format!("what {to} receives from {from}");
        ensure!(bytes.len() >= ID_LEN, "{place} is not what was sent");
        let word = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four"));
        let (serial, sender) = (word(0), word(4));
        let channel = self.channels.get_mut(&(from, sender, to));
        let Some(channel) = channel else { return Err(format!("{place} is not what was sent")) };
        let Some(message) = channel.messages.get_mut(serial as usize) else {
            return Err(format!("{place} is not what was sent"));
        };
        ensure!(message.bytes == bytes, "{place} as {serial} is not what was sent");
        let again = message.received.contains(&incarnation);
        ensure!(!again, "{place} as {serial} comes again");
        message.received.push(incarnation);
        if let Some((last, by)) = channel.last
            && by == incarnation
        {
            ensure!(last < serial, "{place} as {serial} comes after {last}");
        }
        channel.last = Some((serial, incarnation));
        Ok(())
    }

    pub(super) fn completed(&mut self, hosts: &mut [Host], id: u64, status: Status) -> Check {
        let Some(open) = self.open.remove(&id) else {
            return Err(format!("request {id} completes, what is not open"));
        };
        let Open { from, to, effect } = open;
        let place = format!("request {id} from {from} to {to}");
        match (status, &effect) {
            (Status::Success, Effect::Refused(_) | Effect::LocalFault(_)) => {
                return Err(format!("{place} succeeds, which it cannot"));
            }
            (Status::Success, _) => {}
            (Status::Refused(reason), Effect::Refused(expected))
            | (Status::LocalAccess(reason), Effect::LocalFault(expected)) => {
                ensure!(reason == *expected, "{place} is refused for {reason:?}");
            }
            // A Send that the network delays may be refused to make room for others.
            (Status::Refused(Reason::TooLong), Effect::Sent { .. }) => {
                ensure!(self.cut.contains(&(from, to)), "{place} is too long for no reason");
            }
            (Status::PeerRestarted, _) => {
                ensure!(self.restarted.contains(&to), "{place}: no restart, but {status:?}");
            }
            (Status::PeerUnreachable, _) => {
                let cut = self.cut.contains(&(from, to)) || self.cut.contains(&(to, from));
                ensure!(cut || self.restarted.contains(&to), "{place}: {status:?} for no reason");
            }
            _ => return Err(format!("{place} fails with {status:?}: {effect:?}")),
        }
        if status != Status::Success {
            self.failed += 1;
            self.allow_partial(Open { from, to, effect });
            return Ok(());
        }
        self.succeeded += 1;
        match effect {
            Effect::Sent { serial } => {
                let key = (from, hosts[from].incarnation, to);
                let message = self.channels.get_mut(&key).map(|c| &mut c.messages[serial as usize]);
                message.ok_or("no channel")?.done = true;
            }
            Effect::Written { at, bytes } => {
                let ram = &mut hosts[to].ram;
                ensure!(ram.bytes[at..at + bytes.len()] == bytes, "{place} is not in place");
                ram.shadow[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            Effect::Marked { at, len, value } => {
                let ram = &mut hosts[to].ram;
                let cell = &ram.bytes[at..at + len];
                // Values grow by much less than half the range of a byte while a request is open.
                let later = |&byte: &u8| byte.wrapping_sub(value) < 128;
                ensure!(cell.iter().all(later), "{place}: mark {value} is not in place");
                ram.shadow[at..at + len].copy_from_slice(&ram.bytes[at..at + len]);
            }
            Effect::Read { at, bytes } => {
                let ram = &mut hosts[from].ram;
                ensure!(ram.bytes[at..at + bytes.len()] == bytes, "{place} is not in place");
                ram.shadow[at..at + bytes.len()].copy_from_slice(&bytes);
            }
            Effect::Added { at, field, old_at } => {
                let ram = &mut hosts[from].ram;
                let old = word(&ram.bytes, old_at);
                ram.shadow[old_at..old_at + 8].copy_from_slice(&old.to_ne_bytes());
                let sure = self.words.entry((to, at)).or_default();
                *sure |= 1 << (2 * field);
                let now = word(&hosts[to].ram.bytes, at);
                ensure!(now & TWICE == 0, "{place} was carried out twice: {now:#x}");
                ensure!(now & *sure == *sure, "{place}: field {field} of {now:#x} is not in place");
                let is_old = (old >> (2 * field)) & 3 == 0 && old & !now == 0;
                ensure!(is_old, "{place}: {old:#x} is not the value before {now:#x}");
            }
            Effect::Swapped { at, value, old_at } => {
                let old = word(&hosts[from].ram.bytes, old_at);
                let now = word(&hosts[to].ram.bytes, at);
                ensure!((old, now) == (0, value), "{place}: {now:#x} after {old:#x}");
                let shadow = &mut hosts[from].ram.shadow;
                shadow[old_at..old_at + 8].copy_from_slice(&old.to_ne_bytes());
                let shadow = &mut hosts[to].ram.shadow;
                shadow[at..at + 8].copy_from_slice(&now.to_ne_bytes());
            }
            Effect::Refused(_) | Effect::LocalFault(_) => {}
        }
        Ok(())
    }

    /// Notes that one adds to the fields of a word.
    pub(super) fn adds_to(&mut self, host: usize, at: usize) {
        self.words.entry((host, at)).or_default();
    }

    fn allow_partial(&mut self, open: Open) {
        match open.effect {
            Effect::Written { at, bytes } => self.allowed_partial.push((open.to, at, bytes.len())),
            Effect::Marked { at, len, .. } => self.allowed_partial.push((open.to, at, len)),
            Effect::Read { at, bytes } => self.allowed_partial.push((open.from, at, bytes.len())),
            Effect::Added { old_at, .. } => self.allowed_partial.push((open.from, old_at, 8)),
            Effect::Swapped { at, old_at, .. } => {
                self.allowed_partial.extend([(open.to, at, 8), (open.from, old_at, 8)]);
            }
            Effect::Sent { .. } | Effect::Refused(_) | Effect::LocalFault(_) => {}
        }
    }

    /// Checks the final state, when nothing is in flight and all events have been taken.
    pub(super) fn check_at_rest(&self, hosts: &[Host]) -> Check {
        if let Some((id, open)) = self.open.iter().next() {
            return Err(format!("request {id} never completes: {open:?}"));
        }
        for (&(from, _, to), channel) in &self.channels {
            let incarnation = hosts[to].incarnation;
            for (serial, message) in channel.messages.iter().enumerate() {
                // A host that restarts loses the messages that its program had not taken.
                let lost =
                    message.done && message.posted_to == incarnation && message.received.is_empty();
                ensure!(!lost, "message {serial} from {from} to {to} was never received");
            }
        }
        for (&(host, at), &sure) in &self.words {
            let value = word(&hosts[host].ram.bytes, at);
            ensure!(
                value & TWICE == 0,
                "an atomic of {host} at {at} was carried out twice: {value:#x}"
            );
            ensure!(value & sure == sure, "an atomic of {host} at {at} was lost: {value:#x}");
        }
        for (number, host) in hosts.iter().enumerate() {
            let ram = &host.ram;
            let differs = |at: &usize| ram.bytes[*at] != ram.shadow[*at];
            let allowed_partial = |at: usize| {
                let words = self.words.keys().map(|&(of, start)| (of, start, 8));
                let mut places = self.allowed_partial.iter().copied().chain(words);
                places.any(|(of, start, len)| of == number && (start..start + len).contains(&at))
            };
            if ram.bytes != ram.shadow
                && let Some(at) =
                    (0..ram.bytes.len()).filter(differs).find(|&at| !allowed_partial(at))
            {
                return Err(format!("memory of host {number} has changed at {at}"));
            }
        }
        Ok(())
    }
}
