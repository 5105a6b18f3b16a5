//! The records of the layer above, in both directions, within a window.

use std::collections::VecDeque;

use super::fault::Fault;
use crate::limits::{RECORDS_LEN_MAX, RECORDS_WINDOW};
use crate::wire::{Body, ControlHeader};

/// Records that cannot be sent now: so many bytes are waiting for the peer already. They fit once
/// the peer has taken some.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the peer has not taken enough records yet")]
pub struct RecordsFull;

/// What a message takes of the window: short ones take memory, too.
fn cost(records: &[u8]) -> u64 {
    (records.len() + ControlHeader::LEN) as u64
}

/// One end's records of both directions. Bytes are those of messages with their headers.
#[derive(Clone, Debug, Default)]
pub(super) struct Records {
    outgoing: VecDeque<Vec<u8>>,
    /// Bytes sent or about to be.
    sent: u64,
    /// Of those, what the peer has taken.
    peer_took: u64,
    incoming: VecDeque<Vec<u8>>,
    received: u64,
    taken: u64,
    /// What the peer knows to be taken.
    reported: u64,
}

impl Records {
    /// Bytes that can be sent now.
    pub(super) fn room(&self) -> usize {
        let room = RECORDS_WINDOW - (self.sent - self.peer_took);
        let room = usize::try_from(room).unwrap_or(usize::MAX);
        room.saturating_sub(ControlHeader::LEN).min(RECORDS_LEN_MAX)
    }

    /// Puts a message behind the others.
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

    /// The next records of the peer.
    pub(super) fn take(&mut self) -> Option<Vec<u8>> {
        let records = self.incoming.pop_front()?;
        self.taken += cost(&records);
        Some(records)
    }

    /// Whether [`Records::poll`] has something to be sent.
    pub(super) fn has_message(&self) -> bool {
        self.taken - self.reported >= RECORDS_WINDOW / 2 || !self.outgoing.is_empty()
    }

    /// What is to be sent.
    pub(super) fn poll(&mut self) -> Option<Body> {
        // The peer learns of it when half of its window is free again.
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
    fn a_peer_that_takes_nothing_stops_the_sender_and_one_that_does_starts_it_again() {
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
    fn a_peer_that_ignores_the_window_is_at_fault() {
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
    fn what_was_not_sent_cannot_be_taken() {
        let mut sender = Records::default();
        assert_eq!(sender.send(vec![0; 10]), Ok(()));
        assert_eq!(sender.handle_taken(27), Err(Fault::Taken(27)));
        assert_eq!(sender.handle_taken(26), Ok(()));
        assert_eq!(sender.handle_taken(25), Err(Fault::Taken(25)));
    }
}
