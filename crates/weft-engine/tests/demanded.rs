//! `WEFT_TRANSPORT=shm`: a connection between processes fails unless it shares memory; connections
//! within a process still work.

mod common;

use common::local::{Dialled, Stranger};
use common::victim::Victim;
use common::{Host, connect, connect_sharing, init_attr, poll_one, run_again, send};
use weft_engine::wc::Status;
use weft_engine::wr::Data;

const NAME: &str = "WEFT_TRANSPORT";

/// Whether this process runs with `WEFT_TRANSPORT=shm`; if not, runs the test in a process that
/// does.
fn is_demanded(test: &str) -> bool {
    let demanded = std::env::var(NAME).is_ok_and(|value| value == "shm");
    if !demanded {
        run_again(test, NAME, "shm");
    }
    demanded
}

#[test]
fn connections_within_a_process_work() {
    if !is_demanded("connections_within_a_process_work") {
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
fn a_connection_fails_when_the_peer_refuses_to_share() {
    if !is_demanded("a_connection_fails_when_the_peer_refuses_to_share") {
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
fn a_connection_fails_when_the_peer_makes_no_offer() {
    if !is_demanded("a_connection_fails_when_the_peer_makes_no_offer") {
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
