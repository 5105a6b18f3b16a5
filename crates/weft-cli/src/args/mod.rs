//! The command line: one definition for parsing, help, manual pages and shell completions.

mod familiar;
mod filters;
mod interval;
mod list;
mod listening;
mod pipeline;
mod size;
mod target;
mod transfer;
mod tuples;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use weft_bench::BenchArgs;

pub(crate) use filters::{Filter, Filters};
use interval::interval;
pub(crate) use list::LsArgs;
pub(crate) use pipeline::{PipelineArgs, PipelineCommand, PipelineFile, PipelineRunArgs, Schedule};
pub(crate) use size::bytes;
pub(crate) use target::{
    ControlArgs, TargetAddArgs, TargetArgs, TargetCommand, TargetNameArgs, TargetReloadArgs,
    TargetResizeArgs, TargetServeArgs, TargetShowArgs, TargetStatsArgs, TargetTopArgs,
    TargetUnitArgs,
};
pub(crate) use transfer::{
    BetweenServers, Compress, CpArgs, Data, Direct, Networks, ServeArgs, rate,
};
pub(crate) use tuples::{
    TuplesArgs, TuplesBenchArgs, TuplesCommand, TuplesCreateArgs, TuplesDeleteArgs, TuplesListArgs,
    TuplesListen, TuplesOrder, TuplesPutArgs, TuplesServeArgs, TuplesServerArgs, TuplesTailArgs,
    TuplesTakeArgs, TuplesWatchArgs,
};

use crate::sockets;

/// Run unmodified RDMA programs on a machine with no RDMA hardware.
#[derive(Debug, Parser)]
#[command(
    name = "weft",
    version,
    about = "Run unmodified RDMA programs on a machine with no RDMA hardware",
    long_about = "Run unmodified RDMA programs on a machine with no RDMA hardware, and TCP \
        programs of one host through shared memory.\n\n\
        Weft puts its own libibverbs and librdmacm in front of the system's. They offer one RDMA \
        device per network interface and carry its traffic as iWARP over TCP, in user space: \
        no driver, no daemon, no root. TCP connections between two programs on Weft and on one \
        host go through memory that the two share.",
    after_help = "Examples:\n  \
        weft run -- ibv_devinfo                  show the device as a program sees it\n  \
        weft run -- ib_write_bw                  on one host, the server\n  \
        weft run -- ib_write_bw SERVER           on another, the client\n  \
        weft run -d eth0 -- rping -s -a 0.0.0.0  only the device of eth0\n  \
        weft run -- redis-server                 for its clients on this host:\n  \
        weft run -- redis-cli                    they connect through shared memory\n  \
        eval \"$(weft env)\"                       set up this shell instead of one program\n  \
        weft info                                devices, addresses, limits, transports\n  \
        weft ps; weft dump PID                   what running programs do with the device\n  \
        weft top                                 live view of these connections\n  \
        weft bench latency                       how fast it is here, beside plain sockets\n  \
        weft serve DIR                           share a directory with other hosts\n  \
        weft cp -u DIR/ HOST:DIR/                copy what has changed there\n  \
        weft ls HOST:                            list what a host shares\n  \
        weft target serve disk.img               serve a disk to iSCSI initiators\n  \
        weft tuples serve                        share tuples between programs\n  \
        weft pipeline run FILE.toml              run a pipeline of filters"
)]
pub(crate) struct Weft {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a program on Weft: with its RDMA device, and TCP within the host in shared memory
    Run(RunArgs),
    /// Print the variables that `weft run` sets, for a shell to evaluate
    Env(EnvArgs),
    /// Show what programs see on this host: devices, addresses, limits, transports
    Info(InfoArgs),
    /// List the running processes that use Weft
    Ps(PsArgs),
    /// Show the state and the counters of every queue pair of a running process
    Dump(DumpArgs),
    /// Show the TCP connections of this host that share memory, and what they have done
    Stat(StatArgs),
    /// Show these connections live: both ends and the data rate
    #[cfg(feature = "tui")]
    Top(TopArgs),
    /// Measure the fabric, beside plain sockets in the same run
    Bench(BenchArgs),
    /// Copy files and trees: on this host, and to and from hosts that run `weft serve`
    Cp(CpArgs),
    /// List shares and directories of hosts that run `weft serve`, or that a remote shell reaches
    Ls(LsArgs),
    /// Share directories with `weft cp` on other hosts
    Serve(ServeArgs),
    /// Serve block storage over iSCSI
    Target(TargetArgs),
    /// Share ordered tuples between programs, which can wait for them
    Tuples(TuplesArgs),
    /// Run filters that are connected by streams, over several processes and hosts
    Pipeline(PipelineArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write the manual pages into a directory
    Man(ManArgs),
}

#[derive(Debug, Args)]
#[command(override_usage = "weft run [OPTIONS] [--] PROGRAM [ARGS]...")]
#[command(after_help = "PROGRAM replaces weft, so its exit status and signals are its own.\n\
    Exit status of weft itself: 127 if PROGRAM is not found, 126 if it cannot run on Weft. That\n\
    includes programs with more rights than their user: set-user-ID, set-group-ID, or with file\n\
    capabilities.")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    /// The program, looked up in PATH, and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM",
        value_hint = ValueHint::CommandWithArguments
    )]
    pub(crate) command: Vec<OsString>,

    // Declared last: its heading applies to all options after it.
    #[command(flatten)]
    pub(crate) sockets: SocketArgs,
}

#[derive(Debug, Args)]
pub(crate) struct EnvArgs {
    #[command(flatten)]
    pub(crate) device: DeviceArgs,

    /// The syntax to print
    #[arg(long, value_enum, default_value_t = Syntax::Sh)]
    pub(crate) shell: Syntax,

    #[command(flatten)]
    pub(crate) sockets: SocketArgs,
}

/// The device as the program sees it. A missing option leaves its variable as it is.
#[derive(Debug, Default, Args)]
pub(crate) struct DeviceArgs {
    /// Network interface to offer as a device, in the given order; all of them by default
    #[arg(short, long, value_name = "IFNAME|all", value_delimiter = ',')]
    pub(crate) device: Vec<String>,

    /// What kind of device programs see
    #[arg(long, value_enum, value_name = "KIND")]
    pub(crate) present: Option<Presentation>,

    /// Leave out the CRC32C of every frame, where the peer agrees
    #[arg(long)]
    pub(crate) no_crc: bool,

    /// Log to standard error
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub(crate) log: Option<LogLevel>,
}

/// Options for the program's TCP connections to processes of the same host.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "TCP connections within this host")]
pub(crate) struct SocketArgs {
    /// Leave all of them on TCP
    #[arg(long, conflicts_with_all = ["no_verbs", "flow", "zero_copy", "between_hosts", "rules"])]
    pub(crate) no_sockets: bool,

    /// Put them in shared memory, but offer no RDMA device
    #[arg(long, conflicts_with_all = ["device", "present", "no_crc"])]
    pub(crate) no_verbs: bool,

    /// How the sender learns how much buffer space is free
    #[arg(long, value_enum)]
    pub(crate) flow: Option<Flow>,

    /// Whether the receiver fetches large messages from the sender's own buffer
    #[arg(long, value_enum, value_name = "WHEN")]
    pub(crate) zero_copy: Option<ZeroCopy>,

    /// What carries connections to other hosts, and to other network namespaces of this one
    ///
    /// Both ends must have it.
    #[arg(long, value_enum, value_name = "TRANSPORT")]
    pub(crate) between_hosts: Option<BetweenHosts>,

    /// Rules for which connections stay on TCP
    ///
    /// One rule a line, the first that matches decides, and what none matches may leave TCP,
    /// unless it is as brief as those before it:
    /// `use shm|verbs|tcp server|connect|* PROGRAM ADDRESS[/PREFIX]:PORT[-PORT]`. PROGRAM is a file
    /// name, in which `*` and `?` stand for any letters and any one. ADDRESS, the server's own or
    /// the one connected to, is like `192.0.2.1` or `[2001:db8::1]`, or `*`, and so may PORT be.
    /// What follows `#` is a comment.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) rules: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Flow {
    /// Bytes end to end in a ring; the default
    Packed,
    /// A message in each of a number of equal buffers
    Credit,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum ZeroCopy {
    /// Where measurements show a gain; the default
    Auto,
    /// Never
    Off,
    /// Wherever possible
    Sync,
    /// Wherever possible, and `send` returns before the receiver has fetched the message
    Async,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum BetweenHosts {
    /// The kernel's TCP; the default
    Tcp,
    /// Weft's verbs, if the peer has them, too
    Verbs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Presentation {
    /// RoCE version 2: most programs want it; the default
    Roce,
    /// iWARP, which is what goes over the wire
    Iwarp,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum LogLevel {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum Syntax {
    /// POSIX shells: sh, bash, zsh, dash
    Sh,
    Fish,
    Csh,
}

#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PsArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct DumpArgs {
    /// Process to ask, as `weft ps` lists it
    pub(crate) pid: u32,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Default, Args)]
#[command(after_help = CONNECTIONS_SHOWN, after_long_help = stat_help())]
pub(crate) struct StatArgs {
    /// Print JSON; with --watch, a document a line
    #[arg(long)]
    pub(crate) json: bool,

    /// Add up the connections of each process
    #[arg(long, conflicts_with = "json")]
    pub(crate) processes: bool,

    /// Print repeatedly, with the traffic of each interval
    #[arg(long, value_name = "SECS", value_parser = interval)]
    pub(crate) watch: Option<Duration>,
}

#[cfg(feature = "tui")]
#[derive(Debug, Args)]
#[command(after_help = "Keys:\n  \
    q, Esc, Ctrl-C     quit\n  \
    Tab, p             connections or processes\n  \
    <, >, Left, Right  the column to sort by\n  \
    r                  reverse the order\n  \
    Space              pause\n  \
    -, +               a shorter, a longer interval\n  \
    j, k, Up, Down     scroll; PageUp, PageDown, Home, End")]
pub(crate) struct TopArgs {
    /// Time between two updates
    #[arg(short, long, value_name = "SECS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,
}

const CONNECTIONS_SHOWN: &str = "The connections are those of this user, in all registries of \
    WEFT_SHM_DIR (/dev/shm by default).";

const COLUMNS: &str = "\
States: offered (the client offers to share memory), joined (the server has agreed), shared (shared
memory or verbs carry the bytes), fell-back (TCP carries them for good).
STALLS counts how often a sender found no room, WAKEUPS how often it had to wake its peer.";

fn stat_help() -> String {
    format!(
        "{CONNECTIONS_SHOWN}\n\n{COLUMNS}\n\nWhy TCP carries a connection:\n{}",
        sockets::reasons()
    )
}

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    #[arg(value_enum)]
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Directory to write to, made if it does not exist
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn definition_is_consistent() {
        Weft::command().debug_assert();
    }

    #[test]
    fn program_keeps_its_own_options() {
        for line in [
            &["weft", "run", "-d", "eth0,lo", "--", "ib_write_bw", "-d", "mlx5_0", "--help"][..],
            &["weft", "run", "-d", "eth0", "-d", "lo", "ib_write_bw", "-d", "mlx5_0", "--help"],
        ] {
            let Command::Run(args) = Weft::try_parse_from(line).unwrap().command else {
                panic!("not a run command: {line:?}");
            };
            assert_eq!(args.device.device, ["eth0", "lo"]);
            assert_eq!(args.command, ["ib_write_bw", "-d", "mlx5_0", "--help"]);
        }
    }

    #[test]
    fn run_needs_a_program() {
        assert!(Weft::try_parse_from(["weft", "run"]).is_err());
        assert!(Weft::try_parse_from(["weft", "run", "--"]).is_err());
    }
}
