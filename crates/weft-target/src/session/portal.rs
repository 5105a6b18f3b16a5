//! The state that all connections share: the targets, and the initiators that are logged in.

use std::any::Any;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, Weak};
use std::time::Duration;

use super::closed::Closed;
use super::stats::{Counters, SessionStats};
use super::wake::Wakes;
use crate::limits::SESSIONS_MAX;
use crate::locks::at_once;
use crate::scsi::{Device, Initiator, Nexus, NexusId};
use crate::security::Access;
use crate::workers::Workers;
use weft_sys::lock;

/// Fills a buffer with bytes that nobody can predict. Returns `false` if it cannot.
#[derive(Clone, Copy, Debug)]
pub struct Random(pub fn(&mut [u8]) -> bool);

/// Returns the time since a moment that does not change.
#[derive(Clone, Copy, Debug)]
pub struct Clock(pub fn() -> Duration);

/// A device that initiators reach under its name, and who may.
#[derive(Debug)]
pub struct Target {
    device: Arc<Device>,
    access: Access,
    announces: bool,
}

/// What has happened to the units of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// Units have come or gone.
    UnitsChanged,
    /// The unit with this number has another length.
    CapacityChanged(u8),
}

impl Target {
    /// Returns a target.
    #[must_use]
    pub fn new(device: Arc<Device>, access: Access) -> Self {
        Self { device, access, announces: false }
    }

    /// Lets its initiators know at once what happens to units, or not. Not all initiators
    /// understand such messages.
    #[must_use]
    pub fn announcing(self, announces: bool) -> Self {
        Self { announces, ..self }
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The initiators that may log in.
    #[must_use]
    pub fn access(&self) -> &Access {
        &self.access
    }
}

/// The targets that can be reached, and their sessions.
#[derive(Debug)]
pub struct Portal {
    /// Logins and discovery look at it, commands do not.
    offer: RwLock<Arc<Offer>>,
    random: Random,
    clock: Clock,
    sessions: Mutex<Sessions>,
    next_nexus: AtomicU64,
    /// Threads that wait for several units, or for sessions.
    workers: Workers,
}

/// The targets that initiators can log in to, and the rules for it. It is replaced as a whole.
#[derive(Clone, Debug)]
struct Offer {
    targets: Vec<Arc<Target>>,
    discovery: Arc<Access>,
    sessions_max: usize,
}

#[derive(Debug, Default)]
struct Sessions {
    by_identity: HashMap<Identity, Arc<Session>>,
    /// Sessions of discovery.
    discoveries: usize,
    last_tsih: u16,
}

/// The identity of a session, by which an initiator that logs in again gets the same one (RFC 7143,
/// section 4.4.3.2).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Identity {
    initiator: Initiator,
    target: String,
}

/// What the connections of a session share: its `Group`.
pub(super) type SharedGroup = Arc<dyn Any + Send + Sync>;

/// A session in full feature phase.
#[derive(Debug)]
pub(super) struct Session {
    device: Arc<Device>,
    /// The nexus.
    pub(super) nexus: Nexus,
    /// The target's part of the session's identity.
    pub(super) tsih: u16,
    /// The initiator's address.
    from: SocketAddr,
    counters: Counters,
    /// Why it has ended, or is to end.
    closed: OnceLock<Closed>,
    announcements: Mutex<Vec<Announcement>>,
    has_announcements: AtomicBool,
    /// The session that this one replaces may still be at work.
    is_opening: AtomicBool,
    /// Shared while connections handle requests, and by jobs.
    work: RwLock<()>,
    wakes: Arc<Wakes>,
    /// What connections share that is above this module.
    shared: SharedGroup,
    /// For connections that join it.
    open: OnceLock<Weak<OpenSession>>,
}

/// A session that is among those of its portal until its connection has ended, and its last job.
#[derive(Debug)]
pub(super) struct OpenSession {
    portal: Arc<Portal>,
    session: Arc<Session>,
}

impl Deref for OpenSession {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl Drop for OpenSession {
    fn drop(&mut self) {
        self.portal.remove(&self.session);
    }
}

impl Portal {
    /// Returns a portal to these targets, with the rules for discovery.
    #[must_use]
    pub fn new(targets: Vec<Target>, discovery: Access, random: Random) -> Self {
        let offer = RwLock::new(Arc::new(Offer::new(targets, discovery, SESSIONS_MAX)));
        let (sessions, next_nexus) = (Mutex::default(), AtomicU64::new(1));
        let clock = Clock(|| Duration::ZERO);
        let workers = Workers::default();
        Self { offer, random, clock, sessions, next_nexus, workers }
    }

    /// Measures how long commands take. Without a clock they take no time.
    #[must_use]
    pub fn with_clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Sets the most sessions, those of discovery included.
    #[must_use]
    pub fn with_sessions_max(self, sessions_max: usize) -> Self {
        let offer = Offer { sessions_max, ..Offer::clone(&self.offer()) };
        Self { offer: RwLock::new(Arc::new(offer)), ..self }
    }

    /// Replaces the targets, the rules for discovery and the most sessions, in one step.
    ///
    /// Logins that begin afterwards see only the new ones. Open sessions stay, also those with a
    /// target that is no longer there, and those beyond the most: each keeps its device.
    pub fn replace(&self, targets: Vec<Target>, discovery: Access, sessions_max: usize) {
        let offer = Arc::new(Offer::new(targets, discovery, sessions_max));
        *self.offer.write().unwrap_or_else(PoisonError::into_inner) = offer;
    }

    fn offer(&self) -> Arc<Offer> {
        Arc::clone(&self.offer.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The targets.
    #[must_use]
    pub fn targets(&self) -> Vec<Arc<Target>> {
        self.offer().targets.clone()
    }

    /// The target with a name. Names are compared without case (RFC 7143, section 4.2.7.2).
    #[must_use]
    pub fn target(&self, name: &str) -> Option<Arc<Target>> {
        let offer = self.offer();
        let has_name = |target: &&Arc<Target>| target.device.name().eq_ignore_ascii_case(name);
        offer.targets.iter().find(has_name).cloned()
    }

    /// The initiators that may ask for the names of targets.
    pub(super) fn discovery(&self) -> Arc<Access> {
        Arc::clone(&self.offer().discovery)
    }

    /// The time now.
    pub(super) fn now(&self) -> Duration {
        (self.clock.0)()
    }

    /// The source of challenges.
    pub(super) fn random(&self) -> Random {
        self.random
    }

    /// The sessions, without those of discovery, ordered by target and initiator.
    #[must_use]
    pub fn sessions(&self) -> Vec<SessionStats> {
        let sessions = lock(&self.sessions);
        let open = sessions.by_identity.values().filter(|each| !each.is_closed());
        let mut stats: Vec<_> = open.map(|each| each.stats()).collect();
        stats.sort_by(|one, other| {
            let key = |stats: &SessionStats| (stats.target.clone(), stats.initiator.name.clone());
            (key(one), one.initiator.isid).cmp(&(key(other), other.initiator.isid))
        });
        stats
    }

    /// Tells the initiators of a target what has happened to its units, if the target announces it.
    /// Their next commands report it in any case.
    pub fn announce(&self, device: &Device, announcement: Announcement) {
        let target = self.target(device.name()).filter(|target| target.announces);
        if target.is_some_and(|target| std::ptr::eq(Arc::as_ptr(target.device()), device)) {
            self.sessions_of(device).iter().for_each(|session| session.tell(announcement));
        }
    }

    /// The sessions with a target.
    fn sessions_of(&self, device: &Device) -> Vec<Arc<Session>> {
        let sessions = lock(&self.sessions);
        let is_of = |each: &&Arc<Session>| std::ptr::eq(Arc::as_ptr(&each.device), device);
        sessions.by_identity.values().filter(is_of).cloned().collect()
    }

    /// Closes all sessions with a target.
    pub(super) fn close_all(&self, device: &Device) {
        // They stay until their jobs have ended: later sessions wait for that.
        self.sessions_of(device).iter().for_each(|session| session.close(Closed::Reset));
    }

    /// Opens a session. One with the same identity is closed first (session reinstatement). It is
    /// returned if it is still at work: [`OpenSession::replace`] has to follow before anything else
    /// then. `None` if there are too many, or if the session before is not open yet.
    pub(super) fn open(
        self: &Arc<Self>,
        device: &Arc<Device>,
        initiator: Initiator,
        from: SocketAddr,
        (wakes, shared): (Arc<Wakes>, SharedGroup),
    ) -> Option<(Arc<OpenSession>, Option<Arc<Session>>)> {
        let identity =
            Identity { initiator: initiator.clone(), target: device.name().to_ascii_lowercase() };
        let id = NexusId(self.next_nexus.fetch_add(1, Ordering::Relaxed));
        let nexus = Nexus { id, initiator: Arc::new(initiator) };
        let sessions_max = self.offer().sessions_max;
        let mut sessions = lock(&self.sessions);
        let before = sessions.by_identity.get(&identity);
        let is_refused = match before {
            Some(before) => before.is_opening.load(Ordering::Acquire),
            None => sessions.count() >= sessions_max,
        };
        if is_refused {
            return None;
        }
        let replaces = before.is_some();
        let tsih = sessions.next_tsih();
        let session = Arc::new(Session {
            device: Arc::clone(device),
            nexus,
            tsih,
            from,
            counters: Counters::default(),
            closed: OnceLock::new(),
            announcements: Mutex::default(),
            has_announcements: AtomicBool::new(false),
            is_opening: AtomicBool::new(replaces),
            work: RwLock::new(()),
            wakes,
            shared,
            open: OnceLock::new(),
        });
        let before = sessions.by_identity.insert(identity, Arc::clone(&session));
        drop(sessions);
        let open = Arc::new(OpenSession { portal: Arc::clone(self), session });
        open.open.get_or_init(|| Arc::downgrade(&open));
        let Some(before) = before else {
            device.attach(&open.nexus);
            return Some((open, None));
        };
        before.close(Closed::Replaced);
        if before.is_at_work() {
            return Some((open, Some(before)));
        }
        open.replace(&before);
        Some((open, None))
    }

    /// The open session of an initiator with a device that has a number.
    pub(super) fn find(
        &self,
        device: &Arc<Device>,
        initiator: &Initiator,
        tsih: u16,
    ) -> Option<Arc<OpenSession>> {
        let target = device.name().to_ascii_lowercase();
        let identity = Identity { initiator: initiator.clone(), target };
        let session = Arc::clone(lock(&self.sessions).by_identity.get(&identity)?);
        let is_open = session.tsih == tsih
            && Arc::ptr_eq(&session.device, device)
            && !session.is_closed()
            && !session.is_opening.load(Ordering::Acquire);
        session.open.get().filter(|_| is_open)?.upgrade()
    }

    /// Waits for all jobs that are not those of a unit.
    pub(crate) fn wait_for_jobs(&self) {
        self.workers.wait();
    }

    /// Counts a session of discovery. Returns `false` if there are too many.
    pub(super) fn begin_discovery(&self) -> bool {
        let sessions_max = self.offer().sessions_max;
        let mut sessions = lock(&self.sessions);
        let has_room = sessions.count() < sessions_max;
        sessions.discoveries += usize::from(has_room);
        has_room
    }

    /// A session of discovery has ended.
    pub(super) fn end_discovery(&self) {
        lock(&self.sessions).discoveries -= 1;
    }

    /// Removes a session whose connection has ended.
    fn remove(&self, session: &Arc<Session>) {
        lock(&self.sessions).by_identity.retain(|_, other| !Arc::ptr_eq(other, session));
        session.device.detach(session.nexus.id);
    }
}

impl Offer {
    fn new(targets: Vec<Target>, discovery: Access, sessions_max: usize) -> Self {
        let targets = targets.into_iter().map(Arc::new).collect();
        Self { targets, discovery: Arc::new(discovery), sessions_max }
    }
}

impl Sessions {
    fn count(&self) -> usize {
        self.by_identity.len() + self.discoveries
    }

    /// A number that no other session has. 0 means none.
    fn next_tsih(&mut self) -> u16 {
        loop {
            self.last_tsih = self.last_tsih.wrapping_add(1);
            let tsih = self.last_tsih;
            if tsih != 0 && self.by_identity.values().all(|session| session.tsih != tsih) {
                return tsih;
            }
        }
    }
}

impl OpenSession {
    /// Waits until a session that is closed does nothing more, and takes its place.
    pub(super) fn replace(&self, before: &Session) {
        // Work that begins later sees that it is closed.
        drop(before.work.write().unwrap_or_else(PoisonError::into_inner));
        // Its device is another one if the target was removed and added again meanwhile.
        before.device.detach(before.nexus.id);
        self.device.attach(&self.nexus);
        self.is_opening.store(false, Ordering::Release);
    }

    /// Threads that wait for several units, or for sessions.
    pub(super) fn workers(&self) -> &Workers {
        &self.portal.workers
    }
}

impl Session {
    fn tell(&self, announcement: Announcement) {
        let mut announcements = lock(&self.announcements);
        if !announcements.contains(&announcement) {
            announcements.push(announcement);
        }
        drop(announcements);
        self.has_announcements.store(true, Ordering::Release);
        self.wakes.wake_all();
    }

    /// Whether the initiator has to learn something.
    pub(super) fn has_announcements(&self) -> bool {
        self.has_announcements.load(Ordering::Acquire)
    }

    /// What the initiator has to learn.
    pub(super) fn take_announcements(&self) -> Vec<Announcement> {
        self.has_announcements.store(false, Ordering::Release);
        std::mem::take(&mut *lock(&self.announcements))
    }

    /// Ends all connections.
    pub(super) fn close(&self, why: Closed) {
        self.end(why);
        self.wakes.wake_all();
    }

    /// The connections have ended: jobs that have not begun do nothing.
    pub(super) fn end(&self, why: Closed) {
        self.closed.get_or_init(|| why);
    }

    fn is_closed(&self) -> bool {
        self.closed.get().is_some()
    }

    /// Why it has ended, if it has.
    pub(super) fn why_closed(&self) -> Option<Closed> {
        self.closed.get().cloned()
    }

    /// Whether its connection or a job is at work, once the session is closed.
    fn is_at_work(&self) -> bool {
        at_once(self.work.try_write()).is_none()
    }

    /// While the guard lives the session is not replaced by another. `None` if it has been. This
    /// does not wait.
    pub(super) fn work(&self) -> Option<RwLockReadGuard<'_, ()>> {
        // Only those that have closed it want it for themselves.
        let guard = at_once(self.work.try_read())?;
        (!self.is_closed()).then_some(guard)
    }

    /// What its connections share.
    pub(super) fn shared(&self) -> SharedGroup {
        Arc::clone(&self.shared)
    }

    /// Its counters.
    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    fn stats(&self) -> SessionStats {
        SessionStats {
            target: self.device.name().to_owned(),
            initiator: Initiator::clone(&self.nexus.initiator),
            from: self.from,
            commands: self.counters.commands.load(Ordering::Relaxed),
            read_bytes: self.counters.read_bytes.load(Ordering::Relaxed),
            written_bytes: self.counters.written_bytes.load(Ordering::Relaxed),
        }
    }

    /// The target.
    pub(super) fn device(&self) -> &Arc<Device> {
        &self.device
    }
}
