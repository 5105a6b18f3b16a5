//! A long path between two network namespaces: it delays all packets, and loses some of them.
//!
//! Many kernels lack `netem`, which is made for this purpose. So each namespace has a TUN device,
//! and a thread for each direction passes packets on when they are due. The same seed loses the
//! same packets of the same sequence.

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Result;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::limits::{
    PACKET_LEN_MAX, PATH_QUEUE_LEN_MAX, PATH_WAIT_MAX, SHORT_PACKET_LEN_MAX, SPARE_BUFFERS_MAX,
};
use crate::segments::lose;
use crate::tun::Tun;

/// The properties of a path.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathSettings {
    /// The delay in both directions together.
    pub round_trip: Duration,
    /// The share of packets that each direction loses.
    pub loss: f64,
    /// Chooses which packets are lost.
    pub seed: u64,
}

/// The packets that are under way in one direction.
#[derive(Debug)]
struct Direction {
    delay: Duration,
    loss: f64,
    random: fastrand::Rng,
    /// Packets with the moments at which they are due.
    queue: VecDeque<(Instant, Vec<u8>)>,
    queued: usize,
    lost: u64,
}

impl Direction {
    fn new(settings: &PathSettings, seed: u64) -> Self {
        Self {
            delay: settings.round_trip / 2,
            loss: settings.loss,
            random: fastrand::Rng::with_seed(seed),
            queue: VecDeque::new(),
            queued: 0,
            lost: 0,
        }
    }

    /// Takes a packet. Returns its memory if the packet does not need it any more.
    fn take(&mut self, packet: Vec<u8>, now: Instant) -> Option<Vec<u8>> {
        if self.queued > PATH_QUEUE_LEN_MAX {
            self.lost += 1;
            return Some(packet);
        }
        let due = now + self.delay;
        let (random, loss) = (&mut self.random, self.loss);
        // A path without losses draws no numbers.
        let Some((parts, lost)) = lose(&packet, || loss > 0.0 && random.f64() < loss) else {
            self.queued += packet.len();
            self.queue.push_back((due, packet));
            return None;
        };
        self.lost += lost;
        for part in parts {
            self.queued += part.len();
            self.queue.push_back((due, part));
        }
        Some(packet)
    }

    /// Returns the next packet that is due.
    fn next(&mut self, now: Instant) -> Option<Vec<u8>> {
        let (due, _) = self.queue.front()?;
        if *due > now {
            return None;
        }
        let (_, packet) = self.queue.pop_front()?;
        self.queued -= packet.len();
        Some(packet)
    }

    /// How long no packet becomes due.
    fn wait(&self, now: Instant) -> Duration {
        let due = self.queue.front().map(|(due, _)| due.saturating_duration_since(now));
        due.unwrap_or(PATH_WAIT_MAX).min(PATH_WAIT_MAX)
    }
}

/// The counters of a path.
#[derive(Debug, Default)]
struct PathState {
    is_over: AtomicBool,
    lost: AtomicU64,
}

/// The threads of a path. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct LongPath {
    shared: Arc<PathState>,
    threads: Vec<JoinHandle<()>>,
}

impl LongPath {
    /// Makes a device of this name in each of the two namespaces, and a path between them.
    pub(crate) fn new(sides: [&Path; 2], name: &str, settings: &PathSettings) -> Result<Self> {
        let [left, right] = [Tun::new(sides[0], name)?, Tun::new(sides[1], name)?].map(Arc::new);
        let shared = Arc::new(PathState::default());
        let mut threads = Vec::new();
        for (seed, from, to) in
            [(settings.seed, &left, &right), (settings.seed.wrapping_add(1), &right, &left)]
        {
            let direction = Direction::new(settings, seed);
            let (from, to, shared) = (Arc::clone(from), Arc::clone(to), Arc::clone(&shared));
            let thread = thread::Builder::new().name("path".into());
            threads.push(thread.spawn(move || run(direction, &from, &to, &shared))?);
        }
        Ok(Self { shared, threads })
    }

    /// The packets that the path has lost.
    pub(crate) fn lost(&self) -> u64 {
        self.shared.lost.load(Relaxed)
    }
}

impl Drop for LongPath {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Passes packets on in one direction.
fn run(mut direction: Direction, from: &Tun, to: &Tun, shared: &PathState) {
    let mut spare: Vec<Vec<u8>> = Vec::new();
    let mut buffer = Vec::new();
    while !shared.is_over.load(Relaxed) {
        let wait = Timespec::try_from(direction.wait(Instant::now())).ok();
        // A failure shows in the following read.
        let _ = poll(&mut [PollFd::new(from, PollFlags::IN)], wait.as_ref());
        loop {
            let now = Instant::now();
            while let Some(packet) = direction.next(now) {
                // The kernel drops packets as any path does, for instance if memory is short.
                let _ = to.write(&packet);
                if packet.len() > SHORT_PACKET_LEN_MAX && spare.len() < SPARE_BUFFERS_MAX {
                    spare.push(packet);
                }
            }
            if buffer.is_empty() {
                buffer = spare.pop().unwrap_or_default();
                buffer.resize(PACKET_LEN_MAX, 0);
            }
            let len = match from.read(&mut buffer) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // The device is gone, and the path with it.
                Err(_) => return,
            };
            let kept = if len <= SHORT_PACKET_LEN_MAX {
                direction.take(buffer[..len].to_vec(), now);
                continue;
            } else {
                buffer.truncate(len);
                direction.take(std::mem::take(&mut buffer), now)
            };
            buffer = kept.unwrap_or_default();
            buffer.clear();
        }
        shared.lost.fetch_add(std::mem::take(&mut direction.lost), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(loss: f64) -> PathSettings {
        PathSettings { round_trip: Duration::from_millis(50), loss, seed: 7 }
    }

    #[test]
    fn packets_come_in_order_after_half_a_round_trip() {
        let (mut path, start) = (Direction::new(&settings(0.0), 7), Instant::now());
        path.take(vec![1; 20], start);
        path.take(vec![2; 20], start + Duration::from_millis(10));
        assert_eq!(path.wait(start + Duration::from_millis(10)), Duration::from_millis(15));
        assert_eq!(path.next(start + Duration::from_millis(24)), None);
        assert_eq!(path.next(start + Duration::from_millis(25)), Some(vec![1; 20]));
        assert_eq!(path.next(start + Duration::from_millis(25)), None);
        assert_eq!(path.next(start + Duration::from_millis(35)), Some(vec![2; 20]));
        assert_eq!(path.queued, 0);
    }

    #[test]
    fn a_seed_decides_which_packets_are_lost() {
        let lost = |seed| {
            let (mut path, now) = (Direction::new(&settings(0.1), seed), Instant::now());
            (0..1_000).filter(|_| path.take(vec![0; 20], now).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(lost(1), lost(1));
        assert_ne!(lost(1), lost(2));
        assert!((50..200).contains(&lost(1).len()));
    }
}
