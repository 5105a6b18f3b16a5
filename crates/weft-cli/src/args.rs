//! The command line: one definition for parsing, help, manual pages and shell completions.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{
    Arg, ArgAction, ArgMatches, Args, FromArgMatches, Parser, Subcommand, ValueEnum, ValueHint,
};
use weft_bench::BenchArgs;

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
        weft run -- redis-cli                    they talk through shared memory\n  \
        eval \"$(weft env)\"                       set up this shell instead of one program\n  \
        weft info                                devices, addresses, limits, transports\n  \
        weft ps; weft dump PID                   what running programs do with the device\n  \
        weft top                                 who talks to whom through shared memory\n  \
        weft bench latency                       how fast it is here, beside plain sockets\n  \
        weft serve DIR                           share a directory with other hosts\n  \
        weft cp -u DIR/ HOST:DIR/                copy what has changed there"
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
    /// Show what programs find here: devices, addresses, limits, transports
    Info(InfoArgs),
    /// List the running processes that use Weft
    Ps(PsArgs),
    /// Show the state and the counters of every queue pair of a running process
    Dump(DumpArgs),
    /// Show the TCP connections of this host that share memory, and what they have done
    Stat(StatArgs),
    /// Show them live: who talks to whom, and how fast
    #[cfg(feature = "tui")]
    Top(TopArgs),
    /// Measure the fabric, beside plain sockets in the same run
    Bench(BenchArgs),
    /// Copy files and trees: on this host, and to and from hosts that run `weft serve`
    Cp(CpArgs),
    /// Share directories with `weft cp` on other hosts
    Serve(ServeArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
    /// Write the manual pages into a directory
    Man(ManArgs),
}

#[derive(Debug, Args)]
#[command(override_usage = "weft run [OPTIONS] [--] PROGRAM [ARGS]...")]
#[command(after_help = "PROGRAM replaces weft, so its exit status and signals are its own.\n\
    Exit status of weft itself: 127 if PROGRAM is not found, 126 if it cannot run on Weft.")]
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

impl RunArgs {
    /// Returns the arguments of a call without options: `weft run PROGRAM ...` or `weft run --
    /// PROGRAM ...`. Building the definition of all commands takes a quarter of a millisecond,
    /// which this saves for each such program start. `None`: the arguments have to be parsed.
    pub(crate) fn plain(words: impl Iterator<Item = OsString>) -> Option<Self> {
        let mut words = words.skip(1);
        if words.next()? != "run" {
            return None;
        }
        let first = words.next()?;
        let program = if first == "--" { words.next()? } else { first.clone() };
        if first != "--" && first.as_encoded_bytes().starts_with(b"-") {
            return None;
        }
        let command: Vec<_> = std::iter::once(program).chain(words).collect();
        let is_doubtful = command[0].is_empty() || command.iter().any(|word| word == "--");
        (!is_doubtful).then(|| Self {
            device: DeviceArgs::default(),
            command,
            sockets: SocketArgs::default(),
        })
    }
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
    /// Network interface to offer as a device, first one first; all of them by default
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

    /// How a sender knows that there is room
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
    /// Where it pays; the default
    Auto,
    /// Never
    Off,
    /// Wherever it is possible
    Sync,
    /// Likewise, without waiting for it
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

    /// Print again and again, with what went in each interval
    #[arg(long, value_name = "SECS", value_parser = interval)]
    pub(crate) watch: Option<Duration>,
}

#[cfg(feature = "tui")]
#[derive(Debug, Args)]
#[command(after_help = "Keys:\n  \
    q, Esc, Ctrl-C     quit\n  \
    Tab, p             connections or processes\n  \
    <, >, Left, Right  the column to sort by\n  \
    r                  the other way round\n  \
    Space              pause\n  \
    -, +               a shorter, a longer interval\n  \
    j, k, Up, Down     scroll; PageUp, PageDown, Home, End")]
pub(crate) struct TopArgs {
    /// Time between two looks
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

/// Parses a time in seconds that is neither a busy loop nor endless.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.1..=3600.0).contains(&seconds) {
        return Err("from 0.1 to 3600 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

#[derive(Debug, Args)]
#[command(override_usage = "weft cp [OPTIONS] SOURCE... DESTINATION")]
#[command(
    after_help = "A place is a path, HOST:SHARE/PATH, or HOST:PORT//SHARE/PATH; [ADDRESS] for \
    an IPv6 address.\nWith --rsh it is a path or [USER@]HOST:PATH.\n\
    One of the two sides is on this host. A directory goes into \
    DESTINATION, which is made if it is not there;\nwith a slash behind it, only what is in \
    it does. A file goes into DESTINATION if that is a directory.\n\
    Exit status: 0 all is copied, 1 the copy failed, 2 the arguments are wrong, 3 some entries \
    could not be copied."
)]
pub(crate) struct CpArgs {
    /// What to copy, and where to
    #[arg(
        required_unless_present = "show_key",
        num_args = 2..,
        value_name = "PLACE",
        value_hint = ValueHint::AnyPath
    )]
    pub(crate) paths: Vec<OsString>,

    /// Say what would be copied, updated and deleted, and change nothing at either end
    ///
    /// A line for each entry of the destination that would change, in no particular order: `copy`
    /// (it is not there), `update` (something else is in its place), `attributes` (only owner,
    /// mode or time differ), `delete`. A file is taken for the same only with --skip-unchanged or
    /// --resume.
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,

    /// Go on with a copy that was broken off: use what it has left, and skip what is unchanged
    ///
    /// The destination keeps a journal while it copies.
    #[arg(long)]
    pub(crate) resume: bool,

    /// Leave out files whose size and time are the same at the destination
    #[arg(short = 'u', long)]
    pub(crate) skip_unchanged: bool,

    /// Delete what is in directories of the destination and not at the source
    #[arg(long)]
    pub(crate) delete: bool,

    #[command(flatten)]
    pub(crate) filters: Filters,

    /// Compare BLAKE3 digests of all data at the destination
    #[arg(long)]
    pub(crate) verify: bool,

    /// Keep owners and groups, where the destination may set them
    #[arg(long)]
    pub(crate) owners: bool,

    /// Keep extended attributes
    #[arg(long)]
    pub(crate) xattrs: bool,

    /// Copy at most so many bytes a second: 500K, 1.5M, 2G of 1024, or 500KB, 2MB of 1000
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) limit: Option<u64>,

    /// Reach the other host by this remote shell, such as ssh, which starts weft there
    ///
    /// The shell is given the host and a command (weft serve --stdio); a quoted part of it is one
    /// argument. It encrypts and says who is who: neither end needs a key or a port of its own.
    #[arg(short = 'e', long, value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    pub(crate) rsh: Option<String>,

    /// The program that the remote shell starts
    #[arg(long, value_name = "PROGRAM", default_value = "weft", requires = "rsh")]
    pub(crate) remote_weft: String,

    /// Trust a server whose key is not known yet, and remember its key
    #[arg(long)]
    pub(crate) accept_new: bool,

    /// Print this user's public key, for the file of authorised clients at a server
    #[arg(long, conflicts_with = "paths")]
    pub(crate) show_key: bool,

    /// Print events as JSON, one a line
    #[arg(long)]
    pub(crate) json: bool,

    /// Print problems only
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// The lowest rate. One block then takes many seconds, but less than the other end's timeout.
const RATE_MIN: u64 = 8 << 10;

/// Parses a rate in bytes a second.
fn rate(text: &str) -> Result<u64, String> {
    let number = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit: f64 = match &text[number.len()..].to_ascii_uppercase()[..] {
        "" | "B" => 1.0,
        "K" | "KIB" => 1024.0,
        "M" | "MIB" => 1024.0 * 1024.0,
        "G" | "GIB" => 1024.0 * 1024.0 * 1024.0,
        "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        unit => return Err(format!("no unit: {unit}")),
    };
    let number: f64 = number.parse().map_err(|_| "not a number of bytes".to_owned())?;
    let rate = number * unit;
    if !(RATE_MIN as f64..=1e15).contains(&rate) {
        return Err("from 8K on".to_owned());
    }
    Ok(rate as u64)
}

/// The names of a tree that are copied: rules in the order of the command line.
#[derive(Debug, Default)]
pub(crate) struct Filters(pub(crate) Vec<Filter>);

/// An option that includes or excludes names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Filter {
    /// Includes or excludes the names that match the pattern.
    Pattern { includes: bool, pattern: String },
    /// Includes or excludes names by a file of patterns, one a line.
    File { includes: bool, path: PathBuf },
}

const INCLUDE: &str = "include";
const EXCLUDE: &str = "exclude";
const INCLUDE_FROM: &str = "include-from";
const EXCLUDE_FROM: &str = "exclude-from";

impl FromArgMatches for Filters {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut all = Vec::new();
        for (name, includes) in [(INCLUDE, true), (EXCLUDE, false)] {
            let indices = matches.indices_of(name).into_iter().flatten();
            let patterns = matches.get_many::<String>(name).into_iter().flatten().cloned();
            let filters = patterns.map(|pattern| Filter::Pattern { includes, pattern });
            all.extend(indices.zip(filters));
        }
        for (name, includes) in [(INCLUDE_FROM, true), (EXCLUDE_FROM, false)] {
            let indices = matches.indices_of(name).into_iter().flatten();
            let paths = matches.get_many::<PathBuf>(name).into_iter().flatten().cloned();
            all.extend(indices.zip(paths.map(|path| Filter::File { includes, path })));
        }
        all.sort_by_key(|(index, _)| *index);
        Ok(Self(all.into_iter().map(|(_, filter)| filter).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for Filters {
    fn augment_args(command: clap::Command) -> clap::Command {
        let arg = |name: &'static str| Arg::new(name).long(name).action(ArgAction::Append);
        let pattern = |name| arg(name).value_name("PATTERN");
        let file = |name| {
            let parser = clap::value_parser!(PathBuf);
            arg(name).value_name("FILE").value_hint(ValueHint::FilePath).value_parser(parser)
        };
        command
            .arg(
                pattern(EXCLUDE)
                    .help("Leave out names that fit this pattern; may be repeated")
                    .long_help(
                        "Leave out names that fit this pattern; may be repeated\n\n\
                Of all --exclude and --include in their order, the first that fits a name \
                decides. A name that none fits is copied. What is in a directory that is left out \
                is not looked at, and --delete deletes nothing that is left out. `*` and `?` stand \
                for anything but `/`, `**` for anything, `[...]` for one of several characters. A \
                pattern that begins with `/` fits from the top of what is copied on, one that ends \
                in `/` fits directories only. All this is as it is in rsync.",
                    ),
            )
            .arg(
                pattern(INCLUDE).help("Copy names that fit this pattern, whatever patterns follow"),
            )
            .arg(file(EXCLUDE_FROM).help(
                "Leave out names that fit a line of this file; empty lines, and those that begin \
                with # or ;, are none",
            ))
            .arg(file(INCLUDE_FROM).help("The same for names to copy"))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

#[derive(Debug, Args)]
#[command(after_help = "Clients are let in by their keys (weft cp --show-key), one a line in \
    ~/.config/weft/authorised-clients.\nNothing outside of the directories is read or written, \
    whatever links are in them.")]
pub(crate) struct ServeArgs {
    /// Directory to share under its last name, or NAME=DIR
    #[arg(
        required_unless_present = "stdio",
        value_name = "DIR|NAME=DIR",
        value_hint = ValueHint::DirPath
    )]
    pub(crate) directories: Vec<OsString>,

    /// Address to listen at; all of this host by default
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) bind: Option<std::net::IpAddr>,

    /// TCP port to listen at; 0 takes a free one
    #[arg(short, long, default_value_t = weft_transfer::limits::PORT)]
    pub(crate) port: u16,

    /// Do one copy on standard input and output, for `weft cp --rsh`, which starts this
    ///
    /// Without directories it may do whatever this user may. A command of authorized_keys that
    /// names directories keeps clients of ssh to these.
    #[arg(long, conflicts_with_all = ["bind", "port", "authorised", "allow"])]
    pub(crate) stdio: bool,

    /// Let clients read, and not write
    #[arg(long)]
    pub(crate) read_only: bool,

    /// File of the keys of clients that are let in
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) authorised: Option<PathBuf>,

    /// Let the client with this key in; may be repeated
    #[arg(long, value_name = "KEY")]
    pub(crate) allow: Vec<weft_transfer::secure::PublicKey>,
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
    fn fast_path_without_options_matches_the_parser() {
        for line in [
            &["weft", "run", "true"][..],
            &["weft", "run", "--", "true", "-d", "--help"],
            &["weft", "run", "sh", "-c", "echo a b", ""],
            &["weft", "run", "--", "-d"],
        ] {
            let plain = RunArgs::plain(line.iter().map(OsString::from)).expect("no options");
            let Command::Run(parsed) = Weft::try_parse_from(line).unwrap().command else {
                panic!("not a run command: {line:?}");
            };
            assert_eq!(format!("{plain:?}"), format!("{parsed:?}"), "{line:?}");
        }
        for line in [
            &["weft"][..],
            &["weft", "run"],
            &["weft", "run", "--"],
            &["weft", "run", "--help"],
            &["weft", "run", "-d", "lo", "true"],
            &["weft", "run", "env", "--", "true"],
            &["weft", "run", ""],
            &["weft", "info"],
        ] {
            let plain = RunArgs::plain(line.iter().map(OsString::from));
            assert!(plain.is_none(), "{line:?}");
        }
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
    fn rates_have_units() {
        for (text, expected) in [
            ("10000", 10_000),
            ("8K", 8 << 10),
            ("1.5M", 3 << 19),
            ("2GiB", 2 << 30),
            ("500kB", 500_000),
            ("2MB", 2_000_000),
        ] {
            assert_eq!(rate(text), Ok(expected), "{text}");
        }
        for wrong in ["", "M", "1", "8191", "-5M", "nan", "inf", "5T", "5 M", "1e30"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn filters_keep_the_order_of_the_command_line() {
        let line =
            "weft cp --exclude=a --include b --exclude-from f --exclude c --include-from g x y";
        let Command::Cp(args) = Weft::try_parse_from(line.split(' ')).unwrap().command else {
            panic!("not a copy");
        };
        let pattern =
            |includes, pattern: &str| Filter::Pattern { includes, pattern: pattern.into() };
        let file = |includes, path: &str| Filter::File { includes, path: path.into() };
        let expected = [
            pattern(false, "a"),
            pattern(true, "b"),
            file(false, "f"),
            pattern(false, "c"),
            file(true, "g"),
        ];
        assert_eq!(args.filters.0, expected);
    }

    #[test]
    fn intervals_are_bounded() {
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "nan", "inf", "1e9", "x", ""] {
            assert!(interval(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn run_needs_a_program() {
        assert!(Weft::try_parse_from(["weft", "run"]).is_err());
        assert!(Weft::try_parse_from(["weft", "run", "--"]).is_err());
    }
}
