//! The command line of `weft tuples`.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum, ValueHint};
use weft_tuples::limits::{CONNECTIONS_MAX, LOG_LEN_MAX, MEMORY_MAX, PORT};
use weft_tuples::native::Address;

use super::size::bytes;

#[derive(Debug, Args)]
pub(crate) struct TuplesArgs {
    #[command(subcommand)]
    pub(crate) command: TuplesCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TuplesCommand {
    /// Serve a tuple space until the process is ended
    Serve(TuplesServeArgs),
    /// Make an element that is ordered, or that makes operations wait
    Create(TuplesCreateArgs),
    /// Put tuples into an element, and wait while it is full
    Put(TuplesPutArgs),
    /// Take tuples out of an element, and wait for them
    Take(TuplesTakeArgs),
    /// Print tuples as they are put into elements, and leave them there
    Watch(TuplesWatchArgs),
    /// List the elements, or the tuples of one element
    List(TuplesListArgs),
    /// Print the last tuple of an element, without the server's help
    Tail(TuplesTailArgs),
    /// Delete an element with its tuples
    Delete(TuplesDeleteArgs),
    /// Measure the time of puts into a running server, and of a ping-pong
    Bench(TuplesBenchArgs),
}

#[derive(Debug, Args)]
#[command(
    after_help = "Clients are the other commands of `weft tuples`, and programs that speak the \
    Redis protocol, with the commands for lists and streams (docs/tuples.md). Both use the same \
    port and see the same tuples.\n\n\
    Everyone who reaches the port may do everything, unless there is a token or there are users. \
    Unix sockets are for this user and root, and for those of --allow-user."
)]
pub(crate) struct TuplesServeArgs {
    /// Where to listen: ADDRESS:PORT, or unix:PATH for a Unix socket alone
    ///
    /// By default at 127.0.0.1:7417, for clients of this host only, or where the file of --replicas
    /// says that clients find this server.
    #[arg(short, long, value_name = "ADDRESS", value_parser = listen)]
    pub(crate) listen: Option<TuplesListen>,

    /// File with a token that clients have to show, of 16 bytes or more
    ///
    /// Only its owner may read it. Clients give it by an option of the same name, and by the Redis
    /// protocol as the password. A client has 10 seconds for it.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) token_file: Option<PathBuf>,

    /// TOML file with users, each with a token and the elements that it may read and change
    ///
    /// `[[user]]` with `name`, `token`, and `read` and `write`, which are lists of what the names
    /// of elements begin with. Only its owner may read it.
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "token_file",
        value_hint = ValueHint::FilePath
    )]
    pub(crate) users: Option<PathBuf>,

    /// PEM file with the certificate of the server, for TLS: all TCP connections are encrypted then
    ///
    /// Those of the authorities between it and the one that clients trust follow it.
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_key",
        value_hint = ValueHint::FilePath
    )]
    pub(crate) tls_cert: Option<PathBuf>,
    /// PEM file with the key of the certificate, which only its owner may read
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_cert",
        value_hint = ValueHint::FilePath
    )]
    pub(crate) tls_key: Option<PathBuf>,

    /// Listen where other hosts can reach the server, although there is no token or no TLS
    ///
    /// With it the server listens by the fabric there, too, in clear.
    #[arg(long)]
    pub(crate) insecure: bool,

    /// Do not listen by the fabric
    ///
    /// By itself the server listens by the fabric, too, at the same address and port. Clients of
    /// this host then share memory with it, and others come by iWARP.
    #[arg(long)]
    pub(crate) no_fabric: bool,

    /// Unix socket to listen at, too
    #[arg(long, value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    pub(crate) unix: Option<PathBuf>,

    /// Number of another user that may connect by the Unix sockets (`id -u NAME`); may be repeated
    ///
    /// By itself only the user of the server and root may.
    #[arg(long, value_name = "UID")]
    pub(crate) allow_user: Vec<u32>,

    /// The most memory for tuples: 500M, 4G
    #[arg(long, value_name = "SIZE", value_parser = bytes, default_value_t = MEMORY_MAX as u64)]
    pub(crate) memory: u64,

    /// Directory in which tuples outlive the server; they are in memory alone by default
    ///
    /// A put, take or other operation is answered when it is on disk. The directory is for one
    /// server.
    #[arg(long, value_name = "DIRECTORY", value_hint = ValueHint::DirPath)]
    pub(crate) state: Option<PathBuf>,

    /// File that describes the servers which keep the space together; this is one of them
    ///
    /// It listens where the file says, unless there is --listen. A put, take or other operation is
    /// answered when it is on the disks of a majority.
    #[arg(
        long,
        value_name = "FILE",
        requires = "state",
        requires = "name",
        value_hint = ValueHint::FilePath
    )]
    pub(crate) replicas: Option<PathBuf>,
    /// Name of this server in the file of --replicas
    #[arg(long, value_name = "NAME", requires = "replicas")]
    pub(crate) name: Option<String>,
    /// Write a snapshot when the log in the directory has grown by this: 500M, 4G
    ///
    /// It must also have grown by the length of the last snapshot.
    #[arg(
        long,
        value_name = "SIZE",
        requires = "state",
        value_parser = bytes,
        default_value_t = LOG_LEN_MAX
    )]
    pub(crate) log_size: u64,

    /// The most connections; more are closed at once
    #[arg(
        long,
        value_name = "N",
        default_value_t = CONNECTIONS_MAX as u32,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000)
    )]
    pub(crate) connections: u32,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TuplesListen {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// The server that is asked.
#[derive(Debug, Args)]
pub(crate) struct TuplesServerArgs {
    /// Where the server is: ADDRESS:PORT, tls://ADDRESS:PORT, fabric://ADDRESS:PORT, or the path of
    /// its Unix socket with a slash in it
    ///
    /// By the fabric, operations go through memory that both processes share if they are on one
    /// host, and by iWARP between hosts. If that is not possible, the command says why, and goes on
    /// over TCP. Several servers that keep a space together are separated by commas.
    #[arg(
        short,
        long,
        value_name = "SERVER",
        default_value_t = Address::Tcp(format!("127.0.0.1:{PORT}"))
    )]
    pub(crate) server: Address,

    /// File with the token of the server, which only its owner may read
    ///
    /// By default that of the environment variable WEFT_TUPLES_TOKEN_FILE, if it is set.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) token_file: Option<PathBuf>,

    /// PEM file with the certificate of a server by TLS, or of the authority that has issued it
    ///
    /// By default that of the environment variable WEFT_TUPLES_CA_FILE, if it is set.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) tls_ca: Option<PathBuf>,

    /// Time to connect again after a connection is lost, in seconds
    ///
    /// The operation is repeated then, and takes effect once.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = seconds)]
    pub(crate) retry: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TuplesOrder {
    /// As they arrive
    Arrival,
    /// By their keys
    Key,
    /// By their time stamps
    Time,
}

#[derive(Debug, Args)]
pub(crate) struct TuplesCreateArgs {
    #[command(flatten)]
    pub(crate) server: TuplesServerArgs,

    /// Name of the element
    pub(crate) element: OsString,

    /// The order of its tuples
    #[arg(long, value_enum, default_value = "arrival")]
    pub(crate) order: TuplesOrder,

    /// The most tuples: a put waits until there is a place
    #[arg(long, value_name = "N", group = "sync")]
    pub(crate) bound: Option<u32>,

    /// The most tuples that are neither taken nor watched: a put waits until there are fewer
    #[arg(long, value_name = "N", group = "sync")]
    pub(crate) unread: Option<u32>,

    /// Tuples are taken in groups of just this many
    #[arg(long, value_name = "N", group = "sync")]
    pub(crate) exactly: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct TuplesPutArgs {
    #[command(flatten)]
    pub(crate) server: TuplesServerArgs,

    /// Name of the element, which is made if there is none
    pub(crate) element: OsString,

    /// Tuples of one field; each line of standard input is one if there are none
    pub(crate) values: Vec<OsString>,

    /// Their key, in an element that is ordered by keys
    #[arg(long, default_value = "")]
    pub(crate) key: OsString,

    /// Put them before the first tuple
    #[arg(long)]
    pub(crate) front: bool,

    /// How long to wait, in seconds; for ever by default
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(after_help = "Each tuple is printed as a line, with tabs between its fields.\n\
    Exit status: 1 if there were no tuples in the time.")]
pub(crate) struct TuplesTakeArgs {
    #[command(flatten)]
    pub(crate) server: TuplesServerArgs,

    /// Names of elements; the first one that has tuples serves
    #[arg(required = true)]
    pub(crate) elements: Vec<OsString>,

    /// The most tuples
    #[arg(short = 'n', long, value_name = "N", default_value_t = 1)]
    pub(crate) count: u32,

    /// Wait until there are this many, and take all of them
    #[arg(long)]
    pub(crate) exactly: bool,

    /// Take the last tuples, the last one first
    #[arg(long)]
    pub(crate) back: bool,

    /// How long to wait, in seconds; for ever by default
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub(crate) timeout: Option<Duration>,
}

#[derive(Debug, Args)]
pub(crate) struct TuplesWatchArgs {
    #[command(flatten)]
    pub(crate) server: TuplesServerArgs,

    /// Names of elements
    #[arg(required = true)]
    pub(crate) elements: Vec<OsString>,

    /// End after this many tuples
    #[arg(short = 'n', long, value_name = "N")]
    pub(crate) count: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct TuplesListArgs {
    #[command(flatten)]
    pub(crate) server: TuplesServerArgs,

    /// Print the tuples of this element, which stay there
    pub(crate) element: Option<OsString>,

    /// Print the elements as JSON
    #[arg(long, conflicts_with = "element")]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The command connects by the fabric, asks once where the tail is, and then reads \
    the memory of the server, which does nothing for it. On one host that works while the server \
    is busy or stopped. The tuple is one that was the last one at some time during the read; it \
    counts as neither observed nor taken.\n\n\
    Exit status: 1 if the element was deleted."
)]
pub(crate) struct TuplesTailArgs {
    #[command(flatten)]
    pub(crate) server: TuplesServerArgs,

    /// Name of the element
    pub(crate) element: OsString,

    /// Go on, and print the last tuple each time that it is another one
    #[arg(short, long)]
    pub(crate) follow: bool,

    /// Time between two reads, in seconds
    #[arg(
        long,
        value_name = "SECONDS",
        requires = "follow",
        default_value = "0.1",
        value_parser = seconds
    )]
    pub(crate) interval: Duration,

    /// Print the number of tuples and the last one as a line of JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TuplesDeleteArgs {
    #[command(flatten)]
    pub(crate) server: TuplesServerArgs,

    /// Name of the element
    pub(crate) element: OsString,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Tuples of 1 byte to 31 KiB are put one after the other into an element of \
    its own, which is deleted after each run. The first run of each size is not counted. In the \
    ping-pong two clients wait for each other's tuple."
)]
pub(crate) struct TuplesBenchArgs {
    #[command(flatten)]
    pub(crate) server: TuplesServerArgs,

    /// Puts of a run, and rounds of the ping-pong
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1_000,
        value_parser = clap::value_parser!(u32).range(1..=100_000)
    )]
    pub(crate) moves: u32,

    /// Runs of each size
    #[arg(
        long,
        value_name = "N",
        default_value_t = 5,
        value_parser = clap::value_parser!(u32).range(1..=100)
    )]
    pub(crate) runs: u32,

    /// Print the times as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn listen(text: &str) -> Result<TuplesListen, String> {
    match text.strip_prefix("unix:") {
        Some("") => Err("no path".into()),
        Some(path) => Ok(TuplesListen::Unix(path.into())),
        None => text.parse().map(TuplesListen::Tcp).map_err(|_| {
            "neither an address with a port nor unix: with the path of a socket".to_owned()
        }),
    }
}
