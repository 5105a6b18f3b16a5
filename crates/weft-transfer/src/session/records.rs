//! The records of the layer above, in both directions, with flow control by a window.

use std::collections::VecDeque;

use super::fault::Fault;
use crate::limits::{RECORDS_LEN_MAX, RECORDS_WINDOW};
use crate::wire::{Body, ControlHeader};

/// The window for records is full. Records fit again once the peer has taken some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the window for records is full")]
pub struct RecordsFull;

/// The share of the window that a message uses. The header counts, too, because many short messages
/// also need memory.
fn cost(records: &[u8]) -> u64 {
    (records.len() + ControlHeader::LEN) as u64
}

/// The records of one end in both directions. Byte counts include the messages' headers.
#[derive(Clone, Debug, Default)]
pub(super) struct Records {
    outgoing: VecDeque<Vec<u8>>,
    /// Bytes that this end has sent or queued.
    sent: u64,
    /// Bytes of these that the peer has taken.
    peer_took: u64,
    incoming: VecDeque<Vec<u8>>,
    received: u64,
    taken: u64,
    /// The last count of taken bytes that was sent to the peer.
    reported: u64,
}

impl Records {
    /// The number of bytes that can be sent now.
    pub(super) fn room(&self) -> usize {
        let room = RECORDS_WINDOW - (self.sent - self.peer_took);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        room.saturating_sub(ControlHeader::LEN).min(RECORDS_LEN_MAX)
    }

    /// Queues a message.
    pub(super) fn send(&mut self, records: Vec<u8>) -> Result<(), RecordsFull> {
        if records.is_empty() {
            return Ok(());
        }
        if records.len() > self.room() {
            return Err(RecordsFull);
        }
        self.sent += cost(&records);
        self.outgoing.push_back(records);
        Ok(())
    }

    pub(super) fn handle_records(&mut self, records: Vec<u8>) -> Result<(), Fault> {
        self.received += cost(&records);
        let waiting = self.received - self.reported;
        if waiting > RECORDS_WINDOW {
            return Err(Fault::Records(waiting - RECORDS_WINDOW));
        }
        self.incoming.push_back(records);
        Ok(())
    }

    pub(super) fn handle_taken(&mut self, taken: u64) -> Result<(), Fault> {
        if taken < self.peer_took || taken > self.sent {
            return Err(Fault::Taken(taken));
        }
        self.peer_took = taken;
        Ok(())
    }

    /// Returns the next records of the peer.
    pub(super) fn take(&mut self) -> Option<Vec<u8>> {
        let records = self.incoming.pop_front()?;
        self.taken += cost(&records);
        Some(records)
    }

    /// Whether [`Records::poll`] would return a message.
    pub(super) fn has_message(&self) -> bool {
        self.taken - self.reported >= RECORDS_WINDOW / 2 || !self.outgoing.is_empty()
    }

    /// Returns the next message to send.
    pub(super) fn poll(&mut self) -> Option<Body> {
        // The peer gets an update when half of its window is free again.
        if self.taken - self.reported >= RECORDS_WINDOW / 2 {
            self.reported = self.taken;
            return Some(Body::RecordsTaken(self.taken));
        }
        self.outgoing.pop_front().map(Body::Records)
    }
}

#[cfg(test)]
mod tests {
    use super::{Body, Fault, RECORDS_LEN_MAX, RECORDS_WINDOW, Records, RecordsFull, cost};

    #[test]
    fn a_full_window_stops_the_sender_until_the_peer_takes_records() {
        let (mut sender, mut receiver) = (Records::default(), Records::default());
        let mut rounds = 0;
        for _ in 0..3 {
            while sender.send(vec![1; RECORDS_LEN_MAX]).is_ok() {
                rounds += 1;
            }
            assert_eq!(sender.send(vec![1; RECORDS_LEN_MAX]), Err(RecordsFull));
            while let Some(Body::Records(records)) = sender.poll() {
                assert_eq!(receiver.handle_records(records), Ok(()));
            }
            assert_eq!(receiver.poll(), None);
            while receiver.take().is_some() {}
            let Some(Body::RecordsTaken(taken)) = receiver.poll() else { panic!("none taken") };
            assert_eq!(sender.handle_taken(taken), Ok(()));
        }
        assert!(rounds as u64 * RECORDS_LEN_MAX as u64 > 2 * RECORDS_WINDOW);
    }

    #[test]
    fn records_beyond_the_window_are_a_fault() {
        let mut receiver = Records::default();
        let mut received = 0;
        while received + cost(&[0; RECORDS_LEN_MAX]) <= RECORDS_WINDOW {
            assert_eq!(receiver.handle_records(vec![0; RECORDS_LEN_MAX]), Ok(()));
            received += cost(&[0; RECORDS_LEN_MAX]);
        }
        let fault = receiver.handle_records(vec![0; RECORDS_LEN_MAX]);
        assert!(matches!(fault, Err(Fault::Records(_))));
    }

    #[test]
    fn a_taken_count_above_what_was_sent_is_a_fault() {
        let mut sender = Records::default();
        assert_eq!(sender.send(vec![0; 10]), Ok(()));
        assert_eq!(sender.handle_taken(27), Err(Fault::Taken(27)));
        assert_eq!(sender.handle_taken(26), Ok(()));
        assert_eq!(sender.handle_taken(25), Err(Fault::Taken(25)));
    }
}
