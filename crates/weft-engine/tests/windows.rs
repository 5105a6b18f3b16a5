//! Memory windows of type 2: a window serves the queue pair that bound it, and the peer of that
//! queue pair may invalidate it.

mod common;

use std::sync::Arc;

use common::{Endpoint, Host, Memory, connect, poll_one};
use weft_engine::access::Access;
use weft_engine::mw::{Mw, WindowType};
use weft_engine::qp::QpState;
use weft_engine::wc::{FLAG_WITH_INV, Status};
use weft_engine::wr::{Data, Operation, SendFlags, SendRequest, WindowBind};

const LEN: usize = 64;

fn request<'a>(operation: Operation, bytes: &'a [&'a [u8]]) -> SendRequest<'a> {
    let data = if bytes.is_empty() { Data::Gather(&[]) } else { Data::Inline(bytes) };
    SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, data }
}

fn send_and_invalidate(rkey: u32) -> SendRequest<'static> {
    request(Operation::Send { imm: None, invalidate: Some(rkey) }, &[b"goodbye"])
}

/// Binds a new window to all of `memory` at `owner`, with the right to write.
fn bind(owner: &Endpoint, host: &Host, memory: &Memory) -> Arc<Mw> {
    let window = Mw::allocate(&host.pd, WindowType::Two).expect("a window");
    let bind = WindowBind {
        region: Some(Arc::clone(&memory.mr)),
        addr: memory.addr(0),
        length: LEN as u64,
        access: Access::REMOTE_WRITE,
    };
    let rkey = window.next_key();
    owner.post(&request(Operation::BindWindow { window: Arc::clone(&window), rkey, bind }, &[]));
    assert_eq!(poll_one(&owner.send_cq).status, Status::Success);
    window
}

fn write(memory: &Memory, rkey: u32) -> SendRequest<'static> {
    request(Operation::Write { remote_addr: memory.addr(0), rkey, imm: None }, &[b"through"])
}

#[test]
fn the_peer_can_invalidate_a_window() {
    let host = Host::new();
    let memory = Memory::new(&host, LEN, Access::LOCAL_WRITE | Access::MW_BIND);
    let (owner, peer) = (host.endpoint(), host.endpoint());
    connect(&owner, &peer);
    let window = bind(&owner, &host, &memory);
    peer.post(&write(&memory, window.key()));
    assert_eq!(poll_one(&peer.send_cq).status, Status::Success);
    assert_eq!(&memory.bytes()[..7], b"through");

    let inbox = Memory::new(&host, LEN, Access::LOCAL_WRITE);
    owner.receive(2, &[inbox.sge(0, LEN)]);
    peer.post(&send_and_invalidate(window.key()));
    let received = poll_one(&owner.recv_cq);
    //= type=test
    //= rfc5040#section-3.2
    //# If the Send Operation Type Completed successfully, the RDMAP layer passes the following
    //# information to the ULP Layer: * ULP Message Length
    //= rfc5040#section-3.2
    //# An Invalidated STag, if the Send Operation Type was Send with Invalidate or Send with
    //# Solicited Event and Invalidate.
    assert_eq!((received.status, received.byte_len), (Status::Success, 7));
    assert_eq!((received.wc_flags, received.imm_data), (FLAG_WITH_INV, window.key()));
    assert_eq!(poll_one(&peer.send_cq).status, Status::Success);
    //= type=test
    //= rfc5040#section-5.3
    //# When the Send with Invalidate and Send with Solicited Event and Invalidate Message are
    //# Delivered to the Remote Peer's RDMAP layer, the RDMAP layer MUST: * Verify the STag that is
    //# associated with the RDMAP Stream; and * Invalidate the STag if it is associated with the
    //# RDMAP Stream;
    peer.post(&write(&memory, window.key()));
    assert_eq!(poll_one(&peer.send_cq).status, Status::RemAccessErr);
    window.deallocate();
}

#[test]
fn the_peer_of_another_queue_pair_can_neither_use_nor_invalidate_a_window() {
    let host = Host::new();
    let memory = Memory::new(&host, LEN, Access::LOCAL_WRITE | Access::MW_BIND);
    let (owner, peer) = (host.endpoint(), host.endpoint());
    connect(&owner, &peer);
    let window = bind(&owner, &host, &memory);
    let inbox = Memory::new(&host, LEN, Access::LOCAL_WRITE);
    for attack in [write(&memory, window.key()), send_and_invalidate(window.key())] {
        // The other queue pair is in the protection domain of the owner.
        let (other, stranger) = (host.endpoint(), host.endpoint());
        connect(&other, &stranger);
        other.receive(2, &[inbox.sge(0, LEN)]);
        stranger.post(&attack);
        //= type=test
        //= rfc5041#section-8.2
        //# DDP MUST support Protection Domain association and DDP Stream association mechanisms for
        //# associating an STag and a DDP Stream.
        assert_ne!(poll_one(&stranger.send_cq).status, Status::Success);
        assert_eq!(poll_one(&other.recv_cq).status, Status::WrFlushErr);
        assert_eq!(other.qp.state(), QpState::Err);
    }
    assert_eq!(memory.bytes(), vec![0; LEN]);
    peer.post(&write(&memory, window.key()));
    assert_eq!(poll_one(&peer.send_cq).status, Status::Success);
    window.deallocate();
}
