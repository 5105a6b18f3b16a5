//! `WEFT_TRANSPORT=shm`: a connection between processes that does not come to share memory fails,
//! and what needs no sharing works.

mod common;

use common::local::{Dialled, Stranger};
use common::victim::Victim;
use common::{Host, connect, connect_sharing, init_attr, poll_one, run_again, send};
use weft_engine::wc::Status;
use weft_engine::wr::Data;

const NAME: &str = "WEFT_TRANSPORT";

/// Whether this process is the one whose connections must share memory; if not, starts it.
fn is_demanded(test: &str) -> bool {
    let demanded = std::env::var(NAME).is_ok_and(|value| value == "shm");
    if !demanded {
        run_again(test, NAME, "shm");
    }
    demanded
}

#[test]
fn within_one_process() {
    if !is_demanded("within_one_process") {
        return;
    }
    let host = Host::new();
    let (a, b) = (host.endpoint(), host.endpoint());
    connect(&a, &b);
    let itself = host.endpoint();
    connect(&itself, &itself);
    let (c, d) = (host.endpoint(), host.endpoint());
    connect_sharing(&c, &d, &init_attr());
    for (from, to, transport) in
        [(&a, &b, "loopback"), (&itself, &itself, "loopback"), (&c, &d, "shm")]
    {
        to.receive(1, &[]);
        from.post(&send(2, Data::Inline(&[])));
        assert_eq!(poll_one(&to.recv_cq).status, Status::Success);
        assert_eq!(poll_one(&from.send_cq).status, Status::Success);
        assert_eq!(from.qp.transport(), transport);
    }
}

#[test]
fn a_peer_that_refuses() {
    if !is_demanded("a_peer_that_refuses") {
        return;
    }
    let victim = Victim::idle();
    let dialled = Dialled::by(&victim.host, &victim.end);
    victim.end.post(&send(3, Data::Inline(&[])));
    drop(dialled.session);
    let failed = poll_one(&victim.end.send_cq);
    assert_eq!((failed.wr_id, failed.status), (3, Status::RetryExcErr));
    victim.check_bystanders();
}

#[test]
fn a_peer_that_offers_nothing() {
    if !is_demanded("a_peer_that_offers_nothing") {
        return;
    }
    let victim = Victim::new();
    let mut stranger = Stranger::dial(&victim.end);
    stranger.tcp.write(1, 0, &[]);
    victim.end.post(&send(3, Data::Inline(&[])));
    let failed = poll_one(&victim.end.send_cq);
    assert_eq!((failed.wr_id, failed.status), (3, Status::RetryExcErr));
    victim.check_bystanders();
}
