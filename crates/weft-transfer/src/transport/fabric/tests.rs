//! Both ends over the fabric of this host, and peers that break the rules.

use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use weft_fabric::{Error, Fabric, RemoteKey};

use super::landing::{Landing, parts, stride};
use super::listener::FabricListener;
use super::{Carried, FabricEnd, FabricSink, FabricSource, Initiator, SINK, SOURCE, open};
use crate::blocks::Pool;
use crate::limits::{CHANNELS_EACH_MAX, POOL_BLOCKS, VERSION};
use crate::secure::PipeKeys;
use crate::session::RemoteBuffer;
use crate::transport::table::{self, HEAD_LEN, OVER, Table};
use crate::transport::{
    DataSink as _, DataSource as _, Payload, Place, Received, TransportError, Write,
};
use crate::wire::{Kind, Mode, PipeSecret, Preface, Token};

/// The length of blocks: no whole pages.
const LEN: usize = 100_000;
/// A limit that is never reached on a working system.
const TIME: Duration = Duration::from_secs(240);
const SECRET: PipeSecret = PipeSecret([9; 32]);

fn listener() -> (FabricListener, SocketAddr) {
    let address = Ipv4Addr::LOCALHOST;
    let listener = FabricListener::open(address.into(), PipeKeys::new(&SECRET), LEN, TIME);
    let listener = listener.expect("a port");
    let address = (address, listener.port()).into();
    (listener, address)
}

/// Connects a data channel, as the sink if there is memory for that.
fn connect(
    fabric: &Fabric,
    listener: SocketAddr,
    landing: Option<&Arc<Landing>>,
    secret: &PipeSecret,
    channel: u16,
) -> Result<FabricEnd, TransportError> {
    let keys = PipeKeys::new(secret);
    let from = Initiator { fabric, listener, keys: &keys, block_len: LEN, landing, time: TIME };
    let (end, carried) = from.connect(channel)?;
    assert_eq!(carried, Carried::Memory);
    Ok(end)
}

fn source(end: FabricEnd) -> FabricSource {
    match end {
        FabricEnd::Source(source) => source,
        FabricEnd::Sink(_) => panic!("a sink"),
    }
}

fn sink(end: FabricEnd) -> FabricSink {
    match end {
        FabricEnd::Sink(sink) => sink,
        FabricEnd::Source(_) => panic!("a source"),
    }
}

/// Returns both ends of a channel whose initiator is the source, and what the sink grants.
fn pair() -> (FabricSource, FabricSink, Vec<RemoteBuffer>) {
    let ((mut listener, address), fabric) = (listener(), open().expect("a fabric"));
    let near = source(connect(&fabric, address, None, &SECRET, 0).expect("a listener"));
    let (mut channels, landing) = listener.close();
    let (number, remote, carried) = channels.pop().expect("one");
    assert_eq!((number, carried, channels.len()), (0, Carried::Memory, 0));
    (near, sink(remote), landing.expect("memory").buffers())
}

fn place(buffer: RemoteBuffer) -> Place {
    let RemoteBuffer { address, key } = buffer;
    Place { address, key: key.into(), len: u32::try_from(LEN).expect("short") }
}

/// Returns a write of bytes into the buffer of this number.
fn write(own: &Pool, to: &[RemoteBuffer], index: u32, bytes: &[u8]) -> Write {
    let mut block = own.take().expect("free");
    block.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    let place = Some(place(to[index as usize]));
    Write { place, ..table::write(block, bytes.len(), index, index.into()) }
}

fn send(source: &mut FabricSource, write: Write) {
    assert_eq!(source.write(write).result.expect("open"), None);
}

/// Receives a block, and checks its bytes.
fn assert_receives(sink: &mut FabricSink, grants: &Table, sequence: u64, bytes: &[u8]) {
    match sink.receive(grants, Some(TIME)) {
        Ok(Received::Block(arrival)) => {
            assert_eq!(
                (arrival.len, table::parts(arrival.head.bytes()).2),
                (bytes.len(), sequence)
            );
            assert!(arrival.block.bytes()[..arrival.len] == *bytes);
            grants.grant(arrival.block);
        }
        other => panic!("{other:?}"),
    }
}

fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(seed).fill(&mut bytes);
    bytes
}

#[test]
fn blocks_arrive_whichever_end_connects() {
    let pool = Pool::new(POOL_BLOCKS as usize, LEN).expect("memory");
    let own = Pool::new(1, LEN).expect("memory");
    let grants = Table::of(&pool);
    let check = |near: &mut FabricSource, remote: &mut FabricSink, to: &[RemoteBuffer]| {
        // More than the window and the slots, so that both come round.
        for index in 0..3 * POOL_BLOCKS {
            let to_index = index % POOL_BLOCKS;
            let len = [0, 1, LEN / 2, LEN - 1, LEN][index as usize % 5];
            let bytes = noise(len, index.into());
            send(near, write(&own, to, to_index, &bytes));
            assert_receives(remote, &grants, to_index.into(), &bytes);
        }
        near.finish().expect("a peer");
        assert!(matches!(remote.receive(&grants, Some(TIME)), Ok(Received::Ended)));
        assert!(matches!(remote.receive(&grants, None), Ok(Received::Ended)));
    };
    let (mut near, mut remote, to) = pair();
    check(&mut near, &mut remote, &to);
    let ((mut listener, address), fabric) = (listener(), open().expect("a fabric"));
    let landing = Landing::new(&fabric, LEN).expect("memory");
    let remote = connect(&fabric, address, Some(&landing), &SECRET, 3).expect("a listener");
    let (mut channels, none) = listener.close();
    let (number, near, _) = channels.pop().expect("one");
    assert!(none.is_none() && number == 3);
    check(&mut source(near), &mut sink(remote), &landing.buffers());
}

#[test]
fn extent_of_a_truncated_file_is_filled_with_zeros() {
    let (mut near, mut remote, to) = pair();
    let own = Pool::new(1, LEN).expect("memory");
    let grants = Table::of(&Pool::new(2, LEN).expect("memory"));
    let mut file = tempfile::tempfile().expect("a file");
    file.write_all(b"0123456789").expect("room");
    let mut block = own.take().expect("free");
    block.bytes_mut()[..7].copy_from_slice(b"record:");
    let payload =
        Payload::Extent { block, prefix: 7, file: Arc::new(file.into()), offset: 4, len: 8 };
    let head = table::head(1, payload.len(), 5);
    let written = near.write(Write { place: Some(place(to[1])), head, payload });
    assert_eq!(written.result.expect("open"), Some(6));
    assert_receives(&mut remote, &grants, 5, b"record:456789\0\0");
}

#[test]
fn those_without_the_secret_are_refused_and_do_not_keep_out_the_initiator() {
    let ((mut listener, address), fabric) = (listener(), open().expect("a fabric"));
    let other = PipeSecret([8; 32]);
    let is_refused = |secret, channel| {
        let refused = connect(&fabric, address, None, secret, channel);
        let is_refused = matches!(&refused, Err(TransportError::System(error))
            if error.to_string().contains("refused"));
        assert!(is_refused, "{refused:?}");
    };
    is_refused(&other, 0);
    // What no initiator says.
    let token = PipeKeys::new(&SECRET).token(1).expect("a token");
    let preface = |kind, mode| {
        Preface { version_min: VERSION, version_max: VERSION, kind, mode }.emit().to_vec()
    };
    for said in [
        Vec::new(),
        vec![7; Preface::LEN],
        preface(Kind::Control, Mode::Clear),
        preface(Kind::Data { token, channel: 1 }, Mode::Tls),
        // A token is of use for its own channel only.
        preface(Kind::Data { token, channel: 0 }, Mode::Clear),
        preface(Kind::Data { token: Token([0; 16]), channel: 1 }, Mode::Clear),
    ] {
        let refused = fabric.connect(address, &said).expect("a route").wait();
        assert!(matches!(refused, Err(Error::Refused { .. })), "{refused:?}");
    }
    let _near = connect(&fabric, address, None, &SECRET, 1).expect("a listener");
    // A number is used once, and there are so many.
    is_refused(&SECRET, 1);
    is_refused(&SECRET, CHANNELS_EACH_MAX);
    let (channels, _) = listener.close();
    assert_eq!(channels.iter().map(|(number, ..)| *number).collect::<Vec<_>>(), [1]);
    let late = connect(&fabric, address, None, &SECRET, 2);
    assert!(matches!(late, Err(TransportError::System(_))), "{late:?}");
}

#[test]
fn another_program_at_the_port_is_not_used() {
    let fabric = open().expect("a fabric");
    let listener = fabric.listen((Ipv4Addr::LOCALHOST, 0).into()).expect("a port");
    let address = listener.address();
    let answering = thread::spawn(move || {
        let incoming = listener.accept().wait().expect("a client");
        // It sends back the token that it has got.
        let token = incoming.private_data()[16..].to_vec();
        incoming.accept(&token).expect("a client")
    });
    let refused = connect(&fabric, address, None, &SECRET, 0).expect_err("a stranger");
    assert!(matches!(refused, TransportError::Protocol(_)), "{refused}");
    drop(answering.join().expect("no panic"));
}

/// Whether the sink's end of a channel ends without a block.
fn ends(remote: &mut FabricSink, grants: &Table) -> bool {
    matches!(remote.receive(grants, Some(TIME)), Ok(Received::Ended) | Err(_))
}

#[test]
fn write_outside_of_the_grant_ends_the_channel_and_changes_nothing() {
    let own = Pool::new(1, LEN).expect("memory");
    let grants = Table::of(&Pool::new(POOL_BLOCKS as usize, LEN).expect("memory"));
    let zone = u64::from(POOL_BLOCKS) * stride(LEN) as u64;
    for (shift, key) in [(zone, 0), (zone - 10, 0), (0, 1), (u64::MAX / 2, 0)] {
        let (mut near, mut remote, mut to) = pair();
        to[0].address = to[0].address.wrapping_add(shift);
        to[0].key ^= key;
        // It may fail at once, or when its completion comes.
        let _ = near.write(write(&own, &to, 0, &[7; 100]));
        assert!(ends(&mut remote, &grants), "{shift} {key}");
        assert!(near.finish().is_err(), "{shift} {key}");
    }
}

#[test]
fn header_that_is_wrong_ends_the_channel() {
    let pool = Pool::new(2, LEN).expect("memory");
    let grants = Table::of(&pool);
    for (index, len) in [(2, 1), (7, 10), (0, LEN + 1), (0, u32::MAX as usize)] {
        let (near, mut remote, _) = pair();
        let endpoint = near.endpoint();
        drop(endpoint.send(table::head(index, len, 0).bytes()).expect("open"));
        let received = remote.receive(&grants, Some(TIME));
        assert!(matches!(received, Err(TransportError::Refused(_))), "{index} {len}: {received:?}");
        assert!(ends(&mut remote, &grants) && grants.granted() == 2);
    }
    for said in [&[][..], &[1], &[1; HEAD_LEN + 1]] {
        let (near, mut remote, _) = pair();
        drop(near.endpoint().send(said).expect("open"));
        let received = remote.receive(&grants, Some(TIME));
        assert!(matches!(received, Err(TransportError::Protocol(_))), "{received:?}");
    }
    // A Write may claim to be a message, which has no header.
    let (near, mut remote, to) = pair();
    let buffer = open().and_then(|fabric| Ok(fabric.alloc(8)?)).expect("memory");
    let key = RemoteKey::from_raw(to[0].address, 8, to[0].key);
    drop(near.endpoint().write_with_immediate(buffer, .., &key, 0, 5));
    assert!(ends(&mut remote, &grants));
    // An obsolete block is discarded, and the channel goes on.
    let (mut near, mut remote, to) = pair();
    let own = Pool::new(1, LEN).expect("memory");
    let obsolete = Write { head: table::head(OVER, 5, 0), ..write(&own, &to, 0, b"dated") };
    send(&mut near, obsolete);
    assert!(matches!(remote.receive(&grants, Some(TIME)), Ok(Received::Dropped)));
    send(&mut near, write(&own, &to, 1, b"valid"));
    assert_receives(&mut remote, &grants, 1, b"valid");
}

#[test]
fn first_message_that_names_no_role_ends_the_channel() {
    let ((mut listener, address), fabric) = (listener(), open().expect("a fabric"));
    let keys = PipeKeys::new(&SECRET);
    for (channel, said) in [(0, &[][..]), (1, &[3]), (2, &[SOURCE, SINK])] {
        let kind = Kind::Data { token: keys.token(channel).expect("a token"), channel };
        let preface =
            Preface { version_min: VERSION, version_max: VERSION, kind, mode: Mode::Clear };
        let connected = fabric.connect(address, &preface.emit()).expect("a route").wait();
        let endpoint = connected.expect("a listener").endpoint;
        drop(endpoint.send(said).expect("open"));
        assert!(matches!(endpoint.receive().wait(), Err(Error::Closed { .. })), "{said:?}");
    }
    assert!(listener.close().0.is_empty());
}

#[test]
fn peer_that_vanishes_ends_the_channel_at_either_end() {
    let own = Pool::new(1, LEN).expect("memory");
    let grants = Table::of(&Pool::new(1, LEN).expect("memory"));
    let (near, mut remote, _) = pair();
    drop(near);
    assert!(matches!(remote.receive(&grants, None), Ok(Received::Ended)));
    let (mut near, remote, to) = pair();
    drop(remote);
    // It may be noticed some blocks later.
    let mut sent = 0;
    while near.write(write(&own, &to, 0, b"x")).result.is_ok() {
        sent += 1;
        assert!(sent < 100_000, "it is never noticed");
    }
    near.close();
    assert!(near.finish().is_err());
}

#[test]
fn closing_wakes_the_sink_and_fails_the_source() {
    let own = Pool::new(1, LEN).expect("memory");
    let grants = Table::of(&Pool::new(1, LEN).expect("memory"));
    let (mut near, mut remote, to) = pair();
    let close = remote.closer();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| remote.receive(&grants, None));
        close();
        let received = waiting.join().expect("no panic");
        assert!(matches!(received, Err(TransportError::Closed)), "{received:?}");
    });
    near.closer()();
    let written = near.write(write(&own, &to, 0, b"x"));
    assert!(matches!(written.result, Err(TransportError::Closed)), "{written:?}");
    assert_eq!(written.block.bytes()[0], b'x');
    assert!(matches!(near.finish(), Err(TransportError::Closed)));
}

#[test]
fn keys_name_the_place_of_each_block() {
    let landing = Landing::new(&open().expect("a fabric"), LEN).expect("memory");
    let (buffers, (address, key)) = (landing.buffers(), parts(&landing.memory.key()));
    assert_eq!(buffers.len(), POOL_BLOCKS as usize);
    assert_eq!(buffers[0], RemoteBuffer { address, key });
    assert_eq!(buffers[2].address - address, 2 * stride(LEN) as u64);
}
