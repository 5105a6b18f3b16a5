//! The plan of a measurement: its two ends, in a form that the control connection transfers.
//! [`Job::check`] checks plans from there against the limits.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use weft_engine::limits::DATAGRAM_MAX;
use weft_engine::rd::limits::SEND_LEN_MAX;

use crate::limits::{
    BUFFERS_MAX, CONNECTIONS_MAX, DURATION_MAX, LANES_MAX, MESSAGE_MAX, REQUESTS_MAX, SLOTS_MAX,
    WINDOW_MAX,
};

/// What carries the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    /// Reliable connected queue pairs, over the transport that the engine chooses
    Rc,
    /// The same, over TCP (WEFT_TRANSPORT=tcp)
    RcTcp,
    /// The same, over shared memory (WEFT_TRANSPORT=shm)
    RcShm,
    /// Unreliable connected queue pairs: what finds no receive is lost
    Uc,
    /// Unreliable datagram queue pairs: as those, and what UDP loses
    Ud,
    /// Reliable datagrams of the engine, without connections
    Rd,
    /// Endpoints of weft-fabric, over the transport that the engine chooses
    Fabric,
    /// A plain TCP socket with TCP_NODELAY
    #[value(alias = "tcp")]
    TcpSockets,
    /// The same of a program under `weft run`, whose bytes go through shared memory
    #[value(alias = "weft")]
    WeftPacked,
    /// The same with flow control by credits (WEFT_SOCKETS_FLOW=credit)
    WeftCredit,
    /// The same, always through the ring (WEFT_SOCKETS_ZCOPY=off)
    WeftRing,
    /// The same, long messages pulled out of the sender's memory while it waits
    /// (WEFT_SOCKETS_ZCOPY=sync)
    WeftSync,
    /// The same, without waiting (WEFT_SOCKETS_ZCOPY=async)
    WeftAsync,
    /// A plain UDP socket: messages that get lost are counted
    #[value(alias = "udp")]
    UdpSockets,
    /// A Unix stream socket, on one host only
    #[value(alias = "unix")]
    UnixSockets,
}

impl Over {
    /// Returns whether these are sockets without Weft, with which the others are compared.
    pub(crate) fn is_plain(self) -> bool {
        matches!(self, Self::TcpSockets | Self::UdpSockets | Self::UnixSockets)
    }

    /// Returns the flow control of sockets on Weft; `None` for everything else.
    pub(crate) fn flow(self) -> Option<&'static str> {
        match self {
            Self::WeftPacked | Self::WeftRing | Self::WeftSync | Self::WeftAsync => Some("packed"),
            Self::WeftCredit => Some("credit"),
            _ => None,
        }
    }

    /// Returns the zero-copy setting of sockets on Weft, if there is one.
    pub(crate) fn zero_copy(self) -> Option<&'static str> {
        match self {
            Self::WeftRing => Some("off"),
            Self::WeftSync => Some("sync"),
            Self::WeftAsync => Some("async"),
            _ => None,
        }
    }

    /// Returns whether the program uses TCP sockets, with Weft or without.
    pub(crate) fn is_tcp(self) -> bool {
        self == Self::TcpSockets || self.flow().is_some()
    }

    /// Returns whether these are verbs of the engine, not sockets.
    pub(crate) fn is_verbs(self) -> bool {
        !self.is_plain() && self.flow().is_none()
    }

    /// Returns whether these are queue pairs, whose memory the benchmark registers.
    pub(crate) fn has_queue_pairs(self) -> bool {
        self.is_verbs() && !matches!(self, Self::Rd | Self::Fabric)
    }

    /// Returns whether messages may get lost.
    pub(crate) fn is_lossy(self) -> bool {
        matches!(self, Self::Uc | Self::Ud | Self::UdpSockets)
    }

    /// Returns whether the transport supports an operation.
    pub(crate) fn can(self, operation: Operation) -> bool {
        match operation {
            Operation::Send => true,
            Operation::Write => self.is_verbs() && self != Self::Ud,
            Operation::Read => self.is_verbs() && !self.is_lossy(),
            Operation::Atomic => self == Self::Fabric || self.has_queue_pairs() && !self.is_lossy(),
        }
    }

    /// Returns whether both ends must be on one host.
    pub(crate) fn is_local(self) -> bool {
        matches!(self, Self::RcShm | Self::UnixSockets) || self.flow().is_some()
    }

    /// Returns the length of the longest message in bytes.
    pub(crate) fn message_max(self) -> usize {
        match self {
            // 65,535 minus the headers of IPv4 and UDP.
            Self::UdpSockets => 65_507,
            Self::Ud => DATAGRAM_MAX as usize,
            Self::Rd => SEND_LEN_MAX as usize,
            Self::Fabric => weft_fabric::limits::MESSAGE_MAX,
            _ => MESSAGE_MAX,
        }
    }

    /// Returns the transport that the engine is forced to use.
    pub(crate) fn forced(self) -> Option<&'static str> {
        match self {
            Self::RcTcp => Some("tcp"),
            Self::RcShm => Some("shm"),
            _ => None,
        }
    }

    /// Returns the name in `--over` and in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rc => "rc",
            Self::RcTcp => "rc-tcp",
            Self::RcShm => "rc-shm",
            Self::Uc => "uc",
            Self::Ud => "ud",
            Self::Rd => "rd",
            Self::Fabric => "fabric",
            Self::TcpSockets => "tcp-sockets",
            Self::WeftPacked => "weft-packed",
            Self::WeftCredit => "weft-credit",
            Self::WeftRing => "weft-ring",
            Self::WeftSync => "weft-sync",
            Self::WeftAsync => "weft-async",
            Self::UdpSockets => "udp-sockets",
            Self::UnixSockets => "unix-sockets",
        }
    }
}

/// What is done with a message. Sockets can only send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Into a receive of the peer's
    Send,
    /// RDMA Write: the peer takes no part
    Write,
    /// RDMA Read: the peer takes no part
    Read,
    /// Atomic addition to eight bytes at the peer, which takes no part
    Atomic,
}

impl Operation {
    /// Returns whether the peer's program has nothing to do.
    pub(crate) fn is_one_sided(self) -> bool {
        self != Self::Send
    }

    /// Returns the name in `--op` and in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Write => "write",
            Self::Read => "read",
            Self::Atomic => "atomic",
        }
    }
}

/// How an end waits for what is to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// Looks without pause: ibv_poll_cq, recv with MSG_DONTWAIT
    Poll,
    /// Blocks: completion channel, recv
    Events,
    /// Blocks, with WEFT_WAIT=latency
    Latency,
    /// Blocks, with WEFT_WAIT=balanced
    Balanced,
    /// Blocks, with WEFT_WAIT=cpu
    Cpu,
}

impl Wait {
    /// Returns the engine's wait policy, if one is set.
    pub(crate) fn policy(self) -> Option<&'static str> {
        match self {
            Self::Poll | Self::Events => None,
            Self::Latency | Self::Balanced | Self::Cpu => Some(self.name()),
        }
    }

    /// Returns the name in `--wait` and in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Poll => "poll",
            Self::Events => "events",
            Self::Latency => "latency",
            Self::Balanced => "balanced",
            Self::Cpu => "cpu",
        }
    }
}

/// When memory is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Registration {
    /// All buffers, before the measurement.
    Before,
    /// Each buffer anew for each message.
    EachTime,
    /// Each buffer when it is first used; deregistered lazily.
    Cached,
}

/// How often consecutive messages use the same buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reuse {
    /// One buffer for all messages.
    Always,
    /// Each buffer for two messages.
    Half,
    /// Another buffer for each message.
    Never,
}

/// The connections of one side that one thread serves.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LaneSpec {
    pub(crate) over: Over,
    pub(crate) poll: bool,
    /// The address of the sockets and of the device.
    pub(crate) address: IpAddr,
    /// Whether this side is dialled, if that makes a difference.
    pub(crate) listens: bool,
    pub(crate) connections: usize,
    /// Bytes of the messages that this side sends, and of those that it receives.
    pub(crate) send_size: usize,
    pub(crate) receive_size: usize,
    /// Outstanding operations of one connection.
    pub(crate) window: usize,
    pub(crate) registration: Registration,
    pub(crate) reuse: Reuse,
    /// Number of buffers among which `reuse` chooses.
    pub(crate) slots: usize,
    /// TCP's congestion control, if not the system's.
    pub(crate) congestion: Option<String>,
}

/// The direction of messages on one connection, seen from this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    Out,
    In,
    Both,
}

impl Way {
    pub(crate) fn sends(self) -> bool {
        self != Self::In
    }

    pub(crate) fn receives(self) -> bool {
        self != Self::Out
    }

    /// Returns the direction seen from the other side.
    pub(crate) fn opposite(self) -> Self {
        match self {
            Self::Out => Self::In,
            Self::In => Self::Out,
            Self::Both => Self::Both,
        }
    }
}

/// The job of one worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Role {
    /// Sends a message on each connection, and the next one `gap_us` after the answer. For a
    /// one-sided operation the completion is the answer.
    Ask { operation: Operation, gap_us: u64 },
    /// Answers each message.
    Answer,
    /// Sends or receives continuously, by connection.
    Stream { operation: Operation, ways: Vec<Way> },
    /// Waits for the order to stop: its peers' one-sided operations need no program.
    Target,
    /// Keeps its core busy until the order to stop.
    Burn,
    /// Sends continuously, except for a computation of `work_ns` after each message. Writes to the
    /// buffer after every `touch_every` messages, if that is not 0.
    Produce { work_ns: u64, touch_every: usize },
    /// Like `Ask`, with a computation of `work_ns` before it waits for the answer.
    Compute { work_ns: u64 },
    /// Like `Compute`, with increasing computations until they prolong the operation. The operation
    /// ends with the answer (`receives`) or with its own completion.
    Overlap { receives: bool },
    /// Registers and deregisters `size` bytes.
    Register { size: usize },
    /// Connects anew for each message.
    Dial,
    /// Accepts the connections of `Dial`.
    Accept,
    /// Sends to a peer that reads nothing, until there is no room.
    Fill,
}

/// The description of a worker's job.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Job {
    pub(crate) lane: Option<LaneSpec>,
    /// Number of threads, each with its own lane.
    pub(crate) lanes: usize,
    pub(crate) role: Role,
    pub(crate) duration_ms: u64,
    /// The core to run on; `None` for any.
    pub(crate) core: Option<usize>,
}

impl Job {
    pub(crate) fn duration(&self) -> Duration {
        Duration::from_millis(self.duration_ms)
    }

    /// Returns the description of the connections.
    ///
    /// # Errors
    /// If there are no connections.
    pub(crate) fn spec(&self) -> Result<&LaneSpec> {
        self.lane.as_ref().context("no connections to make")
    }

    /// Returns whether the job runs until the order to stop.
    pub(crate) fn is_passive(&self) -> bool {
        matches!(self.role, Role::Target | Role::Burn | Role::Accept)
    }

    /// # Errors
    /// Names the value that is beyond its limit.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!((1..=LANES_MAX).contains(&self.lanes), "{} threads", self.lanes);
        ensure!(self.duration() <= DURATION_MAX, "a duration of {:?}", self.duration());
        if let Role::Register { size } = self.role {
            ensure!((1..=MESSAGE_MAX).contains(&size), "a region of {size} bytes");
        }
        if let Role::Compute { work_ns } | Role::Produce { work_ns, .. } = self.role {
            ensure!(Duration::from_nanos(work_ns) <= DURATION_MAX, "{work_ns} ns of computation");
        }
        let Some(lane) = &self.lane else { return Ok(()) };
        ensure!(
            (1..=CONNECTIONS_MAX).contains(&lane.connections),
            "{} connections",
            lane.connections
        );
        for size in [lane.send_size, lane.receive_size] {
            ensure!((1..=lane.over.message_max()).contains(&size), "messages of {size} bytes");
        }
        ensure!((1..=WINDOW_MAX).contains(&lane.window), "a window of {}", lane.window);
        ensure!((1..=SLOTS_MAX).contains(&lane.slots), "{} buffers", lane.slots);
        let bytes = lane.slots * lane.send_size.max(lane.receive_size) * self.lanes;
        ensure!(bytes <= BUFFERS_MAX, "{bytes} bytes of buffers");
        let requests = lane.connections * lane.window * self.lanes;
        ensure!(requests <= REQUESTS_MAX, "{requests} outstanding requests");
        if let Role::Stream { ways, .. } = &self.role {
            ensure!(ways.len() == lane.connections, "{} ways", ways.len());
        }
        Ok(())
    }
}

/// The address of one end of a connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Address {
    /// A socket. For a listener, `ticket` says which connection the dialling side means.
    Inet { address: SocketAddr, ticket: u64 },
    /// An abstract Unix socket.
    Unix { name: String, ticket: u64 },
    /// A queue pair, and memory that its peer may use.
    Qp { number: u32, gid: [u8; 16], memory: u64, key: u32 },
    /// An endpoint of reliable datagrams, and memory that its peers may use.
    Endpoint { address: SocketAddr, memory: u64, key: u32 },
    /// None: this side dials.
    Dials,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        let lane = LaneSpec {
            over: Over::Rc,
            poll: true,
            address: [127, 0, 0, 1].into(),
            listens: true,
            connections: 1,
            send_size: 8,
            receive_size: 8,
            window: 1,
            registration: Registration::Before,
            reuse: Reuse::Always,
            slots: 1,
            congestion: None,
        };
        Job { lane: Some(lane), lanes: 1, role: Role::Answer, duration_ms: 100, core: None }
    }

    #[test]
    fn valid_jobs_pass_and_survive_json() {
        let text = serde_json::to_string(&job()).expect("JSON");
        let again: Job = serde_json::from_str(&text).expect("the same");
        again.check().expect("sound");
    }

    #[test]
    fn values_beyond_their_limits_are_refused() {
        let refused = |change: fn(&mut Job, &mut LaneSpec)| {
            let mut job = job();
            let mut lane = job.lane.take().expect("a lane");
            change(&mut job, &mut lane);
            job.lane = Some(lane);
            job.check().is_err()
        };
        assert!(refused(|job, _| job.lanes = 0));
        assert!(refused(|job, _| job.lanes = LANES_MAX + 1));
        assert!(refused(|job, _| job.duration_ms = u64::MAX / 1000));
        assert!(refused(|job, _| job.role = Role::Register { size: usize::MAX }));
        assert!(refused(|job, _| job.role = Role::Compute { work_ns: u64::MAX }));
        assert!(refused(|_, lane| lane.connections = usize::MAX));
        assert!(refused(|_, lane| lane.send_size = 0));
        assert!(refused(|_, lane| lane.receive_size = MESSAGE_MAX + 1));
        assert!(refused(|_, lane| lane.window = WINDOW_MAX + 1));
        assert!(refused(|_, lane| lane.slots = SLOTS_MAX + 1));
        assert!(refused(|_, lane| (lane.slots, lane.send_size) = (SLOTS_MAX, MESSAGE_MAX)));
        assert!(refused(|_, lane| (lane.connections, lane.window) = (CONNECTIONS_MAX, WINDOW_MAX)));
        assert!(refused(|job, _| {
            job.role = Role::Stream { operation: Operation::Send, ways: Vec::new() };
        }));
    }
}
