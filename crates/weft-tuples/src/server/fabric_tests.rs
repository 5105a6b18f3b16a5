//! A server and its clients by the fabric, in one process and over loopback.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::thread::spawn;
use std::time::Duration;

use weft_fabric::{Endpoint, Error, Fabric, Options};

use super::Listener;
use super::tests::{Running, name, put, take, taken};
use crate::access::{Account, Rights, Token};
use crate::fabric::FabricListener;
use crate::limits::{CONNECTIONS_MAX, NAME_LEN_MAX, OUTPUT_LEN_MAX, TAILS_MAX, TUPLE_LEN_MAX};
use crate::model::{
    ClientId, Criteria, ElementEnd, Item, Operation, Outcome, Refusal, Selection, Tuple,
};
use crate::native::{Address, Client, Credentials, Failure, Transport};
use crate::tail::{Last, Seen, TailError};
use crate::wire::{Action, Answer, Hello, RequestFrame, Welcome, split};

/// What a client of this protocol says to the listener.
const GREETING: &[u8] = b"weft tuples 1";

impl Running {
    /// A server that both TCP and the fabric reach.
    fn by_fabric(connections: usize) -> Self {
        Self::by_fabric_with(connections, None)
    }

    fn by_fabric_with(connections: usize, token: Option<Token>) -> Self {
        Self::by_fabric_of(|listeners| Self::make(connections, listeners, token))
    }

    fn by_fabric_of(make: impl FnOnce(Vec<Listener>) -> Self) -> Self {
        let listener = FabricListener::bind(([127, 0, 0, 1], 0).into()).unwrap();
        let address = listener.address();
        let mut running = make(vec![Listener::Fabric(listener)]);
        running.fabric = Some(address);
        running
    }

    fn fabric_client(&self) -> Client {
        let address = Address::Fabric(self.fabric.unwrap().to_string());
        let mut client = Client::connect(address, Duration::from_secs(240)).unwrap();
        assert!(client.take_fallback().is_none());
        assert_eq!(client.transport(), Some(Transport::Memory));
        client
    }

    /// An endpoint of a peer that does as it likes.
    fn peer(&self, options: Options, greeting: &[u8]) -> Result<Endpoint, Error> {
        let fabric = Fabric::open(options)?;
        Ok(fabric.connect(self.fabric.unwrap(), greeting)?.wait()?.endpoint)
    }
}

/// Sends without waiting.
fn say(endpoint: &Endpoint, bytes: &[u8]) {
    drop(endpoint.send(bytes).unwrap());
}

/// Receives until the server ends the connection.
fn is_ended(endpoint: &Endpoint) -> bool {
    while endpoint.receive().wait().is_ok() {}
    true
}

#[test]
fn clients_of_both_transports_wait_for_each_other() {
    let running = Running::by_fabric(CONNECTIONS_MAX);
    let (mut fabric, mut tcp) = (running.fabric_client(), running.client());
    let echo = spawn({
        let mut other = running.fabric_client();
        move || {
            for _ in 0..500 {
                let value = taken(other.call(take("ping"), None).unwrap());
                other.call(put("pong", &value), None).unwrap();
            }
        }
    });
    for number in 0..500 {
        let client = if number % 5 == 4 { &mut tcp } else { &mut fabric };
        client.call(put("ping", &number.to_string()), None).unwrap();
        assert_eq!(taken(client.call(take("pong"), None).unwrap()), number.to_string());
        if number % 100 == 99 {
            // So that the server sleeps.
            let late = fabric.call(take("none"), Some(Duration::from_millis(20))).unwrap();
            assert_eq!(late, Outcome::Nothing);
        }
    }
    echo.join().unwrap();
}

#[test]
fn long_tuples_come_whole_by_the_fabric() {
    let running = Running::by_fabric(CONNECTIONS_MAX);
    let mut client = running.fabric_client();
    for len in [0, 1, 1_000, 1_015, 1_016, 1_017, 32_767, 32_768, 32_769, 1 << 20, TUPLE_LEN_MAX] {
        let value: Vec<u8> = (0..len).map(|at| (at * 31 + at / 977) as u8).collect();
        let tuples = vec![Tuple::of(value.clone())];
        let (element, end) = (name("l"), ElementEnd::Back);
        let (criteria, is_append) = (Criteria::default(), false);
        let put = Operation::Put { element, criteria, end, tuples, is_append };
        assert!(matches!(client.call(put, None).unwrap(), Outcome::Put(..)), "{len}");
        let Outcome::Taken(_, items) = client.call(take("l"), None).unwrap() else { panic!() };
        assert!(items[0].fields[0] == value, "{len} bytes are not the same");
    }
}

#[test]
fn client_goes_on_by_tcp_and_says_why() {
    let running = Running::with(CONNECTIONS_MAX, Vec::new());
    let address = Address::Fabric(running.address.to_string());
    let mut client = Client::connect(address, Duration::ZERO).unwrap();
    let why = client.take_fallback().map(|error| error.to_string());
    assert!(why.is_some_and(|why| why.contains(&running.address.to_string())), "no reason");
    assert!(client.take_fallback().is_none());
    assert_eq!(client.transport(), Some(Transport::Tcp));
    client.call(put("l", "a"), None).unwrap();
    assert_eq!(taken(client.call(take("l"), None).unwrap()), "a");
}

#[test]
fn what_a_lost_client_waits_for_is_not_taken() {
    let running = Running::by_fabric(CONNECTIONS_MAX);
    let mut client = running.fabric_client();
    // So that it is there, with what waits, while it is empty.
    let criteria = Criteria::default();
    client.call(Operation::Create { element: name("l"), criteria }, None).unwrap();
    for round in 0..20 {
        let peer = running.peer(Options::default(), GREETING).unwrap();
        let id = [round + 1; 16];
        say(&peer, &Hello { id, returns: false, ..Hello::default() }.encode());
        let action = Action::Do(take("l"), None);
        say(&peer, &RequestFrame { number: 1, confirmed: 0, action }.encode());
        assert_eq!(Welcome::decode(&peer.receive().wait().unwrap()).unwrap(), Welcome(Ok(())));
        wait_for(&mut client, 1);
        // Some say goodbye, and some are gone at once.
        if round % 2 == 0 {
            peer.abort()
        } else {
            drop(peer)
        }
        wait_for(&mut client, 0);
        client.call(put("l", "a"), None).unwrap();
        assert_eq!(taken(client.call(take("l"), Some(Duration::ZERO)).unwrap()), "a");
    }
}

/// Until so many operations wait for the element `l`.
fn wait_for(client: &mut Client, waiting: usize) {
    loop {
        let described = client.call(Operation::Describe { element: name("l") }, None).unwrap();
        let Outcome::Described(found) = described else { panic!("{described:?}") };
        if found.map_or(0, |found| found.waiting) == waiting {
            return;
        }
    }
}

#[test]
fn peers_that_do_not_keep_to_the_protocol_end_their_own_connection() {
    let running = Running::by_fabric(CONNECTIONS_MAX);
    let mut client = running.fabric_client();
    let garbage: [&[u8]; 4] = [&[0xf7; 64], b"", b"*1\r\n$-7\r\n", &[b'*'; 900]];
    for bytes in garbage {
        let peer = running.peer(Options::default(), GREETING).unwrap();
        say(&peer, bytes);
        assert!(is_ended(&peer), "{}", bytes.escape_ascii());
    }
    let refused = running.peer(Options::default(), b"another program");
    assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    // One that takes only short messages is not served.
    let short = Options { message_max: 100, ..Options::default() };
    assert!(running.peer(short, GREETING).is_ok_and(|peer| is_ended(&peer)));
    client.call(put("l", "a"), None).unwrap();
    assert_eq!(taken(client.call(take("l"), None).unwrap()), "a");
}

#[test]
fn connections_by_the_fabric_have_places_too() {
    let running = Running::by_fabric(2);
    let mut first = running.fabric_client();
    let second = running.fabric_client();
    let third = running.peer(Options::default(), GREETING);
    assert!(matches!(third, Err(Error::Refused { .. })), "{third:?}");
    first.call(put("l", "a"), None).unwrap();
    drop(second);
    // The place is free when the server has seen it.
    while running.peer(Options::default(), GREETING).is_err() {}
}

/// A peer that asks and does not take the answers is not served without bound, others are served
/// meanwhile, and it gets everything at last.
#[test]
fn answers_that_nobody_takes_stop_the_operations() {
    let running = Running::by_fabric(CONNECTIONS_MAX);
    let mut client = running.fabric_client();
    let value = "v".repeat(60_000);
    client.call(put("l", &value), None).unwrap();
    let options = Options { window: 4, message_max: 4_096, ..Options::default() };
    let peer = running.peer(options, GREETING).unwrap();
    let id: ClientId = [9; 16];
    say(&peer, &Hello { id, returns: false, ..Hello::default() }.encode());
    let count = 40 * OUTPUT_LEN_MAX / value.len();
    let asks: Vec<_> = (1..=count as u64)
        .map(|number| {
            let selection = Selection::Places(0, -1);
            let read = Operation::Read { element: name("l"), selection, count: 1 };
            let action = Action::Do(read, None);
            let request = RequestFrame { number, confirmed: number - 1, action };
            peer.send(&request.encode()).unwrap()
        })
        .collect();
    // The peer takes nothing, and others go on.
    for _ in 0..100 {
        assert!(matches!(client.call(put("m", "a"), None).unwrap(), Outcome::Put(..)));
    }
    let mut bytes = Vec::new();
    let mut answers = 0;
    while answers < count {
        bytes.extend_from_slice(&peer.receive().wait().unwrap());
        if answers == 0 && bytes.len() >= Welcome::LEN && bytes[0] == crate::wire::FIRST {
            bytes.drain(..Welcome::LEN);
        }
        while let Some(frame) = split(&bytes, usize::MAX).unwrap() {
            let (number, answer) = Answer::decode(frame).unwrap();
            answers += 1;
            assert_eq!(number, answers as u64);
            let Answer::Outcome(Outcome::Read(items)) = answer else { panic!("{answer:?}") };
            assert_eq!(items[0].fields[0], value.as_bytes());
            let len = frame.len() + 4;
            bytes.drain(..len);
        }
    }
    for ask in asks {
        ask.wait().unwrap();
    }
}

#[test]
fn a_second_connection_of_a_client_replaces_the_first() {
    let running = Running::by_fabric(CONNECTIONS_MAX);
    let enter = |returns| {
        let peer = running.peer(Options::default(), GREETING).unwrap();
        say(&peer, &Hello { id: [3; 16], returns, ..Hello::default() }.encode());
        assert_eq!(Welcome::decode(&peer.receive().wait().unwrap()).unwrap(), Welcome(Ok(())));
        peer
    };
    let first = enter(false);
    let _second = enter(true);
    assert!(is_ended(&first));
    // A client that the server does not know learns so before the connection ends.
    let stranger = running.peer(Options::default(), GREETING).unwrap();
    say(&stranger, &Hello { id: [4; 16], returns: true, ..Hello::default() }.encode());
    let welcome = Welcome::decode(&stranger.receive().wait().unwrap()).unwrap();
    assert_eq!(welcome, Welcome(Err(Refusal::Stale)));
    assert!(is_ended(&stranger));
}

#[test]
fn sockets_are_served_while_clients_by_the_fabric_are_busy() {
    let running = Running::by_fabric(CONNECTIONS_MAX);
    let is_over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let busy = spawn({
        let (mut client, is_over) = (running.fabric_client(), std::sync::Arc::clone(&is_over));
        move || {
            while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                client.call(put("l", "a"), None).unwrap();
                client.call(take("l"), None).unwrap();
            }
        }
    });
    for _ in 0..50 {
        let mut redis = TcpStream::connect(running.address).unwrap();
        redis.write_all(b"PING\r\n").unwrap();
        let mut reply = [0; 7];
        redis.read_exact(&mut reply).unwrap();
        assert_eq!(&reply, b"+PONG\r\n");
    }
    is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    busy.join().unwrap();
}

/// Longer than a read takes.
const LONG: Duration = Duration::from_secs(240);

#[test]
fn tails_show_what_was_answered_until_the_element_is_deleted() {
    let running = Running::by_fabric(CONNECTIONS_MAX);
    let mut client = running.fabric_client();
    let mut tail = client.tail(b"l").unwrap().unwrap();
    assert_eq!(tail.read(LONG).unwrap(), Seen { len: 0, last: Last::None });
    for number in 1..=300_u64 {
        let outcome = client.call(put("l", &number.to_string()), None).unwrap();
        let Outcome::Put(rank, len) = outcome else { panic!("{outcome:?}") };
        let fields = Tuple::of(number.to_string()).fields;
        let last = Last::Tuple(Item { rank, fields });
        assert_eq!(tail.read(LONG).unwrap(), Seen { len: len as u64, last });
        if number % 3 == 0 {
            client.call(take("l"), None).unwrap();
            assert_eq!(tail.read(LONG).unwrap().len, len as u64 - 1);
        }
    }
    // A long one is not in the memory.
    let outcome = client.call(put("l", &"x".repeat(5_000)), None).unwrap();
    let Outcome::Put(rank, _) = outcome else { panic!("{outcome:?}") };
    assert_eq!(tail.read(LONG).unwrap().last, Last::Long(rank.position));
    // Another client shares the place, and one by TCP has none.
    let mut second = running.fabric_client();
    let mut other = second.tail(b"l").unwrap().unwrap();
    assert_eq!(other.read(LONG).unwrap().last, Last::Long(rank.position));
    assert!(running.client().tail(b"l").unwrap().is_none());
    client.call(Operation::Delete { element: name("l") }, None).unwrap();
    assert!(matches!(tail.read(LONG), Err(TailError::Ended)));
    client.call(put("l", "again"), None).unwrap();
    assert!(matches!(tail.read(LONG), Err(TailError::Ended)));
    let mut tail = client.tail(b"l").unwrap().unwrap();
    assert_eq!(tail.read(LONG).unwrap().len, 1);
}

#[test]
fn places_of_tails_are_bounded_and_those_of_missing_elements_are_used_again() {
    let running = Running::by_fabric(CONNECTIONS_MAX);
    let mut client = running.fabric_client();
    let element = |number: usize| format!("e{number}");
    let mut first = client.tail(element(0).as_bytes()).unwrap().unwrap();
    for number in 1..TAILS_MAX {
        client.call(put(&element(number), "a"), None).unwrap();
        assert!(client.tail(element(number).as_bytes()).unwrap().is_some(), "{number}");
    }
    assert_eq!(first.read(LONG).unwrap().len, 0);
    // The first element does not exist.
    let mut tail = client.tail(b"one more").unwrap().unwrap();
    assert!(matches!(first.read(LONG), Err(TailError::Ended)));
    client.call(put("one more", "a"), None).unwrap();
    assert_eq!(tail.read(LONG).unwrap().len, 1);
    assert!(client.tail(b"too many").unwrap().is_none());
    assert!(client.tail(&[b'x'; NAME_LEN_MAX + 1]).unwrap().is_none());
    client.call(take(&element(7)), None).unwrap();
    assert!(client.tail(b"too many").unwrap().is_some());
}

/// A client that knows where a tail is can read it.
#[test]
fn no_tail_is_shown_to_a_client_without_the_token() {
    let token = Token::new(b"the token of the server").unwrap();
    let running = Running::by_fabric_with(CONNECTIONS_MAX, Some(token.clone()));
    let stranger = running.peer(Options::default(), GREETING).unwrap();
    let action = Action::Tail(name("l"));
    let request = RequestFrame { number: 1, confirmed: 0, action };
    let hello = Hello { id: [9; 16], token: b"another token of it".to_vec(), ..Hello::default() };
    say(&stranger, &[hello.encode(), request.encode()].concat());
    let mut received = Vec::new();
    while let Ok(message) = stranger.receive().wait() {
        received.extend_from_slice(&message);
    }
    assert_eq!(Welcome::decode(&received), Ok(Welcome(Err(Refusal::Token))), "and no more");
    let connect = |token| {
        let address = Address::Fabric(running.fabric.unwrap().to_string());
        Client::connect_with(
            address,
            Duration::ZERO,
            Credentials { token, ..Credentials::default() },
        )
    };
    let refused = connect(None).unwrap_err();
    assert!(matches!(refused, Failure::Refused(Refusal::Token)), "{refused:?}");
    let mut client = connect(Some(token)).unwrap();
    client.call(put("l", "a"), None).unwrap();
    assert!(client.tail(b"l").unwrap().is_some());
}

/// Who can read one tail can read the memory of all.
#[test]
fn no_tail_is_shown_to_users_that_may_not_read_all() {
    let tokens =
        ["token of the first", "token of the other"].map(|it| Token::new(it.as_bytes()).unwrap());
    let some = Rights { read: vec![b"l".to_vec()], write: Vec::new() };
    let accounts = [Rights::all(), some].into_iter().zip(tokens.clone()).enumerate();
    let account = |(at, (rights, token))| Account { name: format!("user{at}"), token, rights };
    let accounts = accounts.map(account).collect();
    let running = Running::by_fabric_of(|it| Running::of(CONNECTIONS_MAX, it, Some(accounts)));
    for token in tokens {
        let address = Address::Fabric(running.fabric.unwrap().to_string());
        let credentials = Credentials { token: Some(token), ..Credentials::default() };
        let mut client = Client::connect_with(address, Duration::ZERO, credentials).unwrap();
        assert_eq!(client.transport(), Some(Transport::Memory));
        client.call(put("l", "a"), None).unwrap();
        assert!(client.tail(b"l").unwrap().is_none());
    }
}
