//! A hand-written peer: the test speaks iWARP over its own socket to a real queue pair.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use weft_engine::device::gid_of;
use weft_engine::hello::{self, Identity, ProcessId};
use weft_wire::ddp::Header;
use weft_wire::mpa::fpdu::{self, Decoded};
use weft_wire::mpa::negotiate::{Initiator, InitiatorOutcome, Params, RtrKinds};
use weft_wire::rdmap::{Opcode, Terminate};

use super::Endpoint;

/// The peer's queue pair number: lower than every real one, so that the peer is the side that
/// dials, and on port 0, so that it belongs to no process.
pub const NUMBER: u32 = 1;
/// The peer's STag for acknowledgements.
pub const ACK_STAG: u32 = 0x0acc_0001;

/// How long the victim may take to answer.
pub const TIMEOUT: Duration = Duration::from_secs(240);

/// A victim that accepts no bytes for this long has stopped reading.
const STALLED: Duration = Duration::from_millis(500);

/// An established connection to a victim.
#[derive(Debug)]
pub struct ScriptedPeer {
    stream: TcpStream,
    /// The identity that the victim has announced.
    pub victim: Identity,
    pub crc: bool,
    received: Vec<u8>,
}

/// A segment from the victim.
#[derive(Clone, Debug)]
pub struct Received {
    pub header: Header,
    pub payload: Vec<u8>,
}

/// The GID that the peer claims: the one of the address that it dials from.
pub fn gid() -> [u8; 16] {
    gid_of(Ipv4Addr::LOCALHOST.into())
}

/// The address at which the process of a queue pair listens: the number contains the port.
pub fn address_of(number: u32) -> SocketAddr {
    let port = u16::try_from(number >> 8).expect("a queue pair number has 24 bits");
    (Ipv4Addr::LOCALHOST, port).into()
}

/// The parameters that the peer requests in its MPA request.
pub fn params(crc: bool) -> Params {
    let rtr = RtrKinds { send: false, write: true, read: false };
    Params { crc, markers_wanted: false, ird: 16, ord: 16, enhanced: true, peer_to_peer: true, rtr }
}

/// The MPA request of a peer that wants to connect to queue pair `wanted`.
pub fn request(wanted: u32, crc: bool) -> Initiator {
    request_as([0; 16], wanted, crc)
}

/// The MPA request of a peer that names its process.
pub fn request_as(process: ProcessId, wanted: u32, crc: bool) -> Initiator {
    let identity = Identity { qp_num: NUMBER, ack_stag: ACK_STAG, gid: gid(), process };
    let private_data = hello::append(&[], &identity, wanted);
    Initiator::new(params(crc), &private_data).expect("it fits a frame")
}

impl ScriptedPeer {
    /// Connects to `victim`, whose queue pair waits for this peer (RTR), and sends the
    /// ready-to-receive message.
    pub fn dial(victim: &Endpoint, crc: bool) -> Self {
        let mut peer = Self::dial_without_rtr(victim, crc);
        peer.write(1, 0, &[]);
        peer
    }

    /// Connects to `victim` without sending the ready-to-receive message.
    pub fn dial_without_rtr(victim: &Endpoint, crc: bool) -> Self {
        Self::dial_as([0; 16], victim, crc)
    }

    /// Connects as a peer that names its process, without sending the ready-to-receive message.
    pub fn dial_as(process: ProcessId, victim: &Endpoint, crc: bool) -> Self {
        let number = victim.qp.number();
        let mut stream = TcpStream::connect(address_of(number)).expect("the victim listens");
        stream.set_nodelay(true).expect("a TCP option");
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket option");
        let mut initiator = request_as(process, number, crc);
        stream.write_all(initiator.request()).expect("the victim reads");
        let mut bytes = [0; 1024];
        loop {
            let count = stream.read(&mut bytes).expect("a reply");
            assert_ne!(count, 0, "the victim refused");
            let (taken, outcome) = initiator.input(&bytes[..count]).expect("a reply");
            let Some(outcome) = outcome else { continue };
            let InitiatorOutcome::Accepted(negotiated) = outcome else { panic!("rejected") };
            let (_, hello) = hello::split(&negotiated.peer_private_data);
            let victim = hello.expect("a Weft peer").identity;
            let received = bytes[taken..count].to_vec();
            return Self { stream, victim, crc: negotiated.crc, received };
        }
    }

    /// Sends bytes unframed. It is not an error if the victim has closed the connection.
    pub fn raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    /// Sends bytes; returns whether the victim has read them in time.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        self.stream.set_write_timeout(Some(STALLED)).expect("a socket option");
        match self.stream.write_all(bytes) {
            Ok(()) => true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(error) => panic!("the victim has closed the connection: {error}"),
        }
    }

    /// Sends a ULPDU in an FPDU.
    pub fn ulpdu(&mut self, ulpdu: &[u8]) {
        let frame = self.frame(ulpdu);
        self.raw(&frame);
    }

    /// Frames a ULPDU as an FPDU.
    pub fn frame(&self, ulpdu: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; fpdu::total_len(ulpdu.len())];
        bytes[fpdu::HEADER_LEN..fpdu::HEADER_LEN + ulpdu.len()].copy_from_slice(ulpdu);
        fpdu::seal(&mut bytes, ulpdu.len(), self.crc);
        bytes
    }

    /// Sends a segment.
    pub fn segment(&mut self, header: Header, payload: &[u8]) {
        let mut ulpdu = vec![0; header.len()];
        header.emit(&mut ulpdu);
        ulpdu.extend_from_slice(payload);
        self.ulpdu(&ulpdu);
    }

    /// Sends an RDMA Write of one segment.
    pub fn write(&mut self, stag: u32, to: u64, payload: &[u8]) {
        let ulp = Opcode::Write.control();
        self.segment(Header::Tagged { last: true, ulp, stag, to }, payload);
    }

    /// Sends an untagged message of one segment.
    pub fn untagged(&mut self, opcode: Opcode, msn: u32, payload: &[u8]) {
        let qn = opcode.queue().expect("an untagged operation");
        let ulp = opcode.control();
        self.segment(Header::Untagged { last: true, ulp, ulp_word: 0, qn, msn, mo: 0 }, payload);
    }

    /// The peer of a victim that has dialled: on `stream` the MPA exchange is complete.
    pub fn dialled(stream: TcpStream, victim: Identity, crc: bool) -> Self {
        stream.set_read_timeout(Some(TIMEOUT)).expect("a socket option");
        Self { stream, victim, crc, received: Vec::new() }
    }

    /// Shuts down the sending direction.
    pub fn finish(&self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Receives the next segment from the victim; `None` at the end of the stream.
    ///
    /// # Panics
    /// If nothing arrives in time, or the victim sends bytes that are not an FPDU.
    pub fn receive(&mut self) -> Option<Received> {
        loop {
            if let Decoded::Fpdu { ulpdu, consumed } =
                fpdu::decode(&self.received, self.crc).expect("the victim sends sound FPDUs")
            {
                let (header, at) = Header::parse(ulpdu).expect("the victim sends sound segments");
                let received = Received { header, payload: ulpdu[at..].to_vec() };
                self.received.drain(..consumed);
                return Some(received);
            }
            let mut bytes = [0; 4096];
            match self.stream.read(&mut bytes) {
                Ok(0) => {
                    //= type=test
                    //= rfc5044#section-7.2
                    //# Each half connection of MPA terminates when DDP closes the corresponding TCP
                    //# half connection.
                    assert!(self.received.is_empty(), "the stream ends inside an FPDU");
                    return None;
                }
                Ok(count) => self.received.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The victim has closed the connection with unread bytes in its receive buffer.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("the victim neither answers nor closes: {error}"),
            }
        }
    }

    /// Reads to the end of the stream: the last segment must be a Terminate, and the only one.
    pub fn terminate(&mut self) -> Terminate {
        let mut terminate = None;
        while let Some(Received { header, payload }) = self.receive() {
            assert!(terminate.is_none(), "nothing follows a Terminate");
            if header == Terminate::HEADER {
                terminate = Some(Terminate::parse(&payload).expect("a control word"));
            }
        }
        terminate.expect("a Terminate before the end of the stream")
    }
}
