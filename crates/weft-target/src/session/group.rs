//! What the connections of one session share (RFC 7143, section 4.2.2): the window of command
//! numbers, and the jobs.
//!
//! A session with one connection takes no lock. In others a connection works while it has its
//! **turn**, which is the lock of the group: so commands begin in the order of their numbers,
//! whichever connection they come by. A command that comes early waits in its connection, and what
//! follows it there waits, too.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::jobs::Jobs;
use super::member::MemberId;
use super::portal::Session;
use super::settings::Settings;
use super::wake::{Wake, Wakes};
use crate::limits::COMMAND_WINDOW;
use crate::wire::login_status;
use weft_sys::lock;

/// The state of a session that all its connections share.
#[derive(Debug)]
pub(super) struct Group {
    /// What the first login has agreed on.
    settings: Settings,
    window: Window,
    shared: Mutex<GroupState>,
    /// Apart from the lock above, since a session is also closed by one that has its turn.
    wakes: Arc<Wakes>,
}

/// The window of command numbers (RFC 7143, section 4.2.2.1). Both only grow, so that an initiator
/// may see responses of several connections in any order. They are changed in a turn, or by the
/// only connection.
#[derive(Debug)]
struct Window {
    expected: AtomicU32,
    last: AtomicU32,
}

/// What is changed in a turn.
#[derive(Debug, Default)]
pub(super) struct GroupState {
    /// The jobs of all connections, while none has its turn.
    pub(super) jobs: Jobs,
    /// The connections.
    pub(super) members: Vec<Member>,
    last_member: MemberId,
    /// Requests that have aborted tasks of all connections.
    pub(super) aborts: u64,
}

/// A connection of the session.
#[derive(Debug)]
pub(super) struct Member {
    /// Its number here.
    pub(super) id: MemberId,
    /// The initiator's number of it: the CID.
    pub(super) cid: u16,
    /// The number of the command that waits for earlier ones.
    pub(super) waits_for: Option<u32>,
    /// It can go on when jobs of others have ended.
    pub(super) is_stalled: bool,
    /// It waits for the end of another one.
    pub(super) awaits_end: bool,
    /// It ends when its jobs have.
    pub(super) must_leave: bool,
}

/// The session when a connection has ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Left {
    /// How many other connections it has.
    pub(super) others: usize,
    /// Another one has asked for this end, and nothing was under way.
    pub(super) was_dismissed: bool,
}

impl Member {
    fn new(id: MemberId, cid: u16) -> Self {
        let (waits_for, is_stalled, awaits_end, must_leave) = (None, false, false, false);
        Self { id, cid, waits_for, is_stalled, awaits_end, must_leave }
    }
}

impl Group {
    /// Returns that of a session whose next command has a number, and whose first connection is
    /// woken by `wake`. Others can join after [`Self::open`].
    pub(super) fn new(settings: Settings, expected: u32, wake: Wake) -> Self {
        let last = expected.wrapping_add(COMMAND_WINDOW).wrapping_sub(1);
        let window = Window { expected: AtomicU32::new(expected), last: AtomicU32::new(last) };
        let (shared, wakes) = (Mutex::default(), Arc::new(Wakes::new(wake)));
        Self { settings, window, shared, wakes }
    }

    /// That of an open session.
    pub(super) fn of(session: &Session) -> Option<Arc<Self>> {
        session.shared().downcast().ok()
    }

    /// Whether there may be several connections.
    pub(super) fn is_shared(&self) -> bool {
        self.settings.connections_max > 1
    }

    /// The next command number.
    pub(super) fn expected(&self) -> u32 {
        self.window.expected.load(Ordering::Acquire)
    }

    /// The last command number that the initiator may use.
    pub(super) fn last(&self) -> u32 {
        self.window.last.load(Ordering::Acquire)
    }

    /// The next command has come. In a turn.
    pub(super) fn count_command(&self) {
        self.window.expected.store(self.expected().wrapping_add(1), Ordering::Release);
    }

    /// This many commands have ended. In a turn.
    pub(super) fn count_ended(&self, number: u32) {
        self.window.last.store(self.last().wrapping_add(number), Ordering::Release);
    }

    /// Begins a turn. Nobody has it for longer than its connection needs to handle what it has
    /// received, without a wait. `None` if there is only one connection.
    pub(super) fn turn(&self) -> Option<MutexGuard<'_, GroupState>> {
        self.is_shared().then(|| lock(&self.shared))
    }

    /// The first connection is open, with this number of the initiator.
    pub(super) fn open(&self, cid: u16) {
        lock(&self.shared).members.push(Member::new(0, cid));
    }

    /// Adds a connection. One with the same number has to leave. Returns the number, and the
    /// settings of the session with those of the connection.
    ///
    /// # Errors
    ///
    /// The status of the login.
    pub(super) fn join(
        &self,
        cid: u16,
        settings: Settings,
        wake: Wake,
    ) -> Result<(MemberId, Settings), u16> {
        let Some(mut shared) = self.turn() else {
            return Err(login_status::TOO_MANY_CONNECTIONS);
        };
        if shared.members.is_empty() || settings.is_over_rdma {
            return Err(login_status::CANNOT_JOIN);
        }
        let staying = shared.members.iter().filter(|each| !each.must_leave && each.cid != cid);
        let before = shared.members.iter().filter(|each| each.cid == cid);
        if staying.count() >= usize::from(self.settings.connections_max) {
            return Err(login_status::TOO_MANY_CONNECTIONS);
        }
        if before.count() > 1 {
            return Err(login_status::OUT_OF_RESOURCES);
        }
        self.dismiss(&mut shared, |each| each.cid == cid);
        shared.last_member += 1;
        let id = shared.last_member;
        shared.members.push(Member { awaits_end: true, ..Member::new(id, cid) });
        drop(shared);
        self.wakes.add(id, wake);
        Ok((id, self.settings.with_connection(&settings)))
    }

    /// Ends the connections that `wanted` selects, as soon as their jobs have ended. Returns them.
    pub(super) fn dismiss(
        &self,
        shared: &mut GroupState,
        wanted: impl Fn(&Member) -> bool,
    ) -> Vec<MemberId> {
        let mut dismissed = Vec::new();
        for each in shared.members.iter_mut().filter(|each| wanted(each)) {
            each.must_leave = true;
            dismissed.push(each.id);
        }
        dismissed.iter().for_each(|&id| self.wake(id));
        dismissed
    }

    /// A connection has ended.
    pub(super) fn leave(&self, id: MemberId) -> Left {
        self.wakes.remove(id);
        if !self.is_shared() {
            return Left { others: 0, was_dismissed: false };
        }
        let mut shared = lock(&self.shared);
        let must_leave = shared.member(id).is_some_and(|own| own.must_leave);
        let was_dismissed = must_leave && !shared.jobs.has_of(id);
        shared.members.retain(|each| each.id != id);
        shared.members.iter().filter(|each| each.awaits_end).for_each(|each| self.wake(each.id));
        let others = shared.members.len();
        if others == 0 {
            // Jobs that wait hold the session, which holds this.
            let jobs = std::mem::take(&mut shared.jobs);
            drop(shared);
            drop(jobs);
        }
        Left { others, was_dismissed }
    }

    /// Wakes a connection.
    pub(super) fn wake(&self, id: MemberId) {
        self.wakes.wake(id);
    }

    /// Wakes connections.
    pub(super) fn wakes(&self) -> &Arc<Wakes> {
        &self.wakes
    }
}

impl GroupState {
    /// A connection.
    pub(super) fn member(&mut self, id: MemberId) -> Option<&mut Member> {
        self.members.iter_mut().find(|each| each.id == id)
    }

    /// Whether another connection before this one has its number of the initiator.
    pub(super) fn has_predecessor(&self, id: MemberId) -> bool {
        let own = self.members.iter().find(|each| each.id == id);
        own.is_some_and(|own| {
            self.members.iter().any(|each| each.cid == own.cid && each.id < own.id)
        })
    }
}
