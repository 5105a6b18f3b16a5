//! Lanes: the connections that one thread serves, of queue pairs or of sockets, with the few
//! operations that the patterns need.

mod calls;
mod dial;
mod fabric;
mod queue_pair;
mod queued;
mod rd;
mod shared;
mod sockets;
mod verbs;

use std::time::{Duration, Instant};

use anyhow::Result;

use crate::limits::{LOSS_AFTER, SILENCE_MAX};
use crate::plan::{Address, LaneSpec, Operation, Over, Reuse};

pub(crate) use queue_pair::{Host, QueuePair};

/// Whether a call may block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocking {
    /// It returns at once.
    Now,
    /// It waits in the lane's way, up to [`Lane::silence`].
    Wait,
}

/// Messages that have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) connection: usize,
    /// Number of complete messages, including the last one of a connection.
    pub(crate) messages: u64,
    /// Whether the connection's last message is among them.
    pub(crate) last: bool,
}

/// A set of connected connections.
pub(crate) trait Lane: Send {
    /// Starts an operation on a message of the lane's size. `last` marks a connection's last
    /// message. Returns `false` if there is no room at present; only with `Blocking::Now`.
    ///
    /// # Errors
    /// If the connection is broken, or does not support the operation.
    fn send(
        &mut self,
        connection: usize,
        operation: Operation,
        last: bool,
        blocking: Blocking,
    ) -> Result<bool>;

    /// Receives the next messages from any connection; `None` if none has arrived in time.
    ///
    /// # Errors
    /// If a connection is broken.
    fn receive(&mut self, blocking: Blocking) -> Result<Option<Arrival>>;

    /// Waits until all started operations have completed: at the peer for queue pairs, in the
    /// kernel for sockets.
    ///
    /// # Errors
    /// If a connection is broken.
    fn flush(&mut self) -> Result<()>;

    /// Waits until there may be something to receive, or room to send.
    ///
    /// # Errors
    /// The error of the wait.
    fn wait(&mut self) -> Result<()>;

    /// Returns how many one-sided operations have completed so far, on all connections.
    fn ended(&self) -> u64;

    /// Returns the transport that the connections really use, and TCP's congestion control if they
    /// are TCP connections of this process.
    fn transport(&self) -> (String, Option<String>);

    /// Returns how many bytes have been put into the buffers of this side's direction, and the
    /// buffers' length at this side, if that is known.
    fn buffers(&self) -> Option<[u64; 2]> {
        None
    }

    /// Writes to the buffer that was sent last, like a program that reuses it.
    fn touch(&mut self) {}

    /// Returns whether messages may get lost.
    fn is_lossy(&self) -> bool {
        false
    }

    /// Returns how long a peer may be silent before nothing more is expected from it.
    fn silence(&self) -> Duration {
        if self.is_lossy() { LOSS_AFTER } else { SILENCE_MAX }
    }
}

/// A set of connections that are not connected yet.
pub(crate) trait Opening {
    /// Returns the addresses at which the peers reach each connection.
    fn addresses(&self) -> Vec<Address>;

    /// Connects them with the peers' ends, in the same order.
    ///
    /// # Errors
    /// If one cannot be connected.
    fn connect(self: Box<Self>, peers: &[Address]) -> Result<Box<dyn Lane>>;
}

/// Opens the lane that `spec` describes.
///
/// # Errors
/// The error of the system or the engine.
pub(crate) fn open(spec: &LaneSpec) -> Result<Box<dyn Opening>> {
    Ok(match spec.over {
        Over::Rc | Over::RcTcp | Over::RcShm | Over::Uc | Over::Ud => {
            Box::new(verbs::Opening::new(spec)?)
        }
        Over::Rd => Box::new(rd::Opening::new(spec)?),
        Over::Fabric => Box::new(fabric::Opening::new(spec)?),
        Over::TcpSockets
        | Over::WeftPacked
        | Over::WeftCredit
        | Over::WeftRing
        | Over::WeftSync
        | Over::WeftAsync
        | Over::UdpSockets
        | Over::UnixSockets => Box::new(dial::Opening::new(spec)?),
    })
}

/// Chooses buffers so that they are reused as often as requested.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rotation {
    reuse: Reuse,
    slots: usize,
    turns: usize,
}

impl Rotation {
    pub(crate) fn new(reuse: Reuse, slots: usize) -> Self {
        Self { reuse, slots, turns: 0 }
    }

    /// Returns the buffer for the next message.
    pub(crate) fn next(&mut self) -> usize {
        let turn = self.turns;
        self.turns = turn.wrapping_add(1);
        match self.reuse {
            Reuse::Always => 0,
            Reuse::Half => turn / 2 % self.slots,
            Reuse::Never => turn % self.slots,
        }
    }
}

/// The time limit of a wait. A spinning waiter reads the clock only in some of the calls.
#[derive(Debug)]
pub(crate) struct Deadline {
    limit: Duration,
    spins: bool,
    started: Option<Instant>,
    calls: u32,
}

impl Deadline {
    const CALLS: u32 = 256;

    pub(crate) fn new(limit: Duration, spins: bool) -> Self {
        Self { limit, spins, started: None, calls: 0 }
    }

    /// Returns whether the time is over. It counts from the first reading of the clock, which is
    /// not the first call.
    pub(crate) fn is_over(&mut self) -> bool {
        self.calls = self.calls.wrapping_add(1);
        if self.spins && !self.calls.is_multiple_of(Self::CALLS) {
            return false;
        }
        self.started.get_or_insert_with(Instant::now).elapsed() >= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotation_reuses_buffers_as_requested() {
        let turns = |reuse| {
            let mut rotation = Rotation::new(reuse, 3);
            std::array::from_fn::<_, 6, _>(|_| rotation.next())
        };
        assert_eq!(turns(Reuse::Always), [0; 6]);
        assert_eq!(turns(Reuse::Half), [0, 0, 1, 1, 2, 2]);
        assert_eq!(turns(Reuse::Never), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn deadline_passes_with_and_without_spinning() {
        for spins in [false, true] {
            let mut deadline = Deadline::new(Duration::from_millis(1), spins);
            let started = Instant::now();
            while !deadline.is_over() {}
            assert!(started.elapsed() >= Duration::from_millis(1));
        }
    }
}
