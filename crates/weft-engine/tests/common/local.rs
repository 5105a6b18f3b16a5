//! A hand-written peer that shares memory with its victim: the session socket and the rings, for
//! tests that break their rules.

use std::fmt::Write as _;
use std::io::{IoSlice, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept, bind,
    connect, listen, recvmsg, sendmsg, socket_with,
};
use rustix::time::Timespec;
use weft_engine::hello::{self, Identity, ProcessId};
use weft_sys::{OwnPresence, SLOT_BODY_LEN, SLOT_LEN, SharedMemory};
use weft_wire::ddp::Header;
use weft_wire::mpa::negotiate::{Limits, Responder};
use weft_wire::rdmap::{Opcode, ReadRequest, Terminate};

use super::peer::{self, ScriptedPeer};
use super::{Endpoint, Host, init_attr, init_mask, to_rts};

pub const OFFER: u8 = 1;
pub const ACCEPT: u8 = 2;
pub const WAKEUP: u8 = 3;
pub const ASK: u8 = 4;
pub const GRANT: u8 = 5;
pub const DENY: u8 = 6;

/// The layout of a segment.
pub const SLOTS: u32 = 128;
pub const BULK_LEN: usize = 256 << 10;
const EMPTIED_AT: usize = 0;
const PLACED_AT: usize = 4;
const PULLS_AT: usize = 8;
const KEY_IN_USE_AT: usize = 128;
const GRANTS_AT: usize = 256;
const SLOTS_AT: usize = 1_024;
const BULK_AT: usize = SLOTS_AT + SLOTS as usize * SLOT_LEN;
const DIRECTION_LEN: usize = (BULK_AT + BULK_LEN).next_multiple_of(4_096);
pub const SEGMENT_LEN: usize = 2 * DIRECTION_LEN;

/// The types of slots: where the payload is.
pub const INLINE: u32 = 0;
pub const BULK: u32 = 1;
pub const PULL: u32 = 2;

/// How long the victim may take to answer.
const TIMEOUT: Duration = Duration::from_secs(240);

/// A random process identity.
pub fn random_process() -> ProcessId {
    let mut id = ProcessId::default();
    fastrand::fill(&mut id);
    id
}

fn address_of(process: &ProcessId) -> SocketAddrUnix {
    let name = process.iter().fold(String::from("weft-shm."), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    });
    SocketAddrUnix::new_abstract_name(name.as_bytes()).expect("a short name")
}

fn socket() -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a socket")
}

/// A packet from the session socket.
#[derive(Debug)]
pub struct Packet {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// The session socket of a connection.
#[derive(Debug)]
pub struct Session(OwnedFd);

impl Session {
    /// Connects to a process.
    pub fn dial(process: &ProcessId) -> Self {
        let socket = socket();
        connect(&socket, &address_of(process)).expect("the victim listens");
        Self(socket)
    }

    /// Sends a packet. It is not an error if the victim has closed its end.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(fds)), "room for descriptors");
        }
        let _ = sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL);
    }

    /// The next packet; `None` if the victim has closed its end.
    pub fn receive(&self) -> Option<Packet> {
        assert!(self.is_readable(TIMEOUT), "the victim neither answers nor hangs up");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut bytes = [0; 128];
        let mut buffers = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let message = recvmsg(&self.0, &mut buffers, &mut control, flags).ok()?;
        let mut fds = Vec::new();
        for part in control.drain() {
            if let RecvAncillaryMessage::ScmRights(received) = part {
                fds.extend(received);
            }
        }
        (message.bytes != 0).then(|| Packet { bytes: bytes[..message.bytes].to_vec(), fds })
    }

    /// The next packet that is not a wakeup.
    pub fn answer(&self) -> Option<Packet> {
        loop {
            let packet = self.receive()?;
            if packet.bytes != [WAKEUP] {
                return Some(packet);
            }
        }
    }

    /// Whether the victim closes its end.
    pub fn is_closed(&self) -> bool {
        self.answer().is_none()
    }

    /// Whether the victim has neither answered nor closed its end.
    pub fn is_open(&self) -> bool {
        !self.is_readable(Duration::ZERO)
    }

    fn is_readable(&self, timeout: Duration) -> bool {
        let timeout = Timespec::try_from(timeout).expect("a short time");
        let mut fds = [PollFd::new(&self.0, PollFlags::IN)];
        poll(&mut fds, Some(&timeout)).expect("no signal") != 0
    }
}

/// A valid offer, which tests make invalid.
#[derive(Clone, Debug)]
pub struct Offer {
    pub version: u8,
    pub wanted: u32,
    pub qp_num: u32,
    pub ack_stag: u32,
    pub process: ProcessId,
    pub probe: u64,
}

impl Offer {
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![OFFER, self.version];
        for word in [self.wanted, self.qp_num, self.ack_stag] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.extend_from_slice(&self.process);
        bytes.extend_from_slice(&self.probe.to_ne_bytes());
        bytes
    }
}

/// A peer whose identity is in its memory, where the victim can read it.
#[derive(Debug)]
pub struct Stranger {
    pub process: Box<ProcessId>,
    pub tcp: ScriptedPeer,
}

impl Stranger {
    /// Connects to a victim over TCP and sends nothing yet.
    pub fn dial(victim: &Endpoint) -> Self {
        let process = Box::new(random_process());
        let tcp = ScriptedPeer::dial_as(*process, victim, false);
        Self { process, tcp }
    }

    pub fn offer(&self) -> Offer {
        Offer {
            version: 2,
            wanted: self.tcp.victim.qp_num,
            qp_num: peer::NUMBER,
            ack_stag: peer::ACK_STAG,
            process: *self.process,
            probe: self.process.as_ptr() as u64,
        }
    }

    /// Offers to share memory, and waits until the victim accepts.
    pub fn share(self) -> Local {
        let (memory, fd) = SharedMemory::create(SEGMENT_LEN).expect("memory");
        let presence = OwnPresence::new().expect("a page");
        let session = Session::dial(&self.tcp.victim.process);
        session.send(&self.offer().bytes(), &[fd.as_fd(), presence.fd()]);
        let accept = session.answer().expect("an answer");
        assert_eq!((accept.bytes[0], accept.bytes.len(), accept.fds.len()), (ACCEPT, 9, 1));
        Local::new(self, memory, session, true)
    }
}

/// The peer of a victim that dials, with the victim's offer.
pub struct Dialled {
    pub tcp: ScriptedPeer,
    pub process: Box<ProcessId>,
    pub session: Session,
    pub offer: Packet,
}

impl Dialled {
    /// Makes a new queue pair of `host` dial a peer whose number is higher than its own.
    pub fn by(host: &Host, end: &Endpoint) -> Self {
        let process = Box::new(random_process());
        let unix = socket();
        bind(&unix, &address_of(&process)).expect("a free name");
        listen(&unix, 4).expect("a bound socket");
        let (listener, number) = listener_above(end.qp.number());
        end.qp.modify(&init_attr(), init_mask()).expect("INIT");
        to_rts(&end.qp, peer::gid(), number);
        let (stream, victim, crc) = answer(&listener, number, *process, 0);
        let session = Session(accept(&unix).expect("the victim knocks"));
        let offer = session.receive().expect("an offer");
        assert_eq!((offer.bytes[0], offer.fds.len()), (OFFER, 2), "{:?}", host.pd);
        let tcp = ScriptedPeer::dialled(stream, victim, crc);
        Self { tcp, process, session, offer }
    }

    /// Accepts the offer.
    pub fn share(self) -> Local {
        let memory = SharedMemory::open(self.offer.fds[0].as_fd(), SEGMENT_LEN, true);
        let presence = OwnPresence::new().expect("a page");
        self.session.send(&self.acceptance(), &[presence.fd()]);
        let Self { tcp, process, session, .. } = self;
        Local::new(Stranger { process, tcp }, memory.expect("a segment"), session, false)
    }

    pub fn acceptance(&self) -> Vec<u8> {
        let mut accept = vec![ACCEPT];
        accept.extend_from_slice(&(self.process.as_ptr() as u64).to_ne_bytes());
        accept
    }
}

/// Accepts a victim's connection and request as queue pair `number`. The reply names the victim's
/// number, changed by `beside`. Returns the connection, the victim, and whether there are CRCs.
pub fn answer(
    listener: &TcpListener,
    number: u32,
    process: ProcessId,
    beside: u32,
) -> (TcpStream, Identity, bool) {
    let (mut stream, _) = listener.accept().expect("the victim dials");
    let limits = Limits { private_data_max: hello::TRAILER_LEN };
    let mut responder = Responder::new(limits);
    let mut bytes = [0; 1024];
    let wanted = loop {
        let count = stream.read(&mut bytes).expect("a request");
        let (_, request) = responder.input(&bytes[..count]).expect("a request");
        if let Some(request) = request {
            break hello::split(&request.private_data).1.expect("a Weft peer");
        }
    };
    let gid = peer::gid();
    let own = Identity { qp_num: number, ack_stag: peer::ACK_STAG, gid, process };
    let private_data = hello::append(&[], &own, wanted.identity.qp_num ^ beside);
    let accepted = responder.accept(peer::params(false), &private_data);
    let (reply, negotiated) = accepted.expect("the request is sound");
    stream.write_all(&reply).expect("the victim reads");
    (stream, wanted.identity, negotiated.crc)
}

/// A listener on a port whose queue pair numbers are above `number`.
pub fn listener_above(number: u32) -> (TcpListener, u32) {
    let first = number / 256 + 1;
    (first..65_536)
        .find_map(|port| {
            let port = u16::try_from(port).ok()?;
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
            Some((listener, u32::from(port) << 8 | 1))
        })
        .expect("a free port")
}

/// A peer that shares memory with its victim.
#[derive(Debug)]
pub struct Local {
    pub tcp: ScriptedPeer,
    pub process: Box<ProcessId>,
    pub session: Session,
    pub memory: SharedMemory,
    tx_base: usize,
    rx_base: usize,
    /// Number of slots filled, and emptied, since the beginning.
    pub filled: u32,
    pub emptied: u32,
    msns: [u32; 4],
}

impl Local {
    fn new(stranger: Stranger, memory: SharedMemory, session: Session, offered: bool) -> Self {
        let Stranger { process, tcp } = stranger;
        let (tx_base, rx_base) = if offered { (0, DIRECTION_LEN) } else { (DIRECTION_LEN, 0) };
        let (filled, emptied) = (0, 0);
        Self { tcp, process, session, memory, tx_base, rx_base, filled, emptied, msns: [1; 4] }
    }

    /// Connects to a victim whose queue pair waits for this peer (RTR), and shares memory with it.
    pub fn dial(victim: &Endpoint) -> Self {
        Stranger::dial(victim).share()
    }

    /// Wakes the victim.
    pub fn wake(&self) {
        self.session.send(&[WAKEUP], &[]);
    }

    /// Publishes a slot with any info word (length and type, if valid) and body.
    pub fn slot(&mut self, info: u32, body: &[u8]) {
        let at = self.tx_base + SLOTS_AT + (self.filled % SLOTS) as usize * SLOT_LEN;
        self.memory.copy_in(at + 8, body);
        self.filled = self.filled.wrapping_add(1);
        self.tag(at, u64::from(self.filled) << 32 | u64::from(info));
        self.wake();
    }

    fn tag(&self, at: usize, tag: u64) {
        self.memory.word64(at).store(tag, Ordering::Release);
    }

    /// Puts any tag into the next slot.
    pub fn wrong_tag(&self, tag: u64) {
        let at = self.tx_base + SLOTS_AT + (self.filled % SLOTS) as usize * SLOT_LEN;
        self.tag(at, tag);
        self.wake();
    }

    /// Sends a segment. `rest` is its payload, or a reference to it.
    pub fn segment(&mut self, kind: u32, header: Header, rest: &[u8]) {
        self.segment_after(0, kind, header, rest);
    }

    /// Sends a segment with a count of messages placed here.
    pub fn segment_after(&mut self, placed: u32, kind: u32, header: Header, rest: &[u8]) {
        let mut body = placed.to_ne_bytes().to_vec();
        body.resize(4 + header.len(), 0);
        header.emit(&mut body[4..]);
        body.extend_from_slice(rest);
        assert!(body.len() <= SLOT_BODY_LEN);
        self.slot(kind << 8 | body.len() as u32, &body);
    }

    /// Sends an untagged message of one segment.
    pub fn untagged(&mut self, kind: u32, opcode: Opcode, rest: &[u8]) {
        let qn = opcode.queue().expect("an untagged operation");
        let msn = self.msns[qn as usize];
        self.msns[qn as usize] += 1;
        let ulp = opcode.control();
        let header = Header::Untagged { last: true, ulp, ulp_word: 0, qn, msn, mo: 0 };
        self.segment(kind, header, rest);
    }

    /// Sends a Send with its payload in the slot.
    pub fn send(&mut self, payload: &[u8]) {
        self.untagged(INLINE, Opcode::Send, payload);
    }

    /// Sends a Write of one segment.
    pub fn write(&mut self, kind: u32, stag: u32, to: u64, rest: &[u8]) {
        let ulp = Opcode::Write.control();
        self.segment(kind, Header::Tagged { last: true, ulp, stag, to }, rest);
    }

    /// Writes to the bulk area.
    pub fn fill_bulk(&self, at: usize, bytes: &[u8]) {
        self.memory.copy_in(self.tx_base + BULK_AT + at, bytes);
    }

    /// Publishes how many of the victim's slots have been emptied.
    pub fn publish_emptied(&self, count: u32) {
        self.memory.word32(self.rx_base + EMPTIED_AT).store(count, Ordering::Release);
        self.wake();
    }

    /// Publishes how many of the victim's messages have been placed.
    pub fn publish_placed(&self, count: u32) {
        self.memory.word32(self.rx_base + PLACED_AT).store(count, Ordering::Release);
        self.wake();
    }

    /// Publishes whether we can read the victim's memory.
    pub fn publish_pulls(&self, word: u32) {
        self.memory.word32(self.rx_base + PULLS_AT).store(word, Ordering::Release);
    }

    /// Marks a key of the victim as in use.
    pub fn use_key(&self, key: u32) {
        self.memory.word32(self.tx_base + KEY_IN_USE_AT).store(key, Ordering::SeqCst);
    }

    /// The grant of a key of the victim in a slot.
    pub fn granted(&self, slot: usize) -> u64 {
        self.memory.word64(self.tx_base + GRANTS_AT + slot * 8).load(Ordering::SeqCst)
    }

    /// Grants or withdraws a key of ours.
    pub fn grant(&self, slot: usize, word: u64) {
        self.memory.word64(self.rx_base + GRANTS_AT + slot * 8).store(word, Ordering::SeqCst);
    }

    /// Requests a key of the victim.
    pub fn ask(&self, key: u32) -> Packet {
        let [a, b, c, d] = key.to_ne_bytes();
        self.session.send(&[ASK, a, b, c, d], &[]);
        self.session.answer().expect("an answer")
    }

    /// Takes the victim's next segment from the ring, if there is one: its type, its header, and
    /// the rest of the slot.
    pub fn take(&mut self) -> Option<(u32, Header, Vec<u8>)> {
        let at = self.rx_base + SLOTS_AT + (self.emptied % SLOTS) as usize * SLOT_LEN;
        let tag = self.memory.word64(at).load(Ordering::Acquire);
        if tag >> 32 != u64::from(self.emptied.wrapping_add(1)) {
            return None;
        }
        self.emptied = self.emptied.wrapping_add(1);
        let (len, kind) = (tag as u8 as usize, tag as u32 >> 8);
        let mut body = vec![0; len];
        self.memory.copy_out(at + 8, &mut body);
        let (header, header_len) = Header::parse(&body[4..]).expect("a sound segment");
        Some((kind, header, body.split_off(4 + header_len)))
    }

    /// How many of our slots the victim has emptied.
    pub fn emptied_there(&self) -> u32 {
        self.memory.word32(self.tx_base + EMPTIED_AT).load(Ordering::Acquire)
    }

    /// Counts Sends that the test has sent without [`Local::send`].
    pub fn skip_sends(&mut self, count: u32) {
        self.msns[0] += count;
    }

    /// Waits for a Read Request of the victim.
    pub fn receive_read_request(&mut self) -> ReadRequest {
        loop {
            let (_, header, payload) = self.receive();
            if let Header::Untagged { qn: 1, .. } = header {
                return ReadRequest::parse(&payload).expect("a read request");
            }
        }
    }

    /// Waits for the victim's next segment.
    pub fn receive(&mut self) -> (u32, Header, Vec<u8>) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(taken) = self.take() {
                return taken;
            }
            assert!(Instant::now() < deadline, "the victim says nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits for the victim's Terminate.
    pub fn terminate(&mut self) -> Terminate {
        loop {
            let (_, header, payload) = self.receive();
            if header == Terminate::HEADER {
                return Terminate::parse(&payload).expect("a control word");
            }
        }
    }
}
