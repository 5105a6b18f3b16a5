//! Handshakes between two ends.

use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::tls::Accepts;
use super::{
    Cipher, Direction, Identity, Opener, PublicKey, SEAL_LEN, Sealer, SecureError, Tls, TlsClient,
    TlsServer,
};

const TIME: Duration = Duration::from_secs(240);

fn only(key: PublicKey) -> Accepts {
    Arc::new(move |shown| *shown == key)
}

fn connected() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("a listener");
    (client, listener.accept().expect("a client").0)
}

struct Ends {
    client: Result<Tls, SecureError>,
    server: Result<Tls, SecureError>,
}

fn shake_hands(client: (&Identity, Accepts), server: (&Identity, Accepts)) -> Ends {
    let client = TlsClient::new(client.0, client.1).expect("a configuration");
    let server = TlsServer::new(server.0, server.1).expect("a configuration");
    let (near, remote) = connected();
    let accepting = thread::spawn(move || server.accept(&remote, TIME));
    let client = client.connect(&near, TIME);
    // A client that refuses the server closes the connection.
    drop(near);
    Ends { client, server: accepting.join().expect("no panic") }
}

fn pair() -> (Tls, Tls) {
    let [ours, theirs] = [(); 2].map(|()| Identity::generate().expect("a key"));
    let ends = shake_hands((&ours, only(theirs.public())), (&theirs, only(ours.public())));
    let (client, server) = (ends.client.expect("accepted"), ends.server.expect("accepted"));
    assert_eq!((client.peer(), server.peer()), (theirs.public(), ours.public()));
    (client, server)
}

#[test]
fn ends_that_accept_each_other_exchange_data() {
    let (mut client, mut server) = pair();
    let (mut wire, mut plain) = (Vec::new(), Vec::new());
    let long = vec![7; 100_000];
    client.encrypt(&long, &mut wire).expect("a session");
    for piece in wire.chunks(1_000) {
        assert!(!server.decrypt(piece, &mut plain).expect("authentic"));
    }
    assert_eq!(plain, long);
    wire.clear();
    plain.clear();
    server.encrypt(b"thanks", &mut wire).expect("a session");
    server.end(&mut wire).expect("a session");
    assert!(client.decrypt(&wire, &mut plain).expect("authentic"), "nothing follows");
    assert_eq!(plain, b"thanks");
}

#[test]
fn changed_byte_fails_the_session() {
    let (mut client, mut server) = pair();
    let mut wire = Vec::new();
    client.encrypt(b"delete nothing", &mut wire).expect("a session");
    let last = wire.len() - 20;
    wire[last] ^= 1;
    let refused = server.decrypt(&wire, &mut Vec::new());
    assert!(matches!(refused, Err(SecureError::Tls(_))), "{refused:?}");
}

#[test]
fn server_with_another_key_is_refused_before_the_client_shows_its_own() {
    let [ours, theirs, expected] = [(); 3].map(|()| Identity::generate().expect("a key"));
    let asked: Accepts = Arc::new(|_| panic!("the client shows no key"));
    let ends = shake_hands((&ours, only(expected.public())), (&theirs, asked));
    let key = theirs.public();
    let is_named = matches!(ends.client, Err(SecureError::NotAccepted(named)) if named == key);
    assert!(is_named, "{:?}", ends.client);
    assert!(ends.server.is_err());
}

#[test]
fn unknown_client_is_refused() {
    let [ours, theirs, expected] = [(); 3].map(|()| Identity::generate().expect("a key"));
    let ends = shake_hands((&ours, only(theirs.public())), (&theirs, only(expected.public())));
    let key = ours.public();
    let is_named = matches!(ends.server, Err(SecureError::NotAccepted(named)) if named == key);
    assert!(is_named, "{:?}", ends.server);
}

#[test]
fn silent_peer_times_out() {
    let identity = Identity::generate().expect("a key");
    let server = TlsServer::new(&identity, only(identity.public())).expect("a configuration");
    let (_near, remote) = connected();
    let refused = server.accept(&remote, Duration::from_millis(20));
    assert!(matches!(refused, Err(SecureError::TimedOut)), "{refused:?}");
}

#[test]
fn exported_secrets_agree_at_both_ends_and_differ_by_session_and_direction() {
    let (mut client, mut server) = pair();
    let cipher = Cipher::Aes128Gcm;
    let sealer = |tls: &mut Tls, session, direction| {
        Sealer::new(tls.block_secret(session, cipher, direction).expect("a secret"))
    };
    let opens = |tls: &mut Tls, session, direction, counter, block: &[u8]| {
        let secret = tls.block_secret(session, cipher, direction).expect("a secret");
        let mut block = block.to_vec();
        let len = block.len();
        Opener::new(secret).open_in_place(counter, b"head", &mut block, len).is_ok()
    };
    assert_eq!((client.outgoing(), server.outgoing()), (Direction::ToServer, Direction::ToClient));
    assert_eq!(client.outgoing(), server.incoming());
    let mut block = vec![1; 100 + SEAL_LEN];
    let (outgoing, incoming) = (client.outgoing(), client.incoming());
    let sealer = sealer(&mut client, 7, outgoing);
    let ticket = sealer.begin().expect("a counter");
    let counter = ticket.counter();
    let len = ticket.seal_in_place(b"head", &mut block, 100);
    assert_eq!(len.expect("room"), block.len());
    assert!(opens(&mut server, 7, outgoing, counter, &block));
    assert!(!opens(&mut server, 8, outgoing, counter, &block), "another session");
    assert!(!opens(&mut server, 7, incoming, counter, &block), "the other direction");
    let (mut stranger, _) = pair();
    assert!(!opens(&mut stranger, 7, Direction::ToServer, counter, &block), "another connection");
}

#[test]
fn secret_of_a_session_is_exported_once() {
    let (mut client, _server) = pair();
    let mut export = |session, cipher, direction| {
        client.block_secret(session, cipher, direction).map(drop).map_err(|e| e.to_string())
    };
    let (aes, way) = (Cipher::Aes128Gcm, Direction::ToServer);
    assert_eq!(export(2, aes, way), Ok(()));
    assert_eq!(export(2, aes, Direction::ToClient), Ok(()));
    for (session, cipher) in [(2, aes), (2, Cipher::ChaCha20Poly1305), (1, aes), (0, aes)] {
        assert!(export(session, cipher, way).is_err(), "session {session}");
    }
    assert_eq!(export(3, aes, way), Ok(()));
}
