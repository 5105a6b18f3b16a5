//! The files in which processes of one user share connections and datagrams.
//!
//! # Safety
//! Only the fork handlers freeze and thaw the locks. Opened files are leaked, so references to them
//! stay valid.
#![allow(unsafe_code)]

use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};

use weft_stream::datagram::Datagrams;
use weft_stream::{OpenError, Reason, Registry};
use weft_sys::SignalLock;

use crate::limits::USERS_MAX;
use crate::mode::may_not_call;
use crate::settings::directory;

/// The shared files of each user that this process, or one of its threads, has been; `None` if they
/// could not be opened. They stay mapped, because that user's connections stay there.
struct Known<T: 'static> {
    all: SignalLock<[Option<&'static Opened<T>>; USERS_MAX]>,
    /// The entry that was used last, which is found without the lock.
    last: AtomicPtr<Opened<T>>,
}

/// A user, and the user's file.
type Opened<T> = (u32, Option<&'static T>);

static REGISTRY: Known<Registry> = Known::new();
static DATAGRAMS: Known<Datagrams> = Known::new();

impl<T> Known<T> {
    const fn new() -> Self {
        Self { all: SignalLock::new([None; USERS_MAX]), last: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Returns the entry that was used last.
    fn last_opened(&self) -> Option<&'static Opened<T>> {
        // SAFETY: the pointer is NULL, or `shared` has leaked the entry.
        unsafe { self.last.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the file that was used last, of any user. `None` also if it could not be opened.
    fn last(&self) -> Option<&'static T> {
        self.last_opened().and_then(|opened| opened.1)
    }

    /// Removes and returns all files.
    fn take(&self) -> impl Iterator<Item = &'static T> + use<T> {
        let mut all = self.all.lock();
        self.last.store(std::ptr::null_mut(), Ordering::Release);
        std::mem::take(&mut *all).into_iter().flatten().filter_map(|opened| opened.1)
    }

    /// Returns all files.
    fn files(&self) -> impl Iterator<Item = &'static T> + use<T> {
        let all = *self.all.lock();
        all.into_iter().flatten().filter_map(|opened| opened.1)
    }
}

/// Returns the registry of this thread's current user. `None` if it cannot be opened.
pub(crate) fn registry() -> Option<&'static Registry> {
    shared(&REGISTRY, Registry::open)
}

/// Returns whether a registry has been opened, without a system call.
pub(crate) fn is_registry_open() -> bool {
    REGISTRY.last().is_some()
}

/// A number of offers that no registry has.
pub(crate) const UNKNOWN_OFFERS: u64 = u64::MAX;

/// Returns whether there may be offers, assuming that the thread's user has not changed since the
/// registry was last used; without a system call.
pub(crate) fn may_have_offers() -> bool {
    REGISTRY.last().is_none_or(Registry::has_offers)
}

/// Returns how many offers there have been ([`Registry::offers`]), under the same assumption;
/// [`UNKNOWN_OFFERS`] if no registry has been used yet.
pub(crate) fn offers() -> Option<u64> {
    REGISTRY.last().map_or(Some(UNKNOWN_OFFERS), Registry::offers)
}

/// Counts a connection that stays on TCP, in the registry that was used last.
pub(crate) fn count_fallback(why: Reason) {
    if let Some(registry) = REGISTRY.last().or_else(registry) {
        registry.count_fallback(why);
    }
}

/// Returns the inboxes of this thread's current user.
pub(crate) fn datagrams() -> Option<&'static Datagrams> {
    shared(&DATAGRAMS, Datagrams::open)
}

fn shared<T>(
    known: &Known<T>,
    open: impl FnOnce(&Path) -> Result<T, OpenError>,
) -> Option<&'static T> {
    if may_not_call() {
        return None;
    }
    let user = only_user()?;
    if let Some((whose, file)) = known.last_opened()
        && *whose == user
    {
        return *file;
    }
    let mut all = known.all.lock();
    let place = all.iter_mut().find(|place| place.is_none_or(|opened| opened.0 == user))?;
    let opened = *place.get_or_insert_with(|| {
        // A process that has changed its user shares nothing with the old user's processes.
        let file = open(directory()).ok();
        Box::leak(Box::new((user, file.map(|file| &*Box::leak(Box::new(file))))))
    });
    known.last.store(std::ptr::from_ref(opened).cast_mut(), Ordering::Release);
    opened.1
}

/// Returns this thread's user, if its real, effective and saved ids agree. A process that may
/// become another user again (`seteuid(2)`) has more rights than this user's processes. So it
/// shares no memory with them, through which they could act in its name.
fn only_user() -> Option<u32> {
    let (mut real, mut effective, mut saved) = (0, 0, 0);
    // SAFETY: the answers go to local variables.
    let known = unsafe { libc::getresuid(&raw mut real, &raw mut effective, &raw mut saved) };
    (known == 0 && real == effective && effective == saved).then_some(effective)
}

/// Registers a forked child as a user of the files. It has no other threads yet.
pub(crate) fn enter() {
    REGISTRY.files().for_each(Registry::enter);
    DATAGRAMS.files().for_each(Datagrams::enter);
}

/// Unmaps the address space of the files that this process has not used.
pub(crate) fn shrink() {
    REGISTRY.files().for_each(Registry::shrink);
    DATAGRAMS.files().for_each(Datagrams::shrink);
}

/// Releases the files, at the end of the process or when it does not use them any more.
pub(crate) fn leave() {
    REGISTRY.take().for_each(Registry::leave);
    DATAGRAMS.take().for_each(Datagrams::leave);
}

/// Locks the lists before a fork, so that no other thread is in the middle of a change.
pub(crate) fn freeze() {
    REGISTRY.all.freeze();
    DATAGRAMS.all.freeze();
}

/// The kernel would report it on the next call, but has already reported it to this one.
///
/// # Safety
/// This thread, or its copy in the parent, has called [`freeze`].
pub(crate) unsafe fn thaw() {
    // SAFETY: the caller has frozen the lock.
    unsafe { DATAGRAMS.all.thaw() };
    // SAFETY: the caller has frozen the lock.
    unsafe { REGISTRY.all.thaw() };
}
