//! What must come of a connection: the bytes of each direction, in their order, each to one of
//! those who hold its receiving end.

use std::collections::BTreeSet;

/// What one call has sent.
#[derive(Debug)]
struct Sent {
    bytes: Vec<u8>,
    /// The caller was killed in the middle: any part from the first byte on may have been sent.
    is_unsure: bool,
}

/// What a call has received.
#[derive(Clone)]
enum Piece {
    Bytes(Vec<u8>),
    /// The caller was killed in the middle of a call for so many bytes at most.
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

/// A place in what has been sent: the call, and the byte of it.
type Place = (usize, usize);

/// One direction of a connection.
#[derive(Debug)]
pub(super) struct Direction {
    sent: Vec<Sent>,
    /// A call is under way that sends.
    is_sending: bool,
    /// Calls under way that receive.
    receiving: usize,
    /// Up to where all has been received: where nobody knows what was lost with its receiver,
    /// several places.
    places: BTreeSet<Place>,
    /// What has been received while other calls were under way, in an order that nobody knows.
    pieces: Vec<Piece>,
}

impl Direction {
    pub(super) fn new() -> Self {
        Self {
            sent: Vec::new(),
            is_sending: false,
            receiving: 0,
            places: BTreeSet::from([(0, 0)]),
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

    /// It has sent so many bytes.
    pub(super) fn end_send(&mut self, count: usize) -> Result<(), String> {
        self.is_sending = false;
        let last = self.sent.len() - 1;
        let call = &mut self.sent[last];
        call.bytes.truncate(count);
        call.is_unsure = false;
        self.places.retain(|&(call, at)| call < last || at <= count);
        if self.places.is_empty() {
            return Err(format!(
                "more than {count} bytes were received of a call that sent so many"
            ));
        }
        Ok(())
    }

    /// The sender was killed.
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

    /// The receiver of at most so many bytes was killed.
    pub(super) fn lose_receiver(&mut self, most: usize) -> Result<(), String> {
        self.pieces.push(Piece::Hole(most));
        self.receiving -= 1;
        self.settle()
    }

    /// Whether something is certainly left to be received, whatever was lost, and whatever a call
    /// that is under way has sent of its bytes.
    pub(super) fn has_unread(&self) -> bool {
        let is_empty = |&(call, at): &Place| {
            let mut rest = self.sent[call..].iter().enumerate();
            rest.all(|(index, sent)| {
                sent.is_unsure || if index == 0 { at } else { 0 } == sent.bytes.len()
            })
        };
        self.receiving == 0 && !self.places.iter().any(is_empty)
    }

    /// Whether something may be left.
    pub(super) fn may_have_unread(&self) -> bool {
        let end = (self.sent.len(), 0);
        self.receiving > 0
            || !self.pieces.is_empty()
            || self.places.iter().any(|&(call, at)| {
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
        let places = self.orders(&self.places, &pieces);
        if places.is_empty() {
            let rest = self.places.iter().map(|&place| self.rest_from(place));
            let expected: Vec<_> = rest.collect();
            return Err(format!("received {pieces:?}, but expected was {expected:?}"));
        }
        self.places = places;
        Ok(())
    }

    /// What has been sent from a place on, call by call.
    fn rest_from(&self, (call, at): Place) -> Vec<String> {
        let calls = self.sent[call..].iter().enumerate();
        let text = calls.map(|(index, sent)| {
            let bytes =
                if index == 0 { &sent.bytes[at.min(sent.bytes.len())..] } else { &sent.bytes };
            let mark = if sent.is_unsure { "?" } else { "" };
            format!("{mark}{}", String::from_utf8_lossy(bytes))
        });
        text.collect()
    }

    /// Where one may be after the pieces have been received in any order.
    fn orders(&self, places: &BTreeSet<Place>, pieces: &[Piece]) -> BTreeSet<Place> {
        if pieces.is_empty() || places.is_empty() {
            return places.clone();
        }
        let mut all = BTreeSet::new();
        for index in 0..pieces.len() {
            let mut rest = pieces.to_vec();
            let piece = rest.remove(index);
            let after = match &piece {
                Piece::Bytes(bytes) => self.after(places, bytes),
                Piece::Hole(most) => self.within(places, *most),
            };
            all.extend(self.orders(&after, &rest));
        }
        all
    }

    fn after(&self, places: &BTreeSet<Place>, bytes: &[u8]) -> BTreeSet<Place> {
        let mut places = places.clone();
        for &byte in bytes {
            let reached = places.iter().flat_map(|&place| self.closure(place));
            let reached: BTreeSet<Place> = reached.collect();
            let goes = |&&(call, at): &&Place| {
                self.sent.get(call).is_some_and(|sent| sent.bytes.get(at) == Some(&byte))
            };
            places = reached.iter().filter(goes).map(|&(call, at)| (call, at + 1)).collect();
        }
        places
    }

    fn within(&self, places: &BTreeSet<Place>, most: usize) -> BTreeSet<Place> {
        let mut all: BTreeSet<Place> = places.clone();
        let mut edge = all.clone();
        for _ in 0..most {
            let reached = edge.iter().flat_map(|&place| self.closure(place));
            let is_there =
                |&(call, at): &Place| self.sent.get(call).is_some_and(|sent| at < sent.bytes.len());
            edge = reached.filter(is_there).map(|(call, at)| (call, at + 1)).collect();
            all.extend(&edge);
        }
        all
    }

    /// A place, and those that are reached from it without a byte.
    fn closure(&self, (mut call, mut at): Place) -> Vec<Place> {
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
    fn bytes_in_their_order_are_right() {
        let mut direction = sent(&[b"abc", b"def"]);
        assert!(direction.has_unread());
        assert_eq!(receive(&mut direction, b"abcd"), Ok(()));
        assert_eq!(receive(&mut direction, b"ef"), Ok(()));
        assert!(!direction.has_unread() && !direction.may_have_unread());
    }

    #[test]
    fn a_missing_or_foreign_or_repeated_byte_is_wrong() {
        for bytes in [&b"bc"[..], b"abd", b"aab", b"abcdefg"] {
            assert!(receive(&mut sent(&[b"abc", b"def"]), bytes).is_err(), "{bytes:?}");
        }
    }

    #[test]
    fn calls_at_once_may_return_in_any_order() {
        let mut direction = sent(&[b"abcdef"]);
        direction.begin_receive();
        direction.begin_receive();
        assert_eq!(direction.end_receive(b"def"), Ok(()));
        assert_eq!(direction.end_receive(b"abc"), Ok(()));
        assert!(!direction.has_unread());
    }

    #[test]
    fn what_is_lost_with_a_killed_process_is_bounded() {
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
