//! UCX: `ucx_perftest` on reliable connections, over shared memory and over TCP, and on unreliable
//! datagrams, on which UCX implements its own reliability.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use weft_lab::endpoint::Port;
use weft_lab::{Program, Stage, ports, scratch, skip_without_namespaces};

const TIMEOUT: Duration = Duration::from_secs(180);

/// Reliable connections. UCX connects them by an exchange of datagrams.
const CONNECTIONS: &str = "rc_v";
const DATAGRAMS: &str = "ud_v";

/// Tests of UCP, the layer that MPI programs use: tagged messages, remote memory, streams and
/// active messages.
const TRANSFERS: [&str; 11] = [
    "tag_lat",
    "tag_bw",
    "tag_sync_lat",
    "tag_sync_bw",
    "ucp_put_lat",
    "ucp_put_bw",
    "ucp_get",
    "stream_lat",
    "stream_bw",
    "ucp_am_lat",
    "ucp_am_bw",
];
/// Bytes of a transfer, and its iterations. UCX sends them inline or in one datagram, in several
/// fragments, and by rendezvous.
const SIZES: [(u32, u32); 5] = [(8, 500), (3_000, 500), (100_000, 50), (1 << 20, 20), (5 << 20, 5)];
/// Inline, in several fragments, and by rendezvous.
const FEW_SIZES: [(u32, u32); 3] = [(8, 50), (100_000, 10), (1 << 20, 5)];

/// Atomics of UCP. It carries them in active messages unless the device has all of add, and, or,
/// xor, swap and compare-and-swap, which no verbs device has.
const ATOMICS: [&str; 4] = ["ucp_add", "ucp_fadd", "ucp_swap", "ucp_cswap"];
const ATOMIC_SIZES: [(u32, u32); 2] = [(4, 500), (8, 500)];

/// Tests of UCT, the layer below, which uses the device's own atomics. An option selects how data
/// gets to the device: inline, through UCX's buffers, or from the program's memory.
const DEVICE_TESTS: [(&str, &str, u32); 12] = [
    ("add_lat", "short", 8),
    ("add_mr", "short", 8),
    ("fadd", "short", 8),
    ("cswap", "short", 8),
    ("am_lat", "short", 16),
    ("am_lat", "shortiov", 32),
    ("am_bw", "bcopy", 4_000),
    ("am_bw", "zcopy", 4_000),
    ("put_lat", "short", 8),
    ("put_bw", "zcopy", 1 << 20),
    ("get", "bcopy", 4_000),
    ("get", "zcopy", 1 << 20),
];

/// Tests that one pair of processes runs in sequence.
#[derive(Default)]
struct Batch {
    lines: String,
    /// The results that the client must report: the name of each test, and its iterations.
    expected: Vec<(String, u32)>,
}

impl Batch {
    /// Combines each of `tests` with each of the sizes and their iterations.
    fn of(tests: &[&str], sizes: &[(u32, u32)]) -> Self {
        let all = tests.iter().flat_map(|test| sizes.iter().map(move |size| (test, size)));
        all.fold(Self::default(), |batch, (test, &(size, count))| {
            batch.with(&format!("{test}/{size}"), &format!("-t {test} -s {size}"), count)
        })
    }

    fn with(mut self, name: &str, options: &str, count: u32) -> Self {
        // Writing to a string cannot fail.
        let _ = writeln!(self.lines, "{name} {options} -n {count} -w 5");
        self.expected.push((name.to_owned(), count));
        self
    }

    fn and(mut self, other: Self) -> Self {
        self.lines += &other.lines;
        self.expected.extend(other.expected);
        self
    }

    /// Each test, but not with each size.
    fn some() -> Self {
        Self::of(&TRANSFERS, &FEW_SIZES).and(Self::of(&ATOMICS, &ATOMIC_SIZES[1..]))
    }

    fn everything() -> Self {
        Self::of(&TRANSFERS, &SIZES).and(Self::of(&ATOMICS, &ATOMIC_SIZES))
    }

    fn of_device() -> Self {
        DEVICE_TESTS.into_iter().fold(Self::default(), |batch, (test, layout, size)| {
            let device = device(&Stage::loopback());
            let options = format!("-x rc_verbs -d {device} -t {test} -D {layout} -s {size}");
            batch.with(&format!("{test}/{layout}"), &options, 200)
        })
    }

    fn file(&self, port: u16) -> Result<PathBuf> {
        let path = scratch("ucx")?.join(format!("{port}.batch"));
        fs::write(&path, &self.lines)?;
        Ok(path)
    }
}

/// The transports that connect both ends.
#[derive(Clone, Copy)]
struct Way {
    /// UCX's transport, for `UCX_TLS`.
    tls: &'static str,
    /// Weft's transport, for `WEFT_TRANSPORT`.
    transport: &'static str,
}

/// Returns the device that connects both ends. Without this choice UCX uses several devices for one
/// large message, and takes a loopback device for one that reaches other hosts.
fn device(stage: &Stage) -> &'static str {
    if stage.pair.is_some() { "weft_weft0:1" } else { "weft_lo:1" }
}

/// Runs a batch by `way`, and checks that each test has done all of its iterations.
fn perftest(stage: &Stage, way: Way, batch: &Batch) -> Result<()> {
    let port = ports::next();
    let program = Program::weft("ucx_perftest")
        .env("UCX_TLS", way.tls)
        .env("WEFT_TRANSPORT", way.transport)
        .env("UCX_NET_DEVICES", device(stage))
        .args(["-p", &port.to_string(), "-b"])
        .arg(batch.file(port)?);
    let client = program.clone().line("-v -f").arg(stage.server_address().to_string());
    let (_, client) = stage.converse(&program, Port::Tcp(port), &client, TIMEOUT)?;
    for (name, count) in &batch.expected {
        let line = client.stdout.lines().find_map(|line| line.strip_prefix(&format!("{name},")));
        let done = line.and_then(|line| line.split(',').next());
        let complete = done.and_then(|done| done.trim().parse().ok()) == Some(*count);
        ensure!(complete, client.error(format!("{name}: not all {count} iterations")));
    }
    Ok(())
}

fn connections(stage: &Stage, transport: &'static str, batch: &Batch) -> Result<()> {
    perftest(stage, Way { tls: CONNECTIONS, transport }, batch)
}

#[test]
fn connections_over_shared_memory() -> Result<()> {
    connections(&Stage::loopback(), "shm", &Batch::some())
}

#[test]
fn connections_over_tcp() -> Result<()> {
    connections(&Stage::loopback(), "tcp", &Batch::some())
}

#[test]
fn connections_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    connections(&Stage::namespaces()?, "auto", &Batch::some())
}

#[test]
#[ignore = "soak: every test with every size"]
fn everything_on_connections() -> Result<()> {
    for transport in ["shm", "tcp"] {
        let done = connections(&Stage::loopback(), transport, &Batch::everything());
        done.context(transport)?;
    }
    skip_without_namespaces!();
    connections(&Stage::namespaces()?, "auto", &Batch::everything())
}

#[test]
fn atomics_of_the_device() -> Result<()> {
    for transport in ["shm", "tcp"] {
        let way = Way { tls: CONNECTIONS, transport };
        perftest(&Stage::loopback(), way, &Batch::of_device()).context(transport)?;
    }
    Ok(())
}

const BY_DATAGRAMS: Way = Way { tls: DATAGRAMS, transport: "auto" };

#[test]
fn datagrams() -> Result<()> {
    perftest(&Stage::loopback(), BY_DATAGRAMS, &Batch::some())
}

#[test]
#[ignore = "soak: every test with every size"]
fn everything_on_datagrams() -> Result<()> {
    perftest(&Stage::loopback(), BY_DATAGRAMS, &Batch::everything())
}

/// If a host is slow to read, its kernel may lose datagrams. UCX sends them again after its timers.
#[test]
#[ignore = "soak: lost datagrams are sent again after long times"]
fn datagrams_across_namespaces() -> Result<()> {
    skip_without_namespaces!();
    perftest(&Stage::namespaces()?, BY_DATAGRAMS, &Batch::everything())
}

/// UCX retransmits lost datagrams.
#[test]
#[ignore = "soak: lost datagrams are sent again after long times"]
fn datagrams_over_a_link_that_loses() -> Result<()> {
    skip_without_namespaces!();
    let stage = Stage::namespaces()?;
    let pair = stage.pair.as_ref().context("no namespaces")?;
    pair.lose_datagrams(1)?;
    // Small sizes: almost every large message would lose a fragment and wait for UCX's timer.
    let batch = Batch::of(&["tag_lat", "tag_bw"], &[(8, 500), (3_000, 500)]);
    perftest(&stage, BY_DATAGRAMS, &batch)?;
    ensure!(pair.datagrams_lost()? > 0, "nothing was lost");
    Ok(())
}
