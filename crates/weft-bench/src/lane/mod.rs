//! Lanes: the connections that one thread serves, of queue pairs or of sockets, with the few
//! operations that the patterns need.

mod calls;
mod dial;
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

/// Whether a call may take its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocking {
    /// It returns at once.
    Now,
    /// It waits as the lane waits, up to [`Lane::silence`].
    Wait,
}

/// What has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub(crate) connection: usize,
    /// Whole messages, the last one of a connection included.
    pub(crate) messages: u64,
    /// The connection's last message is among them.
    pub(crate) last: bool,
}

/// Connections that are connected.
pub(crate) trait Lane: Send {
    /// Starts an operation on a message of the lane's size. `last` marks a connection's last
    /// message. Returns `false` when there is no room at present, with `Blocking::Now` only.
    ///
    /// # Errors
    /// If the connection is broken or the operation is not one of its kind.
    fn send(
        &mut self,
        connection: usize,
        operation: Operation,
        last: bool,
        blocking: Blocking,
    ) -> Result<bool>;

    /// Takes what comes next, on whichever connection; `None` if there is nothing in time.
    ///
    /// # Errors
    /// If a connection is broken.
    fn receive(&mut self, blocking: Blocking) -> Result<Option<Arrival>>;

    /// Waits until all that has been started has ended: at the peer for queue pairs, in the kernel
    /// for sockets.
    ///
    /// # Errors
    /// If a connection is broken.
    fn flush(&mut self) -> Result<()>;

    /// Waits until there may be something to receive, or room to send.
    ///
    /// # Errors
    /// What waiting reports.
    fn wait(&mut self) -> Result<()>;

    /// One-sided operations that have ended so far, of all connections.
    fn ended(&self) -> u64;

    /// What the connections really use, and TCP's congestion control if there is TCP of our own.
    fn transport(&self) -> (String, Option<String>);

    /// Bytes that have been put into the buffers of this side's direction, and how long those
    /// buffers are at this side, where that is known.
    fn buffers(&self) -> Option<[u64; 2]> {
        None
    }

    /// Writes to the buffer that was sent last, as a program does that uses it again.
    fn touch(&mut self) {}

    /// Messages may get lost.
    fn is_lossy(&self) -> bool {
        false
    }

    /// How long a peer may be silent before nothing more is expected.
    fn silence(&self) -> Duration {
        if self.is_lossy() { LOSS_AFTER } else { SILENCE_MAX }
    }
}

/// Connections that are not connected yet.
pub(crate) trait Opening {
    /// Where the peers reach them, one by one.
    fn addresses(&self) -> Vec<Address>;

    /// Connects them with the peers' ends, in the same order.
    ///
    /// # Errors
    /// If one cannot be connected.
    fn connect(self: Box<Self>, peers: &[Address]) -> Result<Box<dyn Lane>>;
}

/// Makes what `spec` says.
///
/// # Errors
/// If the system or the engine refuses it.
pub(crate) fn open(spec: &LaneSpec) -> Result<Box<dyn Opening>> {
    Ok(match spec.over {
        Over::Rc | Over::RcTcp | Over::RcShm | Over::Uc | Over::Ud => {
            Box::new(verbs::Opening::new(spec)?)
        }
        Over::Rd => Box::new(rd::Opening::new(spec)?),
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

/// Chooses buffers by how often one is to be used again.
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

    /// The buffer for the next message.
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

/// The end of a wait. Who spins looks at the clock now and then only.
#[derive(Debug)]
pub(crate) struct Deadline {
    limit: Duration,
    spins: bool,
    started: Option<Instant>,
    looks: u32,
}

impl Deadline {
    const LOOKS: u32 = 256;

    pub(crate) fn new(limit: Duration, spins: bool) -> Self {
        Self { limit, spins, started: None, looks: 0 }
    }

    /// Whether it is over. Counts from the first look at the clock, which is not the first call.
    pub(crate) fn is_over(&mut self) -> bool {
        self.looks = self.looks.wrapping_add(1);
        if self.spins && !self.looks.is_multiple_of(Self::LOOKS) {
            return false;
        }
        self.started.get_or_insert_with(Instant::now).elapsed() >= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotation_uses_buffers_again_as_asked() {
        let turns = |reuse| {
            let mut rotation = Rotation::new(reuse, 3);
            std::array::from_fn::<_, 6, _>(|_| rotation.next())
        };
        assert_eq!(turns(Reuse::Always), [0; 6]);
        assert_eq!(turns(Reuse::Half), [0, 0, 1, 1, 2, 2]);
        assert_eq!(turns(Reuse::Never), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn a_deadline_comes() {
        for spins in [false, true] {
            let mut deadline = Deadline::new(Duration::from_millis(1), spins);
            let started = Instant::now();
            while !deadline.is_over() {}
            assert!(started.elapsed() >= Duration::from_millis(1));
        }
    }
}
