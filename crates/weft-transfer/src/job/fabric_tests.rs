//! Channels over the fabric: what acceptors refuse, and what initiators do not believe.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use super::agree::{ask_to_listen, establish, flush, next_event, open_session};
use super::client::{CopyDirection, DownloadTo, ServerAt};
use super::fabric::{FEATURE_FABRIC, FabricChannels, FabricOptions, proof};
use super::rdma::Over;
use super::request::{Flags, Request};
use super::tests::{serve, task};
use crate::end::Carrier;
use crate::limits::{BLOCK_SIZE, VERSION};
use crate::secure::TlsClient;
use crate::session::{Connection, Event, Offer, Policy};
use crate::transport::memory::control_pair;
use crate::transport::tcp::{self, TcpSettings};
use crate::transport::{Control, StreamControl};
use crate::wire::{ListenReply, PipeSecret, Refusal, Role, Terms, Token};

const SECRET: PipeSecret = PipeSecret([3; 32]);

fn offer() -> Offer {
    let features = FEATURE_FABRIC;
    Offer { channels: 2, block_size: BLOCK_SIZE, features, agent: "test".into() }
}

fn connect(server: std::net::SocketAddr, tls: &TlsClient) -> (StreamControl, Connection, Terms) {
    let settings = TcpSettings::default();
    let control = tcp::connect_control(server, Some(tls), &settings).expect("a server");
    let (connection, terms) = establish(&control, offer(), Instant::now()).expect("a server");
    assert_eq!(terms.features & FEATURE_FABRIC, FEATURE_FABRIC);
    (control, connection, terms)
}

/// Opens a session with these flags, and returns why the server refuses it.
fn refusal(control: &dyn Control, connection: &mut Connection, flags: Flags) -> String {
    let request = Request { flags, paths: vec![b"share/to".to_vec()], ..Request::default() };
    let opened = open_session(control, connection, Instant::now(), Role::Source, &request);
    opened.expect_err("a refusal").to_string()
}

#[test]
fn requests_that_do_not_fit_the_channels_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (server, tls) = serve(folder.path());
    for (flags, listens, why) in [
        (Flags::UNSEALED, false, "through shared memory only"),
        (Flags::UNSEALED, true, "through shared memory only"),
        (Flags::FABRIC, false, "no data channels over the fabric"),
        (Flags::FABRIC, true, "no data channels over the fabric"),
        (Flags::FABRIC.with(Flags::UNSEALED, true), true, "no data channels over the fabric"),
    ] {
        let (control, mut connection, _) = connect(server, &tls);
        if listens {
            let reply = ask_to_listen(&control, &mut connection, Instant::now());
            assert!(matches!(reply, Ok(ListenReply::Accepted { .. })), "{reply:?}");
        }
        let text = refusal(&control, &mut connection, flags);
        assert!(text.contains(why), "{flags:?} {listens}: {text}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
}

#[test]
fn channels_of_another_role_than_the_session_are_not_used() {
    let folder = tempfile::tempdir().expect("a folder");
    let (server, tls) = serve(folder.path());
    let (control, mut connection, terms) = connect(server, &tls);
    let options = FabricOptions::find(Over::Fabric, false, server).expect("it is asked for");
    let epoch = Instant::now();
    let via = (&control as &dyn Control, &mut connection);
    let channels = FabricChannels::connect(via, epoch, &terms, options, Role::Sink);
    let channels = channels.expect("a server").expect("a fabric");
    assert_eq!((channels.carrier(), channels.count()), (Carrier::Memory, 2));
    // The session's source has the sink's ends. The server has no channels then, and says so, or
    // the initiator goes.
    let flags = Flags::FABRIC.with(Flags::UNSEALED, true);
    let request = Request { flags, paths: vec![b"share/to".to_vec()], ..Request::default() };
    let _ = open_session(&control, &mut connection, epoch, Role::Source, &request);
    drop((channels, control));
    // The server serves others.
    fs::write(folder.path().join("file"), "x").expect("room");
    fs::create_dir(folder.path().join("got")).expect("room");
    let request = Request { paths: vec![b"share/file".to_vec()], ..Request::default() };
    let to = CopyDirection::Download(DownloadTo::Path(folder.path().join("got")));
    let at = ServerAt { addresses: &[server], tls: &tls };
    let finished = task(request).with_server(at, to, Over::Fabric).expect("a server");
    assert_eq!(finished.outcome.copied, 1);
}

/// Lets an initiator ask a peer that answers like this. Returns what the initiator says.
fn asked(reply: ListenReply, features: u64, over: Over) -> Result<Result<(), String>, String> {
    let (near, remote) = control_pair();
    let answering = thread::spawn(move || {
        let epoch = Instant::now();
        let (channels, token, agent) = (2, Token::default(), String::new());
        let (version, block_size) = (VERSION, BLOCK_SIZE);
        let most = Terms { version, channels, block_size, features, token, agent };
        let policy = Policy { most, block_size_min: BLOCK_SIZE, sessions: 1 };
        let mut connection = Connection::accept(policy, Duration::ZERO);
        let established = next_event(&remote, &mut connection, epoch);
        assert!(matches!(established, Ok(Event::Established(_))), "{established:?}");
        // Without the feature bit it is not asked.
        if let Ok(Event::Listen) = next_event(&remote, &mut connection, epoch) {
            connection.answer_listen(reply).expect("it was asked");
            flush(&remote, &mut connection, epoch).expect("a peer");
        }
    });
    let epoch = Instant::now();
    let (mut connection, terms) = establish(&near, offer(), epoch).expect("a peer");
    let server = (Ipv4Addr::LOCALHOST, 1).into();
    let options = FabricOptions::find(over, false, server).expect("it may be this host");
    let via = (&near as &dyn Control, &mut connection);
    let connected = FabricChannels::connect(via, epoch, &terms, options, Role::Source);
    near.close();
    answering.join().expect("no panic");
    connected.map(|connected| connected.map(drop)).map_err(|error| error.to_string())
}

#[test]
fn server_that_is_on_another_host_is_not_connected_to() {
    // A port of this host that the server names.
    let victim = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    victim.set_nonblocking(true).expect("a socket");
    let port = victim.local_addr().expect("a port").port();
    let own = proof(&SECRET).expect("proc");
    let other = proof(&PipeSecret([4; 32])).expect("proc");
    for address in [String::new(), "127.0.0.1".into(), other, own[1..].into()] {
        let reply = ListenReply::Accepted { port, secret: SECRET, address };
        let said = asked(reply, FEATURE_FABRIC, Over::Memory).expect("a peer");
        let why = said.expect_err("a stranger");
        assert!(why.contains("on another host"), "{why}");
    }
    let nobody = victim.accept().expect_err("nobody connects");
    assert_eq!(nobody.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn fabric_that_is_not_possible_falls_back_or_fails_as_the_user_wants() {
    let refused = || ListenReply::Refused { refusal: Refusal::System, text: "no memory".into() };
    let said = asked(refused(), FEATURE_FABRIC, Over::Memory).expect("a peer");
    assert_eq!(said, Err("shared memory is not possible: no memory".into()));
    let said = asked(refused(), FEATURE_FABRIC, Over::Fabric);
    assert_eq!(said, Err("the fabric is not possible: no memory".into()));
    let said = asked(refused(), 0, Over::Memory).expect("a peer");
    assert!(said.is_err_and(|why| why.ends_with("does not offer it")));
    // Nobody listens at the port that the server names.
    let closed = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|it| it.local_addr());
    let (port, address) = (closed.expect("a port").port(), proof(&SECRET).expect("proc"));
    let reply = ListenReply::Accepted { port, secret: SECRET, address };
    let said = asked(reply, FEATURE_FABRIC, Over::Memory).expect("a peer");
    assert!(said.is_err_and(|why| why.contains("nobody listens")));
}

#[test]
fn only_a_server_that_may_be_here_is_tried_unasked() {
    let server = (Ipv4Addr::LOCALHOST, 5).into();
    for (over, is_another_host, is_tried) in [
        (Over::Memory, false, true),
        (Over::Auto, false, false),
        (Over::Memory, true, false),
        (Over::Fabric, true, true),
        (Over::Tcp, false, false),
        (Over::Rdma, false, false),
    ] {
        assert_eq!(FabricOptions::find(over, is_another_host, server).is_some(), is_tried);
    }
}
