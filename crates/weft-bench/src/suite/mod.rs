//! The benchmarks: each is a pattern and a sweep, that is a list of plans, and how to read what
//! comes out of one.

mod definitions;
mod reading;

use std::time::Duration;

use crate::args::{Bench, Common};
use crate::limits::MESSAGE_MAX;
use crate::plan::{Job, LaneSpec, Operation, Over, Registration, Reuse, Role, Wait, Way};
use crate::session::{Outcome, Plan};

pub(crate) use definitions::benchmarks;

/// Time of a measurement by default: of one benchmark, and of all of them.
const DURATION: Duration = Duration::from_millis(500);
const DURATION_OF_MANY: Duration = Duration::from_millis(200);

/// A value with its name and unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Value {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) value: f64,
}

/// What a benchmark goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
}

/// One measurement of a benchmark.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) over: Over,
    pub(crate) operation: Operation,
    pub(crate) wait: Wait,
    /// What else tells it from others, such as `cache on`.
    pub(crate) variant: &'static str,
    pub(crate) x: usize,
    pub(crate) plan: Plan,
}

/// A benchmark, ready to run.
#[derive(Clone, Debug)]
pub(crate) struct Benchmark {
    pub(crate) name: &'static str,
    /// What it measures, in a sentence.
    pub(crate) about: &'static str,
    pub(crate) axis: Axis,
    /// The name of the value that is plotted and compared.
    pub(crate) primary: &'static str,
    pub(crate) cases: Vec<Case>,
    pub(crate) read: fn(&Case, &Outcome) -> Vec<Value>,
}

/// What the command line asks for. What it leaves open is the benchmark's own to choose.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) common: Common,
    pub(crate) operations: Vec<Operation>,
    pub(crate) sizes: Vec<usize>,
    pub(crate) counts: Vec<usize>,
    pub(crate) gaps: Vec<usize>,
}

impl Request {
    /// Makes the request that a benchmark's arguments ask for.
    pub(crate) fn of(bench: &Bench) -> Option<Self> {
        let mut request = Self::default();
        let sized = match bench {
            Bench::Latency(args)
            | Bench::Bandwidth(args)
            | Bench::Bibandwidth(args)
            | Bench::Rate(args) => {
                request.operations.clone_from(&args.op);
                &args.sized
            }
            Bench::Streams(args)
            | Bench::Hotspot(args)
            | Bench::Fanin(args)
            | Bench::Fanout(args)
            | Bench::Dual(args)
            | Bench::Connections(args)
            | Bench::Cpuload(args)
            | Bench::Memory(args) => {
                request.counts.clone_from(&args.counts);
                &args.sized
            }
            Bench::Registration(args)
            | Bench::Regcache(args)
            | Bench::Reuse(args)
            | Bench::Overlap(args)
            | Bench::Progress(args)
            | Bench::Sockets(args)
            | Bench::Markers(args) => args,
            Bench::Waiting(args) => {
                request.gaps = args.gaps.iter().map(|&gap| gap as usize).collect();
                &args.sized
            }
            Bench::Setup(args) | Bench::All(args) => {
                request.common = args.common.clone();
                if matches!(bench, Bench::All(_)) {
                    request.common.duration.get_or_insert(DURATION_OF_MANY);
                }
                return Some(request);
            }
            Bench::Serve(_) | Bench::Peer => return None,
        };
        request.sizes.clone_from(&sized.sizes);
        request.common = sized.common.clone();
        Some(request)
    }

    fn over(&self, default: &[Over]) -> Vec<Over> {
        let is_remote = self.common.connect.is_some();
        let mut over = either(&self.common.over, default);
        // Between hosts there is no choice of transports, and some cannot be had.
        let by_default = self.common.over.is_empty();
        let repeats = |over| by_default && over == Over::RcTcp && default.contains(&Over::Rc);
        over.retain(|&over| !is_remote || !over.is_local() && !repeats(over));
        over
    }

    fn window(&self, default: usize) -> usize {
        self.common.window.unwrap_or(default)
    }

    /// Every combination that makes sense of what is asked for, or else of the `defaults`.
    fn cross(&self, defaults: &Defaults<'_>, plan: impl Fn(Point) -> Plan) -> Vec<Case> {
        let mut cases: Vec<Case> = Vec::new();
        let operations = either(&self.operations, defaults.operations);
        for &x in defaults.xs {
            for over in self.over(defaults.over) {
                for &wanted in &operations {
                    for wanted_wait in either(&self.common.wait, defaults.waits) {
                        let (operation, wait) = possible(over, wanted, wanted_wait);
                        let point = Point { over, operation, wait, x };
                        let same = |case: &Case| case.point() == point;
                        if cases.iter().any(same) {
                            continue;
                        }
                        let plan = self.finish(plan(point), point);
                        // Longer messages than a transport has are left to the others.
                        if plan.message_max() <= over.message_max() {
                            cases.push(Case { over, operation, wait, variant: "", x, plan });
                        }
                    }
                }
            }
        }
        cases
    }

    /// Adds what all plans have in common.
    fn finish(&self, mut plan: Plan, point: Point) -> Plan {
        let mut set = |name: &str, value: &str| plan.environment.push((name.into(), value.into()));
        if let Some(transport) = point.over.forced() {
            set("WEFT_TRANSPORT", transport);
        }
        if point.over.is_tcp() {
            // The command itself may run on Weft.
            set("WEFT_SOCKETS", if point.over.is_plain() { "off" } else { "on" });
        }
        if let Some(flow) = point.over.flow() {
            set("WEFT_SOCKETS_FLOW", flow);
        }
        if let Some(zero_copy) = point.over.zero_copy() {
            set("WEFT_SOCKETS_ZCOPY", zero_copy);
        }
        if let Some(policy) = point.wait.policy() {
            set("WEFT_WAIT", policy);
        }
        if let Some(congestion) = &self.common.congestion {
            set("WEFT_CONGESTION", congestion);
        }
        let jobs = plan.server.iter_mut().chain(&mut plan.clients).chain(&mut plan.beside);
        for job in jobs {
            job.duration_ms = self.common.duration.unwrap_or(DURATION).as_millis() as u64;
            if let Some(lane) = &mut job.lane {
                lane.congestion.clone_from(&self.common.congestion);
            }
        }
        plan
    }
}

/// What a benchmark goes through by default.
#[derive(Clone, Copy, Debug)]
struct Defaults<'a> {
    over: &'a [Over],
    operations: &'a [Operation],
    waits: &'a [Wait],
    xs: &'a [usize],
}

/// One combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    over: Over,
    operation: Operation,
    wait: Wait,
    x: usize,
}

impl Case {
    fn point(&self) -> Point {
        Point { over: self.over, operation: self.operation, wait: self.wait, x: self.x }
    }
}

/// What a transport makes of a wish: not all have one-sided operations, and sockets know no policy
/// of the engine's.
fn possible(over: Over, operation: Operation, wait: Wait) -> (Operation, Wait) {
    let operation = if over.can(operation) { operation } else { Operation::Send };
    let knows_policies = !over.is_plain() || wait == Wait::Poll;
    (operation, if knows_policies { wait } else { Wait::Events })
}

fn either<T: Clone>(asked: &[T], default: &[T]) -> Vec<T> {
    if asked.is_empty() { default.to_vec() } else { asked.to_vec() }
}

impl Point {
    /// Connections with messages of one size both ways.
    fn lane(self, size: usize, window: usize, connections: usize) -> LaneSpec {
        LaneSpec {
            over: self.over,
            poll: self.wait == Wait::Poll,
            address: std::net::Ipv4Addr::UNSPECIFIED.into(),
            listens: false,
            connections,
            send_size: size,
            receive_size: size,
            window,
            registration: Registration::Before,
            reuse: Reuse::Always,
            slots: 1,
            congestion: None,
        }
    }
}

fn job(role: Role, lane: LaneSpec) -> Job {
    Job { lane: Some(lane), lanes: 1, role, duration_ms: 0, core: None }
}

/// A plan of one server and equal clients, whose connections the server has all of.
fn plan(server: Role, client: Role, lane: &LaneSpec, clients: usize) -> Plan {
    let connections = lane.connections * clients;
    let (send_size, receive_size) = (lane.receive_size, lane.send_size);
    let listener = LaneSpec { listens: true, connections, send_size, receive_size, ..lane.clone() };
    Plan {
        environment: Vec::new(),
        server: Some(job(server, listener)),
        clients: vec![job(client, lane.clone()); clients],
        beside: Vec::new(),
    }
}

/// Exchanges of messages and answers; of one-sided operations the server has no part.
fn exchange(point: Point, lane: &LaneSpec, clients: usize, gap_us: u64) -> Plan {
    let operation = point.operation;
    let server = if operation.is_one_sided() { Role::Target } else { Role::Answer };
    plan(server, Role::Ask { operation, gap_us }, lane, clients)
}

/// Messages without pause; `way` as the client sees it.
fn flow(point: Point, lane: &LaneSpec, way: Way, clients: usize) -> Plan {
    let operation = point.operation;
    let role = |way, connections| Role::Stream { operation, ways: vec![way; connections] };
    let server = if operation.is_one_sided() {
        Role::Target
    } else {
        role(way.opposite(), lane.connections * clients)
    };
    plan(server, role(way, lane.connections), lane, clients)
}

/// As many buffers as fit into `bytes`, at least two and at most 256.
fn slots(size: usize) -> usize {
    (MESSAGE_MAX / size).clamp(2, 256)
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;
    use crate::args::BenchArgs;

    fn benchmarks_of(line: &[&str]) -> Vec<Benchmark> {
        let command = BenchArgs::augment_args(clap::Command::new("bench"));
        let matches = command.try_get_matches_from([&["bench"], line].concat()).expect("sound");
        let args = BenchArgs::from_arg_matches(&matches).expect("sound");
        benchmarks(&args.bench, &Request::of(&args.bench).expect("a benchmark"))
    }

    #[test]
    fn every_benchmark_is_sound_by_default() {
        let command = BenchArgs::augment_args(clap::Command::new("bench"));
        let names = command.get_subcommands().map(|command| command.get_name().to_owned());
        for name in names.filter(|name| !["serve", "peer"].contains(&name.as_str())) {
            for benchmark in benchmarks_of(&[&name]) {
                assert!(!benchmark.cases.is_empty(), "{name}");
                for case in &benchmark.cases {
                    let Plan { server, clients, beside, .. } = &case.plan;
                    for job in server.iter().chain(clients).chain(beside) {
                        job.check().expect("within bounds");
                    }
                    let nothing = Outcome { server: None, clients: Vec::new() };
                    let values = (benchmark.read)(case, &nothing);
                    assert!(values.iter().any(|value| value.name == benchmark.primary), "{name}");
                }
            }
        }
    }

    #[test]
    fn a_transport_is_asked_for_what_it_has_only() {
        let over = "rc,ud,rd,tcp-sockets,udp-sockets";
        let line = ["latency", "--over", over, "--sizes", "8,64k", "--wait", "cpu,latency"];
        let benchmark = benchmarks_of(&line).remove(0);
        let has = |over, operation, x| {
            let like = |case: &&Case| (case.over, case.operation, case.x) == (over, operation, x);
            benchmark.cases.iter().filter(like).count()
        };
        assert_eq!(has(Over::Rc, Operation::Read, 65_536), 2, "by each policy");
        assert_eq!(has(Over::Rc, Operation::Atomic, 65_536), 0, "it has a size of its own");
        assert_eq!(has(Over::Rd, Operation::Atomic, 8), 0);
        assert_eq!(has(Over::Ud, Operation::Write, 8), 0);
        assert_eq!(has(Over::TcpSockets, Operation::Send, 8), 1, "sockets know no policy");
        assert_eq!(has(Over::UdpSockets, Operation::Send, 65_536), 0, "no datagram is that long");
    }

    #[test]
    fn what_must_be_on_one_host_is_left_out_between_two() {
        let there = ["latency", "--connect", "127.0.0.1:9", "--sizes", "8"];
        let over = |case: &Case| case.over;
        let found: Vec<_> = benchmarks_of(&there)[0].cases.iter().map(over).collect();
        assert!(!found.contains(&Over::UnixSockets) && !found.contains(&Over::RcTcp));
        assert!(found.contains(&Over::Rc) && found.contains(&Over::TcpSockets));
    }

    #[test]
    fn policies_and_transports_reach_the_workers() {
        let line = ["latency", "--over", "rc-shm", "--wait", "cpu", "--congestion", "reno"];
        let plan = &benchmarks_of(&line)[0].cases[0].plan;
        let expected =
            [("WEFT_TRANSPORT", "shm"), ("WEFT_WAIT", "cpu"), ("WEFT_CONGESTION", "reno")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(plan.environment, expected);
    }
}
