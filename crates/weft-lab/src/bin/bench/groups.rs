//! The comparisons of the benchmark: each baseline, the tools on Weft beside it, and the targets.

use weft_lab::measure::{Brief, Placement, Tool, Unit};

/// The target for the ratio of Weft's result to the baseline's.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// Weft's result exceeds the baseline's by at most this many milliseconds.
    LongerBy(f64),
}

/// A baseline and the tools on Weft that are compared with it.
pub(crate) struct Group {
    pub(crate) baseline: Tool,
    /// The baseline's placement if it differs from that of the subjects.
    pub(crate) baseline_placement: Option<Placement>,
    /// The subjects' placement if it differs from the one on the command line.
    pub(crate) placement: Option<Placement>,
    pub(crate) subjects: &'static [(Tool, Target)],
}

impl Group {
    /// Returns the placements of Weft's ends and of the rival's. A placement that equals `usual`
    /// is an empty string.
    pub(crate) fn placements(&self, usual: Placement) -> [String; 2] {
        let weft = self.placement.unwrap_or(usual);
        let rival = self.baseline_placement.unwrap_or(weft);
        [weft, rival].map(|place| if place == usual { String::new() } else { place.to_string() })
    }

    const fn of(baseline: Tool, subjects: &'static [(Tool, Target)]) -> Self {
        Self { baseline, baseline_placement: None, placement: None, subjects }
    }
}

const fn crowded(baseline: Tool, subjects: &'static [(Tool, Target)]) -> Group {
    Group { placement: Some(Placement::Crowded), ..Group::of(baseline, subjects) }
}

/// A group without pinned cores. Its programs have more threads than the machine has cores.
const fn on_all_cores(baseline: Tool, subjects: &'static [(Tool, Target)]) -> Group {
    Group { placement: Some(Placement::Free), ..Group::of(baseline, subjects) }
}

const TCP_LATENCY: Tool = Tool::QperfLatency { test: "tcp_lat", bytes: 8 };
const DATAGRAMS: Group = Group::of(
    Tool::QperfLatency { test: "udp_lat", bytes: 8 },
    &[(
        Tool::PerftestLatency { program: "ib_send_lat", options: "-c UD -s 8 -n 30000" },
        Target::AtMost(1.0),
    )],
);

const MESSAGE_RATE: &[(Tool, Target)] = &[(
    Tool::PerftestBandwidth {
        program: "ib_send_bw",
        options: "-s 64 -t 128 -n 3000000",
        unit: Unit::MessagesPerSecond,
    },
    Target::AtLeast(5.0),
)];

pub(crate) const GROUPS: [Group; 5] = [
    Group::of(
        Tool::Iperf3 { bytes: 65_536 },
        &[
            (
                Tool::PerftestBandwidth {
                    program: "ib_write_bw",
                    options: "-s 65536 -n 30000",
                    unit: Unit::BytesPerSecond,
                },
                Target::AtLeast(0.9),
            ),
            (
                Tool::PerftestBandwidth {
                    program: "ib_send_bw",
                    options: "-s 65536 -n 30000",
                    unit: Unit::BytesPerSecond,
                },
                Target::AtLeast(0.9),
            ),
        ],
    ),
    Group::of(
        TCP_LATENCY,
        &[
            (
                Tool::PerftestLatency { program: "ib_send_lat", options: "-s 8 -n 30000" },
                Target::AtMost(1.1),
            ),
            (
                Tool::PerftestLatency { program: "ib_send_lat", options: "-s 8 -n 30000 -e" },
                Target::AtMost(1.3),
            ),
        ],
    ),
    Group::of(Tool::Iperf3NoDelay { bytes: 64 }, MESSAGE_RATE),
    Group::of(Tool::QperfTcpBandwidth { bytes: 64, unit: Unit::MessagesPerSecond }, MESSAGE_RATE),
    DATAGRAMS,
];

const SEND_LATENCY: Tool =
    Tool::PerftestLatency { program: "ib_send_lat", options: "-s 8 -n 200000" };
const WRITE_LATENCY: Tool =
    Tool::PerftestLatency { program: "ib_write_lat", options: "-s 8 -n 200000" };

const fn bandwidth(program: &'static str, options: &'static str) -> Tool {
    Tool::PerftestBandwidth { program, options, unit: Unit::BytesPerSecond }
}

const fn rate(program: &'static str) -> Tool {
    let options = "-s 64 -t 128 -n 3000000";
    Tool::PerftestBandwidth { program, options, unit: Unit::MessagesPerSecond }
}

const fn ucx_bandwidth(options: &'static str) -> Tool {
    Tool::Ucx { test: "tag_bw", options, unit: Unit::BytesPerSecond }
}

const WRITE_64K: Tool = bandwidth("ib_write_bw", "-s 65536 -n 100000");
const READ_64K: Tool = bandwidth("ib_read_bw", "-s 65536 -n 100000");
const WRITE_1M: Tool = bandwidth("ib_write_bw", "-s 1048576 -n 10000");
const READ_1M: Tool = bandwidth("ib_read_bw", "-s 1048576 -n 10000");
const WRITE_16M: Tool = bandwidth("ib_write_bw", "-s 16777216 -n 300");
const READ_16M: Tool = bandwidth("ib_read_bw", "-s 16777216 -n 300");

/// Comparisons on one host, where Weft uses shared memory.
pub(crate) const GROUPS_OF_ONE_HOST: [Group; 13] = [
    Group::of(
        Tool::Ucx { test: "tag_lat", options: "-s 8 -n 300000", unit: Unit::Nanoseconds },
        &[(SEND_LATENCY, Target::AtMost(1.0)), (WRITE_LATENCY, Target::AtMost(1.0))],
    ),
    Group::of(
        Tool::FabricShm { bytes: 8 },
        &[(SEND_LATENCY, Target::AtMost(1.0)), (WRITE_LATENCY, Target::AtMost(1.0))],
    ),
    Group::of(
        TCP_LATENCY,
        &[(SEND_LATENCY, Target::AtMost(0.02)), (WRITE_LATENCY, Target::AtMost(0.02))],
    ),
    // TCP is at its best where no core has to be woken.
    Group {
        baseline_placement: Some(Placement::Together),
        ..Group::of(
            TCP_LATENCY,
            &[(SEND_LATENCY, Target::AtMost(0.125)), (WRITE_LATENCY, Target::AtMost(0.125))],
        )
    },
    Group {
        placement: Some(Placement::Together),
        ..Group::of(
            TCP_LATENCY,
            &[
                (
                    Tool::PerftestLatency { program: "ib_send_lat", options: "-s 8 -n 30000" },
                    Target::AtMost(1.0),
                ),
                (
                    Tool::PerftestLatency { program: "ib_send_lat", options: "-s 8 -n 30000 -e" },
                    Target::AtMost(1.0),
                ),
            ],
        )
    },
    Group::of(
        Tool::Ucx { test: "tag_bw", options: "-s 64 -n 3000000", unit: Unit::MessagesPerSecond },
        &[(rate("ib_send_bw"), Target::AtLeast(1.0)), (rate("ib_write_bw"), Target::AtLeast(1.0))],
    ),
    Group::of(
        ucx_bandwidth("-s 65536 -n 100000"),
        &[(WRITE_64K, Target::AtLeast(1.0)), (READ_64K, Target::AtLeast(1.0))],
    ),
    Group::of(
        Tool::Memcpy { bytes: 65_536 },
        &[(WRITE_64K, Target::AtLeast(0.7)), (READ_64K, Target::AtLeast(0.7))],
    ),
    Group::of(
        ucx_bandwidth("-s 1048576 -n 10000"),
        &[(WRITE_1M, Target::AtLeast(1.0)), (READ_1M, Target::AtLeast(1.0))],
    ),
    Group::of(
        Tool::Memcpy { bytes: 1 << 20 },
        &[(WRITE_1M, Target::AtLeast(0.9)), (READ_1M, Target::AtLeast(0.9))],
    ),
    Group::of(
        ucx_bandwidth("-s 16777216 -n 300"),
        &[(WRITE_16M, Target::AtLeast(1.0)), (READ_16M, Target::AtLeast(1.0))],
    ),
    Group::of(
        Tool::Memcpy { bytes: 16 << 20 },
        &[(WRITE_16M, Target::AtLeast(0.9)), (READ_16M, Target::AtLeast(0.9))],
    ),
    DATAGRAMS,
];

const fn ping_pong(weft: bool) -> Tool {
    Tool::Sockperf { bytes: 64, weft }
}

const fn ping_pong_tail(weft: bool) -> Tool {
    Tool::SockperfTail { bytes: 64, weft }
}

const fn memcached(clients: u32, weft: bool) -> Tool {
    Tool::Memcached { clients, weft }
}

const fn redis(clients: u32, pipeline: u32, weft: bool) -> Tool {
    Tool::Redis { clients, pipeline, weft }
}

const fn nginx(bytes: u32, weft: bool) -> Tool {
    Tool::Nginx { bytes, weft }
}

const fn stream(weft: bool) -> Tool {
    Tool::TcpStream { bytes: 131_072, weft }
}

const fn apache(is_proxied: bool, weft: bool) -> Tool {
    Tool::Apache { is_proxied, weft }
}

const fn mariadb(threads: u32, weft: bool) -> Tool {
    Tool::Mariadb { threads, weft }
}

const fn brief(load: Brief, weft: bool) -> Tool {
    Tool::Brief { load, weft }
}

/// Comparisons of sockets programs on one host.
pub(crate) const GROUPS_OF_SOCKETS: [Group; 34] = [
    // TCP is at its best where no core has to be woken.
    Group {
        baseline_placement: Some(Placement::Together),
        ..Group::of(ping_pong(false), &[(ping_pong(true), Target::AtMost(0.125))])
    },
    Group::of(ping_pong(false), &[(ping_pong(true), Target::AtMost(0.02))]),
    Group::of(ping_pong_tail(false), &[(ping_pong_tail(true), Target::AtMost(1.0))]),
    Group {
        placement: Some(Placement::Together),
        ..Group::of(ping_pong(false), &[(ping_pong(true), Target::AtMost(1.0))])
    },
    Group {
        placement: Some(Placement::Together),
        ..Group::of(ping_pong_tail(false), &[(ping_pong_tail(true), Target::AtMost(1.0))])
    },
    Group::of(stream(false), &[(stream(true), Target::AtLeast(2.0))]),
    Group::of(redis(1, 1, false), &[(redis(1, 1, true), Target::AtLeast(3.0))]),
    Group::of(redis(50, 1, false), &[(redis(50, 1, true), Target::AtLeast(1.8))]),
    Group::of(redis(50, 16, false), &[(redis(50, 16, true), Target::AtLeast(1.2))]),
    Group::of(memcached(1, false), &[(memcached(1, true), Target::AtLeast(1.4))]),
    Group::of(memcached(16, false), &[(memcached(16, true), Target::AtLeast(1.4))]),
    Group::of(nginx(1_024, false), &[(nginx(1_024, true), Target::AtLeast(1.4))]),
    Group::of(nginx(1 << 20, false), &[(nginx(1 << 20, true), Target::AtLeast(1.5))]),
    // More runnable threads than cores.
    Group {
        placement: Some(Placement::Together),
        ..Group::of(redis(50, 1, false), &[(redis(50, 1, true), Target::AtLeast(1.0))])
    },
    crowded(ping_pong(false), &[(ping_pong(true), Target::AtMost(1.0))]),
    crowded(stream(false), &[(stream(true), Target::AtLeast(1.0))]),
    crowded(redis(50, 1, false), &[(redis(50, 1, true), Target::AtLeast(1.0))]),
    crowded(nginx(1_024, false), &[(nginx(1_024, true), Target::AtLeast(1.0))]),
    Group::of(apache(false, false), &[(apache(false, true), Target::AtLeast(1.3))]),
    Group::of(apache(true, false), &[(apache(true, true), Target::AtLeast(1.0))]),
    // These programs have many threads that sleep often and together keep all cores busy.
    on_all_cores(mariadb(4, false), &[(mariadb(4, true), Target::AtLeast(1.3))]),
    on_all_cores(mariadb(16, false), &[(mariadb(16, true), Target::AtLeast(1.3))]),
    on_all_cores(
        Tool::Mosquitto { weft: false },
        &[(Tool::Mosquitto { weft: true }, Target::AtLeast(1.3))],
    ),
    on_all_cores(
        Tool::Zeromq { weft: false },
        &[(Tool::Zeromq { weft: true }, Target::AtLeast(1.3))],
    ),
    on_all_cores(
        Tool::JavaNio { weft: false },
        &[(Tool::JavaNio { weft: true }, Target::AtLeast(1.3))],
    ),
    // Connections, and processes, that end before they gain by memory.
    Group::of(
        brief(Brief::Requests(1), false),
        &[(brief(Brief::Requests(1), true), Target::AtLeast(0.95))],
    ),
    Group::of(
        brief(Brief::Requests(10), false),
        &[(brief(Brief::Requests(10), true), Target::AtLeast(0.95))],
    ),
    Group::of(
        brief(Brief::Requests(100), false),
        &[(brief(Brief::Requests(100), true), Target::AtLeast(0.95))],
    ),
    Group::of(brief(Brief::Ab, false), &[(brief(Brief::Ab, true), Target::AtLeast(0.95))]),
    on_all_cores(brief(Brief::Dig, false), &[(brief(Brief::Dig, true), Target::AtLeast(0.95))]),
    on_all_cores(
        brief(Brief::RedisCli, false),
        &[(brief(Brief::RedisCli, true), Target::AtLeast(0.95))],
    ),
    on_all_cores(
        brief(Brief::Gearman, false),
        &[(brief(Brief::Gearman, true), Target::AtLeast(0.95))],
    ),
    // The overhead for connections that stay on TCP, and for starting a program.
    Group::of(redis(50, 1, false), &[(Tool::RedisOneEnd { clients: 50 }, Target::AtLeast(0.97))]),
    Group::of(Tool::Start { weft: false }, &[(Tool::Start { weft: true }, Target::LongerBy(1.0))]),
];

impl Target {
    /// The target for a build beside an earlier one: at most 5 % worse.
    pub(crate) fn no_worse(unit: Unit) -> Self {
        match unit {
            Unit::BytesPerSecond | Unit::MessagesPerSecond => Self::AtLeast(0.95),
            Unit::Nanoseconds => Self::AtMost(1.05),
        }
    }

    /// Whether the target is met by `ratio`, Weft's result divided by the baseline's, and by
    /// `more`, the difference in nanoseconds.
    pub(crate) fn is_met(self, ratio: f64, more: f64) -> bool {
        match self {
            Self::LongerBy(most) => more <= most * 1e6,
            Self::AtLeast(least) => ratio >= least,
            Self::AtMost(most) => ratio <= most,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, "at least {least}"),
            Self::AtMost(most) => write!(f, "at most {most}"),
            Self::LongerBy(most) => write!(f, "at most {most} ms longer"),
        }
    }
}
