//! The parts of benchmarks: the request, the points of a sweep, and a plan for each point.

use std::time::Duration;

use crate::args::{Bench, Common};
use crate::limits::MESSAGE_MAX;
use crate::plan::{Job, LaneSpec, Operation, Over, Registration, Reuse, Role, Wait, Way};
use crate::session::{Outcome, Plan};

/// Default duration of a measurement: of a single benchmark, and of all of them.
pub(super) const DURATION: Duration = Duration::from_millis(500);
pub(super) const DURATION_OF_MANY: Duration = Duration::from_millis(200);

/// A value with its name and unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Value {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) value: f64,
}

/// The axis of a sweep.
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
    /// What else distinguishes it from other cases, such as `cache on`.
    pub(crate) variant: &'static str,
    pub(crate) x: usize,
    pub(crate) plan: Plan,
}

/// A benchmark, ready to run.
#[derive(Clone, Debug)]
pub(crate) struct Benchmark {
    pub(crate) name: &'static str,
    /// A sentence about what it measures.
    pub(crate) about: &'static str,
    pub(crate) axis: Axis,
    /// The name of the value that is plotted and compared.
    pub(crate) primary: &'static str,
    pub(crate) cases: Vec<Case>,
    pub(crate) read: fn(&Case, &Outcome) -> Vec<Value>,
}

/// The request of the command line. The benchmark chooses what it leaves open.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) common: Common,
    pub(crate) operations: Vec<Operation>,
    pub(crate) sizes: Vec<usize>,
    pub(crate) counts: Vec<usize>,
    pub(crate) gaps: Vec<usize>,
}

impl Request {
    /// Returns the request of a benchmark's arguments.
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

    pub(super) fn over(&self, default: &[Over]) -> Vec<Over> {
        let is_remote = self.common.connect.is_some();
        let mut over = either(&self.common.over, default);
        // Between hosts there is no choice of transports, and local ones are impossible.
        let by_default = self.common.over.is_empty();
        let repeats = |over| by_default && over == Over::RcTcp && default.contains(&Over::Rc);
        over.retain(|&over| !is_remote || !over.is_local() && !repeats(over));
        over
    }

    pub(super) fn window(&self, default: usize) -> usize {
        self.common.window.unwrap_or(default)
    }

    /// Returns every valid combination of the request, with `defaults` for what it leaves open.
    pub(super) fn cross(&self, defaults: &Defaults<'_>, plan: impl Fn(Point) -> Plan) -> Vec<Case> {
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
                        // Messages that are too long for a transport are left out.
                        if plan.message_max() <= over.message_max() {
                            cases.push(Case { over, operation, wait, variant: "", x, plan });
                        }
                    }
                }
            }
        }
        cases
    }

    /// Adds the settings that all plans have.
    pub(super) fn finish(&self, mut plan: Plan, point: Point) -> Plan {
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

/// The default values of a benchmark's sweep.
#[derive(Clone, Copy, Debug)]
pub(super) struct Defaults<'a> {
    pub(super) over: &'a [Over],
    pub(super) operations: &'a [Operation],
    pub(super) waits: &'a [Wait],
    pub(super) xs: &'a [usize],
}

/// One combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Point {
    pub(super) over: Over,
    pub(super) operation: Operation,
    pub(super) wait: Wait,
    pub(super) x: usize,
}

impl Case {
    pub(super) fn point(&self) -> Point {
        Point { over: self.over, operation: self.operation, wait: self.wait, x: self.x }
    }
}

/// Returns the closest operation and way of waiting that a transport supports: not all have
/// one-sided operations, and sockets have no wait policy.
pub(super) fn possible(over: Over, operation: Operation, wait: Wait) -> (Operation, Wait) {
    let operation = if over.can(operation) { operation } else { Operation::Send };
    let knows_policies = !over.is_plain() || wait == Wait::Poll;
    (operation, if knows_policies { wait } else { Wait::Events })
}

pub(super) fn either<T: Clone>(asked: &[T], default: &[T]) -> Vec<T> {
    if asked.is_empty() { default.to_vec() } else { asked.to_vec() }
}

impl Point {
    /// Describes connections with messages of one size in both directions.
    pub(super) fn lane(self, size: usize, window: usize, connections: usize) -> LaneSpec {
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

pub(super) fn job(role: Role, lane: LaneSpec) -> Job {
    Job { lane: Some(lane), lanes: 1, role, duration_ms: 0, core: None }
}

/// Returns a plan with one server and equal clients, all connected to the server.
pub(super) fn plan(server: Role, client: Role, lane: &LaneSpec, clients: usize) -> Plan {
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

/// Returns a plan for exchanges of messages and answers. In one-sided operations the server takes
/// no part.
pub(super) fn exchange(point: Point, lane: &LaneSpec, clients: usize, gap_us: u64) -> Plan {
    let operation = point.operation;
    let server = if operation.is_one_sided() { Role::Target } else { Role::Answer };
    plan(server, Role::Ask { operation, gap_us }, lane, clients)
}

/// Returns a plan for continuous messages; `way` is the client's view.
pub(super) fn flow(point: Point, lane: &LaneSpec, way: Way, clients: usize) -> Plan {
    let operation = point.operation;
    let role = |way, connections| Role::Stream { operation, ways: vec![way; connections] };
    let server = if operation.is_one_sided() {
        Role::Target
    } else {
        role(way.opposite(), lane.connections * clients)
    };
    plan(server, role(way, lane.connections), lane, clients)
}

/// Returns the number of buffers of `size` bytes that fit into [`MESSAGE_MAX`], from 2 to 256.
pub(super) fn slots(size: usize) -> usize {
    (MESSAGE_MAX / size).clamp(2, 256)
}
