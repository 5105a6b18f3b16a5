//! TCP sockets: connecting, accepting, sending and receiving.
//!
//! # Safety
//! Descriptors are borrowed for one call, from the program, which has them open; addresses and
//! options are read into local variables.
#![allow(unsafe_code)]

pub(crate) mod options;
mod readiness;
mod recv;
mod remote_end;
mod send;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::os::fd::{AsFd as _, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use rustix::event::Timespec;
use rustix::io::Errno;
use weft_stream::rules::Role as RuleRole;
use weft_stream::{Registry, Role, Tuple, inheritance, is_local};
use weft_sys::{SectionLock, SectionOnce, SignalLock, Spin};

use crate::descriptor::{Descriptor, addresses, is_nonblocking};
use crate::extended::Extended;
use crate::kernel::{End, Holding, Host, Kernel as _};
use crate::limits::OFFER_TRIES_MAX;
use crate::link::Link;
use crate::reason::{self, LogOnce, Reason};
use crate::remote::{self, RemoteEnd};
use crate::stall::Stall;
use crate::table::Place;
use crate::{brief, by_hand, identity, mode, settings, shared_files, wait, zcopy};

/// Calls on an accepted socket that all look for the connector's offer: it stands a moment after
/// the connection does, but the moment may be long if the connector has lost its core.
const TRIES_IN_A_ROW: u32 = 8;
/// How long a `fork` waits for offers of those just accepted: afterwards it would be too late.
const FORK_WAITS_NS: u64 = 3_000_000;
/// Of which so long at a time, asleep: the connector may need this core.
const FORK_SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };
/// How long a writer sleeps before it asks the kernel whether the peer still lives.
const WRITER_SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
const SPIN_MAX_NS: u64 = 2_000_000;

/// Held while this process may have a peer's socket open, which no child is to get: it would keep
/// the peer's end from being reported.
static LEAVING: SignalLock<()> = SignalLock::new(());

/// Before a fork: no other thread is about to leave.
pub(crate) fn freeze() {
    LEAVING.freeze();
}

/// After it, in the parent and in the child.
///
/// # Safety
/// [`freeze`] has been called by this thread, or by the one that it was before the fork.
pub(crate) unsafe fn thaw() {
    // SAFETY: guaranteed by the caller.
    unsafe { LEAVING.thaw() };
}

/// Where a socket is on its way to an [`End`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Phase {
    /// Not connected.
    Fresh,
    /// `connect` has begun.
    Connecting,
    /// Not connected: it has accepted others.
    Listening,
    /// Accepted; the connector's offer has not been found yet.
    Candidate,
    /// Accepted from another host, over verbs if it wants that; nothing has been asked yet.
    Foreign,
    /// The kernel's for good.
    Tcp,
}

/// What is known of a TCP socket.
#[derive(Debug)]
pub(crate) struct Stream {
    phase: AtomicU32,
    log: LogOnce,
    /// Its end, if the peer is on this host, and as whom this process holds it.
    holding: Holding,
    /// Its end, if the peer is on another host.
    remote: SectionOnce<Arc<RemoteEnd>>,
    before: SectionLock<Before>,
    spin_in: Spin,
    /// How long a sender looks for room before it sleeps.
    pub(crate) spin_out: Spin,
    zcopy: zcopy::Sender,
    /// What the kernel has reported of the socket's end: bits of `poll(2)`.
    ended: AtomicU32,
    /// An error that the kernel has reported, and that the program does not know yet.
    error: AtomicI32,
    /// A writer has found that there is no room.
    full: AtomicU32,
    stall: Stall,
    /// Epoll instances that watch it.
    watches: AtomicU32,
    /// Those that wait for a wakeup.
    armed: AtomicU32,
    /// The peer rings because the socket was watched before it had an end.
    armed_early: AtomicU32,
    /// Epoll instances that announce what waits in memory.
    announced: AtomicU32,
    /// Streams of the C library's that read and write by our ways.
    files: AtomicU32,
    /// It has an option that only the kernel has, and so will what it accepts.
    bequeaths: AtomicBool,
    /// When a program that does not wait has last had the kernel asked, in nanoseconds.
    asked: AtomicU64,
    /// When the kernel was last asked whether a peer was killed that reads nothing: a time stamp.
    asked_out: AtomicU64,
    /// What it has in extended mode.
    extended: SectionOnce<Box<Extended>>,
    /// Where it stands among the program's sockets.
    place: SectionOnce<Place>,
    /// Of a connection to this host.
    begun: SectionOnce<Begun>,
    /// Where those come from that it has accepted.
    listens_at: SectionOnce<brief::Place>,
}

/// From where, and when, in nanoseconds, a connection is that may be brief.
#[derive(Debug)]
struct Begun {
    place: brief::Place,
    at: u64,
    /// Another process may go on with it.
    goes_on: AtomicBool,
}

/// What an accepted socket has carried before an offer was found.
#[derive(Debug, Default)]
struct Before {
    sent: u64,
    read: u64,
    tries: u32,
    /// What the program has given to `shutdown(2)` already.
    shut: Option<libc::c_int>,
}

/// Who does a call.
#[derive(Debug)]
pub(crate) enum By<'a> {
    /// The kernel, as if we were not there.
    Kernel,
    /// The connection's end.
    End(&'a End),
    /// The connection's end, if the other is on another host.
    Remote(&'a RemoteEnd),
    /// The kernel, but bytes are counted.
    Counted,
}

impl<'a> By<'a> {
    /// The end that does it.
    fn link(&self) -> Option<Link<'a>> {
        match *self {
            Self::End(end) => Some(Link::Local(end)),
            Self::Remote(remote) => Some(Link::Remote(remote)),
            Self::Kernel | Self::Counted => None,
        }
    }
}

impl Stream {
    fn new(phase: Phase) -> Self {
        Self {
            phase: AtomicU32::new(phase as u32),
            log: LogOnce::new(),
            holding: Holding::new(),
            remote: SectionOnce::new(),
            before: SectionLock::new(Before::default()),
            spin_in: Spin::new(),
            spin_out: Spin::new(),
            zcopy: zcopy::Sender::new(),
            ended: AtomicU32::new(0),
            error: AtomicI32::new(0),
            full: AtomicU32::new(0),
            stall: Stall::default(),
            watches: AtomicU32::new(0),
            armed: AtomicU32::new(0),
            armed_early: AtomicU32::new(0),
            announced: AtomicU32::new(0),
            files: AtomicU32::new(0),
            bequeaths: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            asked_out: AtomicU64::new(0),
            extended: SectionOnce::new(),
            place: SectionOnce::new(),
            begun: SectionOnce::new(),
            listens_at: SectionOnce::new(),
        }
    }

    /// A socket just made.
    pub(crate) fn fresh() -> Self {
        Self::new(Phase::Fresh)
    }

    /// A socket that somebody else had, and its end.
    pub(crate) fn inherited(end: End) -> Self {
        let holding = Holding::inherited(end, identity::number());
        let mut stream = Self::new(Phase::Connecting);
        stream.holding = holding;
        stream
    }

    /// A socket that is the kernel's for good.
    pub(crate) fn kernels() -> Self {
        Self::new(Phase::Tcp)
    }

    /// It stands among the program's sockets from here on.
    pub(crate) fn placed(&self, place: Place) {
        let _ = self.place.set(place);
    }

    /// A socket that `accept` has returned, and what it has from the one that listens
    /// ([`Stream::bequeaths_option`]), if that is known.
    pub(crate) fn accepted(fd: RawFd, has_option: Option<bool>) -> Option<Self> {
        let stream = Self::new(Phase::Candidate);
        let (own, peer) = addresses(fd)?;
        let is_local = is_local(own, peer);
        if own != peer && settings::wants_verbs(RuleRole::Listen, own, is_local) {
            stream.become_phase(Phase::Foreign);
            return Some(stream);
        }
        if !is_local {
            fall_back(Reason::Remote);
            reason::log((own, peer), Reason::Remote);
            return None;
        }
        if !settings::allows(RuleRole::Listen, own) {
            fall_back(Reason::Rule);
            reason::log((own, peer), Reason::Rule);
            return None;
        }
        if !by_hand::is_ready() {
            fall_back(Reason::ByHand);
            reason::log((own, peer), Reason::ByHand);
            return None;
        }
        // Another process's may have been given any.
        if has_option.unwrap_or_else(|| options::has(fd)) {
            fall_back(Reason::Option);
            reason::log((own, peer), Reason::Option);
            return None;
        }
        // What comes from another host to the same place may be for verbs.
        if !settings::wants_memory(RuleRole::Listen, own)
            && !settings::wants_verbs(RuleRole::Listen, own, false)
        {
            stream.begin_at(brief::Place::at(own));
        }
        match shared_files::registry() {
            Some(registry) if registry.has_offers() => {
                stream.look_in(registry, fd, tuple(fd, peer, own), &Before::default());
            }
            Some(_) => {}
            None => stream.fall_back(Reason::Registry),
        }
        Some(stream)
    }

    /// It has accepted a connection. Whether that is to stay on TCP, because those that come here
    /// are brief: nothing is to be known of it then.
    pub(crate) fn accepts_brief(&self) -> bool {
        if self.is(Phase::Fresh) {
            self.become_phase(Phase::Listening);
        }
        let is_brief = |&place: &brief::Place| {
            !shared_files::may_have_offers() && brief::PLACES.expects_brief(place, wait::now())
        };
        let is_brief = self.listens_at.get().is_some_and(is_brief);
        if is_brief {
            fall_back(Reason::Brief);
        }
        is_brief
    }

    /// What it has accepted is this.
    pub(crate) fn has_accepted(&self, accepted: &Self) {
        if let Some(begun) = accepted.begun.get() {
            let _ = self.listens_at.set(begun.place);
        }
    }

    /// It has got an option that only the kernel has.
    pub(crate) fn has_option(&self) {
        self.bequeaths.store(true, Ordering::Relaxed);
    }

    /// Whether what it accepts has an option that only the kernel has.
    pub(crate) fn bequeaths_option(&self) -> bool {
        self.bequeaths.load(Ordering::Relaxed)
    }

    /// Its end, if it has one.
    #[inline]
    pub(crate) fn end(&self) -> Option<&End> {
        self.holding.end()
    }

    /// Its end, wherever the other one is.
    #[inline]
    pub(crate) fn link(&self) -> Option<Link<'_>> {
        match self.end() {
            Some(end) => Some(Link::Local(end)),
            None => self.remote().map(Link::Remote),
        }
    }

    /// Its end, if the other one is on another host, and verbs carry it or may.
    #[cold]
    fn remote(&self) -> Option<&RemoteEnd> {
        self.remote.get().map(Arc::as_ref).filter(|remote| !remote.is_off())
    }

    /// Whether the other end is on another host, and verbs carry it or may.
    pub(crate) fn is_remote(&self) -> bool {
        self.end().is_none() && self.remote().is_some()
    }

    /// Looks for the peer on another host, in the background.
    fn seek_remote(&self, fd: RawFd, role: Role, ends: [SocketAddr; 2]) {
        match remote::seek(fd, role, ends) {
            Some(remote) => {
                self.become_phase(Phase::Tcp); // As soon as it is off.
                let _ = self.remote.set(remote); // Another thread's is as good.
            }
            None => self.fall_back(Reason::Room),
        }
    }

    /// It has an end from here on.
    fn begin(&self, fd: RawFd, end: End) {
        if self.watches.load(Ordering::Relaxed) > 0 {
            // Who watches it may be asleep by now.
            end.begin_sleep();
            self.armed_early.store(1, Ordering::Relaxed);
        }
        // By the same thread, or under the lock of `before`: it has none yet.
        self.holding.begin(end, identity::number(), Descriptor::of(fd).as_fd());
    }

    /// This process does not hold the end any more. Once.
    pub(crate) fn let_go(&self) {
        self.holding.let_go();
    }

    /// Who watches it looks at the rings now.
    #[inline]
    pub(crate) fn is_looked_at(&self, end: &End) {
        if self.armed_early.load(Ordering::Relaxed) != 0
            && self.armed_early.swap(0, Ordering::Relaxed) != 0
        {
            end.end_sleep();
        }
    }

    fn is(&self, phase: Phase) -> bool {
        self.phase.load(Ordering::Relaxed) == phase as u32
    }

    fn become_phase(&self, phase: Phase) {
        self.phase.store(phase as u32, Ordering::Relaxed);
    }

    /// Whether it is the kernel's for good.
    pub(crate) fn is_tcp(&self) -> bool {
        self.link().is_none() && self.is(Phase::Tcp)
    }

    /// `connect` has returned: 0, or that it goes on.
    pub(crate) fn connected(&self, fd: RawFd) {
        let begins = [Phase::Fresh, Phase::Listening, Phase::Connecting];
        if self.link().is_some() || !begins.into_iter().any(|phase| self.is(phase)) {
            return;
        }
        self.become_phase(Phase::Connecting);
        let Some((own, peer)) = addresses(fd) else { return };
        let is_local = is_local(own, peer);
        if own != peer && settings::wants_verbs(RuleRole::Connect, peer, is_local) {
            self.seek_remote(fd, Role::Connector, [own, peer]);
        } else if !is_local {
            self.fall_back(Reason::Remote);
        } else if !settings::allows(RuleRole::Connect, peer) {
            self.fall_back(Reason::Rule);
        } else if !by_hand::is_ready() {
            self.fall_back(Reason::ByHand);
        } else if own == peer {
            // One socket is both ends.
            self.fall_back(Reason::Itself);
        } else {
            self.begin_at(brief::Place::to(peer));
            let registry = shared_files::registry();
            let why = if registry.is_some() { Reason::Room } else { Reason::Registry };
            let me = identity::me(fd);
            let offer =
                |registry| End::offer(registry, &tuple(fd, own, peer), &me, settings::flow());
            match registry.and_then(offer) {
                Some(end) => self.begin(fd, end),
                None => self.fall_back(why),
            }
        }
    }

    /// `connect` to this address, by the program's word, has returned. If connections there are
    /// brief it stays on TCP.
    pub(crate) fn connected_to(&self, fd: RawFd, peer: Option<SocketAddr>) {
        if let Some(peer) = peer.filter(|_| self.is(Phase::Fresh)) {
            let place = brief::Place::to(peer);
            if brief::PLACES.expects_brief(place, wait::now())
                && !settings::wants_memory(RuleRole::Connect, peer)
            {
                self.begin_at(place);
                return self.fall_back(Reason::Brief);
            }
        }
        self.connected(fd);
    }

    /// It is a connection from this place.
    fn begin_at(&self, place: brief::Place) {
        let begin = || Begun { place, at: wait::now(), goes_on: AtomicBool::new(false) };
        self.begun.get_or_init(begin);
    }

    /// `connect` has dissolved the connection (`AF_UNSPEC`); the socket may make another.
    pub(crate) fn dissolved(&self) {
        self.let_go();
        if self.end().is_none()
            && let Some(remote) = self.remote()
        {
            remote.close(false);
        }
    }

    /// The connection goes on over TCP. Bytes that are unread in memory go back to the kernel, as
    /// far as that is possible ([`Stream::has_rest`]).
    pub(crate) fn leave(&self, fd: RawFd, why: Reason) {
        self.leave_by(fd, why, |end, socket| end.leave(socket));
    }

    /// The same, but bytes that are unread in memory are read from there.
    pub(crate) fn leave_unread(&self, fd: RawFd, why: Reason) {
        self.leave_by(fd, why, |end, socket| end.leave_unread(socket));
    }

    /// Of a connection that has left memory, what is unread there still goes back to the kernel as
    /// well, as far as that is possible: only the kernel is to read.
    pub(crate) fn put_back_rest(&self, fd: RawFd) {
        if let Some(end) = self.end().filter(|end| end.unread() > 0) {
            let held = (!identity::is_borrowed()).then(|| LEAVING.lock());
            end.put_back_rest(Descriptor::of(fd).as_fd());
            drop(held);
        }
    }

    fn leave_by(&self, fd: RawFd, why: Reason, leave: fn(&End, BorrowedFd<'_>)) {
        zcopy::deferred::reclaim(&self.zcopy);
        match self.link() {
            Some(Link::Local(end)) if end.has_left() => {}
            Some(Link::Remote(remote)) => {
                remote.leave(Descriptor::of(fd).as_fd());
                fall_back(why);
            }
            Some(Link::Local(end)) => {
                // A child of `vfork` has descriptors of its own.
                let held = (!identity::is_borrowed()).then(|| LEAVING.lock());
                leave(end, Descriptor::of(fd).as_fd());
                drop(held);
                self.log.note(why);
                end.note_left(why);
            }
            None if !self.is(Phase::Tcp) => {
                self.fall_back(why);
                if let Some(end) = self.holding.bar() {
                    end.leave(Descriptor::of(fd).as_fd()); // Another thread has just connected it.
                }
            }
            None => {}
        }
    }

    /// The process is about to give up system calls: the connection has left, and nothing brings it
    /// back.
    pub(crate) fn enter_fallback(&self, fd: RawFd) {
        self.become_phase(Phase::Tcp);
        self.log.write(fd, self.end(), true);
    }

    /// Whether the kernel has the connection again, but for what is still to be read elsewhere.
    pub(crate) fn has_rest(&self) -> bool {
        match self.link() {
            Some(Link::Local(end)) => !end.is_over(),
            Some(Link::Remote(remote)) => remote.has_rest(),
            None => false,
        }
    }

    /// The process is about to give up system calls, and may make none for a connection between
    /// hosts any more, which has left.
    pub(crate) fn disown_remote(&self) {
        if let Some(remote) = self.remote.get() {
            remote.disown();
        }
    }

    fn fall_back(&self, why: Reason) {
        self.become_phase(Phase::Tcp);
        self.log.note(why);
        fall_back(why);
    }

    /// Looks for an offer until there is one or it is unlikely to come.
    fn wait_for_offer(&self, fd: RawFd) {
        let before = self.before.lock();
        let deadline = wait::now() + FORK_WAITS_NS;
        loop {
            self.look_once(fd, &before);
            let goes_on = self.is(Phase::Candidate) && before.tries <= TRIES_IN_A_ROW;
            if self.end().is_some() || !goes_on || wait::now() >= deadline {
                return;
            }
            Host::sleep_for(&FORK_SLEEP);
        }
    }

    /// Who does the next call on the socket.
    #[inline]
    pub(crate) fn by(&self, fd: RawFd) -> By<'_> {
        match self.end() {
            Some(end) => By::End(end),
            None => self.by_whom(fd),
        }
    }

    #[cold]
    fn by_whom(&self, fd: RawFd) -> By<'_> {
        if let Some(remote) = self.remote() {
            return By::Remote(remote);
        }
        if self.is(Phase::Foreign) {
            if let Some((own, peer)) = addresses(fd) {
                self.seek_remote(fd, Role::Acceptor, [peer, own]);
            }
        } else if self.is(Phase::Connecting) {
            self.connected(fd);
        } else if self.is(Phase::Candidate) {
            self.look_for_offer(fd, &mut self.before.lock());
            if self.end().is_none() && self.is(Phase::Candidate) {
                return By::Counted;
            }
        } else if self.is(Phase::Fresh) && addresses(fd).is_some() {
            self.fall_back(Reason::Unseen);
        }
        self.tell(fd);
        match self.link() {
            Some(Link::Local(end)) => By::End(end),
            Some(Link::Remote(remote)) => By::Remote(remote),
            None => By::Kernel,
        }
    }

    /// Says what carries the connection, if that is known and somebody wants to know. No lock is
    /// held.
    pub(crate) fn tell(&self, fd: RawFd) {
        self.log.write(fd, self.end(), false);
    }

    /// The kernel is to do a call. One that waits for the connection to be made may move bytes that
    /// nobody counts.
    fn not_counted<T>(&self, fd: RawFd, flags: libc::c_int) -> Option<T> {
        if self.is(Phase::Connecting) && !is_nonblocking(fd, flags) {
            self.fall_back(Reason::Early);
        }
        None
    }

    /// Looks for the peer's side once more. `None`: it may still come.
    ///
    /// # Errors
    /// `ENOTCONN`; `EOPNOTSUPP`: the connection stays on TCP.
    pub(crate) fn seek(&self, fd: RawFd) -> Result<Option<&End>, Errno> {
        if self.is(Phase::Candidate) {
            self.look_once(fd, &self.before.lock());
        }
        match self.by(fd) {
            By::End(end) => Ok(Some(end)),
            By::Counted => Ok(None),
            By::Remote(_) => Err(Errno::OPNOTSUPP), // One-sided operations are those of one host.
            By::Kernel if self.is(Phase::Tcp) => Err(Errno::OPNOTSUPP),
            By::Kernel => Err(Errno::NOTCONN),
        }
    }

    /// How many streams of the C library's read and write by our ways.
    pub(crate) fn files(&self) -> &AtomicU32 {
        &self.files
    }

    /// From here on it is in extended mode.
    pub(crate) fn extend(&self) {
        self.extended.get_or_init(|| Box::new(Extended::new()));
    }

    /// What it has in extended mode.
    pub(crate) fn extended(&self) -> Option<&Extended> {
        self.extended.get().map(Box::as_ref)
    }

    fn look_for_offer(&self, fd: RawFd, before: &mut Before) {
        before.tries += 1;
        if before.tries <= TRIES_IN_A_ROW || before.tries.is_power_of_two() {
            self.look_once(fd, before);
        }
        if before.tries >= OFFER_TRIES_MAX && self.end().is_none() && self.is(Phase::Candidate) {
            self.fall_back(Reason::Peer);
        }
    }

    fn look_once(&self, fd: RawFd, before: &Before) {
        if self.end().is_some() || !self.is(Phase::Candidate) {
            return;
        }
        if !shared_files::may_have_offers() {
            return;
        }
        let Some(registry) = shared_files::registry() else {
            return self.fall_back(Reason::Registry);
        };
        match addresses(fd) {
            Some((own, peer)) => self.look_in(registry, fd, tuple(fd, peer, own), before),
            None => self.fall_back(Reason::Peer), // It has gone.
        }
    }

    fn look_in(&self, registry: &'static Registry, fd: RawFd, tuple: Tuple, before: &Before) {
        let counts = (before.sent, before.read);
        let me = identity::me(fd);
        if let Some(end) = End::find(registry, &tuple, &me, counts) {
            // Before the connector can join: it would take the end of the stream for ours.
            before.shut.into_iter().for_each(|how| shut(Link::Local(&end), fd, how));
            self.begin(fd, end);
        }
    }

    /// The last descriptor of this process is about to be closed.
    pub(crate) fn closing(&self, fd: RawFd) {
        if let Some(remote) = self.remote.get() {
            return remote_end::close(fd, remote);
        }
        if self.end().is_none() && self.is(Phase::Candidate) {
            self.fall_back(Reason::Peer);
        }
        self.log.write(fd, self.end(), true);
        if self.end().is_some() {
            zcopy::deferred::reclaim(&self.zcopy);
        }
        self.learn();
        self.holding.closing(Descriptor::of(fd).as_fd());
    }

    /// What it says of the next connection from the same place.
    fn learn(&self) {
        let Some(begun) = self.begun.get().filter(|begun| !begun.goes_on.load(Ordering::Relaxed))
        else {
            return;
        };
        if self.end().is_some_and(|end| !end.is_sole_holder()) {
            return; // It has not ended.
        }
        let now = wait::now();
        let moved = self.end().map_or((0, 0), End::bytes);
        let past = brief::Past {
            lived: now.saturating_sub(begun.at),
            messages: self.end().map_or(0, End::messages),
            bytes: moved.0.saturating_add(moved.1),
        };
        brief::PLACES.ended(begun.place, now, past);
    }

    /// `shutdown(2)`, before the kernel's.
    pub(crate) fn shutting(&self, fd: RawFd, how: libc::c_int) {
        zcopy::deferred::reclaim(&self.zcopy);
        if let Some(link) = self.link() {
            return shut(link, fd, how);
        }
        if self.is(Phase::Listening) {
            self.become_phase(Phase::Fresh); // It may be connected now.
        }
        let mut before = self.before.lock();
        match self.end() {
            Some(end) => shut(Link::Local(end), fd, how), // Found by another thread.
            None if before.shut.is_none_or(|earlier| earlier == how) => before.shut = Some(how),
            None => before.shut = Some(libc::SHUT_RDWR),
        }
    }

    /// Another thread may have closed the descriptor while this one slept, and its number may be
    /// another socket's by now, from which nothing must be taken.
    fn check_still_at(&self, fd: RawFd) -> Result<(), Errno> {
        let is_there = self.place.get().is_some_and(|place| place.is_at(fd));
        if is_there { Ok(()) } else { Err(Errno::BADF) }
    }
}

/// As [`weft_stream::inheritance`] sees it.
impl inheritance::Stream for Stream {
    type Kernel = Host;

    fn holding(&self) -> &Holding {
        &self.holding
    }

    fn leave(&self, fd: RawFd, why: Reason) {
        self.leave(fd, why);
    }

    /// What gets the socket does not have the window of a connection between hosts.
    fn hand_on(&self, fd: RawFd, why: Reason) {
        self.leave(fd, why);
        if let Some(remote) = self.remote() {
            remote.hand_on(Descriptor::of(fd).as_fd());
        }
    }

    fn is_tcp(&self) -> bool {
        self.is_tcp()
    }

    fn before_fork(&self, fd: RawFd) {
        if self.is(Phase::Candidate) {
            self.wait_for_offer(fd);
        }
    }

    /// A child will be born that knows as much as this process does: what is not in shared memory
    /// cannot be counted any more. Of two that both count from the beginning, each would miss what
    /// the other moves.
    fn forking_without_end(&self, fd: RawFd) {
        if let Some(begun) = self.begun.get() {
            begun.goes_on.store(true, Ordering::Relaxed);
        }
        if let Some(remote) = self.remote() {
            // The queue pair stays the parent's.
            remote.leave(Descriptor::of(fd).as_fd());
            remote.retain();
        } else if self.is(Phase::Foreign) || self.is(Phase::Candidate) || self.is(Phase::Connecting)
        {
            self.fall_back(Reason::Forked);
        } else if self.is(Phase::Fresh) && !Host::is_listening(Descriptor::of(fd).as_fd()) {
            // Either may connect it, and the other one would not be known to hold the connection.
            self.become_phase(Phase::Tcp);
            self.log.note(Reason::Forked);
        }
    }

    /// Queue pairs are the parent's.
    fn born(&self) {
        if let Some(remote) = self.remote.get() {
            remote.disown();
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !mode::is_in_fallback() {
            self.let_go();
        }
    }
}

/// What names the connection of a socket, in its network namespace.
fn tuple(fd: RawFd, connector: SocketAddr, acceptor: SocketAddr) -> Tuple {
    Tuple::new(connector, acceptor).in_namespace(Host::network_of(Descriptor::of(fd).as_fd()))
}

/// Tells the peer what `shutdown(2)` tells the kernel.
fn shut(link: Link<'_>, fd: RawFd, how: libc::c_int) {
    if how == libc::SHUT_WR || how == libc::SHUT_RDWR {
        link.shut_write(Descriptor::of(fd).as_fd());
    }
    if how == libc::SHUT_RD || how == libc::SHUT_RDWR {
        link.shut_read();
    }
}

fn fall_back(why: Reason) {
    shared_files::count_fallback(why);
}
