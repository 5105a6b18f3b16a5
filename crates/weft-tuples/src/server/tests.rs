//! A server and its clients, over real sockets.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

use mio::net::{TcpListener, UnixListener};

use super::{Listener, Server, ServerError, Stop};
use crate::access::{self, Account, DEFAULT, Guard, Rights, Token, Users};
use crate::limits::{CONNECTIONS_MAX, OUTPUT_LEN_MAX, UNPROVEN_MAX};
use crate::log::{Directory, Files, Log, LogError, LogFile};
use crate::model::{
    Count, Criteria, ElementEnd, Name, Operation, Order, Outcome, Refusal, Selection, Space, Sync,
    Tuple,
};
use crate::native::{Address, Client, Credentials, Failure, Transport};
use crate::wire::{Action, Hello, RequestFrame, Welcome};

pub(super) struct Running {
    pub(super) address: SocketAddr,
    /// Where it listens by the fabric.
    pub(super) fabric: Option<SocketAddr>,
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start() -> Self {
        Self::with(CONNECTIONS_MAX, Vec::new())
    }

    pub(super) fn with(connections: usize, listeners: Vec<Listener>) -> Self {
        Self::make(connections, listeners, None)
    }

    /// Serves clients that show this token, or all.
    pub(super) fn make(connections: usize, listeners: Vec<Listener>, token: Option<Token>) -> Self {
        let account = |token| Account { name: DEFAULT.to_owned(), token, rights: Rights::all() };
        Self::of(connections, listeners, token.map(|token| vec![account(token)]))
    }

    /// Serves clients of these users, or all.
    pub(super) fn of(
        connections: usize,
        mut listeners: Vec<Listener>,
        accounts: Option<Vec<Account>>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        listeners.push(Listener::Tcp(listener));
        let (sender, receiver) = std::sync::mpsc::channel();
        // A space stays with its thread.
        let thread = spawn(move || {
            let server = Server::new(Space::default(), listeners, connections).unwrap();
            let server = server.with_guard(accounts.map_or_else(Guard::default, Guard::of));
            sender.send(server.stop()).unwrap();
            server.run().unwrap();
        });
        let stop = receiver.recv().unwrap();
        Self { address, fabric: None, stop, thread: Some(thread) }
    }

    pub(super) fn client(&self) -> Client {
        let address = Address::Tcp(self.address.to_string());
        Client::connect(address, Duration::from_secs(240)).unwrap()
    }

    fn redis(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop().unwrap();
        self.thread.take().unwrap().join().unwrap();
    }
}

pub(super) fn name(text: &str) -> Name {
    Rc::from(text.as_bytes())
}

pub(super) fn put(element: &str, value: &str) -> Operation {
    let (criteria, end) = (Criteria::default(), ElementEnd::Back);
    let tuples = vec![Tuple::of(value)];
    Operation::Put { element: name(element), criteria, end, tuples, is_append: false }
}

pub(super) fn take(element: &str) -> Operation {
    let elements = vec![name(element)];
    Operation::Take { elements, end: ElementEnd::Front, count: Count::AtMost(1) }
}

pub(super) fn taken(outcome: Outcome) -> String {
    match outcome {
        Outcome::Taken(_, items) => String::from_utf8(items[0].fields[0].clone()).unwrap(),
        other => panic!("{other:?}"),
    }
}

fn expect(stream: &mut TcpStream, reply: &str) {
    let mut bytes = vec![0; reply.len()];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(String::from_utf8_lossy(&bytes), reply);
}

#[test]
fn both_protocols_share_a_space() {
    let running = Running::start();
    let (mut native, mut redis) = (running.client(), running.redis());
    let waiter = spawn({
        let mut other = running.client();
        move || taken(other.call(take("q"), None).unwrap())
    });
    redis.write_all(b"RPUSH l a b\r\n").unwrap();
    expect(&mut redis, ":2\r\n");
    assert_eq!(taken(native.call(take("l"), None).unwrap()), "a");
    redis.write_all(b"BLPOP l 0\r\nBLPOP l 0\r\n").unwrap();
    expect(&mut redis, "*2\r\n$1\r\nl\r\n$1\r\nb\r\n");
    native.call(put("l", "c"), None).unwrap();
    expect(&mut redis, "*2\r\n$1\r\nl\r\n$1\r\nc\r\n");
    native.call(put("q", "d"), None).unwrap();
    assert_eq!(waiter.join().unwrap(), "d");
    let late = native.call(take("l"), Some(Duration::from_millis(1))).unwrap();
    assert_eq!(late, Outcome::Nothing);
}

#[test]
fn full_element_pushes_back_over_the_network() {
    let running = Running::start();
    let mut native = running.client();
    let criteria = Criteria { order: Order::Arrival, sync: Sync::Bound(1) };
    native.call(Operation::Create { element: name("b"), criteria }, None).unwrap();
    let producer = spawn({
        let mut producer = running.client();
        move || {
            for number in 0..50 {
                producer.call(put("b", &number.to_string()), None).unwrap();
            }
        }
    });
    for number in 0..50 {
        let value = taken(native.call(take("b"), None).unwrap());
        assert_eq!(value, number.to_string());
    }
    producer.join().unwrap();
    let mut redis = running.redis();
    redis.write_all(b"RPUSH b x\r\nRPUSH b y\r\n").unwrap();
    expect(&mut redis, ":1\r\n-FULL the element has no place\r\n");
}

#[test]
fn tuple_is_not_taken_for_a_peer_that_has_gone() {
    let running = Running::start();
    let mut gone = running.redis();
    gone.write_all(b"BLPOP l 0\r\n").unwrap();
    let mut other = running.redis();
    // Until the command waits.
    loop {
        other.write_all(b"INFO\r\n").unwrap();
        let mut bytes = [0; 4096];
        let len = other.read(&mut bytes).unwrap();
        if String::from_utf8_lossy(&bytes[..len]).contains("blocked_clients:1\r\n") {
            break;
        }
    }
    drop(gone);
    loop {
        other.write_all(b"INFO\r\n").unwrap();
        let mut bytes = [0; 4096];
        let len = other.read(&mut bytes).unwrap();
        if String::from_utf8_lossy(&bytes[..len]).contains("blocked_clients:0\r\n") {
            break;
        }
    }
    other.write_all(b"RPUSH l a\r\nLLEN l\r\n").unwrap();
    expect(&mut other, ":1\r\n:1\r\n");
}

/// A peer that sends and does not receive is not served without bound, and gets everything at last.
#[test]
fn replies_that_nobody_receives_stop_the_commands() {
    let running = Running::start();
    let mut peer = running.redis();
    let value = "v".repeat(100_000);
    peer.write_all(format!("RPUSH l {}\r\n", &value[..60_000]).as_bytes()).unwrap();
    expect(&mut peer, ":1\r\n");
    let (count, reply) = (1_000, format!("$60000\r\n{}\r\n", &value[..60_000]));
    assert!(count * reply.len() > 10 * OUTPUT_LEN_MAX);
    let sender = spawn({
        let mut peer = peer.try_clone().unwrap();
        move || peer.write_all("LINDEX l 0\r\n".repeat(count).as_bytes()).unwrap()
    });
    for _ in 0..count {
        expect(&mut peer, &reply);
    }
    sender.join().unwrap();
}

#[test]
fn peers_that_speak_no_protocol_are_closed_and_places_are_bounded() {
    let running = Running::with(2, Vec::new());
    let mut wrong = running.redis();
    wrong.write_all(&[0xf7; 64]).unwrap();
    assert_eq!(wrong.read(&mut [0; 8]).unwrap_or(0), 0);
    let mut places = [running.redis(), running.redis()];
    for place in &mut places {
        place.write_all(b"PING\r\n").unwrap();
        expect(place, "+PONG\r\n");
    }
    assert_eq!(running.redis().read(&mut [0; 8]).unwrap_or(0), 0);
}

#[test]
fn clients_come_by_unix_sockets_too() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = Listener::Unix(UnixListener::bind(&path).unwrap(), Users::default());
    let running = Running::with(CONNECTIONS_MAX, vec![listener]);
    let mut client = Client::connect(Address::Unix(path), Duration::ZERO).unwrap();
    client.call(put("l", "a"), None).unwrap();
    assert_eq!(taken(running.client().call(take("l"), None).unwrap()), "a");
}

fn token(text: &str) -> Token {
    Token::new(text.as_bytes()).unwrap()
}

#[test]
fn only_clients_with_the_token_are_served_by_either_protocol() {
    let right = token("the token of the server");
    let running = Running::make(CONNECTIONS_MAX, Vec::new(), Some(right.clone()));
    let connect = |token: Option<Token>| {
        let address = Address::Tcp(running.address.to_string());
        Client::connect_with(
            address,
            Duration::ZERO,
            Credentials { token, ..Credentials::default() },
        )
    };
    for wrong in [None, Some(token("the token of another server"))] {
        let refused = connect(wrong).unwrap_err();
        assert!(matches!(refused, Failure::Refused(Refusal::Token)), "{refused:?}");
    }
    // What is behind a greeting without the token is not done.
    let mut hasty = running.redis();
    let action = Action::Do(put("l", "x"), None);
    let request = RequestFrame { number: 1, confirmed: 0, action };
    let hello = Hello { id: [1; 16], ..Hello::default() };
    hasty.write_all(&[hello.encode(), request.encode()].concat()).unwrap();
    let mut answer = Vec::new();
    // The server closes with bytes unread, which may reset the connection.
    let _ = hasty.read_to_end(&mut answer);
    if !answer.is_empty() {
        assert_eq!(Welcome::decode(&answer), Ok(Welcome(Err(Refusal::Token))));
    }
    let mut redis = running.redis();
    redis.write_all(b"LLEN l\r\nAUTH wrong\r\nLLEN l\r\n").unwrap();
    expect(&mut redis, "-NOAUTH Authentication required.\r\n");
    expect(&mut redis, "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    expect(&mut redis, "-NOAUTH Authentication required.\r\n");
    redis.write_all(b"*2\r\n$4\r\nAUTH\r\n$23\r\nthe token of the server\r\nLLEN l\r\n").unwrap();
    expect(&mut redis, "+OK\r\n:0\r\n");
    let mut client = connect(Some(right)).unwrap();
    client.call(put("l", "one"), None).unwrap();
    redis.write_all(b"LLEN l\r\n").unwrap();
    expect(&mut redis, ":1\r\n");
}

fn connect(address: SocketAddr, token: &Token) -> Client {
    let credentials = Credentials { token: Some(token.clone()), ..Credentials::default() };
    Client::connect_with(Address::Tcp(address.to_string()), Duration::ZERO, credentials).unwrap()
}

/// All operations on an element, and whether they need a right to read or to change it.
fn operations(element: &str) -> Vec<(Operation, bool, bool)> {
    let to_own = |from: &str, to: &str| Operation::Transfer {
        from: (name(from), ElementEnd::Front),
        to: (name(to), ElementEnd::Back),
    };
    let observe = |element: &str| Operation::Observe {
        elements: vec![(name("own"), None), (name(element), None)],
        count: Count::AtMost(1),
    };
    let several = Operation::Take {
        elements: vec![name("own"), name(element)],
        end: ElementEnd::Back,
        count: Count::AtMost(1),
    };
    let selection = Selection::Places(0, -1);
    let element = name(element);
    let of = |text: &Name| String::from_utf8(text.to_vec()).unwrap();
    vec![
        (put(&of(&element), "x"), false, true),
        (take(&of(&element)), true, true),
        (several, true, true),
        (observe(&of(&element)), true, false),
        (to_own(&of(&element), "own"), true, true),
        (to_own("own", &of(&element)), false, true),
        (Operation::Read { element: Rc::clone(&element), selection, count: 9 }, true, false),
        (
            Operation::Create { element: Rc::clone(&element), criteria: Criteria::default() },
            false,
            true,
        ),
        (Operation::Delete { element }, false, true),
    ]
}

/// Users do what they may, and nothing else.
#[test]
fn users_do_what_they_may_by_weft_s_own_protocol() {
    let [all, some] = ["token of the first", "token of the other"].map(token);
    let texts = |texts: &[&str]| texts.iter().map(|it| it.as_bytes().to_vec()).collect();
    let (read, write) = (texts(&["read", "both", "own"]), texts(&["write", "both", "own"]));
    let (first, other) = ("first".to_owned(), "other".to_owned());
    let running = Running::of(
        CONNECTIONS_MAX,
        Vec::new(),
        Some(vec![
            Account { name: first, token: all.clone(), rights: Rights::all() },
            Account { name: other, token: some.clone(), rights: Rights { read, write } },
        ]),
    );
    let (mut full, mut limited) = (connect(running.address, &all), connect(running.address, &some));
    for (element, reads, writes) in [
        ("none", false, false),
        ("reads", true, false),
        ("writes", false, true),
        ("both", true, true),
    ] {
        for (operation, needs_read, needs_write) in operations(element) {
            for element in ["own", element] {
                full.call(Operation::Delete { element: name(element) }, None).unwrap();
                full.call(put(element, "secret"), None).unwrap();
            }
            let text = format!("{operation:?}");
            let outcome = limited.call(operation, None).unwrap();
            let may = (reads || !needs_read) && (writes || !needs_write);
            let is_refused = outcome == Outcome::Refused(Refusal::Rights);
            assert_eq!(!is_refused, may, "{text}: {outcome:?}");
            if !may {
                let left = full.call(take(element), None).unwrap();
                assert_eq!(taken(left), "secret", "{text} has changed the element");
            }
        }
    }
    let listed = |client: &mut Client| match client.call(Operation::List, None).unwrap() {
        Outcome::Listed(all) => all.iter().map(|it| it.name.to_vec()).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    for element in ["none", "reads", "writes"] {
        full.call(put(element, "x"), None).unwrap();
        let describe = Operation::Describe { element: name(element) };
        let outcome = limited.call(describe, None).unwrap();
        assert_eq!(outcome == Outcome::Refused(Refusal::Rights), element == "none", "{outcome:?}");
    }
    let (all, seen) = (listed(&mut full), listed(&mut limited));
    assert!(all.contains(&b"none".to_vec()) && seen.contains(&b"reads".to_vec()), "{all:?}");
    assert!(!seen.contains(&b"none".to_vec()) && seen.len() + 1 == all.len(), "{seen:?}");
}

/// Connections without the token do not keep clients out that have it.
#[test]
fn places_of_clients_without_the_token_are_bounded() {
    let running = Running::make(CONNECTIONS_MAX, Vec::new(), Some(token("the token of this")));
    let mut admitted = running.redis();
    admitted.write_all(b"*2\r\n$4\r\nAUTH\r\n$17\r\nthe token of this\r\n").unwrap();
    expect(&mut admitted, "+OK\r\n");
    let mut strangers: Vec<TcpStream> = (0..=UNPROVEN_MAX).map(|_| running.redis()).collect();
    let mut last = running.redis();
    last.write_all(b"PING\r\n").unwrap();
    expect(&mut last, "-NOAUTH Authentication required.\r\n");
    // There are two too many: the first two are closed, and no other one is.
    for stranger in &mut strangers[..2] {
        assert_eq!(stranger.read(&mut [0; 8]).unwrap_or(0), 0);
    }
    let third = &mut strangers[2];
    third.write_all(b"PING\r\n").unwrap();
    expect(third, "-NOAUTH Authentication required.\r\n");
    admitted.write_all(b"PING\r\n").unwrap();
    expect(&mut admitted, "+PONG\r\n");
}

impl Running {
    /// A server that is reached by TLS, too, at the second address.
    fn by_tls(token: Option<Token>) -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let listeners = vec![Listener::Tls(listener, access::tests::server("server"))];
        (Self::make(CONNECTIONS_MAX, listeners, token), address)
    }
}

fn connect_by_tls(
    address: SocketAddr,
    trust: Option<&str>,
    token: Option<Token>,
) -> Result<Client, Failure> {
    let trust = trust.map(access::tests::trust);
    let address = Address::Tls(address.to_string());
    Client::connect_with(address, Duration::ZERO, Credentials { token, trust })
}

#[test]
fn clients_come_by_tls_to_servers_that_they_trust() {
    let right = token("the token of the server");
    let (running, address) = Running::by_tls(Some(right.clone()));
    for (trust, token) in [(Some("self"), Some(right.clone())), (None, None)] {
        let refused = connect_by_tls(address, trust, token).unwrap_err();
        assert!(matches!(refused, Failure::Io(_)), "{refused:?}");
    }
    let refused = connect_by_tls(address, Some("ca"), None).unwrap_err();
    assert!(matches!(refused, Failure::Refused(Refusal::Token)), "{refused:?}");
    let mut client = connect_by_tls(address, Some("ca"), Some(right.clone())).unwrap();
    assert_eq!(client.transport(), Some(Transport::Tls));
    // Longer than all buffers, both ways, with and without an end at that of a record.
    for len in [1, 16 << 10, (16 << 10) + 1, 300_000, 10 << 20] {
        let value: String = (0..len).map(|at| char::from(b'a' + (at % 23) as u8)).collect();
        client.call(put("l", &value), None).unwrap();
        assert!(taken(client.call(take("l"), None).unwrap()) == value, "{len} bytes");
    }
    let waiter = spawn(move || taken(client.call(take("l"), None).unwrap()));
    let plain = Address::Tcp(running.address.to_string());
    let credentials = Credentials { token: Some(right), trust: None };
    let mut plain = Client::connect_with(plain, Duration::ZERO, credentials).unwrap();
    plain.call(put("l", "at last"), None).unwrap();
    assert_eq!(waiter.join().unwrap(), "at last");
}

/// A client that only sends is not answered without bound, and gets everything at last.
#[test]
fn answers_by_tls_wait_for_their_reader() {
    let (running, address) = Running::by_tls(None);
    let value = "v".repeat(60_000);
    running.client().call(put("l", &value), None).unwrap();
    let session = access::tests::trust("ca").connect(&address.to_string()).unwrap();
    let mut stream = rustls::StreamOwned::new(session, TcpStream::connect(address).unwrap());
    let count = 200;
    assert!(count * value.len() > 10 * OUTPUT_LEN_MAX);
    stream.write_all("LINDEX l 0\r\n".repeat(count).as_bytes()).unwrap();
    stream.write_all(b"QUIT\r\n").unwrap();
    let expected = format!("{}+OK\r\n", format!("$60000\r\n{value}\r\n").repeat(count));
    let mut found = String::new();
    // It ends as TLS says that it does, or this were an error.
    stream.read_to_string(&mut found).unwrap();
    assert!(found == expected, "{} bytes, not {}", found.len(), expected.len());
}

/// Random bytes, and greetings that were changed, end their own connection.
#[test]
fn peers_that_speak_no_tls_are_closed() {
    let (running, address) = Running::by_tls(None);
    let mut greeting = Vec::new();
    let mut session = access::tests::trust("ca").connect("127.0.0.1:1").unwrap();
    session.write_tls(&mut greeting).unwrap();
    let mut rng = fastrand::Rng::with_seed(11);
    for case in 0..200 {
        let mut bytes = greeting.clone();
        match case {
            0 => bytes = b"PING\r\n".to_vec(),
            1 => bytes = Hello::default().encode(),
            2 => bytes = b"MPA ID Req Frame".to_vec(),
            _ => (0..rng.usize(1..9)).for_each(|_| {
                let at = rng.usize(..bytes.len());
                bytes[at] = rng.u8(..);
            }),
        }
        let mut peer = TcpStream::connect(address).unwrap();
        peer.write_all(&bytes).unwrap();
        peer.shutdown(std::net::Shutdown::Write).unwrap();
        // It may have been reset.
        let _ = peer.read_to_end(&mut Vec::new());
    }
    let mut client = connect_by_tls(address, Some("ca"), None).unwrap();
    client.call(put("l", "a"), None).unwrap();
    assert_eq!(taken(running.client().call(take("l"), None).unwrap()), "a");
}

/// Connections that do not go through the handshake do not keep clients out.
#[test]
fn places_of_peers_without_keys_are_bounded() {
    let (_running, address) = Running::by_tls(None);
    let mut client = connect_by_tls(address, Some("ca"), None).unwrap();
    let mut silent: Vec<_> =
        (0..=UNPROVEN_MAX).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert_eq!(silent[0].read(&mut [0; 8]).unwrap_or(0), 0, "the first one is closed");
    client.call(put("l", "a"), None).unwrap();
    let mut other = connect_by_tls(address, Some("ca"), None).unwrap();
    assert_eq!(taken(other.call(take("l"), None).unwrap()), "a");
}

/// A proxy that breaks connections at random places, in both directions. Whatever is lost, each put
/// takes effect once.
#[test]
fn lost_connections_neither_lose_nor_repeat_an_operation() {
    let running = Running::start();
    let proxy = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let (address, server) = (proxy.local_addr().unwrap(), running.address);
    spawn(move || {
        let mut rng = fastrand::Rng::with_seed(7);
        for client in proxy.incoming() {
            let (mut client, mut server) = (client.unwrap(), TcpStream::connect(server).unwrap());
            let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            let (up, down) = (rng.u64(20..2_000), rng.u64(8..1_000));
            spawn(move || {
                let _ = io::copy(&mut (&mut from).take(up), &mut to);
                let _ = (
                    from.shutdown(std::net::Shutdown::Both),
                    to.shutdown(std::net::Shutdown::Both),
                );
            });
            spawn(move || {
                let _ = io::copy(&mut (&mut server).take(down), &mut client);
                let _ = (
                    client.shutdown(std::net::Shutdown::Both),
                    server.shutdown(std::net::Shutdown::Both),
                );
            });
        }
    });
    let mut client = Client::connect(Address::Tcp(address.to_string()), Duration::from_secs(240));
    while let Err(Failure::Io(_)) = client {
        client = Client::connect(Address::Tcp(address.to_string()), Duration::from_secs(240));
    }
    let mut client = client.unwrap();
    for number in 0..100 {
        let outcome = client.call(put("l", &number.to_string()), None).unwrap();
        assert!(matches!(outcome, Outcome::Put(..)), "{outcome:?}");
        if number % 2 == 1 {
            assert_eq!(taken(client.call(take("l"), None).unwrap()), (number / 2).to_string());
        }
    }
    let mut direct = running.client();
    for number in 50..100 {
        assert_eq!(taken(direct.call(take("l"), None).unwrap()), number.to_string());
    }
    let empty = direct.call(take("l"), Some(Duration::ZERO)).unwrap();
    assert!(!matches!(empty, Outcome::Refused(Refusal::Stale)));
    assert_eq!(empty, Outcome::Nothing);
}

/// A directory whose disk fails when a test says so.
#[derive(Debug)]
struct Failing {
    directory: Directory,
    has_failed: Arc<AtomicBool>,
}

#[derive(Debug)]
struct FailingFile {
    file: Box<dyn LogFile>,
    has_failed: Arc<AtomicBool>,
}

impl Failing {
    fn file(&self, file: Box<dyn LogFile>) -> Box<dyn LogFile> {
        Box::new(FailingFile { file, has_failed: Arc::clone(&self.has_failed) })
    }
}

impl Files for Failing {
    fn name(&self) -> String {
        self.directory.name()
    }

    fn open(&mut self) -> io::Result<Option<Box<dyn LogFile>>> {
        Ok(self.directory.open()?.map(|file| self.file(file)))
    }

    fn create(&mut self) -> io::Result<Box<dyn LogFile>> {
        let file = self.directory.create()?;
        Ok(self.file(file))
    }

    fn install(&mut self) -> io::Result<()> {
        self.directory.install()
    }

    fn random(&mut self) -> io::Result<[u8; 8]> {
        self.directory.random()
    }
}

impl LogFile for FailingFile {
    fn size(&self) -> io::Result<u64> {
        self.file.size()
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_at(bytes, offset)
    }

    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_at(bytes, offset)
    }

    fn truncate(&mut self, len: u64) -> io::Result<()> {
        self.file.truncate(len)
    }

    fn sync(&mut self) -> io::Result<()> {
        match self.has_failed.load(Ordering::Acquire) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => self.file.sync(),
        }
    }
}

/// Serves with a log. Returns what the server has ended with, too.
fn serve_with_log(
    path: &Path,
    has_failed: &Arc<AtomicBool>,
) -> (SocketAddr, Arc<Stop>, JoinHandle<Result<(), ServerError>>) {
    let listener = TcpListener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let directory = Directory::open(path).unwrap();
    let files = Failing { directory, has_failed: Arc::clone(has_failed) };
    let thread = spawn(move || {
        let listeners = vec![Listener::Tcp(listener)];
        let server = Server::new(Space::default(), listeners, CONNECTIONS_MAX).unwrap();
        let server = server.with_log(|service| Log::open(Box::new(files), service)).unwrap();
        sender.send(server.stop()).unwrap();
        server.run()
    });
    (address, receiver.recv().unwrap(), thread)
}

#[test]
fn nothing_is_answered_after_the_log_has_failed() {
    let folder = tempfile::tempdir().unwrap();
    let has_failed = Arc::new(AtomicBool::new(false));
    let (address, _, thread) = serve_with_log(folder.path(), &has_failed);
    let connect = |retry| Client::connect(Address::Tcp(address.to_string()), retry).unwrap();
    let mut native = connect(Duration::ZERO);
    assert_eq!(
        native.call(put("l", "a"), None).map(|it| matches!(it, Outcome::Put(..))).ok(),
        Some(true)
    );
    let mut redis = TcpStream::connect(address).unwrap();
    redis.write_all(b"RPUSH l b\r\n").unwrap();
    expect(&mut redis, ":2\r\n");
    // One waits by each protocol.
    let waiter = spawn({
        let mut waiter = connect(Duration::ZERO);
        move || waiter.call(take("none"), None).map(taken)
    });
    let mut blocked = TcpStream::connect(address).unwrap();
    blocked.write_all(b"PING\r\nBLPOP none 0\r\n").unwrap();
    expect(&mut blocked, "+PONG\r\n");
    loop {
        redis.write_all(b"INFO\r\n").unwrap();
        let mut bytes = [0; 4096];
        let len = redis.read(&mut bytes).unwrap();
        if String::from_utf8_lossy(&bytes[..len]).contains("blocked_clients:2\r\n") {
            break;
        }
    }
    has_failed.store(true, Ordering::Release);
    // The first reply tells nothing of the failed operation, but it comes with it.
    redis.write_all(b"LLEN l\r\nRPUSH l c\r\nPING\r\n").unwrap();
    for stream in [&mut redis, &mut blocked] {
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.starts_with("-LOG the server stops"), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    let failure = waiter.join().unwrap().unwrap_err();
    assert!(matches!(failure, Failure::Log), "{failure:?}");
    let ended = thread.join().unwrap().unwrap_err();
    assert!(matches!(ended, ServerError::Log(LogError::Io { .. })), "{ended:?}");
    // The next server has what was answered, and a client goes on with it.
    has_failed.store(false, Ordering::Release);
    let (address, stop, thread) = serve_with_log(folder.path(), &has_failed);
    let mut client = Client::connect(Address::Tcp(address.to_string()), Duration::ZERO).unwrap();
    assert_eq!(taken(client.call(take("l"), None).unwrap()), "a");
    assert_eq!(taken(client.call(take("l"), None).unwrap()), "b");
    stop.stop().unwrap();
    thread.join().unwrap().unwrap();
}

/// A client that is being let in when the log fails is not let in.
#[test]
fn client_is_known_on_disk_before_it_is_let_in() {
    let folder = tempfile::tempdir().unwrap();
    let has_failed = Arc::new(AtomicBool::new(false));
    let (address, _, thread) = serve_with_log(folder.path(), &has_failed);
    has_failed.store(true, Ordering::Release);
    let refused = Client::connect(Address::Tcp(address.to_string()), Duration::ZERO).unwrap_err();
    assert!(matches!(refused, Failure::Log), "{refused:?}");
    assert!(thread.join().unwrap().is_err());
}
