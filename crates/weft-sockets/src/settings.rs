//! What the environment says, read once, and the registry that it leads to.
//!
//! # Safety
//! A lock is frozen and thawed around a fork, by the handlers of forks alone.
#![allow(unsafe_code)]

use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_stream::rules::{Role, Rules};
use weft_stream::{Flow, Registry, directory};
use weft_sys::{Lock, Spin};

use crate::process;

/// Servers whose sessions give up all system calls but those that they make themselves, and almost
/// all address space: they would be killed for one of ours.
const CONFINED: [&[u8]; 2] = [b"sshd", b"vsftpd"];

/// Whether anything is carried at all.
static ENABLED: AtomicBool = AtomicBool::new(false);

/// Where the registry is.
static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

/// Reads the environment. To be called before the program runs: some, such as nginx, take their
/// environment for their own.
pub(crate) fn read() {
    DIRECTORY.get_or_init(directory);
    flow();
    drop(Spin::new()); // The first one reads WEFT_WAIT.
    let off = std::env::var_os("WEFT_SOCKETS").is_some_and(|value| value == "off");
    let confined = CONFINED.contains(&process::program());
    ENABLED.store(!off && !confined && rules().is_some(), Ordering::Relaxed);
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
}

/// Whether and when long messages are not copied twice.
pub(crate) fn zero_copy() -> ZeroCopy {
    static ZERO_COPY: OnceLock<ZeroCopy> = OnceLock::new();
    *ZERO_COPY.get_or_init(|| match std::env::var("WEFT_SOCKETS_ZCOPY").as_deref() {
        Ok("off") => ZeroCopy::Off,
        Ok("sync" | "async") => ZeroCopy::Sync,
        _ => ZeroCopy::Auto,
    })
}

/// Whether sockets are to be looked at.
#[inline]
pub(crate) fn enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// The rules; `None` if they are wrong, which `weft run` has told.
fn rules() -> Option<&'static Rules> {
    static RULES: OnceLock<Option<Rules>> = OnceLock::new();
    RULES.get_or_init(|| Rules::from_environment().ok()).as_ref()
}

/// Whether the rules let a connection leave TCP.
pub(crate) fn allows(role: Role, address: std::net::SocketAddr) -> bool {
    rules().is_some_and(|rules| rules.allows(role, process::program(), address))
}

/// The flow control of connections made here; that of others is their connectors' choice.
pub(crate) fn flow() -> Flow {
    static FLOW: OnceLock<Flow> = OnceLock::new();
    *FLOW.get_or_init(|| {
        let named = std::env::var("WEFT_SOCKETS_FLOW").ok();
        named.as_deref().and_then(Flow::named).unwrap_or_default()
    })
}

/// The registry that was asked for last, if it was to be had, and of which user.
static REGISTRY: Lock<Option<(u32, Option<&'static Registry>)>> = Lock::new(None);

/// The registry of the user that this process is now. `None` if there is none to be had.
pub(crate) fn registry() -> Option<&'static Registry> {
    let user = rustix::process::geteuid().as_raw();
    let mut known = REGISTRY.lock();
    match *known {
        Some((whose, registry)) if whose == user => registry,
        _ => {
            // A process that has changed its user keeps nothing in common with the other's.
            let opened = Registry::open(DIRECTORY.get_or_init(directory)).ok();
            let registry: Option<&'static Registry> =
                opened.map(|registry| &*Box::leak(Box::new(registry)));
            *known = Some((user, registry));
            registry
        }
    }
}

/// A relative has been born: it uses the registry, too. It has no other threads yet.
pub(crate) fn enter() {
    if let Some((_, Some(registry))) = *REGISTRY.lock() {
        registry.enter();
    }
}

/// The process ends.
pub(crate) fn leave() {
    if let Some((_, Some(registry))) = REGISTRY.lock().take() {
        registry.leave();
    }
}

/// Before a fork: no other thread is in the middle of a change.
pub(crate) fn freeze() {
    REGISTRY.freeze();
}

/// After it, in the parent and in the child.
///
/// # Safety
/// [`freeze`] has been called by this thread, or by the one that it was before the fork.
pub(crate) unsafe fn thaw() {
    // SAFETY: the caller's promise.
    unsafe { REGISTRY.thaw() };
}
