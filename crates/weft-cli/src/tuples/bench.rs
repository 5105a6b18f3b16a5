//! `weft tuples bench`: the time of puts, which the literature calls moves, and of a ping-pong.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, bail};
use rustix::time::{ClockId, clock_gettime};
use serde_json::json;
use weft_sys::nanoseconds;
use weft_tuples::model::{Count, Criteria, ElementEnd, Operation, Outcome, Tuple};
use weft_tuples::native::Client;

use super::ask::{call, connect, name};
use crate::args::{TuplesBenchArgs, TuplesServerArgs};
use crate::output;
use crate::percentile::percentile;

/// Lengths of the tuples in bytes: from the least to those of the literature.
const SIZES: [usize; 9] = [1, 16, 64, 256, 1 << 10, 4 << 10, 8 << 10, 16 << 10, 31 << 10];
/// A partner of a ping-pong that waits so long has lost the other one.
const PARTNER_TIME: Duration = Duration::from_secs(30);

/// The moves of one size: the median of each run in nanoseconds, and all times in order.
struct Moves {
    size: usize,
    medians: Vec<u64>,
    all: Vec<u64>,
}

struct PingPong {
    /// The times of the rounds in nanoseconds, in order.
    rounds: Vec<u64>,
    /// Processor time of both clients for each operation, in nanoseconds.
    cpu: u64,
}

/// Measures a running server.
pub(super) fn bench(args: &TuplesBenchArgs) -> Result<()> {
    let mut client = connect(&args.server)?;
    let element = format!("weft-bench-{}", std::process::id());
    let moves: Result<Vec<Moves>> =
        SIZES.iter().map(|&size| moves(&mut client, &element, size, args)).collect();
    let moves = moves?;
    let ping_pong = ping_pong(&args.server, &element, args.moves)?;
    if args.json {
        let document = as_json(args, &moves, &ping_pong);
        return output::print(&format!("{document:#}\n"));
    }
    let mut table = output::table(["BYTES", "MEDIAN µs", "FASTEST RUN", "SLOWEST RUN", "99 %"]);
    for it in &moves {
        let fastest = it.medians.iter().min().copied().unwrap_or_default();
        let slowest = it.medians.iter().max().copied().unwrap_or_default();
        let times = [middle(&it.all), fastest, slowest, at(&it.all, 990)].map(micros);
        let [median, fastest, slowest, late] = times.map(|time| format!("{time:.1}"));
        table.add_row([it.size.to_string(), median, fastest, slowest, late]);
    }
    let (round, cpu) = (micros(middle(&ping_pong.rounds)), micros(ping_pong.cpu));
    output::print(&format!(
        "{table}\nping-pong of 1 byte: {round:.1} µs a round of four operations, {cpu:.1} µs of \
         the clients' processor time an operation\n"
    ))
}

fn as_json(args: &TuplesBenchArgs, moves: &[Moves], ping_pong: &PingPong) -> serde_json::Value {
    let of_size = |it: &Moves| {
        json!({
            "bytes": it.size,
            "median_us": micros(middle(&it.all)),
            "p99_us": micros(at(&it.all, 990)),
            "medians_of_runs_us": it.medians.iter().copied().map(micros).collect::<Vec<_>>(),
        })
    };
    json!({
        "server": args.server.server.to_string(),
        "moves": args.moves,
        "runs": args.runs,
        "move": moves.iter().map(of_size).collect::<Vec<_>>(),
        "ping_pong": {
            "median_us": micros(middle(&ping_pong.rounds)),
            "p99_us": micros(at(&ping_pong.rounds, 990)),
            "client_cpu_us_per_operation": micros(ping_pong.cpu),
        },
    })
}

/// Moves tuples of a size into an element, and deletes it after each run.
fn moves(client: &mut Client, element: &str, size: usize, args: &TuplesBenchArgs) -> Result<Moves> {
    let mut measured = Moves { size, medians: Vec::new(), all: Vec::new() };
    // The first run warms up.
    for run in 0..=args.runs {
        let mut times = Vec::new();
        for _ in 0..args.moves {
            let operation = put(element, size);
            let start = Instant::now();
            call(client, operation, None)?;
            times.push(nanoseconds(start.elapsed()));
        }
        call(client, Operation::Delete { element: name(element.as_ref()) }, None)?;
        if run != 0 {
            times.sort_unstable();
            measured.medians.push(middle(&times));
            measured.all.extend(times);
        }
    }
    measured.all.sort_unstable();
    Ok(measured)
}

/// Two clients, each of which waits for the other one's tuple.
fn ping_pong(server: &TuplesServerArgs, element: &str, rounds: u32) -> Result<PingPong> {
    let (ping, pong) = (format!("{element}-ping"), format!("{element}-pong"));
    let (mut first, mut second) = (connect(server)?, connect(server)?);
    let cpu_before = cpu()?;
    let mut times = thread::scope(|scope| -> Result<Vec<u64>> {
        let partner = scope.spawn(|| -> Result<()> {
            for _ in 0..rounds {
                take(&mut second, &ping)?;
                call(&mut second, put(&pong, 1), None)?;
            }
            Ok(())
        });
        let mut times = Vec::new();
        for _ in 0..rounds {
            let start = Instant::now();
            call(&mut first, put(&ping, 1), None)?;
            take(&mut first, &pong)?;
            times.push(nanoseconds(start.elapsed()));
        }
        partner.join().map_err(|_| anyhow!("the other client has panicked"))??;
        Ok(times)
    })?;
    let cpu = nanoseconds(cpu()?.saturating_sub(cpu_before)) / (4 * u64::from(rounds));
    times.sort_unstable();
    Ok(PingPong { rounds: times, cpu })
}

fn put(element: &str, size: usize) -> Operation {
    Operation::Put {
        element: name(element.as_ref()),
        criteria: Criteria::default(),
        end: ElementEnd::Back,
        tuples: vec![Tuple::of(vec![b'x'; size])],
        is_append: false,
    }
}

fn take(client: &mut Client, element: &str) -> Result<()> {
    let elements = vec![name(element.as_ref())];
    let take = Operation::Take { elements, end: ElementEnd::Front, count: Count::AtMost(1) };
    match call(client, take, Some(PARTNER_TIME))? {
        Outcome::Taken(..) => Ok(()),
        _ => bail!("the other client has not answered"),
    }
}

/// The processor time of this process.
fn cpu() -> Result<Duration> {
    clock_gettime(ClockId::ProcessCPUTime).try_into().context("the clock of the process")
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1_000.0
}

fn middle(sorted: &[u64]) -> u64 {
    at(sorted, 500)
}

/// The time that this many of a thousand do not exceed.
fn at(sorted: &[u64], per_mille: u64) -> u64 {
    percentile(sorted.iter().map(|&time| (time, 1)), per_mille).unwrap_or_default()
}
