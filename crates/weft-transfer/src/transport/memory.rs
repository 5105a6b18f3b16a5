//! Channels within one process, for copies whose ends are both in it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weft_sys::{BoundedQueue, Popped};

use super::channel::{
    Arrival, Claim, Control, ControlEvent, DataSink, DataSource, Grants, Payload, Received,
    TransportError, Write, Written,
};
use crate::limits::{CONTROL_LEN_MAX, MEMORY_CONTROL_MAX};
use weft_sys::lock;

/// One end of a control channel in memory.
#[derive(Debug)]
pub struct MemoryControl {
    outgoing: Arc<BoundedQueue<Vec<u8>>>,
    incoming: Arc<BoundedQueue<Vec<u8>>>,
    is_closed: AtomicBool,
}

/// Creates both ends of a control channel.
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

/// The state of a data channel's only slot.
#[derive(Debug)]
enum Slot {
    Empty,
    /// The source waits for the sink to take the block.
    Offered(Box<Write>),
    /// The sink is using the block.
    Taken,
    /// The sink has returned the block; true if it did not discard it.
    Returned(Box<Write>, bool),
}

/// The result of a wait for a block.
enum Taken {
    Block(Box<Write>),
    TimedOut,
    Ended,
}

#[derive(Debug)]
struct State {
    slot: Slot,
    is_closed: bool,
}

#[derive(Debug)]
struct Wire {
    state: Mutex<State>,
    changed: Condvar,
}

impl Wire {
    fn close(&self) {
        lock(&self.state).is_closed = true;
        self.changed.notify_all();
    }

    fn put(&self, slot: Slot) {
        lock(&self.state).slot = slot;
        self.changed.notify_all();
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes a block to the sink, and sleeps until the sink returns it. The flag tells whether the
    /// sink used it.
    fn pass(&self, write: Box<Write>) -> (Box<Write>, bool) {
        let mut state = lock(&self.state);
        state.slot = Slot::Offered(write);
        self.changed.notify_all();
        loop {
            match std::mem::replace(&mut state.slot, Slot::Empty) {
                Slot::Returned(write, is_of_use) => return (write, is_of_use),
                Slot::Offered(write) if state.is_closed => return (write, false),
                other => state.slot = other,
            }
            state = self.wait(state);
        }
    }

    /// Takes the next block. Sleeps for at most `wait` until there is one.
    fn take(&self, wait: Option<Duration>) -> Taken {
        let end = wait.and_then(|time| Instant::now().checked_add(time));
        let mut state = lock(&self.state);
        loop {
            if state.is_closed {
                return Taken::Ended;
            }
            if matches!(state.slot, Slot::Offered(_))
                && let Slot::Offered(write) = std::mem::replace(&mut state.slot, Slot::Taken)
            {
                return Taken::Block(write);
            }
            state = match end.map(|end| end.saturating_duration_since(Instant::now())) {
                None => self.wait(state),
                Some(Duration::ZERO) => return Taken::TimedOut,
                Some(left) => match self.changed.wait_timeout(state, left) {
                    Ok((state, _)) => state,
                    Err(poisoned) => poisoned.into_inner().0,
                },
            };
        }
    }
}

/// The source's end of a data channel in memory. The sink swaps the memory of each block for that
/// of its granted one, so nothing is copied.
#[derive(Debug)]
pub struct MemorySource {
    wire: Arc<Wire>,
}

/// The sink's end of a data channel in memory.
#[derive(Debug)]
pub struct MemorySink {
    wire: Arc<Wire>,
}

/// Creates both ends of a data channel.
#[must_use]
pub fn data_pair() -> (MemorySource, MemorySink) {
    let state = Mutex::new(State { slot: Slot::Empty, is_closed: false });
    let wire = Arc::new(Wire { state, changed: Condvar::new() });
    let source = MemorySource { wire: Arc::clone(&wire) };
    (source, MemorySink { wire })
}

impl DataSource for MemorySource {
    fn write(&mut self, write: Write) -> Written {
        if matches!(write.payload, Payload::Extent { .. }) {
            return write.ended(Err(TransportError::Protocol("an extent")));
        }
        let (write, is_of_use) = self.wire.pass(Box::new(write));
        write.ended(if is_of_use { Ok(None) } else { Err(TransportError::Closed) })
    }

    fn close(&mut self) {
        self.wire.close();
    }

    fn finish(&mut self) -> Result<(), TransportError> {
        self.wire.close();
        Ok(())
    }

    fn closer(&self) -> Arc<dyn Fn() + Send + Sync> {
        let wire = Arc::clone(&self.wire);
        Arc::new(move || wire.close())
    }
}

impl Drop for MemorySource {
    fn drop(&mut self) {
        self.wire.close();
    }
}

/// Moves a block into the buffer that its header names.
fn deliver(write: &mut Write, grants: &dyn Grants) -> Result<Received, TransportError> {
    let Payload::Block { block: from, len: sent } = &mut write.payload else {
        return Err(TransportError::Protocol("an extent"));
    };
    let head = write.head;
    match grants.claim(head.bytes()).map_err(TransportError::Refused)? {
        Claim::Drop(len) if len == *sent => Ok(Received::Dropped),
        Claim::Into { mut block, len } if len == *sent => {
            if !from.exchange(&mut block) {
                block.bytes_mut()[..len].copy_from_slice(&from.bytes()[..len]);
            }
            Ok(Received::Block(Arrival { head, block, len }))
        }
        Claim::Drop(_) => Err(TransportError::Truncated),
        Claim::Into { block, .. } => {
            grants.give_back(head.bytes(), block);
            Err(TransportError::Truncated)
        }
    }
}

impl DataSink for MemorySink {
    fn receive(
        &mut self,
        grants: &dyn Grants,
        wait: Option<Duration>,
    ) -> Result<Received, TransportError> {
        let mut write = match self.wire.take(wait) {
            Taken::Block(write) => write,
            Taken::TimedOut => return Ok(Received::TimedOut),
            Taken::Ended => return Ok(Received::Ended),
        };
        let received = deliver(&mut write, grants);
        self.wire.put(Slot::Returned(write, received.is_ok()));
        received
    }

    fn closer(&self) -> Arc<dyn Fn() + Send + Sync> {
        let wire = Arc::clone(&self.wire);
        Arc::new(move || wire.close())
    }
}

impl Drop for MemorySink {
    fn drop(&mut self) {
        self.wire.close();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;
    use std::sync::atomic::{AtomicBool, AtomicUsize};
    use std::thread;

    use super::*;
    use crate::blocks::{Block, Pool};
    use crate::transport::channel::{Head, Refused};

    const LEN: usize = 4_096;

    /// Grants a block for each non-empty header.
    struct Granting {
        pool: Pool,
        given_back: AtomicUsize,
        drops: AtomicBool,
    }

    impl Granting {
        fn new() -> Self {
            let pool = Pool::new(1, LEN).expect("memory");
            Self { pool, given_back: AtomicUsize::new(0), drops: AtomicBool::new(false) }
        }
    }

    impl Grants for Granting {
        fn head_len(&self) -> usize {
            1
        }

        fn claim(&self, head: &[u8]) -> Result<Claim, Refused> {
            let len = usize::from(*head.first().ok_or(Refused("nothing"))?);
            if self.drops.load(Relaxed) {
                return Ok(Claim::Drop(len));
            }
            Ok(Claim::Into { block: self.pool.take().ok_or(Refused("none is free"))?, len })
        }

        fn give_back(&self, _head: &[u8], _block: Block) {
            self.given_back.fetch_add(1, Relaxed);
        }
    }

    fn write(pool: &Pool, head: &[u8], bytes: &[u8]) -> Write {
        let mut block = pool.take().expect("the one");
        block.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let payload = Payload::Block { block, len: bytes.len() };
        Write { place: None, head: Head::new(head), payload }
    }

    fn address(block: &Block) -> *const u8 {
        block.bytes().as_ptr()
    }

    #[test]
    fn blocks_are_swapped_without_a_copy() {
        let (mut source, mut sink) = data_pair();
        let (ours, grants) = (Pool::new(1, LEN).expect("memory"), Granting::new());
        for round in 0..3_u8 {
            let write = write(&ours, &[2], &[round, 7]);
            let Payload::Block { block, .. } = &write.payload else { panic!("an extent") };
            let at = address(block) as usize;
            thread::scope(|scope| {
                let posted = scope.spawn(|| source.write(write));
                let Ok(Received::Block(arrival)) = sink.receive(&grants, None) else {
                    panic!("no block")
                };
                assert_eq!((arrival.len, arrival.head.bytes()), (2, &[2][..]));
                assert_eq!(arrival.block.bytes()[..2], [round, 7]);
                assert_eq!(address(&arrival.block) as usize, at);
                let written = posted.join().expect("no panic");
                assert!(matches!(written.result, Ok(None)), "{written:?}");
                assert_ne!(address(&written.block) as usize, at);
            });
        }
    }

    #[test]
    fn refused_block_fails_at_both_ends() {
        let ours = Pool::new(1, LEN).expect("memory");
        for (head, bytes, drops, is_kept) in [
            (&[][..], &[1][..], false, false),
            (&[2], &[1], false, true),
            (&[2], &[1], true, false),
        ] {
            let ((mut source, mut sink), grants) = (data_pair(), Granting::new());
            grants.drops.store(drops, Relaxed);
            thread::scope(|scope| {
                let posted =
                    scope.spawn(|| source.write(write(&ours, head, bytes)).result.is_err());
                assert!(sink.receive(&grants, None).is_err());
                assert!(posted.join().expect("no panic"));
            });
            assert_eq!(grants.given_back.load(Relaxed), usize::from(is_kept));
        }
    }

    #[test]
    fn closing_returns_a_block_that_was_not_taken() {
        let ours = Pool::new(1, LEN).expect("memory");
        for closes_first in [true, false] {
            let (mut source, sink) = data_pair();
            let close = sink.closer();
            thread::scope(|scope| {
                if closes_first {
                    close();
                }
                let posted = scope.spawn(|| source.write(write(&ours, &[1], &[1])));
                close();
                let written = posted.join().expect("no panic");
                assert!(matches!(written.result, Err(TransportError::Closed)), "{written:?}");
                assert_eq!(written.block.bytes()[0], 1);
            });
        }
        assert!(ours.try_take().is_some());
    }

    #[test]
    fn receive_times_out_and_reports_the_end() {
        let (mut source, mut sink) = data_pair();
        let grants = Granting::new();
        let waited = sink.receive(&grants, Some(Duration::ZERO));
        assert!(matches!(waited, Ok(Received::TimedOut)), "{waited:?}");
        source.finish().expect("open");
        let ended = sink.receive(&grants, None);
        assert!(matches!(ended, Ok(Received::Ended)), "{ended:?}");
    }
}
