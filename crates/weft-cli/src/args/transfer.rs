//! The command lines of `weft cp` and `weft serve`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{ArgAction, Args, ValueEnum, ValueHint};

use super::familiar::Familiar;
use super::filters::Filters;
use super::size::bytes;
use crate::limits::{RETRY_SECONDS_MAX, TIMEOUT_SECONDS_MAX};
use weft_transfer::job::{Network, NetworkError};
use weft_transfer::transport::tcp::Congestion;
use weft_transfer::tree::modes::Modes;

#[derive(Debug, Args)]
#[command(override_usage = "weft cp [OPTIONS] SOURCE... DESTINATION")]
#[command(version, args_override_self = true, disable_help_flag = true)]
#[command(
    after_help = "A place is a path, HOST:SHARE/PATH, or HOST:PORT//SHARE/PATH; [ADDRESS] for \
    an IPv6 address.\nWith --rsh it is a path or [USER@]HOST:PATH.\n\
    A directory goes into \
    DESTINATION, which is made if it is not there;\nwith a slash behind it, only what is in \
    it does. A file goes into DESTINATION if that is a directory.\n\
    Options of rsync for what weft cp does anyway are accepted: -r -p -t -l -H -S -W --progress \
    and the like.\n\
    Exit status: 0 all is copied, 1 the copy failed, 2 the arguments are wrong, 3 some entries \
    could not be copied."
)]
pub(crate) struct CpArgs {
    /// What to copy, and where to
    ///
    /// A path, HOST:SHARE/PATH or HOST:PORT//SHARE/PATH; with --rsh, a path, HOST:PATH or
    /// USER@HOST:PATH. `-` is standard input as the only source, and standard output as the
    /// destination of one file. Both places may be on other hosts: with --rsh, that of the sources
    /// copies to the other one; between servers, the data passes through this host.
    #[arg(
        required_unless_present_any = ["show_key", "short_help"],
        num_args = 2..,
        value_name = "PLACE",
        value_hint = ValueHint::AnyPath
    )]
    pub(crate) paths: Vec<OsString>,

    /// Say what would be copied, updated and deleted, and change nothing at either end
    ///
    /// A line for each entry of the destination that would change, in no particular order: `copy`
    /// (it is not there), `update` (something else is in its place), `attributes` (only owner,
    /// mode or time differ), `delete`. A file is taken for the same only with --skip-unchanged,
    /// --update, --checksum, --size-only or --resume.
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,

    /// Keep owners, groups and special files, too, as -a of rsync: --owners --specials
    ///
    /// Modes, times, links and holes are kept without it. It leaves nothing out: see
    /// --skip-unchanged.
    #[arg(short = 'a', long)]
    pub(crate) archive: bool,

    /// Resume an interrupted copy: use what it has left, and skip what is unchanged
    ///
    /// The destination keeps a journal while it copies. Both ends read and compare what is there of
    /// a file before the rest is copied. If the connection is lost meanwhile, `weft
    /// cp` connects again, and goes on.
    #[arg(short = 'P', long, visible_alias = "partial")]
    pub(crate) resume: bool,

    /// With --resume: the seconds for which a lost connection is made again; 0 for none
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u32).range(..=RETRY_SECONDS_MAX),
        default_value = "60",
        requires = "resume"
    )]
    pub(crate) retry_for: u32,

    /// Take the other host for lost after so many seconds without a sign of life; 0: after 40
    ///
    /// `weft cp` asks for one in time, which a host gives that is only busy. With --resume it then
    /// connects again.
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = clap::value_parser!(u32).range(..=TIMEOUT_SECONDS_MAX)
    )]
    pub(crate) timeout: Option<u32>,

    /// Leave out files whose size and time are the same at the destination
    #[arg(long)]
    pub(crate) skip_unchanged: bool,

    /// Leave out files that are newer at the destination, too
    ///
    /// As in rsync and cp, a file is not replaced by an older one. A file with the same size and
    /// time is not copied either.
    #[arg(short = 'u', long)]
    pub(crate) update: bool,

    /// Leave out files whose contents are the same at the destination, whatever their times
    ///
    /// Both ends read all files of equal size, and compare their BLAKE3.
    #[arg(short = 'c', long)]
    pub(crate) checksum: bool,

    /// Leave out files whose size is the same at the destination, whatever their times
    #[arg(long, conflicts_with = "checksum")]
    pub(crate) size_only: bool,

    /// Leave out everything that exists at the destination, except directories
    #[arg(long)]
    pub(crate) ignore_existing: bool,

    /// Write files and directories to the disk before the copy ends
    ///
    /// Without this option the kernel writes them some time later, as after cp and rsync. A crash
    /// of the host can lose recent files until then.
    #[arg(long)]
    pub(crate) fsync: bool,

    /// Delete what is in directories of the destination and not at the source
    #[arg(
        long,
        aliases = ["del", "delete-during", "delete-delay", "delete-after"]
    )]
    pub(crate) delete: bool,

    /// As --delete, but before anything is copied
    ///
    /// For a destination that has no room for both. It looks at the source twice. Without this
    /// option, files for which there was no room are copied after the deletion.
    #[arg(long)]
    pub(crate) delete_before: bool,

    /// With --delete: delete at most this many entries
    ///
    /// What is kept then is counted at the end, and the exit status is 3. Entries that others
    /// replace do not count. A lost connection ends the copy, also with --resume.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) max_delete: Option<u64>,

    /// Replace directories by files and links, and the other way round; --delete does so, too
    #[arg(long)]
    pub(crate) force: bool,

    /// Write into files that exist instead of replacing them
    ///
    /// As in rsync: other names of such a file show what is written, and an interrupted copy leaves
    /// it as it is then. The file has to be writable, and its directory need not be.
    #[arg(long, conflicts_with_all = ["resume", "backup", "backup_dir"])]
    pub(crate) inplace: bool,

    /// Send only what files at the destination lack at their ends, and write it there
    ///
    /// As in rsync: what a file has counts as the beginning of the source's, and a file that is not
    /// shorter stays as it is. Files that do not exist are copied. It implies --inplace and
    /// --skip-unchanged. With --verify it is --append-verify.
    #[arg(long, conflicts_with_all = ["resume", "backup", "backup_dir"])]
    pub(crate) append: bool,

    /// As --append, but both ends compare what is there, and what differs is written again
    #[arg(long, conflicts_with_all = ["resume", "backup", "backup_dir"])]
    pub(crate) append_verify: bool,

    /// Remove files and links from the source when they are at the destination
    ///
    /// As in rsync, one is removed when the destination has it whole, with --fsync on its disk, and
    /// if it has not changed since it was read; directories stay. A lost connection ends the copy,
    /// also with --resume.
    #[arg(long, conflicts_with_all = ["delete", "delete_before"])]
    pub(crate) remove_source_files: bool,

    /// Send of large files only what differs from the version at the destination
    ///
    /// For files from 1 MiB on, of which both ends read their versions. It is the default between
    /// hosts, with an option that leaves files out. As in rsync the new version is another file. It
    /// implies --skip-unchanged. With --inplace, between two servers and within one process files
    /// are sent as a whole.
    #[arg(long, overrides_with = "whole_file")]
    pub(crate) no_whole_file: bool,

    /// Send files that have changed as a whole
    #[arg(short = 'W', long, overrides_with = "no_whole_file")]
    pub(crate) whole_file: bool,

    /// Keep what is replaced or deleted, with a suffix behind its name
    ///
    /// As in rsync: --delete deletes nothing then whose name ends with the suffix, and directories
    /// do not get the times of the source.
    #[arg(short = 'b', long)]
    pub(crate) backup: bool,

    /// With --backup: what is put behind the name, `~` by default, and nothing with --backup-dir
    #[arg(long, value_name = "SUFFIX")]
    pub(crate) suffix: Option<OsString>,

    /// Keep what is replaced or deleted in this directory, with the directories above it
    ///
    /// A relative path begins at the destination. It has to be on the same file system; at a server
    /// it is in the same shared directory, from the top of that if it begins with a slash.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) backup_dir: Option<OsString>,

    /// Link to files of this directory instead of copying equal ones; may be repeated
    ///
    /// As in rsync: files of the same size, time, mode and, with --owners, owner. A relative path
    /// begins at the destination, and at a server the directory is in the same shared directory. It
    /// implies --skip-unchanged.
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) link_dest: Vec<OsString>,

    /// Remove what interrupted copies have left at the destination, also of other copies
    ///
    /// Every copy removes the partial files of the files that it copies, and those that are older
    /// than a week.
    #[arg(long)]
    pub(crate) clean: bool,

    /// Copy sources with the directories that their paths name: a/b/c becomes DESTINATION/a/b/c
    ///
    /// As in rsync, a `/./` in a path marks where the part begins that is kept. All sources are on
    /// this host, and begin in the same directory.
    #[arg(short = 'R', long, visible_alias = "parents", conflicts_with = "files_from")]
    pub(crate) relative: bool,

    /// Copy only the paths in this file, one a line, beneath the only source; `-`: standard input
    ///
    /// As in rsync, the directories above them are made, and what is in a directory is copied only
    /// with -r, or if a slash is behind it. Empty lines, and those that begin with # or ;, are no
    /// paths.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) files_from: Option<PathBuf>,

    /// With --files-from: a zero byte ends each path, and not a line
    #[arg(short = '0', long, requires = "files_from")]
    pub(crate) from0: bool,

    /// Leave out what is mounted in the sources, except the directories themselves
    #[arg(short = 'x', long)]
    pub(crate) one_file_system: bool,

    /// Copy what symbolic links lead to in their place
    ///
    /// As in rsync, a link that leads nowhere is not copied, and the exit status is 3. A link to a
    /// directory that contains it is not followed. At a server, links lead nowhere outside of the
    /// shared directory.
    #[arg(short = 'L', long, visible_alias = "dereference")]
    pub(crate) copy_links: bool,

    #[command(flatten)]
    pub(crate) filters: Filters,

    /// Compare BLAKE3 digests of all data, as it is on the disk of the destination
    ///
    /// Each file is written to the disk and read again, past the page cache where the file system
    /// allows that, before it gets its name. Files that are left out because they are unchanged are
    /// compared, too.
    #[arg(long)]
    pub(crate) verify: bool,

    /// Keep owners and groups, where the destination may set them
    #[arg(long)]
    pub(crate) owners: bool,

    /// With --owners: keep their numbers, also where this host knows their names
    #[arg(long)]
    pub(crate) numeric_ids: bool,

    /// Change the modes of what is copied, as chmod does: u=rwX,go-w; D755,F644 (may be repeated)
    ///
    /// As in rsync: an item that begins with D is for directories, and one with F for everything
    /// else. Items without u, g, o or a leave alone what the umask of this process takes away.
    #[arg(long, value_name = "MODES", value_parser = modes)]
    pub(crate) chmod: Vec<String>,

    /// Copy pipes, sockets and devices, too
    ///
    /// Only root can make devices, and a server makes none.
    #[arg(short = 'D', long, visible_alias = "devices")]
    pub(crate) specials: bool,

    /// Keep extended attributes, ACLs among them
    #[arg(short = 'X', long)]
    pub(crate) xattrs: bool,

    /// Read and write files past the page cache (O_DIRECT): automatically, large ones, or none
    ///
    /// The cache then keeps what other programs need. By default these are files on disks that are
    /// larger than the memory that is available. Where a file system refuses, `weft cp` says so and
    /// copies through the cache.
    #[arg(
        long,
        value_enum,
        value_name = "WHEN",
        num_args = 0..=1,
        require_equals = true,
        default_value = "auto",
        default_missing_value = "always"
    )]
    pub(crate) direct: Direct,

    /// Compress data by Zstandard: while that makes the copy faster, always, or never
    ///
    /// Between two hosts the default is `auto`, and on one host `none`; -z means `zstd`. No file
    /// name matters: `weft cp` measures how much smaller the data becomes, and how fast the
    /// processors and the network are.
    #[arg(
        short = 'z',
        long,
        value_enum,
        value_name = "HOW",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "zstd"
    )]
    pub(crate) compress: Option<Compress>,

    /// Copy at most this many bytes a second: 500K, 1.5M, 2G of 1024, or 500KB, 2MB of 1000
    #[arg(long, value_name = "RATE", value_parser = rate)]
    pub(crate) limit: Option<u64>,

    /// The same as in rsync: a number without a unit is KiB, and 0 is no limit
    #[arg(long, value_name = "RATE", value_parser = rsync_rate, conflicts_with = "limit")]
    pub(crate) bwlimit: Option<u64>,

    /// The congestion control of the sender's TCP connections, such as cubic, reno or bbr
    ///
    /// The kernel of the host that sends the data must have it. By default it is bbr over long
    /// paths where the kernel has it, and otherwise the system's.
    #[arg(long, value_name = "NAME", value_parser = congestion)]
    pub(crate) congestion: Option<Congestion>,

    /// Take no more of the network than one connection of another program
    ///
    /// The data goes by one TCP connection with the congestion control of the system, or that of
    /// --congestion.
    #[arg(long)]
    pub(crate) fair_share: bool,

    /// Reach the other host by this remote shell, such as ssh, which starts weft there
    ///
    /// The shell is given the host and a command (weft serve --stdio); a quoted part of it is one
    /// argument. It encrypts and authenticates: neither end needs a key or a port of its own.
    #[arg(short = 'e', long, value_name = "COMMAND", value_hint = ValueHint::CommandString)]
    pub(crate) rsh: Option<String>,

    /// Which way the data goes between hosts
    ///
    /// To or from a server, `auto` takes RDMA if the server offers it (weft serve --rdma) and a
    /// device of this host leads there, and otherwise TCP. With --rsh, the data goes by TCP if the
    /// other host can be reached, and otherwise through the shell. By TCP it does not pass through
    /// the shell: both ends encrypt it, with a key that they exchange through the shell.
    #[arg(long, value_enum, value_name = "WAY", default_value = "auto")]
    pub(crate) data: Data,

    /// Which way the data goes between two servers
    ///
    /// By `auto`, the source's server connects to the destination's, if it may do that (weft serve
    /// --third-party) and can reach it. Otherwise the data goes through this host, and the summary
    /// says why. With `direct`, the copy fails then.
    #[arg(
        long = "between-servers",
        value_enum,
        value_name = "WAY",
        default_value = "auto",
        conflicts_with = "rsh"
    )]
    pub(crate) between: BetweenServers,

    /// Send data to or from a server without encryption
    ///
    /// Both ends still prove who they are, but the data can be read and changed on its way.
    /// The server has to allow it (weft serve --allow-clear).
    #[arg(long, conflicts_with = "rsh")]
    pub(crate) clear: bool,

    /// The program that the remote shell starts
    #[arg(long, value_name = "PROGRAM", default_value = "weft", requires = "rsh")]
    pub(crate) remote_weft: String,

    /// Trust a server whose key is not known yet, and remember its key
    #[arg(long)]
    pub(crate) accept_new: bool,

    /// Print this user's public key, for the file of authorised clients at a server
    #[arg(long, conflicts_with = "paths")]
    pub(crate) show_key: bool,

    /// Where sysfs is mounted: tests describe other machines there
    #[arg(long, value_name = "DIR", default_value = "/sys", hide = true)]
    pub(crate) sysfs: PathBuf,

    /// Say before the copy how it is made: connections, block size, threads, cipher and the like
    #[arg(long)]
    pub(crate) explain: bool,

    /// Print a line for each entry that is copied, updated or deleted, as --dry-run does
    ///
    /// As --dry-run, it says `copy`, `update`, `attributes` or `delete`, and the path at the
    /// destination.
    #[arg(short, long, visible_short_alias = 'i', visible_alias = "itemize-changes")]
    pub(crate) verbose: bool,

    /// Print totals at the end, one a line, instead of a summary
    #[arg(long)]
    pub(crate) stats: bool,

    /// Print events as JSON, one a line
    #[arg(long)]
    pub(crate) json: bool,

    /// Print problems only
    #[arg(short, long)]
    pub(crate) quiet: bool,

    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,

    /// Print a summary of the help; with places, nothing: sizes are for people anyway
    #[arg(short = 'h', long = "human-readable")]
    pub(crate) short_help: bool,

    #[command(flatten)]
    familiar: Familiar,
}

impl CpArgs {
    /// Whether `--recursive` was given, which matters only with `--files-from`.
    pub(crate) fn is_recursive(&self) -> bool {
        self.familiar.is_recursive()
    }

    /// Sets what one option means for others.
    ///
    /// # Errors
    /// If an option is one that `weft cp` does not have.
    pub(crate) fn settle(&mut self) -> Result<(), String> {
        self.owners |= self.archive || self.familiar.keeps_owners();
        self.specials |= self.archive;
        self.inplace |= self.append || self.append_verify;
        if let Some(limit) = self.bwlimit {
            self.limit = (limit > 0).then_some(limit);
        }
        self.familiar.check(self.owners, self.xattrs)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compress {
    /// While compression is faster than the network
    Auto,
    /// All data that becomes smaller
    Zstd,
    /// No data
    None,
}

/// Which files bypass the page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Direct {
    /// Those that are larger than the available memory, at each end
    Auto,
    /// All from 1 MiB on
    Always,
    /// None
    Never,
}

/// Which way the data of a copy between hosts goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Data {
    /// The fastest way that is possible
    Auto,
    /// By RDMA, with a server; otherwise the copy fails
    Rdma,
    /// By TCP; otherwise the copy fails
    Tcp,
    /// With a server of this host and user, through shared memory if that is possible, and
    /// otherwise as by `auto`
    Memory,
    /// With a server, through shared memory on one host and by iWARP between two; otherwise the
    /// copy fails
    Fabric,
    /// Through the shell of --rsh
    Shell,
}

/// Which way the data of a copy between two servers goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BetweenServers {
    /// From server to server if that is possible, otherwise through this host
    Auto,
    /// From server to server; otherwise the copy fails
    Direct,
    /// Through this host
    Relay,
}

/// The lowest rate. One block then takes many seconds, but less than the other end's timeout.
const RATE_MIN: u64 = 8 << 10;

/// Parses a rate in bytes a second.
pub(crate) fn rate(text: &str) -> Result<u64, String> {
    let rate = bytes(text)?;
    if rate < RATE_MIN { Err("from 8K on".to_owned()) } else { Ok(rate) }
}

/// Parses a rate as rsync does: a number without a unit is KiB, and 0 is no limit.
fn rsync_rate(text: &str) -> Result<u64, String> {
    match text.strip_suffix(|last: char| last.is_ascii_digit()) {
        _ if text == "0" => Ok(0),
        Some(_) => rate(&format!("{text}K")),
        None => rate(text),
    }
}

/// Checks changes of modes.
fn modes(text: &str) -> Result<String, String> {
    Modes::parse(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// The networks that one word means.
#[derive(Debug, Clone)]
pub(crate) struct Networks(pub(crate) Vec<Network>);

impl FromStr for Networks {
    type Err = NetworkError;

    /// Parses a network, or `all`.
    fn from_str(text: &str) -> Result<Self, NetworkError> {
        match text {
            "all" => Ok(Self(Network::ALL.to_vec())),
            text => text.parse().map(|it| Self(vec![it])),
        }
    }
}

/// Parses the name of a congestion control.
fn congestion(name: &str) -> Result<Congestion, String> {
    Congestion::named(name).map_err(|error| error.to_string())
}

#[derive(Debug, Args)]
#[command(after_help = "Clients are let in by their keys (weft cp --show-key), one a line in \
    ~/.config/weft/authorised-clients.\nNothing outside of the directories is read or written, \
    whatever links are in them.")]
pub(crate) struct ServeArgs {
    /// Directory to share under its last name, or NAME=DIR
    #[arg(
        required_unless_present_any = ["stdio", "config"],
        value_name = "DIR|NAME=DIR",
        value_hint = ValueHint::DirPath
    )]
    pub(crate) directories: Vec<OsString>,

    /// File that says what is shared, and which users may do what
    ///
    /// It replaces the other options. SIGHUP has it read again; copies go on. See copying.md.
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        conflicts_with_all = [
            "directories", "bind", "port", "rdma", "stdio", "allow_clear", "read_only", "quota",
            "quota_files", "authorised", "allow", "third_party"
        ]
    )]
    pub(crate) config: Option<PathBuf>,

    /// Say whether the file is right, and serve nothing
    #[arg(long, requires = "config")]
    pub(crate) check: bool,

    /// Address to listen at; all of this host by default
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) bind: Option<std::net::IpAddr>,

    /// TCP port to listen at; 0 takes a free one
    #[arg(short, long, default_value_t = weft_transfer::limits::PORT)]
    pub(crate) port: u16,

    /// Offer RDMA for data, too, at the port after that of TCP
    ///
    /// Needs an RDMA device and its libraries (libibverbs1, librdmacm1). Without this option the
    /// server does not load them.
    #[arg(long)]
    pub(crate) rdma: bool,

    /// Do one copy on standard input and output, for `weft cp --rsh`, which starts this
    ///
    /// Without directories it may do whatever this user may. A command of authorized_keys that
    /// names directories keeps clients of ssh to these.
    #[arg(long, conflicts_with_all = ["bind", "port", "rdma", "authorised", "allow"])]
    pub(crate) stdio: bool,

    /// Let clients have data go without encryption (weft cp --clear)
    ///
    /// The data of such a copy can be read and changed on its way.
    #[arg(long, conflicts_with = "stdio")]
    pub(crate) allow_clear: bool,

    /// Connect to other servers in this network, if clients copy there; may be repeated
    ///
    /// An address (192.0.2.7), a network (192.0.2.0/24), or `all`. The data of a copy from this
    /// server to another one then goes straight there, and not through the client's host. Nothing
    /// is sent to a program that does not prove to be the server that the client has named.
    /// Loopback and link-local addresses have to be named themselves: `all` leaves them out.
    #[arg(long, value_name = "NETWORK", conflicts_with = "stdio")]
    pub(crate) third_party: Vec<Networks>,

    /// Let clients read, and not write
    #[arg(long)]
    pub(crate) read_only: bool,

    /// The most bytes of files in each shared directory, holes included: 500M, 10G, 2TB
    ///
    /// What other programs have created counts, too. A client's file that does not fit is refused,
    /// and others are copied.
    #[arg(long, value_name = "SIZE", value_parser = bytes, requires = "directories")]
    pub(crate) quota: Option<u64>,

    /// The most files, directories and links in each shared directory
    #[arg(long, value_name = "NUMBER", requires = "directories")]
    pub(crate) quota_files: Option<u64>,

    /// File of the keys of clients that are let in
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) authorised: Option<PathBuf>,

    /// Let the client with this key in; may be repeated
    #[arg(long, value_name = "KEY")]
    pub(crate) allow: Vec<weft_transfer::secure::PublicKey>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_units() {
        for (text, expected) in [
            ("10000", 10_000),
            ("8K", 8 << 10),
            ("1.5M", 3 << 19),
            ("2GiB", 2 << 30),
            ("500kB", 500_000),
            ("2MB", 2_000_000),
            ("5T", 5 << 40),
        ] {
            assert_eq!(rate(text), Ok(expected), "{text}");
        }
        for wrong in ["", "M", "1", "8191", "-5M", "nan", "inf", "5X", "5 M", "1e30"] {
            assert!(rate(wrong).is_err(), "{wrong}");
        }
        // A quota can be small, or nothing.
        assert_eq!((bytes("0"), bytes("100")), (Ok(0), Ok(100)));
        assert!(bytes("-1").is_err() && bytes("2000000TB").is_err());
    }
}
