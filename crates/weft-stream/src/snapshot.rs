//! Snapshots for observers: the connections of a registry, and its totals.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::flow::Flow;
use crate::kernel::Linux;
use crate::layout::Counters;
use crate::reason::Reason;
use crate::registry::Registry;
use crate::stat_slot::VERBS;
use crate::sweep;
use crate::words::{NONE, joined};

/// Totals over the life of a registry.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Connections that connecting sides have offered.
    pub offered: u64,
    /// Connections whose accepting side joined.
    pub joined: u64,
    /// Bytes moved through memory, in both directions.
    pub bytes: u64,
    /// Calls that moved those bytes.
    pub messages: u64,
    /// Bytes that were pulled, and so copied only once.
    pub pulled: u64,
    /// Slots in use.
    pub in_use: usize,
    /// How often connections stayed on TCP or fell back to it, in the order of [`Reason::ALL`].
    pub fallbacks: [u64; Reason::ALL.len()],
}

/// One end of a connection.
#[derive(Clone, Debug)]
pub struct SideSnapshot {
    /// The process that connected or first used the accepted socket.
    pub pid: u32,
    /// The program's name.
    pub program: String,
    /// The side's address.
    pub address: SocketAddr,
    /// Threads asleep until something comes.
    pub sleepers: u32,
}

/// One direction of a connection.
#[derive(Clone, Debug)]
pub struct DirectionSnapshot {
    /// Whether the rings carry it now.
    pub in_memory: bool,
    /// Bytes moved through the rings.
    pub bytes: u64,
    /// Bytes sent over TCP before the rings were used.
    pub tcp_bytes: u64,
    /// Calls that put bytes.
    pub messages: u64,
    /// Calls that found no room.
    pub stalls: u64,
    /// Sum over all stalls: bytes that were unread at the time.
    pub stalled_used: u64,
    /// Sum over all stalls: bytes of memory allotted at the time. `stalled_used / stalled_allotted`
    /// is the share of the memory that the flow control could use.
    pub stalled_allotted: u64,
    /// Wakeups sent over the kernel's socket.
    pub wakeups: u64,
    /// Bytes that were pulled, and so copied only once.
    pub pulled: u64,
    /// Bytes put and not yet read.
    pub unread: u64,
}

/// A connection.
#[derive(Clone, Debug)]
pub struct ConnectionSnapshot {
    /// The slot's number.
    pub slot: usize,
    /// Number of connections that have used the slot.
    pub generation: u32,
    /// The connection's flow control.
    pub flow: Flow,
    /// The carrier: `shm` on this host, `verbs` to another.
    pub transport: &'static str,
    /// Whether the accepting side has joined.
    pub joined: bool,
    /// Why it has fallen back to TCP for good, if it has.
    pub fallback: Option<Reason>,
    /// The side that connected.
    pub client: SideSnapshot,
    /// The side that accepted.
    pub server: SideSnapshot,
    /// The direction from client to server.
    pub to_server: DirectionSnapshot,
    /// The direction from server to client.
    pub to_client: DirectionSnapshot,
}

impl Registry {
    /// Counts a connection that stays on TCP or falls back to it.
    pub fn count_fallback(&self, why: Reason) {
        self.counters().fallbacks[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The totals, including open connections.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let words = self.counters();
        let total = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let mut sums = Totals {
            offered: total(&words.offered),
            joined: total(&words.joined),
            bytes: total(&words.bytes),
            messages: total(&words.messages),
            pulled: total(&words.pulled),
            in_use: self.in_use(),
            fallbacks: Reason::ALL.map(|why| total(&words.fallbacks[why as usize])),
        };
        for (slot, _) in self.live().filter(|&(slot, _)| self.is_accessible(slot)) {
            for way in [0, 1].map(|from| self.direction(slot, from)) {
                sums.bytes = sums.bytes.wrapping_add(way.bytes);
                sums.messages = sums.messages.wrapping_add(way.messages);
                sums.pulled = sums.pulled.wrapping_add(way.pulled);
            }
        }
        sums
    }

    /// Adds what an ended connection has moved to the totals.
    pub(crate) fn add_to_totals(&self, slot: usize) {
        for way in [0, 1].map(|from| self.direction(slot, from)) {
            let Counters { bytes, messages, pulled, .. } = self.counters();
            bytes.fetch_add(way.bytes, Ordering::Relaxed);
            messages.fetch_add(way.messages, Ordering::Relaxed);
            pulled.fetch_add(way.pulled, Ordering::Relaxed);
        }
    }

    /// The open connections. They run on while they are read, so the numbers of one connection may
    /// be of different moments.
    pub fn connections(&self) -> impl Iterator<Item = ConnectionSnapshot> + '_ {
        let abandoned = sweep::abandoned::<Linux>(self);
        let open = self.live().filter(|&(slot, _)| self.is_accessible(slot));
        open.filter(move |live| !abandoned.contains(live)).map(|(slot, _)| self.connection(slot))
    }

    fn connection(&self, slot: usize) -> ConnectionSnapshot {
        let (client, server) = self.tuple_of(slot).addresses();
        let joined = self.page(slot).sides[1].joined.load(Ordering::Relaxed);
        ConnectionSnapshot {
            slot,
            generation: self.generation(slot),
            flow: self.flow(slot),
            transport: if self.transport(slot) == VERBS { "verbs" } else { "shm" },
            joined: joined != joined::NO,
            fallback: self.fallback(slot),
            client: self.side(slot, 0, client),
            server: self.side(slot, 1, server),
            to_server: self.direction(slot, 0),
            to_client: self.direction(slot, 1),
        }
    }

    fn side(&self, slot: usize, end: usize, address: SocketAddr) -> SideSnapshot {
        let side = &self.page(slot).sides[end];
        let name = side.program.each_ref().map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        let name = name.as_flattened();
        let len = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        SideSnapshot {
            pid: side.pid.load(Ordering::Relaxed),
            program: String::from_utf8_lossy(&name[..len]).into_owned(),
            address,
            sleepers: side.sleepers.load(Ordering::Relaxed),
        }
    }

    fn direction(&self, slot: usize, from: usize) -> DirectionSnapshot {
        let words = &self.page(slot).directions[from];
        let word = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let put = word(&words.head);
        let pulled = word(&words.pulled);
        DirectionSnapshot {
            in_memory: word(&words.shm_start_seq) != NONE && word(&words.tcp_resume_seq) == NONE,
            bytes: put.wrapping_add(pulled),
            tcp_bytes: word(&words.tcp_sent),
            messages: word(&words.messages),
            stalls: word(&words.stalls),
            stalled_used: word(&words.stalled_used),
            stalled_allotted: word(&words.stalled_allotted),
            wakeups: word(&words.wakeups),
            pulled,
            unread: put.saturating_sub(word(&words.tail)),
        }
    }
}
