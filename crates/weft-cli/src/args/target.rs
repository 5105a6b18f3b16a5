//! The command line of `weft target`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueHint};
use weft_target::limits::{
    DRAIN_TIME, LOGIN_TIME_MAX, LOGINS_MAX, LOGINS_PER_ADDRESS_MAX, PORT, SESSIONS_MAX,
};
use weft_target::security::Network;

use super::interval::interval;
use super::listening::ListeningArgs;
use super::size::bytes;

#[derive(Debug, Args)]
pub(crate) struct TargetArgs {
    #[command(subcommand)]
    pub(crate) command: TargetCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TargetCommand {
    /// Serve units until the process is ended
    Serve(Box<TargetServeArgs>),
    /// Add units to a running target
    Add(TargetAddArgs),
    /// List the units of a running target
    List(TargetShowArgs),
    /// Remove a unit from a running target
    ///
    /// Commands that it has are completed, and what was written is flushed. Sessions stay.
    Remove(TargetUnitArgs),
    /// Change the length of a unit of a running target
    Resize(TargetResizeArgs),
    /// Read the file of a running target again, and serve what it says now
    ///
    /// Sessions stay. Units and targets that the file has come, those that it has no more go, also
    /// those of `weft target add`; rules and `sessions` hold for later logins. If anything of the
    /// file cannot be, nothing changes. SIGHUP does the same.
    Reload(TargetReloadArgs),
    /// Show the sessions of a running target, what its units have done, and how long commands took
    ///
    /// Commands of a unit are those that read blocks, those that write them, and all others. P50,
    /// P99 and P99.9 say within which time that share of them was complete, from its arrival until
    /// its status was ready to be sent. They are up to a sixteenth too large.
    /// JSON has the whole histograms.
    Stats(TargetStatsArgs),
    /// Show what the sessions and units of a running target do now, and how long commands take
    ///
    /// All numbers are those of one interval. On a terminal they are renewed in place; otherwise
    /// one interval follows the other.
    Top(TargetTopArgs),
    /// End a running target in order, as SIGTERM does, and wait until it has ended
    Drain(ControlArgs),
}

/// The running target that is asked.
#[derive(Debug, Args)]
pub(crate) struct ControlArgs {
    /// Control socket of the running target, as `weft target serve` has it; by default the one of
    /// the systemd service
    #[arg(
        long,
        value_name = "SOCKET",
        default_value = "/run/weft-target/control",
        value_hint = ValueHint::FilePath
    )]
    pub(crate) control: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct TargetShowArgs {
    #[command(flatten)]
    pub(crate) control: ControlArgs,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TargetReloadArgs {
    #[command(flatten)]
    pub(crate) show: TargetShowArgs,

    /// Only check the file, and show which units it would add and remove
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TargetStatsArgs {
    #[command(flatten)]
    pub(crate) show: TargetShowArgs,

    /// Print counters and histograms in the text format of Prometheus
    #[arg(long, conflicts_with = "json")]
    pub(crate) prometheus: bool,
}

#[derive(Debug, Args)]
pub(crate) struct TargetTopArgs {
    #[command(flatten)]
    pub(crate) control: ControlArgs,

    /// Print one interval as JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Time between two updates
    #[arg(short, long, value_name = "SECS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,
}

/// The target that is meant.
#[derive(Debug, Args)]
pub(crate) struct TargetNameArgs {
    #[command(flatten)]
    pub(crate) control: ControlArgs,

    /// iSCSI name of the target; needed if there are several
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = UNITS)]
pub(crate) struct TargetAddArgs {
    #[command(flatten)]
    pub(crate) target: TargetNameArgs,

    /// Unit to add
    #[arg(required = true, value_name = "UNIT", value_hint = ValueHint::FilePath)]
    pub(crate) units: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct TargetUnitArgs {
    #[command(flatten)]
    pub(crate) target: TargetNameArgs,

    /// Number of the unit
    #[arg(value_name = "LUN")]
    pub(crate) lun: u8,
}

#[derive(Debug, Args)]
pub(crate) struct TargetResizeArgs {
    #[command(flatten)]
    pub(crate) unit: TargetUnitArgs,

    /// New length: 500M, 10G; by default the length that the file or device has now
    ///
    /// A file is made longer or shorter: what is cut off is gone. A device keeps its own length.
    #[arg(value_name = "SIZE", value_parser = bytes)]
    pub(crate) size: Option<u64>,
}

const UNITS: &str = "A unit is STORE[,OPTION]...\n\n\
    Stores:\n  \
    PATH         a file, or a block device\n  \
    ram:SIZE     memory, which is gone with the process\n  \
    null:SIZE    nothing: zeros are read, writes are forgotten\n\n\
    Options:\n  \
    lun=N        its number; the next free one by default\n  \
    block=BYTES  the length of a block, 512 to 4096; 512 by default\n  \
    read-only    writes are refused\n  \
    removable    initiators may eject it\n  \
    write-back   writes are complete before they are safe against loss of power\n  \
    direct       a file is read and written without the kernel's page cache (O_DIRECT)";

#[derive(Debug, Args)]
#[command(after_help = format!("{UNITS}\n\n\
    Without --chap all initiators that reach the port may read and write.\n\n\
    SIGTERM and SIGINT end the target: it accepts no more connections, asks initiators to log out, \
    and makes everything safe. A second one ends it without waiting for initiators."))]
pub(crate) struct TargetServeArgs {
    /// Unit to serve
    #[arg(
        required_unless_present = "config",
        value_name = "UNIT",
        value_hint = ValueHint::FilePath
    )]
    pub(crate) units: Vec<OsString>,

    /// File that describes targets, units, rules and limits
    ///
    /// It stands in the place of all other arguments, except --control and --state, which replace
    /// what it says. The documentation, docs/block-storage.md, has an example with all keys. At
    /// SIGHUP it is read again (weft target reload).
    #[arg(
        long,
        conflicts_with_all = [
            "units", "name", "listen", "iser", "chap", "initiator", "from", "sessions", "logins",
            "logins_per_address", "login_time", "drain_time", "loops", "cache", "announce",
        ],
        value_name = "FILE",
        value_hint = ValueHint::FilePath
    )]
    pub(crate) config: Option<PathBuf>,

    /// iSCSI name of the target
    #[arg(long, value_name = "NAME", default_value = "iqn.2026-01.io.weft:target")]
    pub(crate) name: String,

    #[command(flatten)]
    pub(crate) listening: ListeningArgs<PORT>,

    /// Address of an RDMA device at which to serve iSER, too, at a port of its own
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) iser: Option<std::net::SocketAddr>,

    /// File of the secrets by which initiators log in (CHAP), readable by its owner only
    ///
    /// Initiators without a right secret can neither log in nor see the target's name. The file is
    /// TOML. `[[initiator]]` with `user` and `secret` stands for each account, and `[target]` with
    /// the same two keys for the account by which the target proves itself to initiators that ask
    /// for it. `initiators`, a list of iSCSI names, binds an account to them. A secret has 12 to
    /// 255 bytes.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) chap: Option<PathBuf>,

    /// iSCSI name of an initiator that may log in; may be repeated, and all may by default
    ///
    /// An initiator can claim any name: names keep honest ones apart, secrets keep others out.
    #[arg(long, value_name = "NAME")]
    pub(crate) initiator: Vec<String>,

    /// Network of initiators that may log in: 192.0.2.0/24, 2001:db8::7; may be repeated
    #[arg(long, value_name = "NETWORK")]
    pub(crate) from: Vec<Network>,

    /// The most sessions
    #[arg(
        long,
        value_name = "N",
        default_value_t = SESSIONS_MAX as u32,
        value_parser = clap::value_parser!(u32).range(1..=16_384)
    )]
    pub(crate) sessions: u32,

    /// The most connections that have not logged in; more are closed at once
    #[arg(
        long,
        value_name = "N",
        default_value_t = LOGINS_MAX as u32,
        value_parser = clap::value_parser!(u32).range(1..=65_536)
    )]
    pub(crate) logins: u32,

    /// The most of them from one address, or from one network of 64 bits in IPv6
    #[arg(
        long,
        value_name = "N",
        default_value_t = LOGINS_PER_ADDRESS_MAX as u32,
        value_parser = clap::value_parser!(u32).range(1..=65_536)
    )]
    pub(crate) logins_per_address: u32,

    /// Time in which an initiator has to log in, in seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = LOGIN_TIME_MAX.as_secs() as u16,
        value_parser = clap::value_parser!(u16).range(1..=3_600)
    )]
    pub(crate) login_time: u16,

    /// Time that initiators have to log out when the target ends, in seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = DRAIN_TIME.as_secs() as u16,
        value_parser = clap::value_parser!(u16).range(0..=3_600)
    )]
    pub(crate) drain_time: u16,

    /// Unix socket to make, by which this user can change what is served (weft target add, ...)
    #[arg(long, value_name = "SOCKET", value_hint = ValueHint::FilePath)]
    pub(crate) control: Option<PathBuf>,

    /// Directory in which to keep persistent reservations of initiators that ask for it (APTPL)
    ///
    /// They are there again when the target is started again. The directory is made if it is not
    /// there, and serves one target process at a time.
    #[arg(long, value_name = "DIRECTORY", value_hint = ValueHint::DirPath)]
    pub(crate) state: Option<PathBuf>,

    /// Memory in which to keep blocks that were read or written: 512M, 8G; none by default
    ///
    /// It is allocated at the start, and shared by all units but those in memory. Without it the
    /// kernel keeps what it has memory for. A file must not be changed by others meanwhile.
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) cache: Option<u64>,

    /// Tell initiators at once when units come, go and grow
    ///
    /// Linux then looks for new disks by itself. Other initiators may not understand such messages.
    /// All learn of changes with their next command.
    #[arg(long)]
    pub(crate) announce: bool,

    /// Event loops; one for each core by default
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) loops: Option<u16>,
}
