//! The definitions of the benchmarks.

use super::{
    Axis, Benchmark, Case, Defaults, Point, Request, either, exchange, flow, job, plan, reading,
    slots,
};
use crate::args::Bench;
use crate::plan::{Job, LaneSpec, Operation, Over, Registration, Reuse, Role, Wait, Way};
use crate::session::Plan;

const ALL: &[Over] = &[
    Over::Rc,
    Over::RcTcp,
    Over::Ud,
    Over::Rd,
    Over::TcpSockets,
    Over::UnixSockets,
    Over::UdpSockets,
];
/// Transports that lose nothing.
const RELIABLE: &[Over] = &[Over::Rc, Over::RcTcp, Over::TcpSockets, Over::UnixSockets];
/// The same program over the kernel and over shared memory.
const TCP_SOCKETS: &[Over] = &[Over::TcpSockets, Over::WeftPacked, Over::WeftCredit];
/// The paths of long messages.
const COPIES: &[Over] = &[Over::TcpSockets, Over::WeftRing, Over::WeftSync, Over::WeftAsync];
const VERBS: &[Over] = &[Over::Rc];
const TCP_ONLY: &[Over] = &[Over::RcTcp];

const SEND: &[Operation] = &[Operation::Send];
const POLL: &[Wait] = &[Wait::Poll];
const EVENTS: &[Wait] = &[Wait::Events];

const SIZE: Axis = Axis { name: "size", unit: "B" };
const CLIENTS: Axis = Axis { name: "clients", unit: "" };
const CONNECTIONS: Axis = Axis { name: "connections", unit: "" };

/// Outstanding operations in throughput benchmarks: of large messages, and of small ones.
const WINDOW: usize = 64;
const WINDOW_SMALL: usize = 128;

/// Returns the benchmarks of a subcommand.
pub(crate) fn benchmarks(bench: &Bench, request: &Request) -> Vec<Benchmark> {
    match bench {
        Bench::Latency(_) => vec![latency(request)],
        Bench::Bandwidth(_) => vec![bandwidth(request)],
        Bench::Bibandwidth(_) => vec![bibandwidth(request)],
        Bench::Rate(_) => vec![rate(request)],
        Bench::Streams(_) => vec![streams(request)],
        Bench::Hotspot(_) => vec![hotspot(request)],
        Bench::Fanin(_) => vec![fanin(request)],
        Bench::Fanout(_) => vec![fanout(request)],
        Bench::Dual(_) => vec![dual(request)],
        Bench::Connections(_) => connections(request),
        Bench::Registration(_) => vec![registration(request)],
        Bench::Regcache(_) => regcache(request),
        Bench::Reuse(_) => vec![reuse(request)],
        Bench::Overlap(_) => vec![overlap(request)],
        Bench::Progress(_) => vec![progress(request)],
        Bench::Cpuload(_) => vec![cpuload(request)],
        Bench::Setup(_) => vec![setup(request)],
        Bench::Markers(_) => vec![markers(request)],
        Bench::Memory(_) => vec![memory(request)],
        Bench::Waiting(_) => vec![waiting(request)],
        Bench::Sockets(_) => sockets(request),
        Bench::All(_) => all(request),
        Bench::Serve(_) | Bench::Peer => Vec::new(),
    }
}

fn latency(request: &Request) -> Benchmark {
    let xs = &either(&request.sizes, &[8, 64, 512, 4 << 10, 64 << 10]);
    let operations = &[Operation::Send, Operation::Write, Operation::Read, Operation::Atomic];
    let defaults = Defaults { over: ALL, operations, waits: POLL, xs };
    let mut cases =
        request.cross(&defaults, |point| exchange(point, &point.lane(point.x, 1, 1), 1, 0));
    // An atomic has a fixed size, so only one of its cases is kept.
    let smallest = xs.iter().copied().min();
    cases.retain(|case| case.operation != Operation::Atomic || Some(case.x) == smallest);
    Benchmark {
        name: "latency",
        about: "A message and its answer, halved; of one-sided operations the time to completion, \
                which between reliable queue pairs means that the peer's memory has been reached.",
        axis: SIZE,
        primary: "p50",
        cases,
        read: reading::latency,
    }
}

/// Returns cases with continuous messages between one server and one client, by size.
fn streamed(request: &Request, way: Way, default_sizes: &[usize], window: usize) -> Vec<Case> {
    let xs = &either(&request.sizes, default_sizes);
    let defaults = Defaults { over: ALL, operations: SEND, waits: POLL, xs };
    let window = request.window(window);
    request.cross(&defaults, |point| flow(point, &point.lane(point.x, window, 1), way, 1))
}

const LARGE: &[usize] = &[1 << 10, 8 << 10, 64 << 10, 1 << 20];

fn bandwidth(request: &Request) -> Benchmark {
    Benchmark {
        name: "bandwidth",
        about: "Messages one way without pause, counted where they arrive.",
        axis: SIZE,
        primary: "bandwidth",
        cases: streamed(request, Way::Out, LARGE, WINDOW),
        read: reading::throughput,
    }
}

fn bibandwidth(request: &Request) -> Benchmark {
    Benchmark {
        name: "bibandwidth",
        about: "Messages both ways without pause over one connection; both ways added up.",
        axis: SIZE,
        primary: "bandwidth",
        cases: streamed(request, Way::Both, LARGE, WINDOW),
        read: reading::throughput,
    }
}

fn rate(request: &Request) -> Benchmark {
    Benchmark {
        name: "rate",
        about: "Small messages one way without pause, one call of the program's for each.",
        axis: SIZE,
        primary: "rate",
        cases: streamed(request, Way::Out, &[1, 8, 64, 256], WINDOW_SMALL),
        read: reading::throughput,
    }
}

/// Returns cases by a count, with messages of one size.
fn by_count(
    request: &Request,
    counts: &[usize],
    size: usize,
    waits: &[Wait],
    plan: impl Fn(Point, usize) -> Plan,
) -> Vec<Case> {
    let xs = &either(&request.counts, counts);
    let defaults = Defaults { over: RELIABLE, operations: SEND, waits, xs };
    let size = request.sizes.first().copied().unwrap_or(size);
    request.cross(&defaults, |point| plan(point, size))
}

fn streams(request: &Request) -> Benchmark {
    let window = request.window(WINDOW);
    let cases = by_count(request, &[1, 2, 4, 8], 64 << 10, EVENTS, |point, size| {
        let mut plan = flow(point, &point.lane(size, window, 1), Way::Out, 1);
        plan.server.iter_mut().chain(&mut plan.clients).for_each(|job| job.lanes = point.x);
        plan
    });
    Benchmark {
        name: "streams",
        about: "Several connections one way without pause, each with a thread of its own at both \
                ends; all added up.",
        axis: Axis { name: "streams", unit: "" },
        primary: "bandwidth",
        cases,
        read: reading::throughput,
    }
}

const FEW: &[usize] = &[1, 2, 4, 8, 16];

fn hotspot(request: &Request) -> Benchmark {
    let cases = by_count(request, FEW, 64, EVENTS, |point, size| {
        exchange(point, &point.lane(size, 1, 1), point.x, 0)
    });
    Benchmark {
        name: "hotspot",
        about: "Clients, each a process, exchange small messages with one server at the same time; \
                half of their round trips.",
        axis: CLIENTS,
        primary: "p50",
        cases,
        read: reading::latency,
    }
}

fn fan(request: &Request, way: fn(usize) -> Way, counts: &[usize]) -> Vec<Case> {
    let window = request.window(WINDOW);
    by_count(request, counts, 64 << 10, EVENTS, |point, size| {
        let lane = point.lane(size, window, 1);
        let mut plan = flow(point, &lane, Way::Both, point.x);
        let ways: Vec<Way> = (0..point.x).map(way).collect();
        let role = |ways| Role::Stream { operation: Operation::Send, ways };
        for (job, &way) in plan.clients.iter_mut().zip(&ways) {
            job.role = role(vec![way]);
        }
        let opposite = ways.iter().map(|way| way.opposite()).collect();
        plan.server.iter_mut().for_each(|job| job.role = role(Vec::clone(&opposite)));
        plan
    })
}

fn fanin(request: &Request) -> Benchmark {
    Benchmark {
        name: "fanin",
        about: "Clients, each a process, send to one server without pause; all added up.",
        axis: CLIENTS,
        primary: "bandwidth",
        cases: fan(request, |_| Way::Out, FEW),
        read: reading::throughput,
    }
}

fn fanout(request: &Request) -> Benchmark {
    Benchmark {
        name: "fanout",
        about: "One server sends to clients, each a process, without pause; all added up.",
        axis: CLIENTS,
        primary: "bandwidth",
        cases: fan(request, |_| Way::In, FEW),
        read: reading::throughput,
    }
}

fn dual(request: &Request) -> Benchmark {
    let way = |client: usize| if client.is_multiple_of(2) { Way::Out } else { Way::In };
    Benchmark {
        name: "dual",
        about: "One server receives from one half of its clients and sends to the other, without \
                pause; all added up.",
        axis: CLIENTS,
        primary: "bandwidth",
        cases: fan(request, way, &[2, 4, 8]),
        read: reading::throughput,
    }
}

fn connections(request: &Request) -> Vec<Benchmark> {
    let latency = by_count(request, FEW, 64, POLL, |point, size| {
        exchange(point, &point.lane(size, 1, point.x), 1, 0)
    });
    let window = request.window(16);
    let throughput = by_count(request, FEW, 4 << 10, POLL, |point, size| {
        flow(point, &point.lane(size, window, point.x), Way::Both, 1)
    });
    vec![
        Benchmark {
            name: "connections latency",
            about: "One client and one server exchange messages over all connections at once; half \
                    of the time, by message (normalised), and of each round trip (percentiles).",
            axis: CONNECTIONS,
            primary: "normalised",
            cases: latency,
            read: reading::normalised,
        },
        Benchmark {
            name: "connections throughput",
            about: "One client and one server send to each other without pause, over the \
                    connections in turn; both ways added up.",
            axis: CONNECTIONS,
            primary: "bandwidth",
            cases: throughput,
            read: reading::throughput,
        },
    ]
}

fn registration(request: &Request) -> Benchmark {
    let xs = &either(&request.sizes, &[4 << 10, 64 << 10, 1 << 20, 16 << 20]);
    let defaults = Defaults { over: VERBS, operations: SEND, waits: POLL, xs };
    let cases = request.cross(&defaults, |point| {
        let alone = job(Role::Register { size: point.x }, point.lane(8, 1, 1));
        Plan { environment: Vec::new(), server: None, clients: vec![alone], beside: Vec::new() }
    });
    Benchmark {
        name: "registration",
        about: "The time to register memory and to deregister it.",
        axis: SIZE,
        primary: "register",
        cases: cases.into_iter().filter(|case| case.over.has_queue_pairs()).collect(),
        read: reading::registration,
    }
}

/// Returns each case in several variants, which are next to each other.
fn varied<const N: usize>(
    cases: Vec<Case>,
    variants: [&'static str; N],
    vary: impl Fn(&mut Case, usize),
) -> Vec<Case> {
    let variant_of = |case: &Case, index: usize| {
        let mut case = Case { variant: variants[index], ..case.clone() };
        vary(&mut case, index);
        case
    };
    cases
        .iter()
        .flat_map(|case| (0..N).map(|index| variant_of(case, index)).collect::<Vec<_>>())
        .collect()
}

fn lanes(plan: &mut Plan) -> impl Iterator<Item = &mut LaneSpec> {
    let jobs = plan.server.iter_mut().chain(&mut plan.clients);
    jobs.filter_map(|job: &mut Job| job.lane.as_mut())
}

fn regcache(request: &Request) -> Vec<Benchmark> {
    let xs = &either(&request.sizes, &[4 << 10, 64 << 10, 1 << 20]);
    let defaults = Defaults { over: VERBS, operations: SEND, waits: POLL, xs };
    let of = |plan: &dyn Fn(Point) -> Plan| {
        let cases = request.cross(&defaults, plan);
        let cases = cases.into_iter().filter(|case| case.over.has_queue_pairs()).collect();
        varied(cases, ["cache off", "cache on"], |case, index| {
            let registration = [Registration::EachTime, Registration::Cached][index];
            lanes(&mut case.plan).for_each(|lane| lane.registration = registration);
        })
    };
    let window = request.window(WINDOW);
    vec![
        Benchmark {
            name: "regcache latency",
            about: "A message and its answer, halved; the buffers are registered for each message, \
                    or kept registered in a cache.",
            axis: SIZE,
            primary: "p50",
            cases: of(&|point| exchange(point, &point.lane(point.x, 1, 1), 1, 0)),
            read: reading::latency,
        },
        Benchmark {
            name: "regcache bandwidth",
            about: "Messages both ways without pause; the buffers are registered for each message, \
                    or kept registered in a cache.",
            axis: SIZE,
            primary: "bandwidth",
            cases: of(&|point| flow(point, &point.lane(point.x, window, 1), Way::Both, 1)),
            read: reading::throughput,
        },
    ]
}

fn reuse(request: &Request) -> Benchmark {
    let xs = &either(&request.sizes, &[64, 4 << 10, 64 << 10, 1 << 20]);
    let defaults = Defaults { over: RELIABLE, operations: SEND, waits: POLL, xs };
    let cases = request.cross(&defaults, |point| {
        let mut lane = point.lane(point.x, 1, 1);
        lane.slots = slots(point.x);
        lane.registration = Registration::Cached;
        exchange(point, &lane, 1, 0)
    });
    Benchmark {
        name: "reuse",
        about: "A message and its answer, halved; the next message takes the same buffer (100 %), \
                another one every other time (50 %), or always another one (0 %) out of a set. \
                Queue pairs keep registrations in a cache.",
        axis: SIZE,
        primary: "p50",
        cases: varied(cases, ["100 %", "50 %", "0 %"], |case, index| {
            let reuse = [Reuse::Always, Reuse::Half, Reuse::Never][index];
            lanes(&mut case.plan).for_each(|lane| lane.reuse = reuse);
        }),
        read: reading::latency,
    }
}

/// Returns cases with a large message in one direction and a small one back, measured at the sender
/// or at the receiver.
fn one_side(request: &Request, sizes: &[usize], role: impl Fn(bool) -> Role) -> Vec<Case> {
    const SMALL: usize = 8;
    let xs = &either(&request.sizes, sizes);
    let defaults = Defaults { over: RELIABLE, operations: SEND, waits: POLL, xs };
    let cases = request
        .cross(&defaults, |point| plan(Role::Answer, role(false), &point.lane(point.x, 1, 1), 1));
    varied(cases, ["sender", "receiver"], |case, index| {
        let (receives, size) = (index == 1, case.x);
        let (large, small) = (size, SMALL);
        for (job, is_client) in case
            .plan
            .server
            .iter_mut()
            .map(|job| (job, false))
            .chain(case.plan.clients.iter_mut().map(|job| (job, true)))
        {
            if is_client {
                job.role = role(receives);
            }
            if let Some(lane) = &mut job.lane {
                let sends_large = is_client != receives;
                (lane.send_size, lane.receive_size) =
                    if sends_large { (large, small) } else { (small, large) };
            }
        }
    })
}

fn overlap(request: &Request) -> Benchmark {
    Benchmark {
        name: "overlap",
        about: "The longest computation beside an operation that does not make it longer by a \
                tenth, as a share of the operation's time (work - (both - alone)) / alone: of a \
                send until its completion, of a receive until its message.",
        axis: SIZE,
        primary: "overlap",
        cases: one_side(request, LARGE, |receives| Role::Overlap { receives }),
        read: reading::overlap,
    }
}

fn progress(request: &Request) -> Benchmark {
    /// Longer than the measured operations take.
    const WORK_NS: u64 = 3_000_000;
    Benchmark {
        name: "progress",
        about: "What of an exchange is left after the program has computed for 3 ms, against the \
                whole exchange: 100 % if it went on by itself. The side that computes sends the \
                large message and gets a small one back, or the other way round.",
        axis: SIZE,
        primary: "progress",
        cases: one_side(request, &[8 << 10, 256 << 10], |_| Role::Compute { work_ns: WORK_NS }),
        read: reading::progress,
    }
}

fn cpuload(request: &Request) -> Benchmark {
    let mut counts = either(&request.counts, &[1, 2, 4]);
    counts.insert(0, 0);
    let request =
        Request { operations: vec![Operation::Send, Operation::Read], counts, ..request.clone() };
    let cases = by_count(&request, &[], 64, EVENTS, |point, size| {
        let mut plan = exchange(point, &point.lane(size, 1, 1), 1, 0);
        let burner = Job { lane: None, lanes: 1, role: Role::Burn, duration_ms: 0, core: None };
        plan.beside = vec![burner; point.x];
        plan
    });
    Benchmark {
        name: "cpuload",
        about: "Latency while other programs compute on the server's core: messages that the \
                server answers (send), and operations in which it takes no part (read).",
        axis: Axis { name: "programs", unit: "" },
        primary: "p50",
        cases,
        read: reading::latency,
    }
}

fn setup(request: &Request) -> Benchmark {
    setup_over(request, RELIABLE)
}

fn setup_over(request: &Request, over: &[Over]) -> Benchmark {
    let defaults = Defaults { over, operations: SEND, waits: EVENTS, xs: &[1] };
    let cases =
        request.cross(&defaults, |point| plan(Role::Accept, Role::Dial, &point.lane(8, 1, 1), 1));
    Benchmark {
        name: "setup",
        about: "The time from nothing to a connection that the server's program has accepted: \
                rdma_cm for queue pairs, connect and a byte each way for sockets. The rate \
                includes the parting.",
        axis: Axis { name: "at once", unit: "" },
        primary: "p50",
        cases: cases
            .into_iter()
            .filter(|case| !case.over.is_lossy() && case.over != Over::Rd)
            .collect(),
        read: reading::setup,
    }
}

fn markers(request: &Request) -> Benchmark {
    let xs = &either(&request.sizes, &[1 << 10, 16 << 10, 256 << 10]);
    let over = if request.common.over.is_empty() { TCP_ONLY.to_vec() } else { Vec::new() };
    let defaults = Defaults { over: &over, operations: SEND, waits: POLL, xs };
    let window = request.window(WINDOW);
    let cases =
        request.cross(&defaults, |point| flow(point, &point.lane(point.x, window, 1), Way::Out, 1));
    let cases = cases.into_iter().filter(|case| case.over.has_queue_pairs()).collect();
    let variants = ["plain", "CRC", "markers", "markers and CRC"];
    Benchmark {
        name: "markers",
        about: "Messages one way without pause over TCP, with a marker each 512 bytes of the \
                stream, with the CRC32C of each frame, with both, and with neither (RFC 5044).",
        axis: SIZE,
        primary: "bandwidth",
        cases: varied(cases, variants, |case, index| {
            let mut set = |name: &str, on: bool| {
                case.plan.environment.push((name.into(), u8::from(on).to_string()));
            };
            set("WEFT_CRC", index & 1 != 0);
            set("WEFT_MARKERS", index & 2 != 0);
        }),
        read: reading::throughput,
    }
}

fn memory(request: &Request) -> Benchmark {
    let cases = by_count(request, &[64, 256, 1024], 64, EVENTS, |point, size| {
        exchange(point, &point.lane(size, 1, point.x), 1, 0)
    });
    Benchmark {
        name: "memory",
        about: "Private memory in RAM of each end, by connection, after messages have gone over \
                all of them. What the kernel holds for a socket is not in it.",
        axis: CONNECTIONS,
        primary: "server",
        cases,
        read: reading::memory,
    }
}

fn waiting(request: &Request) -> Benchmark {
    let xs = &either(&request.gaps, &[1, 10, 100, 1_000, 10_000]);
    let waits = &[Wait::Poll, Wait::Latency, Wait::Balanced, Wait::Cpu];
    let over = &[Over::Rc, Over::RcTcp, Over::TcpSockets];
    let defaults = Defaults { over, operations: SEND, waits, xs };
    let size = request.sizes.first().copied().unwrap_or(64);
    let cases = request
        .cross(&defaults, |point| exchange(point, &point.lane(size, 1, 1), 1, point.x as u64));
    Benchmark {
        name: "waiting",
        about: "Latency and the processor time that waiting takes, over the time between an answer \
                and the next message: polling, or blocking under the engine's policies.",
        axis: Axis { name: "gap", unit: "us" },
        primary: "p50",
        cases,
        read: reading::waiting,
    }
}

/// Returns cases with long one-way messages over a TCP socket. A number decides what the sender
/// does between two messages, as in [`Role::Produce`].
fn produced(
    request: &Request,
    numbers: &[usize],
    (size, variant): (usize, &'static str),
    role: impl Fn(usize) -> Role,
) -> Vec<Case> {
    let defaults = Defaults { over: COPIES, operations: SEND, waits: EVENTS, xs: numbers };
    let cases = request.cross(&defaults, |point| {
        let lane = point.lane(size, request.window(1), 1);
        let receiver = Role::Stream { operation: Operation::Send, ways: vec![Way::In] };
        plan(receiver, role(point.x), &lane, 1)
    });
    let cases = cases.into_iter().filter(|case| case.over.is_tcp());
    cases.map(|case| Case { variant, ..case }).collect()
}

/// Benchmarks of the paths for long messages: copied twice, once, or once while the program
/// continues.
fn zero_copy(request: &Request) -> Vec<Benchmark> {
    const SIZES: [(usize, &str); 2] = [(64 << 10, "64 KiB"), (1 << 20, "1 MiB")];
    let asked = |size| request.sizes.is_empty() || request.sizes.contains(&size);
    let both = |numbers: &[usize], role: fn(usize) -> Role| {
        let sizes = SIZES.into_iter().filter(|&(size, _)| asked(size));
        sizes.flat_map(|size| produced(request, numbers, size, role)).collect()
    };
    let xs = &either(&request.sizes, &[16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20]);
    let defaults = Defaults { over: COPIES, operations: SEND, waits: EVENTS, xs };
    let by_size = request.cross(&defaults, |point| {
        flow(point, &point.lane(point.x, request.window(1), 1), Way::Out, 1)
    });
    vec![
        Benchmark {
            name: "sockets zero copy",
            about: "Long messages one way without pause over a TCP socket, from one buffer that \
                    stays as it is.",
            axis: SIZE,
            primary: "bandwidth",
            cases: by_size.into_iter().filter(|case| case.over.is_tcp()).collect(),
            read: reading::throughput,
        },
        Benchmark {
            name: "sockets overlap",
            about: "The same with a computation after each message: what the transfer leaves of \
                    the time.",
            axis: Axis { name: "computation", unit: "us" },
            primary: "bandwidth",
            cases: both(&[0, 30, 100, 200], |us| Role::Produce {
                work_ns: us as u64 * 1_000,
                touch_every: 0,
            }),
            read: reading::throughput,
        },
        Benchmark {
            name: "sockets touch",
            about: "The same from a buffer that is written to after every W messages, whether the \
                    receiver has them or not.",
            axis: Axis { name: "W", unit: "" },
            primary: "bandwidth",
            cases: both(&[1, 8, 64], |touch_every| Role::Produce { work_ns: 0, touch_every }),
            read: reading::throughput,
        },
    ]
}

fn sockets(request: &Request) -> Vec<Benchmark> {
    let xs = &either(&request.sizes, &[1, 64, 1 << 10, 8 << 10, 64 << 10, 1 << 20]);
    let cases = |plan: &dyn Fn(Point) -> Plan| {
        let defaults = Defaults { over: TCP_SOCKETS, operations: SEND, waits: EVENTS, xs };
        let cases = request.cross(&defaults, plan);
        cases.into_iter().filter(|case| case.over.is_tcp()).collect::<Vec<_>>()
    };
    let lane = |point: Point| point.lane(point.x, request.window(1), 1);
    let mut benchmarks = vec![
        Benchmark {
            name: "sockets latency",
            about: "A message and its answer over a TCP socket, halved: in the kernel, and with \
                    Weft in shared memory, under both kinds of flow control.",
            axis: SIZE,
            primary: "p50",
            cases: cases(&|point| exchange(point, &lane(point), 1, 0)),
            read: reading::latency,
        },
        Benchmark {
            name: "sockets throughput",
            about: "Messages one way without pause over a TCP socket, one call for each, counted \
                    where they arrive.",
            axis: SIZE,
            primary: "bandwidth",
            cases: cases(&|point| flow(point, &lane(point), Way::Out, 1)),
            read: reading::throughput,
        },
        Benchmark {
            name: "sockets buffers",
            about: "How much of the buffers of a TCP socket messages fill before their sender has \
                    to wait for a receiver that takes nothing. The kernel's are both sockets', as \
                    long as they have grown by then; they hold headers, too.",
            axis: SIZE,
            primary: "utilisation",
            cases: cases(&|point| plan(Role::Target, Role::Fill, &lane(point), 1)),
            read: reading::buffers,
        },
        Benchmark {
            name: "sockets setup",
            about: "Connecting, a byte each way, and parting, one connection after the other; \
                    percentiles are of the time to the answer. A connection's first bytes go \
                    through the kernel, with Weft, too.",
            primary: "rate",
            ..setup_over(request, TCP_SOCKETS)
        },
    ];
    // Benchmarks of long messages exist for some sizes only.
    benchmarks.extend(zero_copy(request).into_iter().filter(|bench| !bench.cases.is_empty()));
    benchmarks
}

fn all(request: &Request) -> Vec<Benchmark> {
    let with = |sizes: &[usize], counts: &[usize]| Request {
        sizes: sizes.to_vec(),
        counts: counts.to_vec(),
        ..request.clone()
    };
    let one_k = Request { gaps: vec![10, 1_000], ..request.clone() };
    let mut all = vec![
        latency(&with(&[8, 4 << 10], &[])),
        bandwidth(&with(&[64 << 10], &[])),
        bibandwidth(&with(&[64 << 10], &[])),
        rate(&with(&[64], &[])),
        streams(&with(&[], &[1, 4])),
        hotspot(&with(&[], &[4])),
        fanin(&with(&[], &[4])),
        fanout(&with(&[], &[4])),
        dual(&with(&[], &[4])),
    ];
    all.extend(connections(&with(&[], &[1, 8])));
    all.extend([
        registration(&with(&[4 << 10, 1 << 20], &[])),
        reuse(&with(&[64 << 10], &[])),
        overlap(&with(&[64 << 10], &[])),
        progress(&with(&[256 << 10], &[])),
        cpuload(&with(&[], &[2])),
        setup(request),
        memory(&with(&[], &[64])),
        waiting(&one_k),
    ]);
    all
}
