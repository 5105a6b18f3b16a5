//! The Unix socket beside a connection, on which the two sides agree to share memory, wake each
//! other and request keys.
//!
//! Each packet is a byte with its type, and fields in the CPU's byte order, because both sides run
//! on one host.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use weft_sys::calls;
use weft_sys::calls::event::{PollFd, PollFlags, poll};
use weft_sys::calls::net::{RecvFlags, SendFlags};
use weft_sys::calls::process::{Pid, getuid};
use weft_sys::calls::send_bytes;
use weft_sys::calls::time::Timespec;
use weft_sys::{
    Lock, PASSED_FDS_MAX, PacketWithFds, PeerPresence, SharedMemory, own_pages, peer_credentials,
    recv_with_fds, send_with_fds,
};

use super::directory::{find, sweep_directory};
use super::keys::{Granted, KeyOwner, Memory, Pages};
use super::peer::ShmPeer;
use super::policy::admits;
use super::segment::{RingOwner, Rings};
use crate::access::Access;
use crate::hello::{Identity, ProcessId};
use crate::limits::{PACKET_LEN_MAX, REMAP_LEN_MAX};
use crate::log::{self, Level};
use crate::reactor::{Handle, Source};
use crate::strangers::{Permit, Stranger};
use crate::timer::Timer;
use crate::watched::Watched;
use crate::{Errno, Result, presence};

/// How long a stranger may take to make an offer.
const OFFER_TIMEOUT: Duration = Duration::from_secs(5);
/// The version of this protocol and of the segment's layout.
const VERSION: u8 = 2;

const OFFER: u8 = 1;
const ACCEPT: u8 = 2;
const WAKEUP: u8 = 3;
const ASK: u8 = 4;
const GRANT: u8 = 5;
const DENY: u8 = 6;

/// A queue pair whose connection may share memory.
pub(crate) trait Endpoint: RingOwner {
    /// The queue pair's identity, as its peer needs it.
    fn identity(&self) -> Identity;

    /// The reactor of the queue pair.
    fn reactor(&self) -> Handle;

    /// The address of this process's identity in its memory. A peer that can read it there can read
    /// all of the memory.
    fn probe(&self) -> u64;

    /// Called with the peer's offer to share memory.
    fn offered(&self, offer: Offer);

    /// Called when the peer has accepted our offer.
    fn offer_accepted(&self, rings: Rings, peer: ShmPeer);

    /// Called when the peer has not accepted our offer.
    fn offer_refused(&self);

    /// Called when the session of the peer's offer has ended before there was a connection.
    fn offer_withdrawn(&self, session: &Session);

    /// Called when the session's socket has ended.
    fn session_ended(&self);

    /// Called with the peer's reply to a key request.
    fn learn_key(&self, key: u32, granted: Option<Granted>);

    /// Grants a key that the peer has requested; `None` denies it.
    fn grant_key(&self, key: u32) -> Option<Granted>;
}

/// Finds an endpoint by the number of its queue pair.
pub(crate) type Find = fn(u32) -> Option<Arc<dyn Endpoint>>;

static FIND: OnceLock<Find> = OnceLock::new();

/// Sets how endpoints are found. The first queue pair does so.
pub(crate) fn find_by(find: Find) {
    FIND.get_or_init(|| find);
}

/// The endpoint with this queue pair number.
fn find_endpoint(number: u32) -> Option<Arc<dyn Endpoint>> {
    FIND.get().and_then(|find| find(number))
}

/// A peer's offer to share memory for one connection.
#[derive(Debug)]
pub(crate) struct Offer {
    /// The queue pair that makes the offer.
    pub(crate) from: Offerer,
    pub(crate) rings: Rings,
    pub(crate) peer: ShmPeer,
    pub(crate) session: Arc<Session>,
}

/// The identity that a peer claims in its offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offerer {
    pub(crate) qp_num: u32,
    pub(crate) ack_stag: u32,
    pub(crate) process: ProcessId,
}

impl Offerer {
    /// Whether this is the queue pair at the other end of the TCP connection.
    pub(crate) fn is(&self, identity: &Identity) -> bool {
        let Self { qp_num, ack_stag, process } = *self;
        (qp_num, ack_stag, process) == (identity.qp_num, identity.ack_stag, identity.process)
    }
}

#[derive(Debug)]
enum Stage {
    /// Accepted; the peer has not sent its request yet.
    Strange {
        _timer: Option<Timer>,
        _permit: Permit,
    },
    /// The peer has made an offer to a queue pair, which may not have its connection yet.
    Offered {
        qp: Weak<dyn Endpoint>,
        _timer: Timer,
    },
    /// We have made an offer.
    Offering {
        rings: Rings,
        process: ProcessId,
        qp: Weak<dyn Endpoint>,
    },
    /// Memory is shared, or about to be.
    Sharing {
        qp: Weak<dyn Endpoint>,
    },
    Over,
}

/// The session socket of one connection.
#[derive(Debug)]
pub(crate) struct Session {
    me: Weak<Self>,
    reactor: Handle,
    socket: Arc<OwnedFd>,
    /// The peer's process, if it belongs to the same user. A process id of another user is not
    /// trusted: that process may execute a program with more rights than the user has, and we would
    /// access that program's memory.
    own_users_pid: Option<Pid>,
    watched: Lock<Option<Watched<Arc<OwnedFd>>>>,
    stage: Lock<Stage>,
}

struct Packet {
    bytes: [u8; PACKET_LEN_MAX],
    len: usize,
    fds: [Option<OwnedFd>; PASSED_FDS_MAX],
}

impl Session {
    /// Offers shared memory to the process at the other end of a connection. `None` if it is not on
    /// this host, or if something prevents sharing; then nothing has been sent.
    pub(crate) fn offer(qp: &Arc<dyn Endpoint>, to: &Identity) -> Option<Arc<Self>> {
        let own = qp.identity();
        if to.process == ProcessId::default() || own.process == ProcessId::default() {
            return None;
        }
        // A process of another host, or of a network namespace without a common directory, is not
        // found. That is no error.
        let socket = find(&to.process)?;
        let offered = Self::offer_by(socket, qp, to, own);
        if let Err((step, error)) = &offered {
            let number = own.qp_num;
            let text = format_args!("qp {number:#08x}: no offer to share: {step}: {error}");
            log::write(Level::Warn, text);
        }
        offered.ok()
    }

    /// Makes an offer on a socket to the peer's process. An error has the step that failed.
    fn offer_by(
        socket: OwnedFd,
        qp: &Arc<dyn Endpoint>,
        to: &Identity,
        own: Identity,
    ) -> std::result::Result<Arc<Self>, (&'static str, Errno)> {
        let presence = presence::own().map_err(|error| ("presence page", error))?;
        let (rings, fd) = Rings::create().map_err(|error| ("rings", error))?;
        let mut bytes = vec![OFFER, VERSION];
        for word in [to.qp_num, own.qp_num, own.ack_stag] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.extend_from_slice(&own.process);
        bytes.extend_from_slice(&qp.probe().to_ne_bytes());
        let stage = Stage::Offering { rings, process: to.process, qp: Arc::downgrade(qp) };
        let session = Self::new(qp.reactor(), socket, stage);
        let session = session.ok_or(("peer's user", Errno::ACCESS))?;
        let sent = session.send(&bytes, &[fd.as_fd(), presence.fd()]);
        sent.map_err(|error| ("sending it", error))?;
        session.watch().map_err(|error| ("waiting for the answer", error))?;
        Ok(session)
    }

    /// Accepts a connection of a stranger.
    pub(super) fn accept(reactor: Handle, socket: OwnedFd, permit: Permit) {
        let Some(session) = Self::new(reactor, socket, Stage::Over) else { return };
        permit.set_holder(Weak::clone(&session.me) as _);
        *session.stage.lock() = Stage::Strange { _timer: None, _permit: permit };
        if session.watch().is_err() {
            return;
        }
        if let Stage::Strange { _timer: timer, .. } = &mut *session.stage.lock() {
            *timer = Some(session.start_timer());
        }
        session.ready();
    }

    /// Starts the timer for the peer's next packet.
    fn start_timer(self: &Arc<Self>) -> Timer {
        Timer::after(self.reactor, OFFER_TIMEOUT, Arc::clone(self) as _)
    }

    /// Creates a session; `None` if the peer's user is not admitted.
    fn new(reactor: Handle, socket: OwnedFd, stage: Stage) -> Option<Arc<Self>> {
        let (pid, uid) = peer_credentials(socket.as_fd()).ok()?;
        if !admits(uid) {
            return None;
        }
        let own_users_pid = pid.filter(|_| uid == getuid().as_raw());
        Some(Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            reactor,
            socket: Arc::new(socket),
            own_users_pid,
            watched: Lock::new(None),
            stage: Lock::new(stage),
        }))
    }

    fn watch(&self) -> Result<()> {
        let me = self.me.upgrade().ok_or(Errno::CONNABORTED)?;
        *self.watched.lock() = Some(Watched::new(self.reactor, Arc::clone(&self.socket), me)?);
        Ok(())
    }

    /// Accepts an offer for a queue pair.
    ///
    /// # Errors
    /// `EPIPE` and similar if the peer is gone.
    pub(crate) fn accept_for(&self, qp: &Arc<dyn Endpoint>) -> Result<()> {
        let presence = presence::own()?;
        let mut bytes = vec![ACCEPT];
        bytes.extend_from_slice(&qp.probe().to_ne_bytes());
        // Change the stage before the peer can know: another thread may process its next packet at
        // once.
        let sharing = Stage::Sharing { qp: Arc::downgrade(qp) };
        self.set_stage(sharing);
        self.send(&bytes, &[presence.fd()]).inspect_err(|_| self.set_stage(Stage::Over))
    }

    /// Wakes the peer. If the socket is full, it is readable at the peer anyway.
    pub(crate) fn wake_peer(&self) {
        let _ = self.send(&[WAKEUP], &[]);
    }

    /// Whether the peer's end is open.
    pub(super) fn is_alive(&self) -> bool {
        let mut fds = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        matches!(poll(&mut fds, Some(&at_once)), Ok(0))
    }

    /// Ends the session.
    pub(crate) fn close(&self) {
        self.set_stage(Stage::Over);
        if let Some(watched) = self.watched.lock().take() {
            drop(watched);
            let _ = calls::net::shutdown(&self.socket, calls::net::Shutdown::Both);
        }
    }

    fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        if fds.is_empty() {
            return send_bytes(&self.socket, bytes, flags).map(drop);
        }
        send_with_fds(&self.socket, bytes, fds, flags).map(drop)
    }

    /// Receives the next packet; `None` if the peer has closed its end.
    fn receive(&self) -> Result<Option<Packet>> {
        let mut bytes = [0; PACKET_LEN_MAX];
        let PacketWithFds { len, fds, is_cut } =
            recv_with_fds(&self.socket, &mut bytes, RecvFlags::DONTWAIT)?;
        match len {
            0 => Ok(None),
            _ if is_cut => Err(Errno::PROTO),
            _ => Ok(Some(Packet { bytes, len, fds })),
        }
    }

    fn handle(&self, packet: Packet) -> Result<()> {
        let Packet { bytes, len, fds } = packet;
        let (kind, fields) = bytes[..len].split_first().ok_or(Errno::PROTO)?;
        let mut fields = Fields(fields);
        match *kind {
            OFFER => self.handle_offer(&mut fields, fds),
            ACCEPT => self.handle_accept(&mut fields, fds),
            WAKEUP => {
                self.qp()?.ring_ready(false);
                Ok(())
            }
            ASK => self.answer(fields.word()?),
            GRANT => {
                let key = fields.word()?;
                let granted = fields.granted(fds)?;
                self.qp()?.learn_key(key, granted);
                Ok(())
            }
            DENY => {
                self.qp()?.learn_key(fields.word()?, None);
                Ok(())
            }
            _ => Err(Errno::PROTO),
        }
    }

    fn handle_offer(
        &self,
        fields: &mut Fields<'_>,
        fds: [Option<OwnedFd>; PASSED_FDS_MAX],
    ) -> Result<()> {
        self.take_stage(|stage| matches!(stage, Stage::Strange { .. }))?;
        let [Some(segment), Some(presence)] = fds else { return Err(Errno::PROTO) };
        if fields.byte()? != VERSION {
            return Err(Errno::PROTO);
        }
        let wanted = fields.word()?;
        let (qp_num, ack_stag) = (fields.word()?, fields.word()?);
        let process = fields.id()?;
        let from = Offerer { qp_num, ack_stag, process };
        let rings = Rings::open(segment.as_fd())?;
        let presence = PeerPresence::open(presence.as_fd())?;
        let peer = ShmPeer::new(presence, self.own_users_pid, from.process, fields.long()?);
        let qp = find_endpoint(wanted).ok_or(Errno::NOENT)?;
        let session = self.me.upgrade().ok_or(Errno::CONNABORTED)?;
        let timer = session.start_timer();
        self.set_stage(Stage::Offered { qp: Arc::downgrade(&qp), _timer: timer });
        qp.offered(Offer { from, rings, peer, session });
        Ok(())
    }

    fn handle_accept(
        &self,
        fields: &mut Fields<'_>,
        fds: [Option<OwnedFd>; PASSED_FDS_MAX],
    ) -> Result<()> {
        let [Some(presence), None] = fds else { return Err(Errno::PROTO) };
        let presence = PeerPresence::open(presence.as_fd())?;
        let probe = fields.long()?;
        let old = self.take_stage(|stage| matches!(stage, Stage::Offering { .. }))?;
        let Stage::Offering { rings, process, qp } = old else { return Err(Errno::PROTO) };
        let peer = ShmPeer::new(presence, self.own_users_pid, process, probe);
        *self.stage.lock() = Stage::Sharing { qp: Weak::clone(&qp) };
        let qp = qp.upgrade().ok_or(Errno::CONNABORTED)?;
        qp.offer_accepted(rings, peer);
        Ok(())
    }

    /// Takes the stage if it is the right one; otherwise leaves it, so that `end` knows what ends.
    fn take_stage(&self, is_right: impl Fn(&Stage) -> bool) -> Result<Stage> {
        let mut stage = self.stage.lock();
        if !is_right(&stage) {
            return Err(Errno::PROTO);
        }
        Ok(std::mem::replace(&mut *stage, Stage::Over))
    }

    fn set_stage(&self, stage: Stage) {
        let old = std::mem::replace(&mut *self.stage.lock(), stage);
        drop(old);
    }

    fn answer(&self, key: u32) -> Result<()> {
        let granted = self.qp()?.grant_key(key);
        let mut bytes = vec![if granted.is_some() { GRANT } else { DENY }];
        bytes.extend_from_slice(&key.to_ne_bytes());
        let mut segment_fd = None;
        if let Some(Granted { slot, serial, rights, iova, len, addr, pages }) = &granted {
            let slot = u32::try_from(*slot).map_err(|_| Errno::OVERFLOW)?;
            for word in [slot, *serial, rights.bits()] {
                bytes.extend_from_slice(&word.to_ne_bytes());
            }
            for long in [*iova, *len, *addr] {
                bytes.extend_from_slice(&long.to_ne_bytes());
            }
            if let Some(Pages { start, len, addr, memory }) = pages {
                for long in [*start, *len, *addr] {
                    bytes.extend_from_slice(&long.to_ne_bytes());
                }
                if let Some(Memory::Own(segment)) = memory {
                    segment_fd = Some(segment.fd().as_fd());
                }
            }
        }
        // If the socket is full, the peer repeats its request later.
        let _ = self.send(&bytes, segment_fd.as_slice());
        Ok(())
    }

    fn qp(&self) -> Result<Arc<dyn Endpoint>> {
        match &*self.stage.lock() {
            Stage::Sharing { qp } => qp.upgrade().ok_or(Errno::CONNABORTED),
            _ => Err(Errno::PROTO),
        }
    }

    /// Ends a session whose peer is gone or broke the protocol. An offer that was not accepted is
    /// dropped. A connection that shares memory is lost, because nothing would wake us for new
    /// messages.
    fn end(&self) {
        let (offering, offered, sharing) = match &*self.stage.lock() {
            Stage::Offering { qp, .. } => (qp.upgrade(), None, None),
            Stage::Offered { qp, .. } => (None, qp.upgrade(), None),
            Stage::Sharing { qp } => (None, None, qp.upgrade()),
            Stage::Strange { .. } | Stage::Over => (None, None, None),
        };
        self.close();
        if let Some(qp) = offered {
            qp.offer_withdrawn(self);
        }
        if let Some(qp) = offering {
            qp.offer_refused();
        }
        if let Some(qp) = sharing {
            // The peer may have been killed.
            sweep_directory();
            qp.session_ended();
        }
    }
}

impl KeyOwner for Session {
    fn ask_for_key(&self, key: u32) -> bool {
        let [a, b, c, d] = key.to_ne_bytes();
        self.send(&[ASK, a, b, c, d], &[]).is_ok()
    }
}

impl Source for Session {
    fn ready(&self) {
        loop {
            match self.receive() {
                Err(Errno::AGAIN | Errno::INTR) => return,
                Ok(Some(packet)) => {
                    if self.handle(packet).is_err() {
                        return self.end();
                    }
                }
                _ => return self.end(),
            }
        }
    }

    fn expired(&self, _: std::time::Instant) {
        self.evict();
    }
}

impl Stranger for Session {
    fn evict(&self) {
        let is_strange =
            matches!(&*self.stage.lock(), Stage::Strange { .. } | Stage::Offered { .. });
        if is_strange {
            self.end();
        }
    }
}

/// A parser of a packet's fields.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>().ok_or(Errno::PROTO)?;
        self.0 = rest;
        Ok(*field)
    }

    fn byte(&mut self) -> Result<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn word(&mut self) -> Result<u32> {
        self.take().map(u32::from_ne_bytes)
    }

    fn long(&mut self) -> Result<u64> {
        self.take().map(u64::from_ne_bytes)
    }

    fn id(&mut self) -> Result<ProcessId> {
        self.take()
    }

    /// Parses a grant; `None` if it is inconsistent.
    fn granted(&mut self, fds: [Option<OwnedFd>; PASSED_FDS_MAX]) -> Result<Option<Granted>> {
        let (slot, serial) = (self.word()? as usize, self.word()?);
        let rights = Access::from_bits_truncate(self.word()?);
        let (iova, len, addr) = (self.long()?, self.long()?, self.long()?);
        let has_pages = !self.0.is_empty();
        let pages = has_pages.then(|| self.pages(rights, fds)).transpose()?;
        let lie_inside =
            |pages: &Pages| pages.start.checked_add(pages.len).is_some_and(|end| end <= len);
        let makes_sense = pages.as_ref().is_none_or(lie_inside);
        let granted = Granted { slot, serial, rights, iova, len, addr, pages };
        Ok(makes_sense.then_some(granted))
    }

    fn pages(&mut self, rights: Access, fds: [Option<OwnedFd>; PASSED_FDS_MAX]) -> Result<Pages> {
        let (start, len, addr) = (self.long()?, self.long()?, self.long()?);
        // Without a mapping the memory is still reached by address.
        let [fd, _] = fds;
        let memory = fd.and_then(|fd| map_segment(&fd, len, rights).ok()).map(Memory::Mapped);
        Ok(Pages { start, len, addr, memory })
    }
}

/// Maps a segment that a peer, which may be this process, has granted.
fn map_segment(fd: &OwnedFd, len: u64, rights: Access) -> Result<Arc<SharedMemory>> {
    let len = usize::try_from(len).map_err(|_| Errno::INVAL)?;
    if let Some(own) = own_pages(fd.as_fd()) {
        return if own.len() == len { Ok(own) } else { Err(Errno::INVAL) };
    }
    if len > REMAP_LEN_MAX {
        return Err(Errno::INVAL);
    }
    let writable = rights.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
    SharedMemory::open_beginning(fd.as_fd(), len, writable).map(Arc::new)
}
