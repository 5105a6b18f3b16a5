//! The command line of `weft bench`.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};

use crate::limits::{CONNECTIONS_MAX, DURATION_MAX, MESSAGE_MAX, WINDOW_MAX};
use crate::plan::{Operation, Over, Wait};

/// Port of `weft bench serve`, by default.
const PORT: u16 = 18_515;

/// Measure the fabric, beside plain sockets in the same run
#[derive(Debug, Args)]
#[command(
    after_help = "Each benchmark starts its two ends as processes of their own, on this host, \
    or the server's end at the `weft bench serve` that --connect names. Rounds take turns over all \
    transports, and results are medians over the rounds. The last column of a table is the result \
    as a multiple of the plain sockets' in the same round.\n\n\
    Examples:\n  \
    weft bench latency                              8 B to 64 KiB, queue pairs and sockets\n  \
    weft bench bandwidth --over rc,unix --op write  RDMA Write beside a Unix socket\n  \
    weft bench waiting --html waiting.html          a report with plots\n  \
    weft bench serve                                on one host, and on another\n  \
    weft bench all --connect HOST --json"
)]
pub struct BenchArgs {
    /// What to measure.
    #[command(subcommand)]
    pub bench: Bench,
}

/// The benchmarks, and the server for remote ends.
#[derive(Debug, Subcommand)]
pub enum Bench {
    /// Half the round trip of a message (send), or the time of an operation (write, read, atomic)
    Latency(BySize),
    /// Messages one way without pause
    Bandwidth(BySize),
    /// Messages both ways without pause
    Bibandwidth(BySize),
    /// Small messages per second
    Rate(BySize),
    /// Several connections, each with a thread of its own at both ends
    Streams(ByCount),
    /// Many clients exchange small messages with one server
    Hotspot(ByCount),
    /// Many clients send to one server without pause
    Fanin(ByCount),
    /// One server sends to many clients without pause
    Fanout(ByCount),
    /// One server receives from half of its clients and sends to the other half
    Dual(ByCount),
    /// One client uses several connections in turn: normalised latency, then throughput
    Connections(ByCount),
    /// The cost to register and deregister memory
    Registration(Sized),
    /// Registration for each message, with and without a cache of registrations
    Regcache(Sized),
    /// The same buffer for each message, every other time, or never
    Reuse(Sized),
    /// The share of an operation's time that the program can compute in
    Overlap(Sized),
    /// Whether an operation goes on while the program computes
    Progress(Sized),
    /// Latency while other programs compute on the server's core
    Cpuload(ByCount),
    /// The time to connect
    Setup(Plain),
    /// What markers and checksums in the stream cost (RFC 5044)
    Markers(Sized),
    /// Memory for each connection
    Memory(ByCount),
    /// Latency against processor time, over the time between messages and the way to wait
    Waiting(Gaps),
    /// TCP sockets of a program on Weft beside those of one without: latency, throughput, use of
    /// buffers, connections
    Sockets(Sized),
    /// A selection of all of these, in a minute or two
    All(Plain),
    /// Serve measurements that another host starts: anybody who connects can make it measure
    Serve(ServeArgs),
    /// One end of a measurement
    #[command(hide = true)]
    Peer,
}

/// How to measure, and how to show it.
#[derive(Debug, Clone, Default, Args)]
pub struct Common {
    /// Transports to compare
    #[arg(long, value_enum, value_delimiter = ',', value_name = "TRANSPORT")]
    pub over: Vec<Over>,

    /// How both ends wait
    #[arg(long, value_enum, value_delimiter = ',', value_name = "HOW")]
    pub wait: Vec<Wait>,

    /// Seconds for each measurement; 0.5 by default
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<Duration>,

    /// Rounds, of which the median counts; 3 by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,

    /// Operations under way at once on a connection, where there are several
    #[arg(long, value_name = "N", value_parser = count_up_to::<WINDOW_MAX>)]
    pub window: Option<usize>,

    /// Cores: the server's, then those that the clients share. By default the first and the others
    #[arg(long, value_delimiter = ',', value_name = "CORES")]
    pub cores: Vec<usize>,

    /// Leave the choice of cores to the kernel
    #[arg(long, conflicts_with = "cores")]
    pub no_pin: bool,

    /// TCP's congestion control, of the sockets and of Weft
    #[arg(long, value_name = "NAME", value_parser = plain_name)]
    pub congestion: Option<String>,

    /// Run the server's end at a `weft bench serve`
    #[arg(long, value_name = "HOST[:PORT]", value_parser = peer, value_hint = ValueHint::Hostname)]
    pub connect: Option<SocketAddr>,

    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,

    /// Print comma-separated values
    #[arg(long)]
    pub csv: bool,

    /// Write a report with plots, one file that needs no other
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub html: Option<PathBuf>,
}

/// A benchmark without parameters of its own.
#[derive(Debug, Args)]
pub struct Plain {
    /// How to measure.
    #[command(flatten)]
    pub common: Common,
}

/// A benchmark that runs for several message sizes.
#[derive(Debug, Args)]
pub struct Sized {
    /// Bytes of a message, with k or M for KiB or MiB
    #[arg(long, value_delimiter = ',', value_name = "SIZES", value_parser = size)]
    pub sizes: Vec<usize>,

    /// How to measure.
    #[command(flatten)]
    pub common: Common,
}

/// A benchmark that runs for several message sizes and supports one-sided operations.
#[derive(Debug, Args)]
pub struct BySize {
    /// What queue pairs do with a message; sockets send
    #[arg(long, value_enum, value_delimiter = ',', value_name = "OPERATION")]
    pub op: Vec<Operation>,

    /// Sizes.
    #[command(flatten)]
    pub sized: Sized,
}

/// A benchmark that runs for several numbers of clients, streams, connections or programs.
#[derive(Debug, Args)]
pub struct ByCount {
    /// How many, one number after the other
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NUMBERS",
        value_parser = count_up_to::<CONNECTIONS_MAX>
    )]
    pub counts: Vec<usize>,

    /// Sizes.
    #[command(flatten)]
    pub sized: Sized,
}

/// A benchmark that runs for several intervals between messages.
#[derive(Debug, Args)]
pub struct Gaps {
    /// Microseconds between an answer and the next message
    #[arg(long, value_delimiter = ',', value_name = "MICROSECONDS")]
    pub gaps: Vec<u32>,

    /// Sizes.
    #[command(flatten)]
    pub sized: Sized,
}

/// Where to serve.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Address and port to listen on
    #[arg(long, value_name = "ADDRESS:PORT", default_value_t = everywhere())]
    pub listen: SocketAddr,
}

fn everywhere() -> SocketAddr {
    SocketAddr::from(([0, 0, 0, 0], PORT))
}

fn size(text: &str) -> Result<usize, String> {
    let unit_at = text.trim_end_matches(|c: char| c.is_ascii_alphabetic()).len();
    let (number, unit) = text.split_at(unit_at);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        _ => return Err(format!("{unit:?} is not a unit: use k or M")),
    };
    let number: usize = number.parse().map_err(|error| format!("{error}"))?;
    let bytes = number.checked_mul(1 << shift).filter(|bytes| (1..=MESSAGE_MAX).contains(bytes));
    bytes.ok_or_else(|| format!("not between 1 and {MESSAGE_MAX} bytes"))
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|error| format!("{error}"))?;
    let duration = Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())?;
    let sound = (Duration::from_millis(1)..=DURATION_MAX).contains(&duration);
    sound.then_some(duration).ok_or_else(|| format!("not between 0.001 and {DURATION_MAX:?}"))
}

fn count_up_to<const MAX: usize>(text: &str) -> Result<usize, String> {
    let count: usize = text.parse().map_err(|error| format!("{error}"))?;
    (1..=MAX).contains(&count).then_some(count).ok_or_else(|| format!("not between 1 and {MAX}"))
}

fn plain_name(text: &str) -> Result<String, String> {
    let plain =
        !text.is_empty() && text.len() < 16 && text.bytes().all(|c| c.is_ascii_alphanumeric());
    plain.then(|| text.to_owned()).ok_or_else(|| "not the name of a congestion control".to_owned())
}

fn peer(text: &str) -> Result<SocketAddr, String> {
    let found = text.to_socket_addrs().or_else(|_| {
        let host = text.trim_start_matches('[').trim_end_matches(']');
        (host, PORT).to_socket_addrs()
    });
    let mut found = found.map_err(|error| error.to_string())?;
    found.next().ok_or_else(|| "the name has no address".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        assert_eq!(size("8"), Ok(8));
        assert_eq!(size("64k"), Ok(65_536));
        assert_eq!(size("1MiB"), Ok(1 << 20));
        for bad in ["", "k", "0", "8q", "65M", "99999999999999999999", "18446744073709551615k"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn durations_and_counts_are_bounded() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for bad in ["0", "-1", "nan", "inf", "1e9"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
        assert_eq!(count_up_to::<8>("8"), Ok(8));
        assert!(count_up_to::<8>("9").is_err() && count_up_to::<8>("0").is_err());
    }

    #[test]
    fn peer_without_a_port_gets_the_default() {
        assert_eq!(peer("127.0.0.1"), Ok(SocketAddr::from(([127, 0, 0, 1], PORT))));
        assert_eq!(peer("127.0.0.1:7"), Ok(SocketAddr::from(([127, 0, 0, 1], 7))));
        assert_eq!(peer("[::1]:7").map(|address| address.port()), Ok(7));
        assert_eq!(peer("::1").map(|address| address.port()), Ok(PORT));
    }
}
