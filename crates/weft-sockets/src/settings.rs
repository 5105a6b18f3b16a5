//! What the environment says, read once, and the shared files that it leads to.
//!
//! # Safety
//! A lock is frozen and thawed around a fork, by the handlers of forks alone. What is known of a
//! shared file is leaked, so that references to it are valid for ever.
#![allow(unsafe_code)]

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use weft_stream::datagram::Datagrams;
use weft_stream::rules::{Role, Rules};
use weft_stream::{Flow, OpenError, Registry, directory};
use weft_sys::{SectionOnce, SignalLock, Spin};

use crate::process;

/// Whether anything is carried at all.
static ENABLED: AtomicBool = AtomicBool::new(false);

/// Where the registry is.
static DIRECTORY: SectionOnce<PathBuf> = SectionOnce::new();

/// Reads the environment. To be called before the program runs: some, such as nginx, take their
/// environment for their own.
pub(crate) fn read() {
    DIRECTORY.get_or_init(directory);
    flow();
    variables();
    crate::reason::wanted();
    between_hosts();
    ring();
    by_hand();
    drop(Spin::new()); // The first one reads WEFT_WAIT, which a handler must not interrupt.
    let off = std::env::var_os("WEFT_SOCKETS").is_some_and(|value| value == "off");
    ENABLED.store(!off && rules().is_some(), Ordering::Relaxed);
}

/// Whether the program may make no system calls but its own: see [`crate::confine`].
static CONFINED: AtomicBool = AtomicBool::new(false);

/// The program is about to give up system calls. Whether that is news.
pub(crate) fn confine() -> bool {
    ENABLED.swap(false, Ordering::Relaxed) && !CONFINED.swap(true, Ordering::Relaxed)
}

/// Nothing is carried any more but what is on its way.
pub(crate) fn disable() {
    ENABLED.store(false, Ordering::Relaxed);
}

/// Whether it has.
#[inline]
pub(crate) fn is_confined() -> bool {
    CONFINED.load(Ordering::Relaxed)
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
    /// Programs are told that they may have none, and do without: the default.
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
    rules().is_some_and(|rules| rules.wants_verbs(role, process::program(), address, otherwise))
}

/// Whether sockets are to be looked at.
#[inline]
pub(crate) fn enabled() -> bool {
    ENABLED.load(Ordering::Relaxed)
}

/// The rules; `None` if they are wrong, which `weft run` has told.
fn rules() -> Option<&'static Rules> {
    static RULES: SectionOnce<Option<Rules>> = SectionOnce::new();
    RULES.get_or_init(|| Rules::from_environment().ok()).as_ref()
}

/// Whether the rules let a connection leave TCP.
pub(crate) fn allows(role: Role, address: std::net::SocketAddr) -> bool {
    rules().is_some_and(|rules| rules.allows(role, process::program(), address))
}

/// The flow control of connections made here; that of others is their connectors' choice.
pub(crate) fn flow() -> Flow {
    static FLOW: SectionOnce<Flow> = SectionOnce::new();
    *FLOW.get_or_init(|| {
        let named = std::env::var("WEFT_SOCKETS_FLOW").ok();
        named.as_deref().and_then(Flow::named).unwrap_or_default()
    })
}

/// Of how many users a process has files at most: what more of them do stays with the kernel. The
/// files of one take 17 GB of address space.
const USERS_MAX: usize = 8;

/// The shared files of each user that this process, or one of its threads, has been: `None` if they
/// were not to be had. They stay mapped, because connections that were made as that user do.
struct Known<T: 'static> {
    all: SignalLock<[Option<&'static Opened<T>>; USERS_MAX]>,
    /// The one that was asked for last, found without the lock.
    last: AtomicPtr<Opened<T>>,
}

/// A user, and what there is for them.
type Opened<T> = (u32, Option<&'static T>);

static REGISTRY: Known<Registry> = Known::new();
static DATAGRAMS: Known<Datagrams> = Known::new();

impl<T> Known<T> {
    const fn new() -> Self {
        Self { all: SignalLock::new([None; USERS_MAX]), last: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// All that there is. From here on there is nothing.
    fn take(&self) -> impl Iterator<Item = &'static T> + use<T> {
        let mut all = self.all.lock();
        self.last.store(std::ptr::null_mut(), Ordering::Release);
        std::mem::take(&mut *all).into_iter().flatten().filter_map(|opened| opened.1)
    }

    /// All that there is.
    fn files(&self) -> impl Iterator<Item = &'static T> + use<T> {
        let all = *self.all.lock();
        all.into_iter().flatten().filter_map(|opened| opened.1)
    }
}

/// The registry of the user that this thread is now. `None` if there is none to be had.
pub(crate) fn registry() -> Option<&'static Registry> {
    shared(&REGISTRY, Registry::open)
}

/// The inboxes of that user.
pub(crate) fn datagrams() -> Option<&'static Datagrams> {
    shared(&DATAGRAMS, Datagrams::open)
}

fn shared<T>(
    known: &Known<T>,
    open: impl FnOnce(&Path) -> Result<T, OpenError>,
) -> Option<&'static T> {
    if is_confined() {
        return None;
    }
    let user = only_user()?;
    // SAFETY: NULL, or what was leaked below.
    let last = unsafe { known.last.load(Ordering::Acquire).as_ref() };
    if let Some((whose, file)) = last
        && *whose == user
    {
        return *file;
    }
    let mut all = known.all.lock();
    let place = all.iter_mut().find(|place| place.is_none_or(|opened| opened.0 == user))?;
    let opened = *place.get_or_insert_with(|| {
        // A process that has changed its user shares nothing with the other's.
        let file = open(DIRECTORY.get_or_init(directory)).ok();
        Box::leak(Box::new((user, file.map(|file| &*Box::leak(Box::new(file))))))
    });
    known.last.store(std::ptr::from_ref(opened).cast_mut(), Ordering::Release);
    opened.1
}

/// The user that this thread is, if it is one alone. A process that may become another user again
/// (`seteuid(2)`) has more rights than this user's processes, and shares nothing with them that
/// they could write to have it act in their name.
fn only_user() -> Option<u32> {
    let (mut real, mut effective, mut saved) = (0, 0, 0);
    // SAFETY: the places for the answer are local variables.
    let known = unsafe { libc::getresuid(&raw mut real, &raw mut effective, &raw mut saved) };
    (known == 0 && real == effective && effective == saved).then_some(effective)
}

/// A relative has been born: it uses the files, too. It has no other threads yet.
pub(crate) fn enter() {
    REGISTRY.files().for_each(Registry::enter);
    DATAGRAMS.files().for_each(Datagrams::enter);
}

/// Gives back what address space the files take and this process has not used.
pub(crate) fn shrink() {
    REGISTRY.files().for_each(Registry::shrink);
    DATAGRAMS.files().for_each(Datagrams::shrink);
}

/// The process ends, or will not use them any more.
pub(crate) fn leave() {
    REGISTRY.take().for_each(Registry::leave);
    DATAGRAMS.take().for_each(Datagrams::leave);
}

/// Before a fork: no other thread is in the middle of a change.
pub(crate) fn freeze() {
    REGISTRY.all.freeze();
    DATAGRAMS.all.freeze();
}

/// After it, in the parent and in the child.
///
/// # Safety
/// [`freeze`] has been called by this thread, or by the one that it was before the fork.
pub(crate) unsafe fn thaw() {
    // SAFETY: the caller's promise.
    unsafe { DATAGRAMS.all.thaw() };
    // SAFETY: likewise.
    unsafe { REGISTRY.all.thaw() };
}
