//! Connections over loopback.

use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;

use super::{
    Accepted, Congestion, TcpSettings, TcpSink, TcpSource, accept, connect_control, connect_data,
};
use crate::blocks::Pool;
use crate::clock::Clock;
use crate::limits::CONTROL_LEN_MAX;
use crate::secure::{Identity, SecureError, TlsClient, TlsServer};
use crate::transport::limited::{Limit, Limited};
use crate::transport::table::{HEAD_LEN, OVER, Table, head, parts, write};
use crate::transport::{
    Control, ControlEvent, DataSink, DataSource, Payload, Received, StreamControl, Token,
    TransportError, Write,
};
use crate::wire::ControlHeader;

const LEN: usize = 100_000;
const TOKEN: Token = Token([5; 16]);

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

/// Time limits that are never reached on a working system.
fn settings() -> TcpSettings {
    TcpSettings::default()
}

fn data_pair(settings: &TcpSettings) -> (TcpStream, TcpStream) {
    let (listener, address) = listen();
    let near = connect_data(address, TOKEN, 3, settings).expect("a listener");
    let remote = listener.accept().expect("a client").0;
    match accept(remote, None, settings).expect("a data channel") {
        Accepted::Data { token: TOKEN, channel: 3, stream } => (near, stream),
        other => panic!("{other:?}"),
    }
}

fn control_pair(tls: bool) -> (StreamControl, StreamControl) {
    let (listener, address) = listen();
    let [ours, theirs] = [(); 2].map(|()| Identity::generate().expect("a key"));
    let (our_key, their_key) = (ours.public(), theirs.public());
    let client = TlsClient::new(&ours, Arc::new(move |key| *key == their_key));
    let server = TlsServer::new(&theirs, Arc::new(move |key| *key == our_key));
    let (client, server) = (client.expect("a configuration"), server.expect("a configuration"));
    let accepting = thread::spawn(move || {
        let stream = listener.accept().expect("a client").0;
        match accept(stream, tls.then_some(&server), &settings()).expect("a control channel") {
            Accepted::Control(control) => *control,
            other => panic!("{other:?}"),
        }
    });
    let near = connect_control(address, tls.then_some(&client), &settings()).expect("a server");
    let remote = accepting.join().expect("no panic");
    assert_eq!(near.peer(), tls.then_some(their_key));
    assert_eq!(remote.peer(), tls.then_some(our_key));
    (near, remote)
}

/// Returns a message of `len` bytes including its header.
fn message(len: usize, byte: u8) -> Vec<u8> {
    let body = len - ControlHeader::LEN;
    let header = ControlHeader { session: 1, kind: 8, len: u32::try_from(body).expect("short") };
    [&header.emit()[..], &vec![byte; body]].concat()
}

#[test]
fn messages_come_in_order_both_ways_until_the_end() {
    for tls in [false, true] {
        let (near, remote) = control_pair(tls);
        let mut came = Vec::new();
        for (len, byte) in [(16, 0), (17, 1), (40_000, 2), (CONTROL_LEN_MAX, 3)] {
            let sent = message(len, byte);
            thread::scope(|scope| {
                scope.spawn(|| near.send(&sent).expect("a peer"));
                scope.spawn(|| remote.send(&sent).expect("a peer"));
                for end in [&near, &remote] {
                    let event = end.receive(&mut came, None).expect("a peer");
                    assert_eq!((event, &came), (ControlEvent::Message, &sent));
                }
            });
        }
        let none = remote.receive(&mut came, Some(Duration::from_millis(1)));
        assert_eq!(none.expect("a peer"), ControlEvent::TimedOut);
        let long = vec![0; CONTROL_LEN_MAX + 1];
        assert!(matches!(near.send(&long), Err(TransportError::MessageTooLong(_))));
        let last = message(20, 4);
        near.send(&last).expect("a peer");
        near.close();
        assert!(matches!(near.send(&last), Err(TransportError::Closed)));
        assert_eq!(remote.receive(&mut came, None).expect("it came"), ControlEvent::Message);
        assert_eq!(came, last);
        assert_eq!(remote.receive(&mut came, None).expect("an end"), ControlEvent::Ended);
    }
}

#[test]
fn closing_wakes_the_thread_that_receives() {
    for tls in [false, true] {
        let (near, _remote) = control_pair(tls);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| near.receive(&mut Vec::new(), None));
            near.close();
            let ended = waiting.join().expect("no panic");
            assert!(matches!(ended, Err(TransportError::Closed)), "{ended:?}");
        });
    }
}

#[test]
fn truncated_and_invalid_messages_are_errors() {
    let cut = message(30, 1);
    let long = [&[0; 8], &[0xff; 4][..], &[0; 4]].concat();
    for (bytes, is_cut) in [(&cut[..29], true), (&cut[..3], true), (&long, false)] {
        let (mut stranger, stream) = data_pair(&settings());
        stranger.write_all(bytes).expect("a peer");
        drop(stranger);
        let control = StreamControl::new(OwnedFd::from(stream), settings().stall);
        let failed = control.receive(&mut Vec::new(), None).expect_err("not a message");
        assert_eq!(matches!(failed, TransportError::Truncated), is_cut, "{failed}");
        assert_eq!(matches!(failed, TransportError::Wire(_)), !is_cut, "{failed}");
    }
}

/// Forwards a client's bytes to `server` until the server has answered. Then it waits for
/// `has_sent`, and forwards everything that the client has sent in one piece.
fn forward(client: TcpStream, server: SocketAddr, has_sent: &AtomicBool) {
    let server = TcpStream::connect(server).expect("a server");
    let is_answered = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = [0; 65_536];
            while let Ok(len @ 1..) = (&server).read(&mut buffer) {
                is_answered.store(true, Ordering::SeqCst);
                if (&client).write_all(&buffer[..len]).is_err() {
                    return;
                }
            }
        });
        // All that the client has sent arrives within this time.
        client.set_read_timeout(Some(Duration::from_millis(100))).expect("a socket");
        let (mut held, mut buffer) = (Vec::new(), [0; 65_536]);
        loop {
            let is_all = has_sent.load(Ordering::SeqCst);
            match (&client).read(&mut buffer) {
                Ok(0) => break,
                Ok(len) => held.extend_from_slice(&buffer[..len]),
                Err(_) if is_all => break,
                Err(_) => {}
            }
            if !is_answered.load(Ordering::SeqCst) {
                (&server).write_all(&held).expect("a server");
                held.clear();
            }
        }
        (&server).write_all(&held).expect("a server");
        server.shutdown(std::net::Shutdown::Write).expect("connected");
    });
}

#[test]
fn message_with_the_end_of_the_handshake_is_received() {
    let identity = Identity::generate().expect("a key");
    let client = TlsClient::new(&identity, Arc::new(|_| true)).expect("a configuration");
    let server = TlsServer::new(&identity, Arc::new(|_| true)).expect("a configuration");
    let ((proxy, reached), (listener, address)) = (listen(), listen());
    let has_sent = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| forward(proxy.accept().expect("a client").0, address, &has_sent));
        let receiving = scope.spawn(|| {
            let stream = listener.accept().expect("a client").0;
            let accepted = accept(stream, Some(&server), &settings()).expect("a client");
            let Accepted::Control(control) = accepted else { panic!("{accepted:?}") };
            let mut came = Vec::new();
            let event = control.receive(&mut came, Some(settings().stall));
            (event.map_err(|error| error.to_string()), came)
        });
        let near = connect_control(reached, Some(&client), &settings()).expect("a server");
        near.send(&message(30, 1)).expect("a server");
        has_sent.store(true, Ordering::SeqCst);
        let came = receiving.join().expect("no panic");
        assert_eq!(came, (Ok(ControlEvent::Message), message(30, 1)));
    });
}

#[test]
fn connection_cut_in_tls_is_an_error() {
    let (near, remote) = control_pair(true);
    rustix::net::shutdown(near.socket(), rustix::net::Shutdown::Write).expect("connected");
    let failed = remote.receive(&mut Vec::new(), None).expect_err("nobody took leave");
    assert!(matches!(failed, TransportError::Security(SecureError::Cut)), "{failed}");
}

#[test]
fn server_with_tls_refuses_a_control_channel_without() {
    let identity = Identity::generate().expect("a key");
    let server = TlsServer::new(&identity, Arc::new(|_| true)).expect("a configuration");
    let (listener, address) = listen();
    let _near = connect_control(address, None, &settings()).expect("a listener");
    let refused = accept(listener.accept().expect("a client").0, Some(&server), &settings());
    assert!(matches!(refused, Err(TransportError::Protocol(_))), "{refused:?}");
}

#[test]
fn silent_client_times_out() {
    let (listener, address) = listen();
    let _silent = TcpStream::connect(address).expect("a listener");
    let settings = TcpSettings { handshake: Duration::from_millis(20), ..settings() };
    let refused = accept(listener.accept().expect("a client").0, None, &settings);
    assert!(matches!(refused, Err(TransportError::Stalled(_))), "{refused:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn blocks_arrive_in_the_buffers_that_their_headers_name(
        lens in prop::collection::vec(0..=LEN, 1..12),
    ) {
        let [ours, theirs] = [(); 2].map(|()| Pool::new(lens.len(), LEN).expect("memory"));
        let table = Table::of(&theirs);
        let (near, remote) = data_pair(&settings());
        let mut source = TcpSource::new(near, &settings(), true).expect("a connection");
        let mut sink = TcpSink::new(remote, &settings());
        let sent = lens.clone();
        let sending = thread::spawn(move || {
            for (number, len) in sent.into_iter().enumerate() {
                let mut block = ours.try_take().expect("a free block");
                block.bytes_mut()[..len].fill(number as u8);
                let to = u32::try_from(number).expect("few");
                let written = source.write(write(block, len, to, number as u64));
                assert_eq!(written.result.expect("a sink"), None);
            }
            source.finish().expect("a sink");
            source
        });
        for (number, len) in lens.iter().enumerate() {
            let received = sink.receive(&table, None).expect("a source");
            let Received::Block(arrival) = received else { panic!("{received:?}") };
            prop_assert_eq!(arrival.len, *len);
            prop_assert_eq!(parts(arrival.head.bytes()).2, number as u64);
            prop_assert_eq!(arrival.block.index() as usize, number);
            let bytes = &arrival.block.bytes()[..*len];
            prop_assert!(bytes.iter().all(|byte| *byte == number as u8));
        }
        let end = sink.receive(&table, None).expect("a source");
        prop_assert!(matches!(end, Received::Ended), "{:?}", end);
        drop(sending.join().expect("no panic"));
    }
}

/// Returns a file of `len` bytes with increasing values.
fn file(len: usize) -> Arc<OwnedFd> {
    let mut file = tempfile::tempfile().expect("a file");
    let bytes: Vec<u8> = (0..len).map(|at| (at % 253) as u8).collect();
    file.write_all(&bytes).expect("room");
    Arc::new(file.into())
}

#[test]
fn extent_is_read_from_the_file_and_padded_with_zeros() {
    let pool = Pool::new(1, 4_096).expect("memory");
    let theirs = Pool::new(1, LEN).expect("memory");
    let table = Table::of(&theirs);
    let (near, remote) = data_pair(&settings());
    let mut source = TcpSource::new(near, &settings(), false).expect("a connection");
    assert!(source.takes_extents());
    let mut sink = TcpSink::new(remote, &settings());
    for (len_of_file, short) in [(60_000, None), (30_000, Some(29_000)), (500, Some(0))] {
        let mut block = pool.try_take().expect("a free block");
        block.bytes_mut()[..7].copy_from_slice(b"record:");
        let (prefix, offset, len) = (7, 1_000, 50_000);
        let file = file(len_of_file);
        let payload = Payload::Extent { block, prefix, file, offset, len };
        let all = payload.len();
        let head = head(0, all, 1);
        thread::scope(|scope| {
            let sending = scope.spawn(|| {
                source.write(Write { place: None, head, payload }).result.expect("a sink")
            });
            let received = sink.receive(&table, None).expect("a source");
            let Received::Block(arrival) = received else { panic!("{received:?}") };
            assert_eq!(sending.join().expect("no panic"), short);
            let bytes = &arrival.block.bytes()[..all];
            assert_eq!(&bytes[..7], b"record:");
            let had = short.unwrap_or(len);
            let expected = |at: usize| if at < had { ((at + 1_000) % 253) as u8 } else { 0 };
            assert!((0..len).all(|at| bytes[7 + at] == expected(at)));
            table.grant(arrival.block);
        });
    }
}

#[test]
fn sealed_channel_refuses_extents() {
    let pool = Pool::new(1, 4_096).expect("memory");
    let (near, _remote) = data_pair(&settings());
    let mut source = TcpSource::new(near, &settings(), true).expect("a connection");
    assert!(!source.takes_extents());
    let block = pool.try_take().expect("a free block");
    let payload = Payload::Extent { block, prefix: 0, file: file(10), offset: 0, len: 10 };
    let written = source.write(Write { place: None, head: head(0, 10, 1), payload });
    let error = written.result.expect_err("it would be in clear");
    assert!(matches!(error, TransportError::Protocol(_)), "{error}");
}

#[test]
fn refused_header_ends_the_channel_and_keeps_the_grants() {
    let pool = Pool::new(2, LEN).expect("memory");
    let table = Table::of(&pool);
    for (index, len, expected) in [(2, 5, "no such block"), (1, LEN + 1, "too long")] {
        let (mut stranger, remote) = data_pair(&settings());
        stranger.write_all(head(index, len, 0).bytes()).expect("a sink");
        let failed = TcpSink::new(remote, &settings()).receive(&table, None);
        let failed = failed.expect_err("refused").to_string();
        assert_eq!(failed, format!("the session refused a block: {expected}"));
        assert_eq!(table.granted(), 2);
        assert!(matches!(stranger.read(&mut [0]), Ok(0) | Err(_)), "the channel has ended");
    }
}

#[test]
fn truncated_block_leaves_its_buffer_granted() {
    let pool = Pool::new(1, LEN).expect("memory");
    let table = Table::of(&pool);
    for cut in [1, HEAD_LEN - 1, HEAD_LEN, HEAD_LEN + 99] {
        let (mut stranger, remote) = data_pair(&settings());
        let bytes = [head(0, 100, 0).bytes(), &[7; 100]].concat();
        stranger.write_all(&bytes[..cut]).expect("a sink");
        drop(stranger);
        let failed = TcpSink::new(remote, &settings()).receive(&table, None);
        assert!(matches!(failed, Err(TransportError::Truncated)), "{failed:?}");
        assert_eq!(table.granted(), 1);
    }
}

#[test]
fn obsolete_block_is_read_and_discarded() {
    let pool = Pool::new(1, LEN).expect("memory");
    let table = Table::of(&pool);
    let (mut near, remote) = data_pair(&settings());
    let mut sink = TcpSink::new(remote, &settings());
    let sending = thread::spawn(move || {
        near.write_all(head(OVER, 300_000, 0).bytes()).expect("a sink");
        near.write_all(&[7; 300_000]).expect("a sink");
        near.write_all(&[head(0, 3, 1).bytes(), b"abc"].concat()).expect("a sink");
    });
    let first = sink.receive(&table, None).expect("a source");
    assert!(matches!(first, Received::Dropped), "{first:?}");
    let second = sink.receive(&table, None).expect("a source");
    assert!(matches!(second, Received::Block(_)), "{second:?}");
    sending.join().expect("no panic");
}

#[test]
fn stalls_are_detected_on_both_sides() {
    let settings = TcpSettings { stall: Duration::from_millis(30), ..settings() };
    let theirs = Pool::new(1, LEN).expect("memory");
    let table = Table::of(&theirs);
    let (mut near, remote) = data_pair(&settings);
    near.write_all(head(0, 100, 0).bytes()).expect("a sink");
    let mut sink = TcpSink::new(remote, &settings);
    let failed = sink.receive(&table, None);
    assert!(matches!(failed, Err(TransportError::Stalled(_))), "{failed:?}");
    assert_eq!(table.granted(), 1);

    // The timeout of the call and that of the connection race: each of them is a stall.
    for is_timed in [true, false] {
        let ours = Pool::new(1, 1 << 20).expect("memory");
        let (near, _sleeping) = data_pair(&settings);
        if !is_timed {
            near.set_write_timeout(None).expect("a socket");
        }
        let mut source = TcpSource::new(near, &settings, false).expect("a connection");
        let mut block = ours.try_take();
        let failed = loop {
            let full = write(block.take().expect("free again"), 1 << 20, 0, 0);
            let written = source.write(full);
            block = Some(written.block);
            if let Err(error) = written.result {
                break error;
            }
        };
        assert!(matches!(failed, TransportError::Stalled(_)), "{failed}");
    }
}

#[test]
fn closer_wakes_both_ends() {
    let theirs = Pool::new(1, LEN).expect("memory");
    let table = Table::of(&theirs);
    let (_near, remote) = data_pair(&settings());
    let mut sink = TcpSink::new(remote, &settings());
    let closer = sink.closer();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| sink.receive(&table, None));
        closer();
        let ended = waiting.join().expect("no panic");
        assert!(matches!(ended, Err(TransportError::Closed)), "{ended:?}");
    });
    let ours = Pool::new(1, 1 << 20).expect("memory");
    let (near, _sleeping) = data_pair(&settings());
    let mut source = TcpSource::new(near, &settings(), false).expect("a connection");
    let closer = source.closer();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            loop {
                let full = write(ours.take().expect("free"), 1 << 20, 0, 0);
                if let Err(error) = source.write(full).result {
                    return error;
                }
            }
        });
        closer();
        let error = waiting.join().expect("no panic");
        assert!(matches!(error, TransportError::Closed), "{error}");
    });
}

#[test]
fn channels_share_a_rate_limit() {
    const RATE: u64 = 4_000_000;
    let clock = Clock::system();
    let limit = Limit::new(RATE, clock.clone());
    let theirs = Pool::new(2, LEN).expect("memory");
    let ours = Pool::new(2, LEN).expect("memory");
    let table = Table::of(&theirs);
    thread::scope(|scope| {
        for to in 0..2 {
            let (near, remote) = data_pair(&settings());
            let source = TcpSource::new(near, &settings(), false).expect("a connection");
            let mut source = Limited::<Box<dyn DataSource>>::new(Box::new(source), limit.clone());
            let ours = &ours;
            scope.spawn(move || {
                let block = ours.take().expect("free");
                source.write(write(block, LEN, to, 0)).result.expect("a sink");
            });
            let table = &table;
            let receive = move || TcpSink::new(remote, &settings()).receive(table, None).map(drop);
            scope.spawn(move || receive().expect("a source"));
        }
    });
    // The second block begins at the earliest when the first one's time is over.
    let least = 2 * (LEN as u64) * 1_000_000_000 / RATE;
    assert!(clock.now() >= least, "{} ns, not {least}", clock.now());
}

#[test]
fn congestion_control_of_a_source_is_set_or_an_error() {
    let with = |name: &str| TcpSettings {
        congestion: Congestion::named(name).expect("a name"),
        ..settings()
    };
    let (near, _remote) = data_pair(&settings());
    let copy = near.try_clone().expect("a descriptor");
    TcpSource::new(near, &with("reno"), true).expect("every kernel has it");
    let name = rustix::net::sockopt::tcp_congestion(&copy).expect("a socket");
    assert_eq!(name.as_str(), "reno");
    assert!(TcpSource::new(copy, &with("none-such"), true).is_err());
}
