//! What the environment says, read once.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use weft_stream::Flow;
use weft_stream::rules::{Role, Rules};
use weft_sys::{SectionOnce, Spin};

use crate::identity;

/// Reads the environment. To be called before the program runs: some, such as nginx, take their
/// environment for their own. Whether it wants anything carried.
pub(crate) fn read() -> bool {
    directory();
    flow();
    variables();
    wants_log();
    between_hosts();
    ring();
    by_hand();
    drop(Spin::new()); // The first one reads WEFT_WAIT, which a handler must not interrupt.
    let off = std::env::var_os("WEFT_SOCKETS").is_some_and(|value| value == "off");
    !off && rules().is_some()
}

/// Where the shared files are.
pub(crate) fn directory() -> &'static Path {
    DIRECTORY.get_or_init(weft_stream::directory)
}

static DIRECTORY: SectionOnce<PathBuf> = SectionOnce::new();

/// As [`read`] in the unit tests: nobody else's files are shared.
#[cfg(test)]
pub(crate) fn begin_test(directory: &Path) -> bool {
    DIRECTORY.set(directory.to_owned()).expect("the first to ask");
    read()
}

/// Whether `WEFT_LOG` asks for a line about each connection.
pub(crate) fn wants_log() -> bool {
    static WANTED: SectionOnce<bool> = SectionOnce::new();
    *WANTED.get_or_init(|| {
        let level = std::env::var("WEFT_LOG");
        matches!(level.as_deref(), Ok("info" | "debug" | "trace"))
    })
}

/// What put Weft in front of this program: `NAME=value` of each of its variables.
pub(crate) fn variables() -> &'static [CString] {
    static VARIABLES: SectionOnce<Vec<CString>> = SectionOnce::new();
    VARIABLES.get_or_init(|| {
        let is_ours = |name: &[u8]| name == b"LD_PRELOAD" || name.starts_with(b"WEFT_");
        let ours = std::env::vars_os().filter(|(name, _)| is_ours(name.as_bytes()));
        let line = |(name, value): (OsString, OsString)| {
            CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()).ok()
        };
        ours.filter_map(line).collect()
    })
}

/// What `WEFT_SOCKETS_ZCOPY` says of long messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZeroCopy {
    /// `auto`: pulled by the receiver where that is faster; the default.
    Auto,
    /// `off`: always through the ring.
    Off,
    /// `sync`: always pulled, where it is possible.
    Sync,
    /// `async`: likewise, and the call does not wait for that; where the program writes to its
    /// buffers too early, as `auto`.
    Async,
}

/// Whether and when long messages are not copied twice.
pub(crate) fn zero_copy() -> ZeroCopy {
    static ZERO_COPY: SectionOnce<ZeroCopy> = SectionOnce::new();
    *ZERO_COPY.get_or_init(|| match std::env::var("WEFT_SOCKETS_ZCOPY").as_deref() {
        Ok("off") => ZeroCopy::Off,
        Ok("sync") => ZeroCopy::Sync,
        Ok("async") => ZeroCopy::Async,
        _ => ZeroCopy::Auto,
    })
}

/// What becomes of io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ring {
    /// Programs get an error that they may have none, and do without: the default.
    Refused,
    /// They may, and the process stays on TCP from then on.
    Tcp,
}

/// What `WEFT_SOCKETS_IO_URING` says of io_uring: `refuse` or `tcp`.
pub(crate) fn ring() -> Ring {
    static RING: SectionOnce<Ring> = SectionOnce::new();
    *RING.get_or_init(|| match std::env::var("WEFT_SOCKETS_IO_URING").as_deref() {
        Ok("tcp") => Ring::Tcp,
        _ => Ring::Refused,
    })
}

/// What becomes of system calls that the program makes by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByHand {
    /// The kernel reports them; where it does not, the process stays on TCP: the default.
    Watch,
    /// There are none.
    Trust,
}

/// What `WEFT_SOCKETS_BY_HAND` says of calls by hand: `watch` or `trust`.
pub(crate) fn by_hand() -> ByHand {
    static BY_HAND: SectionOnce<ByHand> = SectionOnce::new();
    *BY_HAND.get_or_init(|| match std::env::var("WEFT_SOCKETS_BY_HAND").as_deref() {
        Ok("trust") => ByHand::Trust,
        _ => ByHand::Watch,
    })
}

/// Whether connections to other hosts go over verbs, where no rule says so: what
/// `WEFT_SOCKETS_BETWEEN_HOSTS` says, `tcp` or `verbs`.
fn between_hosts() -> bool {
    static VERBS: SectionOnce<bool> = SectionOnce::new();
    *VERBS.get_or_init(|| {
        std::env::var_os("WEFT_SOCKETS_BETWEEN_HOSTS").is_some_and(|value| value == "verbs")
    })
}

/// Whether a connection goes over verbs: to another host as the user wants it, on one host only if
/// a rule says so.
pub(crate) fn wants_verbs(role: Role, address: std::net::SocketAddr, is_local: bool) -> bool {
    let otherwise = between_hosts() && !is_local;
    rules().is_some_and(|rules| rules.wants_verbs(role, identity::program(), address, otherwise))
}

/// The rules; `None` if they are wrong, which `weft run` has reported.
fn rules() -> Option<&'static Rules> {
    static RULES: SectionOnce<Option<Rules>> = SectionOnce::new();
    RULES.get_or_init(|| Rules::from_environment().ok()).as_ref()
}

/// Whether the rules let a connection leave TCP.
pub(crate) fn allows(role: Role, address: std::net::SocketAddr) -> bool {
    rules().is_some_and(|rules| rules.allows(role, identity::program(), address))
}

/// Whether a rule says that a connection is to leave TCP, however brief it is.
pub(crate) fn wants_memory(role: Role, address: std::net::SocketAddr) -> bool {
    rules().is_some_and(|rules| rules.wants_memory(role, identity::program(), address))
}

/// The flow control of connections made here; that of others is their connectors' choice.
pub(crate) fn flow() -> Flow {
    static FLOW: SectionOnce<Flow> = SectionOnce::new();
    *FLOW.get_or_init(|| {
        let named = std::env::var("WEFT_SOCKETS_FLOW").ok();
        named.as_deref().and_then(Flow::named).unwrap_or_default()
    })
}
