//! TCP sockets: connecting, accepting, sending and receiving.
//!
//! # Safety
//! A descriptor is borrowed for one call of the program, which has it open. Addresses and options
//! are read into local variables.
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

use weft_stream::rules::Role as RuleRole;
use weft_stream::{Registry, Role, Tuple, inheritance, is_local};
use weft_sys::calls::event::Timespec;
use weft_sys::calls::io::Errno;
use weft_sys::{SectionLock, SectionOnce, SignalLock, Spin, time_stamp};

use crate::descriptor::{Descriptor, addresses, is_nonblocking};
use crate::extended::Extended;
use crate::kernel::{End, Holding, Host, Kernel as _};
use crate::limits::OFFER_TRIES_MAX;
use crate::link::AnyEnd;
use crate::reason::{self, LogOnce, Reason};
use crate::remote::{self, RemoteEnd};
use crate::stall::Stall;
use crate::table::Place;
use crate::{brief, by_hand, identity, mode, settings, shared_files, wait, zcopy};

/// Calls on an accepted socket that all look for the connector's offer. The offer follows the
/// connection quickly, unless the connector has lost its core.
const TRIES_IN_A_ROW: u32 = 8;
/// How long a `fork` waits for offers to sockets just accepted: afterwards it would be too late.
const FORK_WAITS_NS: u64 = 3_000_000;
/// How long it sleeps between checks, because the connector may need this core.
const FORK_SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000 };
/// How long a writer sleeps before it asks the kernel whether the peer still lives.
const WRITER_SLEEP: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
const SPIN_MAX_NS: u64 = 2_000_000;
/// Interval between two questions to the kernel whether the peer was killed, in units of the time
/// stamp counter: some 50 us.
const ASK_STAMPS: u64 = 1 << 17;

/// Held while this process may have a duplicate of a peer's socket. A child must not inherit it: it
/// would delay the peer's EOF.
static FALLBACK: SignalLock<()> = SignalLock::new(());

/// Takes the lock before a fork, so that no other thread is falling back.
pub(crate) fn freeze() {
    FALLBACK.freeze();
}

/// Releases it after the fork, in the parent and in the child.
///
/// # Safety
/// This thread, or its copy in the parent, has called [`freeze`].
pub(crate) unsafe fn thaw() {
    // SAFETY: the caller has frozen `FALLBACK`.
    unsafe { FALLBACK.thaw() };
}

/// How far a socket is on its way to an [`End`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum SocketPhase {
    /// Not connected.
    Fresh,
    /// `connect` has begun.
    Connecting,
    /// Not connected; it has accepted connections.
    Listening,
    /// Accepted; the connector's offer has not been found yet.
    Candidate,
    /// Accepted from another host, perhaps for verbs; the peer has not been asked yet.
    Foreign,
    /// The kernel carries it for good.
    Tcp,
}

/// The state of a TCP socket.
#[derive(Debug)]
pub(crate) struct Stream {
    phase: AtomicU32,
    log: LogOnce,
    /// Its end if the peer is on this host, and this process's hold on it.
    holding: Holding,
    /// Its end if the peer is on another host.
    remote: SectionOnce<Arc<RemoteEnd>>,
    before: SectionLock<Before>,
    spin_in: Spin,
    /// How long a sender spins for room before it sleeps.
    pub(crate) spin_out: Spin,
    zcopy: zcopy::Sender,
    /// The end events that the kernel has reported, as bits of `poll(2)`.
    ended: AtomicU32,
    /// An error that the kernel has reported, and that the program has not seen yet.
    error: AtomicI32,
    /// Whether a writer has found no room.
    full: AtomicU32,
    /// Whether a reader may have taken all bytes that TCP had, since the connection fell back to
    /// TCP and an edge was reported.
    dry: AtomicU32,
    /// Not 0: the kernel watches for room. See [`Stream::kernel_watches_room`].
    kernels_room: AtomicU32,
    stall: Stall,
    /// Number of epoll instances that watch it.
    watches: AtomicU32,
    /// Number of those that wait for a wakeup.
    armed: AtomicU32,
    /// Whether the peer notifies because the socket was watched before it had an end.
    armed_early: AtomicU32,
    /// Number of epoll instances that announce data in memory.
    announced: AtomicU32,
    /// Number of C library streams whose functions lead to the hooks.
    files: AtomicU32,
    /// Whether it has a kernel-only option, which accepted sockets inherit.
    passes_on: AtomicBool,
    /// When a non-blocking receive has last had the kernel asked, in nanoseconds.
    asked: AtomicU64,
    /// When a writer last asked the kernel whether the peer was killed: a time stamp.
    asked_out: AtomicU64,
    /// Its state in extended mode.
    extended: SectionOnce<Box<Extended>>,
    /// Its entry in the descriptor table.
    place: SectionOnce<Place>,
    /// Where and when the connection began, if it is local.
    begun: SectionOnce<Begun>,
    /// The address class of connections that it accepts.
    listens_at: SectionOnce<brief::Place>,
}

/// Where and when (in nanoseconds) a connection began that may be brief.
#[derive(Debug)]
struct Begun {
    place: brief::Place,
    at: u64,
    /// Whether another process may continue it.
    goes_on: AtomicBool,
}

/// What an accepted socket has carried before an offer was found.
#[derive(Debug, Default)]
struct Before {
    sent: u64,
    read: u64,
    tries: u32,
    /// The number of offers ([`shared_files::offers`]) before the last look at them.
    offers: Option<u64>,
    /// The argument of an earlier `shutdown(2)`.
    shut: Option<libc::c_int>,
}

/// What executes a call.
#[derive(Debug)]
pub(crate) enum By<'a> {
    /// The kernel, without Weft's part.
    Kernel,
    /// The connection's end on this host.
    End(&'a End),
    /// The connection's end, if the peer is on another host.
    Remote(&'a RemoteEnd),
    /// The kernel, with the bytes counted.
    Counted,
}

impl<'a> By<'a> {
    /// Returns the end that executes the call.
    fn link(&self) -> Option<AnyEnd<'a>> {
        match *self {
            Self::End(end) => Some(AnyEnd::Local(end)),
            Self::Remote(remote) => Some(AnyEnd::Remote(remote)),
            Self::Kernel | Self::Counted => None,
        }
    }
}

impl Stream {
    fn new(phase: SocketPhase) -> Self {
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
            dry: AtomicU32::new(0),
            kernels_room: AtomicU32::new(0),
            stall: Stall::default(),
            watches: AtomicU32::new(0),
            armed: AtomicU32::new(0),
            armed_early: AtomicU32::new(0),
            announced: AtomicU32::new(0),
            files: AtomicU32::new(0),
            passes_on: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            asked_out: AtomicU64::new(time_stamp().wrapping_sub(ASK_STAMPS)),
            extended: SectionOnce::new(),
            place: SectionOnce::new(),
            begun: SectionOnce::new(),
            listens_at: SectionOnce::new(),
        }
    }

    /// Returns the state of a new socket.
    pub(crate) fn fresh() -> Self {
        Self::new(SocketPhase::Fresh)
    }

    /// Returns the state of an inherited socket with its end.
    pub(crate) fn inherited(end: End) -> Self {
        let holding = Holding::inherited(end, identity::number());
        let mut stream = Self::new(SocketPhase::Connecting);
        stream.holding = holding;
        stream
    }

    /// Returns the state of a socket that the kernel carries for good.
    pub(crate) fn kernels() -> Self {
        Self::new(SocketPhase::Tcp)
    }

    /// Records the socket's entry in the descriptor table.
    pub(crate) fn placed(&self, place: Place) {
        let _ = self.place.set(place);
    }

    /// Returns the state of a socket that `accept` has returned. `has_option` says whether it has
    /// inherited a kernel-only option ([`Stream::passes_option_on`]), if that is known.
    pub(crate) fn accepted(fd: RawFd, has_option: Option<bool>) -> Option<Self> {
        let stream = Self::new(SocketPhase::Candidate);
        let (own, peer) = addresses(fd)?;
        let is_local = is_local(own, peer);
        if own != peer && settings::wants_verbs(RuleRole::Listen, own, is_local) {
            stream.become_phase(SocketPhase::Foreign);
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
        // A listener of another process may have any option.
        if has_option.unwrap_or_else(|| options::has(fd)) {
            fall_back(Reason::Option);
            reason::log((own, peer), Reason::Option);
            return None;
        }
        // Connections from other hosts to the same port may be for verbs.
        if !settings::wants_memory(RuleRole::Listen, own)
            && !settings::wants_verbs(RuleRole::Listen, own, false)
        {
            stream.begin_at(brief::Place::at(own));
        }
        match shared_files::registry() {
            Some(registry) => {
                let offers = registry.offers();
                if offers.is_some() {
                    stream.look_in(registry, fd, tuple(fd, peer, own), &Before::default());
                    stream.before.lock().offers = offers;
                }
            }
            None => stream.fall_back(Reason::Registry),
        }
        Some(stream)
    }

    /// Records that this listener has accepted a connection. Returns whether that stays on TCP
    /// because earlier ones were brief; then it is not recorded.
    pub(crate) fn accepts_brief(&self) -> bool {
        if self.is(SocketPhase::Fresh) {
            self.become_phase(SocketPhase::Listening);
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

    /// Records the connection that it has accepted.
    pub(crate) fn has_accepted(&self, accepted: &Self) {
        if let Some(begun) = accepted.begun.get() {
            let _ = self.listens_at.set(begun.place);
        }
    }

    /// Records that the program has set a kernel-only option.
    pub(crate) fn has_option(&self) {
        self.passes_on.store(true, Ordering::Relaxed);
    }

    /// Returns whether accepted sockets inherit a kernel-only option.
    pub(crate) fn passes_option_on(&self) -> bool {
        self.passes_on.load(Ordering::Relaxed)
    }

    /// Returns its end on this host, if it has one.
    #[inline]
    pub(crate) fn end(&self) -> Option<&End> {
        self.holding.end()
    }

    /// Returns its end, to a peer on this host or another.
    #[inline]
    pub(crate) fn link(&self) -> Option<AnyEnd<'_>> {
        match self.end() {
            Some(end) => Some(AnyEnd::Local(end)),
            None => self.remote().map(AnyEnd::Remote),
        }
    }

    /// Returns its end if the peer is on another host, and verbs carry it or may.
    #[cold]
    fn remote(&self) -> Option<&RemoteEnd> {
        self.remote.get().map(Arc::as_ref).filter(|remote| !remote.is_off())
    }

    /// Returns whether the peer is on another host, and verbs carry the connection or may.
    pub(crate) fn is_remote(&self) -> bool {
        self.end().is_none() && self.remote().is_some()
    }

    /// Looks for the peer on another host, in the background.
    fn seek_remote(&self, fd: RawFd, role: Role, ends: [SocketAddr; 2]) {
        match remote::seek(fd, role, ends) {
            Some(remote) => {
                self.become_phase(SocketPhase::Tcp); // Applies once `remote` is off.
                // If another thread has set one, that serves as well.
                let _ = self.remote.set(remote);
            }
            None => self.fall_back(Reason::Room),
        }
    }

    /// Gives the socket its end.
    fn begin(&self, fd: RawFd, end: End) {
        if self.watches.load(Ordering::Relaxed) > 0 {
            // A thread that watches it may be asleep already.
            end.begin_sleep();
            self.armed_early.store(1, Ordering::Relaxed);
        }
        // Only one thread gets here: the connecting one, or the one that holds `before`.
        self.holding.begin(end, identity::number(), Descriptor::of(fd).as_fd());
    }

    /// Releases this process's hold on the end, once.
    pub(crate) fn let_go(&self) {
        self.holding.let_go();
    }

    /// Ends the early arming: an instance checks the rings now.
    #[inline]
    pub(crate) fn is_looked_at(&self, end: &End) {
        if self.armed_early.load(Ordering::Relaxed) != 0
            && self.armed_early.swap(0, Ordering::Relaxed) != 0
        {
            end.end_sleep();
        }
    }

    fn is(&self, phase: SocketPhase) -> bool {
        self.phase.load(Ordering::Relaxed) == phase as u32
    }

    fn become_phase(&self, phase: SocketPhase) {
        self.phase.store(phase as u32, Ordering::Relaxed);
    }

    /// Returns whether the kernel carries it for good.
    pub(crate) fn is_tcp(&self) -> bool {
        self.link().is_none() && self.is(SocketPhase::Tcp)
    }

    /// Records that `connect` has returned, with success or in progress.
    pub(crate) fn connected(&self, fd: RawFd) {
        let begins = [SocketPhase::Fresh, SocketPhase::Listening, SocketPhase::Connecting];
        if self.link().is_some() || !begins.into_iter().any(|phase| self.is(phase)) {
            return;
        }
        self.become_phase(SocketPhase::Connecting);
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
            // The socket is connected to itself.
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

    /// Records that `connect` to this address has returned. The connection stays on TCP if
    /// connections there are brief.
    pub(crate) fn connected_to(&self, fd: RawFd, peer: Option<SocketAddr>) {
        if let Some(peer) = peer.filter(|_| self.is(SocketPhase::Fresh)) {
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

    /// Records where and when the connection began.
    fn begin_at(&self, place: brief::Place) {
        let begin = || Begun { place, at: wait::now(), goes_on: AtomicBool::new(false) };
        self.begun.get_or_init(begin);
    }

    /// Records that `connect` has dissolved the connection (`AF_UNSPEC`); the socket may be
    /// connected again.
    pub(crate) fn dissolved(&self) {
        self.let_go();
        if self.end().is_none()
            && let Some(remote) = self.remote()
        {
            remote.close(false);
        }
    }

    /// Falls back to TCP. Unread bytes in memory are returned to the kernel's socket, as far as
    /// possible ([`Stream::has_unread`]).
    pub(crate) fn fall_back_to_tcp(&self, fd: RawFd, why: Reason) {
        self.fall_back_by(fd, why, |end, socket| end.fall_back_to_tcp(socket));
    }

    /// Falls back to TCP, but leaves unread bytes in memory, from where they are read.
    pub(crate) fn fall_back_unread(&self, fd: RawFd, why: Reason) {
        self.fall_back_by(fd, why, |end, socket| end.fall_back_unread(socket));
    }

    /// Returns unread bytes of a connection that has fallen back to TCP to the kernel's socket, as
    /// far as possible, because only the kernel is to read.
    pub(crate) fn put_back_rest(&self, fd: RawFd) {
        if let Some(end) = self.end().filter(|end| end.unread() > 0) {
            let held = (!identity::is_borrowed()).then(|| FALLBACK.lock());
            end.put_back_rest(Descriptor::of(fd).as_fd());
            drop(held);
        }
    }

    fn fall_back_by(&self, fd: RawFd, why: Reason, act: fn(&End, BorrowedFd<'_>)) {
        zcopy::deferred::reclaim(&self.zcopy);
        match self.link() {
            Some(AnyEnd::Local(end)) if end.has_fallen_back() => {}
            Some(AnyEnd::Remote(remote)) => {
                remote.fall_back_to_tcp(Descriptor::of(fd).as_fd());
                fall_back(why);
            }
            Some(AnyEnd::Local(end)) => {
                // A child of `vfork` has its own descriptor table.
                let held = (!identity::is_borrowed()).then(|| FALLBACK.lock());
                act(end, Descriptor::of(fd).as_fd());
                drop(held);
                self.log.note(why);
                end.note_fallback(why);
            }
            None if !self.is(SocketPhase::Tcp) => {
                self.fall_back(why);
                if let Some(end) = self.holding.bar() {
                    // Another thread has just given it an end.
                    end.fall_back_to_tcp(Descriptor::of(fd).as_fd());
                }
            }
            None => {}
        }
    }

    /// Keeps the connection on TCP for good, because the process is about to give up system calls.
    pub(crate) fn enter_fallback(&self, fd: RawFd) {
        self.become_phase(SocketPhase::Tcp);
        self.log.write(fd, self.end(), true);
    }

    /// Returns whether the kernel carries the connection again while unread data is left elsewhere.
    pub(crate) fn has_unread(&self) -> bool {
        match self.link() {
            Some(AnyEnd::Local(end)) => !end.is_over(),
            Some(AnyEnd::Remote(remote)) => remote.has_rest(),
            None => false,
        }
    }

    /// Releases a connection to another host that has left verbs, because the process is about to
    /// give up system calls.
    pub(crate) fn disown_remote(&self) {
        if let Some(remote) = self.remote.get() {
            remote.disown();
        }
    }

    fn fall_back(&self, why: Reason) {
        self.become_phase(SocketPhase::Tcp);
        self.log.note(why);
        fall_back(why);
    }

    /// Looks for an offer until it is found or unlikely to come.
    fn wait_for_offer(&self, fd: RawFd) {
        let mut before = self.before.lock();
        let deadline = wait::now() + FORK_WAITS_NS;
        loop {
            self.look_once(fd, &mut before);
            let goes_on = self.is(SocketPhase::Candidate) && before.tries <= TRIES_IN_A_ROW;
            if self.end().is_some() || !goes_on || wait::now() >= deadline {
                return;
            }
            Host::sleep_for(&FORK_SLEEP);
        }
    }

    /// Returns what executes the next call on the socket.
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
        if self.is(SocketPhase::Foreign) {
            if let Some((own, peer)) = addresses(fd) {
                self.seek_remote(fd, Role::Acceptor, [peer, own]);
            }
        } else if self.is(SocketPhase::Connecting) {
            self.connected(fd);
        } else if self.is(SocketPhase::Candidate) {
            self.look_for_offer(fd, &mut self.before.lock());
            if self.end().is_none() && self.is(SocketPhase::Candidate) {
                return By::Counted;
            }
        } else if self.is(SocketPhase::Fresh) && addresses(fd).is_some() {
            self.fall_back(Reason::Unseen);
        }
        self.log_carrier(fd);
        match self.link() {
            Some(AnyEnd::Local(end)) => By::End(end),
            Some(AnyEnd::Remote(remote)) => By::Remote(remote),
            None => By::Kernel,
        }
    }

    /// Logs what carries the connection, if that is known and wanted. The caller holds no lock.
    pub(crate) fn log_carrier(&self, fd: RawFd) {
        self.log.write(fd, self.end(), false);
    }

    /// Lets the kernel execute a call. If the call waits for the connection to be established, it
    /// may move bytes that are not counted.
    fn not_counted<T>(&self, fd: RawFd, flags: libc::c_int) -> Option<T> {
        if self.is(SocketPhase::Connecting) && !is_nonblocking(fd, flags) {
            self.fall_back(Reason::Early);
        }
        None
    }

    /// Looks for the peer once more. `None`: it may still come.
    ///
    /// # Errors
    /// `ENOTCONN`; `EOPNOTSUPP`: the connection stays on TCP.
    pub(crate) fn seek(&self, fd: RawFd) -> Result<Option<&End>, Errno> {
        if self.is(SocketPhase::Candidate) {
            self.look_once(fd, &mut self.before.lock());
        }
        match self.by(fd) {
            By::End(end) => Ok(Some(end)),
            By::Counted => Ok(None),
            By::Remote(_) => Err(Errno::OPNOTSUPP), // One-sided operations work on one host only.
            By::Kernel if self.is(SocketPhase::Tcp) => Err(Errno::OPNOTSUPP),
            By::Kernel => Err(Errno::NOTCONN),
        }
    }

    /// Returns how many C library streams lead to the hooks.
    pub(crate) fn files(&self) -> &AtomicU32 {
        &self.files
    }

    /// Enters extended mode.
    pub(crate) fn extend(&self) {
        self.extended.get_or_init(|| Box::new(Extended::new()));
    }

    /// Returns its state in extended mode.
    pub(crate) fn extended(&self) -> Option<&Extended> {
        self.extended.get().map(Box::as_ref)
    }

    fn look_for_offer(&self, fd: RawFd, before: &mut Before) {
        before.tries += 1;
        if before.tries <= TRIES_IN_A_ROW || before.tries.is_power_of_two() {
            self.look_once(fd, before);
        }
        if before.tries >= OFFER_TRIES_MAX
            && self.end().is_none()
            && self.is(SocketPhase::Candidate)
        {
            self.fall_back(Reason::Peer);
        }
    }

    /// Looks for the peer's offer, unless there has been no offer since the last look: offers to
    /// others may stay open for long, and each look costs system calls.
    fn look_once(&self, fd: RawFd, before: &mut Before) {
        if self.end().is_some() || !self.is(SocketPhase::Candidate) {
            return;
        }
        let offers = shared_files::offers();
        if offers.is_none() || offers == before.offers {
            return;
        }
        before.offers = offers.filter(|&offers| offers != shared_files::UNKNOWN_OFFERS);
        let Some(registry) = shared_files::registry() else {
            return self.fall_back(Reason::Registry);
        };
        match addresses(fd) {
            Some((own, peer)) => self.look_in(registry, fd, tuple(fd, peer, own), before),
            None => self.fall_back(Reason::Peer), // The peer has disconnected.
        }
    }

    fn look_in(&self, registry: &'static Registry, fd: RawFd, tuple: Tuple, before: &Before) {
        let counts = (before.sent, before.read);
        let me = identity::me(fd);
        if let Some(end) = End::find(registry, &tuple, &me, counts) {
            // Before the connector can join: it must not miss this shutdown.
            before.shut.into_iter().for_each(|how| shut(AnyEnd::Local(&end), fd, how));
            self.begin(fd, end);
        }
    }

    /// Prepares for the close of this process's last descriptor.
    pub(crate) fn closing(&self, fd: RawFd) {
        if let Some(remote) = self.remote.get() {
            return remote_end::close(fd, remote);
        }
        if self.end().is_none() && self.is(SocketPhase::Candidate) {
            self.fall_back(Reason::Peer);
        }
        self.log.write(fd, self.end(), true);
        if self.end().is_some() {
            zcopy::deferred::reclaim(&self.zcopy);
        }
        self.learn();
        self.holding.closing(Descriptor::of(fd).as_fd());
    }

    /// Records whether the connection was brief, for the next ones with the same class.
    fn learn(&self) {
        let Some(begun) = self.begun.get().filter(|begun| !begun.goes_on.load(Ordering::Relaxed))
        else {
            return;
        };
        if self.end().is_some_and(|end| !end.is_sole_holder()) {
            return; // Another process continues the connection.
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

    /// Executes Weft's part of `shutdown(2)`, before the kernel's.
    pub(crate) fn shutting(&self, fd: RawFd, how: libc::c_int) {
        zcopy::deferred::reclaim(&self.zcopy);
        if let Some(link) = self.link() {
            return shut(link, fd, how);
        }
        if self.is(SocketPhase::Listening) {
            self.become_phase(SocketPhase::Fresh); // A former listener may be connected.
        }
        if !(libc::SHUT_RD..=libc::SHUT_RDWR).contains(&how) {
            return; // The kernel refuses it, and nothing is to be remembered.
        }
        let mut before = self.before.lock();
        match self.end() {
            Some(end) => shut(AnyEnd::Local(end), fd, how), // Another thread has found the offer.
            None if before.shut.is_none_or(|earlier| earlier == how) => before.shut = Some(how),
            None => before.shut = Some(libc::SHUT_RDWR),
        }
    }

    /// Fails if another thread has closed the descriptor while this one slept: its number may
    /// belong to another socket by now, whose data must not be taken.
    fn check_still_at(&self, fd: RawFd) -> Result<(), Errno> {
        let is_there = self.place.get().is_some_and(|place| place.is_at(fd));
        if is_there { Ok(()) } else { Err(Errno::BADF) }
    }
}

/// The interface that [`weft_stream::inheritance`] uses.
impl inheritance::Stream for Stream {
    type Kernel = Host;

    fn holding(&self) -> &Holding {
        &self.holding
    }

    fn fall_back_to_tcp(&self, fd: RawFd, why: Reason) {
        self.fall_back_to_tcp(fd, why);
    }

    /// The process that gets the socket does not have the window of a connection to another host.
    fn hand_on(&self, fd: RawFd, why: Reason) {
        self.fall_back_to_tcp(fd, why);
        if let Some(remote) = self.remote() {
            remote.hand_on(Descriptor::of(fd).as_fd());
        }
    }

    fn is_tcp(&self) -> bool {
        self.is_tcp()
    }

    fn before_fork(&self, fd: RawFd) {
        if self.is(SocketPhase::Candidate) {
            self.wait_for_offer(fd);
        }
    }

    /// Falls back before a fork, unless the state is in shared memory: parent and child would each
    /// count only its own bytes.
    fn forking_without_end(&self, fd: RawFd) {
        if let Some(begun) = self.begun.get() {
            begun.goes_on.store(true, Ordering::Relaxed);
        }
        if let Some(remote) = self.remote() {
            // The queue pair stays with the parent.
            remote.fall_back_to_tcp(Descriptor::of(fd).as_fd());
            remote.retain();
        } else if self.is(SocketPhase::Foreign)
            || self.is(SocketPhase::Candidate)
            || self.is(SocketPhase::Connecting)
        {
            self.fall_back(Reason::Forked);
        } else if self.is(SocketPhase::Fresh) && !Host::is_listening(Descriptor::of(fd).as_fd()) {
            // Either process may connect it, and the other's hold would not be known.
            self.become_phase(SocketPhase::Tcp);
            self.log.note(Reason::Forked);
        }
    }

    /// Gives up the parent's queue pair, in a forked child.
    fn forked(&self) {
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

/// Returns the key of a socket's connection, in its network namespace.
fn tuple(fd: RawFd, connector: SocketAddr, acceptor: SocketAddr) -> Tuple {
    Tuple::new(connector, acceptor).in_namespace(Host::network_of(Descriptor::of(fd).as_fd()))
}

/// Publishes to the peer what `shutdown(2)` tells the kernel.
fn shut(link: AnyEnd<'_>, fd: RawFd, how: libc::c_int) {
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
