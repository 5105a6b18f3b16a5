//! A model of a connection's data: the bytes of each direction arrive in order, each at one of the
//! holders of the receiving end.

use std::collections::BTreeSet;

/// The bytes of one sending call.
#[derive(Debug)]
struct Sent {
    bytes: Vec<u8>,
    /// The caller was killed during the call, or is in it: any prefix may have been sent.
    is_unsure: bool,
}

/// The result of one receiving call.
#[derive(Clone)]
enum Piece {
    Bytes(Vec<u8>),
    /// The caller was killed in a call for at most this many bytes.
    Hole(usize),
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{}", String::from_utf8_lossy(bytes)),
            Self::Hole(most) => write!(f, "({most} at most)"),
        }
    }
}

/// A position in the bytes sent: index of the call, and offset in its bytes.
type Position = (usize, usize);

/// One direction of a connection.
#[derive(Debug)]
pub(super) struct Direction {
    sent: Vec<Sent>,
    /// A sending call is under way.
    is_sending: bool,
    /// Number of receiving calls under way.
    receiving: usize,
    /// Positions up to which everything may have been received. There are several if a killed
    /// receiver has taken an unknown number of bytes.
    positions: BTreeSet<Position>,
    /// Pieces received while other receiving calls were under way, so that their order is unknown.
    pieces: Vec<Piece>,
}

impl Direction {
    pub(super) fn new() -> Self {
        Self {
            sent: Vec::new(),
            is_sending: false,
            receiving: 0,
            positions: BTreeSet::from([(0, 0)]),
            pieces: Vec::new(),
        }
    }

    pub(super) fn is_sending(&self) -> bool {
        self.is_sending
    }

    pub(super) fn begin_send(&mut self, bytes: Vec<u8>) {
        self.is_sending = true;
        self.sent.push(Sent { bytes, is_unsure: true });
    }

    /// Ends a sending call that has sent `count` bytes.
    pub(super) fn end_send(&mut self, count: usize) -> Result<(), String> {
        self.is_sending = false;
        let last = self.sent.len() - 1;
        let call = &mut self.sent[last];
        call.bytes.truncate(count);
        call.is_unsure = false;
        self.positions.retain(|&(call, at)| call < last || at <= count);
        if self.positions.is_empty() {
            return Err(format!(
                "more than {count} bytes were received of a call that sent so many"
            ));
        }
        Ok(())
    }

    /// Ends a sending call whose caller was killed.
    pub(super) fn lose_sender(&mut self) {
        self.is_sending = false;
    }

    pub(super) fn begin_receive(&mut self) {
        self.receiving += 1;
    }

    pub(super) fn end_receive(&mut self, bytes: &[u8]) -> Result<(), String> {
        if !bytes.is_empty() {
            self.pieces.push(Piece::Bytes(bytes.to_vec()));
        }
        self.receiving -= 1;
        self.settle()
    }

    /// Ends a receiving call for at most `most` bytes whose caller was killed.
    pub(super) fn lose_receiver(&mut self, most: usize) -> Result<(), String> {
        self.pieces.push(Piece::Hole(most));
        self.receiving -= 1;
        self.settle()
    }

    /// Whether bytes are certainly unread, whatever was lost, and however much a call under way has
    /// sent.
    pub(super) fn has_unread(&self) -> bool {
        let is_empty = |&(call, at): &Position| {
            let mut rest = self.sent[call..].iter().enumerate();
            rest.all(|(index, sent)| {
                sent.is_unsure || if index == 0 { at } else { 0 } == sent.bytes.len()
            })
        };
        self.receiving == 0 && !self.positions.iter().any(is_empty)
    }

    /// Whether bytes may be unread.
    pub(super) fn may_have_unread(&self) -> bool {
        let end = (self.sent.len(), 0);
        self.receiving > 0
            || !self.pieces.is_empty()
            || self.positions.iter().any(|&(call, at)| {
                (call, at) != end
                    && self.sent[call..].iter().any(|sent| !sent.bytes.is_empty())
                    && !(call + 1 == end.0 && at == self.sent[call].bytes.len())
            })
    }

    fn settle(&mut self) -> Result<(), String> {
        if self.receiving > 0 {
            return Ok(());
        }
        let pieces = std::mem::take(&mut self.pieces);
        let positions = self.orders(&self.positions, &pieces);
        if positions.is_empty() {
            let rest = self.positions.iter().map(|&position| self.rest_from(position));
            let expected: Vec<_> = rest.collect();
            return Err(format!("received {pieces:?}, but expected was {expected:?}"));
        }
        self.positions = positions;
        Ok(())
    }

    /// The bytes sent from a position on, call by call.
    fn rest_from(&self, (call, at): Position) -> Vec<String> {
        let calls = self.sent[call..].iter().enumerate();
        let text = calls.map(|(index, sent)| {
            let bytes =
                if index == 0 { &sent.bytes[at.min(sent.bytes.len())..] } else { &sent.bytes };
            let mark = if sent.is_unsure { "?" } else { "" };
            format!("{mark}{}", String::from_utf8_lossy(bytes))
        });
        text.collect()
    }

    /// Possible positions after the pieces have been received in any order.
    fn orders(&self, positions: &BTreeSet<Position>, pieces: &[Piece]) -> BTreeSet<Position> {
        if pieces.is_empty() || positions.is_empty() {
            return positions.clone();
        }
        let mut all = BTreeSet::new();
        for index in 0..pieces.len() {
            let mut rest = pieces.to_vec();
            let piece = rest.remove(index);
            let after = match &piece {
                Piece::Bytes(bytes) => self.after(positions, bytes),
                Piece::Hole(most) => self.within(positions, *most),
            };
            all.extend(self.orders(&after, &rest));
        }
        all
    }

    fn after(&self, positions: &BTreeSet<Position>, bytes: &[u8]) -> BTreeSet<Position> {
        let mut positions = positions.clone();
        for &byte in bytes {
            let reached = positions.iter().flat_map(|&position| self.closure(position));
            let reached: BTreeSet<Position> = reached.collect();
            let goes = |&&(call, at): &&Position| {
                self.sent.get(call).is_some_and(|sent| sent.bytes.get(at) == Some(&byte))
            };
            positions = reached.iter().filter(goes).map(|&(call, at)| (call, at + 1)).collect();
        }
        positions
    }

    fn within(&self, positions: &BTreeSet<Position>, most: usize) -> BTreeSet<Position> {
        let mut all: BTreeSet<Position> = positions.clone();
        let mut edge = all.clone();
        for _ in 0..most {
            let reached = edge.iter().flat_map(|&position| self.closure(position));
            let is_there = |&(call, at): &Position| {
                self.sent.get(call).is_some_and(|sent| at < sent.bytes.len())
            };
            edge = reached.filter(is_there).map(|(call, at)| (call, at + 1)).collect();
            all.extend(&edge);
        }
        all
    }

    /// A position, and those that are reached from it without a byte.
    fn closure(&self, (mut call, mut at): Position) -> Vec<Position> {
        let mut all = vec![(call, at)];
        while let Some(sent) = self.sent.get(call) {
            let is_under_way = self.is_sending && call + 1 == self.sent.len();
            if at < sent.bytes.len() && (!sent.is_unsure || is_under_way) {
                break;
            }
            (call, at) = (call + 1, 0);
            all.push((call, at));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(calls: &[&[u8]]) -> Direction {
        let mut direction = Direction::new();
        for bytes in calls {
            direction.begin_send(bytes.to_vec());
            direction.end_send(bytes.len()).expect("nothing has been received");
        }
        direction
    }

    fn receive(direction: &mut Direction, bytes: &[u8]) -> Result<(), String> {
        direction.begin_receive();
        direction.end_receive(bytes)
    }

    #[test]
    fn bytes_in_order_are_accepted() {
        let mut direction = sent(&[b"abc", b"def"]);
        assert!(direction.has_unread());
        assert_eq!(receive(&mut direction, b"abcd"), Ok(()));
        assert_eq!(receive(&mut direction, b"ef"), Ok(()));
        assert!(!direction.has_unread() && !direction.may_have_unread());
    }

    #[test]
    fn missing_foreign_or_repeated_byte_is_rejected() {
        for bytes in [&b"bc"[..], b"abd", b"aab", b"abcdefg"] {
            assert!(receive(&mut sent(&[b"abc", b"def"]), bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn concurrent_calls_may_return_in_any_order() {
        let mut direction = sent(&[b"abcdef"]);
        direction.begin_receive();
        direction.begin_receive();
        assert_eq!(direction.end_receive(b"def"), Ok(()));
        assert_eq!(direction.end_receive(b"abc"), Ok(()));
        assert!(!direction.has_unread());
    }

    #[test]
    fn killed_receiver_loses_at_most_the_bytes_of_its_call() {
        let mut direction = sent(&[b"abcdef"]);
        direction.begin_receive();
        assert_eq!(direction.lose_receiver(2), Ok(()));
        assert_eq!(receive(&mut direction, b"cde"), Ok(()));
        assert!(receive(&mut direction, b"x").is_err());
        let mut direction = sent(&[b"ab"]);
        direction.begin_send(b"cd".to_vec());
        direction.lose_sender();
        direction.begin_send(b"ef".to_vec());
        direction.end_send(2).expect("nothing has been received");
        assert_eq!(receive(&mut direction, b"abcef"), Ok(()));
        assert!(!direction.has_unread());
    }
}
