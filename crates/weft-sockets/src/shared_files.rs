//! The files in which processes of one user share connections and datagrams.
//!
//! # Safety
//! A lock is frozen and thawed around a fork, by the handlers of forks alone. What is known of a
//! shared file is leaked, so that references to it are valid for ever.
#![allow(unsafe_code)]

use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};

use weft_stream::datagram::Datagrams;
use weft_stream::{OpenError, Reason, Registry};
use weft_sys::SignalLock;

use crate::limits::USERS_MAX;
use crate::mode::may_not_call;
use crate::settings::directory;

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

    /// What was asked for last, and of which user.
    fn last_opened(&self) -> Option<&'static Opened<T>> {
        // SAFETY: NULL, or what `shared` has leaked.
        unsafe { self.last.load(Ordering::Acquire).as_ref() }
    }

    /// The file that was asked for last, of whatever user. `None` also if there was none to be had.
    fn last(&self) -> Option<&'static T> {
        self.last_opened().and_then(|opened| opened.1)
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

/// Whether there is a registry by now, without asking the kernel whose.
pub(crate) fn is_registry_open() -> bool {
    REGISTRY.last().is_some()
}

/// Whether anything may be offered to a thread that is who it was when a registry was asked for
/// last: without asking the kernel.
pub(crate) fn may_have_offers() -> bool {
    REGISTRY.last().is_none_or(Registry::has_offers)
}

/// Counts a connection that stays on TCP, where the last one was looked for.
pub(crate) fn count_fallback(why: Reason) {
    if let Some(registry) = REGISTRY.last().or_else(registry) {
        registry.count_fallback(why);
    }
}

/// The inboxes of that user.
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
        // A process that has changed its user shares nothing with the other's.
        let file = open(directory()).ok();
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

/// A child has been born: it uses the files, too. It has no other threads yet.
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
    // SAFETY: guaranteed by the caller.
    unsafe { DATAGRAMS.all.thaw() };
    // SAFETY: guaranteed by the caller.
    unsafe { REGISTRY.all.thaw() };
}
