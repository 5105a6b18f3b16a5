//! Settings from the environment, read once.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use weft_stream::Flow;
use weft_stream::rules::{Role, Rules};
use weft_sys::{SectionOnce, Spin};

use crate::identity;

/// Reads the environment, before the program runs: some programs, such as nginx, overwrite it.
/// Returns whether connections may be carried.
pub(crate) fn read() -> bool {
    directory();
    flow();
    variables();
    wants_log();
    between_hosts();
    ring();
    by_hand();
    drop(Spin::new()); // The first one reads WEFT_WAIT, which must not happen in a signal handler.
    let off = std::env::var_os("WEFT_SOCKETS").is_some_and(|value| value == "off");
    !off && rules().is_some()
}

/// Returns the directory of the shared files.
pub(crate) fn directory() -> &'static Path {
    DIRECTORY.get_or_init(weft_stream::directory)
}

static DIRECTORY: SectionOnce<PathBuf> = SectionOnce::new();

/// Reads the environment for the unit tests, whose shared files are their own.
#[cfg(test)]
pub(crate) fn begin_test(directory: &Path) -> bool {
    DIRECTORY.set(directory.to_owned()).expect("the first to ask");
    read()
}

/// Returns whether `WEFT_LOG` asks for a line about each connection.
pub(crate) fn wants_log() -> bool {
    static WANTED: SectionOnce<bool> = SectionOnce::new();
    *WANTED.get_or_init(|| {
        let level = std::env::var("WEFT_LOG");
        matches!(level.as_deref(), Ok("info" | "debug" | "trace"))
    })
}

/// Returns the variables that preload Weft into this program, each as `NAME=value`.
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

/// The setting `WEFT_SOCKETS_ZCOPY` for long messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZeroCopy {
    /// `auto`: the receiver copies from the sender's memory where that is faster; the default.
    Auto,
    /// `off`: always through the ring.
    Off,
    /// `sync`: the receiver always copies from the sender's memory, if possible.
    Sync,
    /// `async`: like `sync`, but the call returns before the copy; for a program that writes to its
    /// buffers too early, like `auto`.
    Async,
}

/// Returns the setting for long messages.
pub(crate) fn zero_copy() -> ZeroCopy {
    static ZERO_COPY: SectionOnce<ZeroCopy> = SectionOnce::new();
    *ZERO_COPY.get_or_init(|| match std::env::var("WEFT_SOCKETS_ZCOPY").as_deref() {
        Ok("off") => ZeroCopy::Off,
        Ok("sync") => ZeroCopy::Sync,
        Ok("async") => ZeroCopy::Async,
        _ => ZeroCopy::Auto,
    })
}

/// The setting for io_uring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ring {
    /// Programs get the error that rings are disabled, and do without: the default.
    Refused,
    /// Programs may use rings, and the process stays on TCP from then on.
    Tcp,
}

/// Returns the setting `WEFT_SOCKETS_IO_URING`: `refuse` or `tcp`.
pub(crate) fn ring() -> Ring {
    static RING: SectionOnce<Ring> = SectionOnce::new();
    *RING.get_or_init(|| match std::env::var("WEFT_SOCKETS_IO_URING").as_deref() {
        Ok("tcp") => Ring::Tcp,
        _ => Ring::Refused,
    })
}

/// The setting for system calls that the program makes by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ByHand {
    /// The kernel reports them; if it cannot, the process stays on TCP: the default.
    Watch,
    /// The program makes none.
    Trust,
}

/// Returns the setting `WEFT_SOCKETS_BY_HAND`: `watch` or `trust`.
pub(crate) fn by_hand() -> ByHand {
    static BY_HAND: SectionOnce<ByHand> = SectionOnce::new();
    *BY_HAND.get_or_init(|| match std::env::var("WEFT_SOCKETS_BY_HAND").as_deref() {
        Ok("trust") => ByHand::Trust,
        _ => ByHand::Watch,
    })
}

/// Returns whether connections to other hosts go over verbs where no rule decides:
/// `WEFT_SOCKETS_BETWEEN_HOSTS`, `tcp` or `verbs`.
fn between_hosts() -> bool {
    static VERBS: SectionOnce<bool> = SectionOnce::new();
    *VERBS.get_or_init(|| {
        std::env::var_os("WEFT_SOCKETS_BETWEEN_HOSTS").is_some_and(|value| value == "verbs")
    })
}

/// Returns whether a connection goes over verbs: to another host as configured, on this host only
/// if a rule says so.
pub(crate) fn wants_verbs(role: Role, address: std::net::SocketAddr, is_local: bool) -> bool {
    let otherwise = between_hosts() && !is_local;
    rules().is_some_and(|rules| rules.wants_verbs(role, identity::program(), address, otherwise))
}

/// Returns the rules; `None` if they are invalid, which `weft run` has reported.
fn rules() -> Option<&'static Rules> {
    static RULES: SectionOnce<Option<Rules>> = SectionOnce::new();
    RULES.get_or_init(|| Rules::from_environment().ok()).as_ref()
}

/// Returns whether the rules let a connection leave TCP.
pub(crate) fn allows(role: Role, address: std::net::SocketAddr) -> bool {
    rules().is_some_and(|rules| rules.allows(role, identity::program(), address))
}

/// Returns whether a rule says that a connection leaves TCP even if it is brief.
pub(crate) fn wants_memory(role: Role, address: std::net::SocketAddr) -> bool {
    rules().is_some_and(|rules| rules.wants_memory(role, identity::program(), address))
}

/// Returns the flow control of connections that this process opens. For accepted ones the connector
/// decides.
pub(crate) fn flow() -> Flow {
    static FLOW: SectionOnce<Flow> = SectionOnce::new();
    *FLOW.get_or_init(|| {
        let named = std::env::var("WEFT_SOCKETS_FLOW").ok();
        named.as_deref().and_then(Flow::named).unwrap_or_default()
    })
}
