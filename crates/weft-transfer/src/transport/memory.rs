//! Channels within a process, for tests and simulations.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use weft_sys::{BoundedQueue, Popped};

use super::channel::{
    Arrival, Arrivals, Claim, Completion, Control, ControlEvent, DataSink, DataSource, Grants,
    Head, Payload, Received, TransportError, Write,
};
use crate::limits::{CONTROL_LEN_MAX, MEMORY_CONTROL_MAX};

/// One end of a control channel in memory.
#[derive(Debug)]
pub struct MemoryControl {
    outgoing: Arc<BoundedQueue<Vec<u8>>>,
    incoming: Arc<BoundedQueue<Vec<u8>>>,
    is_closed: AtomicBool,
}

/// A control channel: both ends.
#[must_use]
pub fn control_pair() -> (MemoryControl, MemoryControl) {
    let [there, back] = [(); 2].map(|()| Arc::new(BoundedQueue::new(MEMORY_CONTROL_MAX)));
    let end = |outgoing: &Arc<_>, incoming: &Arc<_>| MemoryControl {
        outgoing: Arc::clone(outgoing),
        incoming: Arc::clone(incoming),
        is_closed: AtomicBool::new(false),
    };
    (end(&there, &back), end(&back, &there))
}

impl Control for MemoryControl {
    fn send(&self, message: &[u8]) -> Result<(), TransportError> {
        if message.len() > CONTROL_LEN_MAX {
            return Err(TransportError::MessageTooLong(message.len()));
        }
        self.outgoing.push(message.to_vec()).map_err(|_| TransportError::Closed)
    }

    fn receive(
        &self,
        message: &mut Vec<u8>,
        wait: Option<Duration>,
    ) -> Result<ControlEvent, TransportError> {
        let popped = match wait {
            Some(time) => self.incoming.pop_within(time),
            None => self.incoming.pop(),
        };
        match popped {
            Popped::Item(_, bytes) => {
                *message = bytes;
                Ok(ControlEvent::Message)
            }
            Popped::Empty => Ok(ControlEvent::TimedOut),
            Popped::Ended if self.is_closed.load(Ordering::SeqCst) => Err(TransportError::Closed),
            Popped::Ended => Ok(ControlEvent::Ended),
        }
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.outgoing.close();
        self.incoming.close();
    }
}

impl Drop for MemoryControl {
    fn drop(&mut self) {
        self.close();
    }
}

/// Which block a test wants to be the last one that a channel carries.
type CutAfter = OnceLock<u64>;

#[derive(Debug)]
struct Wire {
    blocks: BoundedQueue<(Head, Vec<u8>)>,
    cut_after: CutAfter,
}

/// The source's end of a data channel in memory.
#[derive(Debug)]
pub struct MemorySource {
    wire: Arc<Wire>,
    sent: u64,
    completed: VecDeque<Write>,
}

/// The sink's end of a data channel in memory.
#[derive(Debug)]
pub struct MemorySink {
    wire: Arc<Wire>,
}

/// A data channel that holds `depth` blocks on the way: both ends.
#[must_use]
pub fn data_pair(depth: usize) -> (MemorySource, MemorySink) {
    let wire = Arc::new(Wire { blocks: BoundedQueue::new(depth), cut_after: OnceLock::new() });
    let source = MemorySource { wire: Arc::clone(&wire), sent: 0, completed: VecDeque::new() };
    (source, MemorySink { wire })
}

impl MemorySource {
    /// Has the channel fail after so many blocks, for a test of what happens then.
    pub fn fail_after(&self, blocks: u64) {
        let _ = self.wire.cut_after.set(blocks);
    }
}

impl DataSource for MemorySource {
    fn arrivals(&self) -> Arrivals {
        Arrivals::Seen
    }

    fn takes_extents(&self) -> bool {
        false
    }

    fn depth(&self) -> usize {
        self.wire.blocks.capacity()
    }

    fn post(&mut self, write: Write) -> Result<(), (Box<Write>, TransportError)> {
        let Payload::Block { block, len } = &write.payload else {
            return Err((Box::new(write), TransportError::Protocol("an extent")));
        };
        let mut bytes = vec![0; *len];
        block.copy_out(0, &mut bytes);
        if self.wire.cut_after.get().is_some_and(|last| self.sent >= *last) {
            self.wire.blocks.close();
        }
        if self.wire.blocks.push((write.head, bytes)).is_err() {
            return Err((Box::new(write), TransportError::Closed));
        }
        self.sent += 1;
        self.completed.push_back(write);
        Ok(())
    }

    fn completion(&mut self, _wait: Duration) -> Result<Option<Completion>, TransportError> {
        // A block has been copied when it has been posted.
        Ok(self.completed.pop_front().map(|write| Completion { write, short: None }))
    }

    fn abandon(&mut self) -> Vec<Write> {
        self.wire.blocks.close();
        self.completed.drain(..).collect()
    }

    fn finish(&mut self) -> Result<(), TransportError> {
        self.wire.blocks.close();
        Ok(())
    }

    fn closer(&self) -> Arc<dyn Fn() + Send + Sync> {
        let wire = Arc::clone(&self.wire);
        Arc::new(move || wire.blocks.close())
    }
}

impl Drop for MemorySource {
    fn drop(&mut self) {
        self.wire.blocks.close();
    }
}

impl DataSink for MemorySink {
    fn receive(
        &mut self,
        grants: &dyn Grants,
        wait: Option<Duration>,
    ) -> Result<Received, TransportError> {
        let popped = match wait {
            Some(time) => self.wire.blocks.pop_within(time),
            None => self.wire.blocks.pop(),
        };
        let (head, bytes) = match popped {
            Popped::Item(_, item) => item,
            Popped::Empty => return Ok(Received::TimedOut),
            Popped::Ended => return Ok(Received::Ended),
        };
        match grants.claim(head.bytes()).map_err(TransportError::Refused)? {
            Claim::Drop(len) if len == bytes.len() => Ok(Received::Dropped),
            Claim::Into { mut block, len } if len == bytes.len() => {
                block.copy_in(0, &bytes);
                Ok(Received::Block(Arrival { head, block, len }))
            }
            Claim::Drop(_) => Err(TransportError::Truncated),
            Claim::Into { block, .. } => {
                grants.give_back(head.bytes(), block);
                Err(TransportError::Truncated)
            }
        }
    }

    fn closer(&self) -> Arc<dyn Fn() + Send + Sync> {
        let wire = Arc::clone(&self.wire);
        Arc::new(move || wire.blocks.close())
    }
}

impl Drop for MemorySink {
    fn drop(&mut self) {
        self.wire.blocks.close();
    }
}
