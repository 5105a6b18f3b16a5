//! A queue pair connected to a foreign iWARP peer, which the test plays over a plain socket.

mod common;

use std::io::{ErrorKind, Read};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use common::{Endpoint, Host, Memory, init_attr, init_mask, to_rts};
use weft_engine::access::Access;
use weft_engine::qp::conn::Connection;
use weft_engine::wr::{Data, Operation, SendFlags, SendRequest};
use weft_wire::mpa::negotiate::{Negotiated, RtrKind};

const TIMEOUT: Duration = Duration::from_secs(240);
const MESSAGE: &[u8] = b"the server speaks first";

/// Connects the queue pair as the responder, posts one Send, and returns the peer's stream.
fn respond(end: &Endpoint, memory: &Memory, rtr: Option<RtrKind>) -> TcpStream {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let peer = TcpStream::connect(listener.local_addr().expect("bound")).expect("it listens");
    let (ours, address) = listener.accept().expect("connected");
    ours.set_nonblocking(true).expect("a socket option");
    end.qp.modify(&init_attr(), init_mask()).expect("INIT");
    let connection = Connection {
        local: ours.local_addr().ok(),
        socket: ours.into(),
        read_from: None,
        peer: Some(address),
        initiator: false,
        negotiated: Negotiated {
            revision: 2,
            crc: true,
            tx_markers: false,
            rx_markers: false,
            ird: 1,
            ord: 1,
            rtr,
            peer_private_data: Vec::new(),
        },
        peer_identity: None,
        early: Vec::new(),
    };
    end.qp.attach(connection).expect("not connected");
    to_rts(&end.qp, common::peer::gid(), common::peer::NUMBER);
    memory.write(0, MESSAGE);
    end.post(&SendRequest {
        wr_id: 1,
        flags: SendFlags::SIGNALED,
        data: Data::Gather(&[memory.sge(0, MESSAGE.len())]),
        operation: Operation::Send { imm: None, invalidate: None },
    });
    peer
}

#[test]
fn a_responder_sends_first_if_the_initiator_stays_silent() {
    let host = Host::new();
    let end = host.endpoint();
    let memory = Memory::new(&host, 64, Access::LOCAL_WRITE);
    let start = Instant::now();
    let mut peer = respond(&end, &memory, None);
    peer.set_read_timeout(Some(TIMEOUT)).expect("a socket option");
    let mut bytes = vec![0; 256];
    let count = peer.read(&mut bytes).expect("the Send");
    assert!(bytes[..count].windows(MESSAGE.len()).any(|part| part == MESSAGE));
    // The responder must delay its Send: an initiator that has not processed the MPA reply yet
    // would treat a message as an error.
    assert!(start.elapsed() >= Duration::from_millis(300), "{:?}", start.elapsed());
}

#[test]
fn a_responder_waits_for_a_negotiated_rtr_message() {
    let host = Host::new();
    let ends = [host.endpoint(), host.endpoint()];
    let memory = Memory::new(&host, 64, Access::LOCAL_WRITE);
    let mut promised = respond(&ends[0], &memory, Some(RtrKind::Write));
    // The delay of this connection starts later, so that it has passed for both once this one
    // sends.
    let mut silent = respond(&ends[1], &memory, None);
    silent.set_read_timeout(Some(TIMEOUT)).expect("a socket option");
    assert_ne!(silent.read(&mut [0; 256]).expect("the Send"), 0);
    promised.set_nonblocking(true).expect("a socket option");
    let error = promised.read(&mut [0; 256]).expect_err("nothing may come");
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}
