//! Data channels beside a pipe: which way the data goes, and that it is sealed.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use super::accept::{Accepting, accept};
use super::agree::{FEATURE_BESIDE, cipher, features, flush, next_event};
use super::beside::{BesideAcceptor, BesideOptions, DataWay};
use super::initiate::{Initiating, InitiatorRole, initiate};
use super::places::{Naming, local_start};
use super::request::{Flags, Request};
use super::task::CopyTask;
use super::tests::Anywhere;
use crate::blocks::{Block, Pool};
use crate::end::{Carrier, EndError, Finished, Observer};
use crate::limits::{BLOCK_SIZE, CHANNELS_EACH_MAX, VERSION};
use crate::placement::{Placement, Reason};
use crate::secure::pipe::new_secret;
use crate::secure::{Direction, Opener, PipeKeys};
use crate::session::{Arrivals, Connection, Event, Offer, Policy, RemoteBuffer, Sink, SinkSetup};
use crate::transport::channel::{Claim, Grants, Refused};
use crate::transport::memory::{MemoryControl, control_pair};
use crate::transport::tcp::{BesideListener, TcpSettings, TcpSink};
use crate::transport::{Control, ControlEvent, DataSink as _, Received, TransportError};
use crate::tree::source::Content;
use crate::wire::{
    BlockHeader, Body, Cancel, Code, ListenReply, Message, Open, OpenReply, Refusal, Role, Terms,
    Token,
};
use weft_sys::lock;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const MARKER: &[u8] = b"what nobody between the two ends may read";

/// What has carried the blocks, and why.
type Chosen = (Carrier, Option<String>);

/// Records what has carried the blocks.
#[derive(Default)]
struct Watch(Mutex<Option<Chosen>>);

impl Observer for Watch {
    fn problem(&self, _path: &[u8], _text: &str, _is_warning: bool) {}

    fn chosen(&self, carrier: Carrier, why: Option<&str>) {
        *lock(&self.0) = Some((carrier, why.map(str::to_owned)));
    }
}

/// Copies a file with the marker. Returns the result, and what has carried the blocks.
fn send(
    near: MemoryControl,
    options: BesideOptions,
    mut connect: impl FnMut(u16) + Send + 'static,
) -> (Result<Finished, EndError>, Option<Chosen>) {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("file"), MARKER).expect("room");
    let (start, _) = local_start(&folder.path().join("file"), Flags::default()).expect("a file");
    let watch = Arc::new(Watch::default());
    let paths = vec![b"anywhere".to_vec()];
    let task = CopyTask {
        request: Request { paths, ..Request::default() },
        observer: Arc::clone(&watch) as _,
        missing: Vec::new(),
        progress: Arc::default(),
        limit: None,
        is_fair: false,
        silence: None,
        compresses_between_hosts: false,
        versions_between_hosts: false,
        sysfs: "/sys".into(),
    };
    let finished = initiate(Initiating {
        task,
        control: Arc::new(near),
        keys: &|_, _| Ok(None),
        role: InitiatorRole::Send {
            content: Content::Entries(vec![start]),
            connect: Box::new(move |_, number| {
                connect(number);
                Err(TransportError::Closed)
            }),
        },
        channels: 2,
        block_size: BLOCK_SIZE,
        copies: None,
        naming: Naming::Paths,
        beside: Some(options),
        placement: &Placement::Anywhere(Reason::NoDevice),
        rdma: None,
        fabric: None,
    });
    let chosen = lock(&watch.0).take();
    (finished, chosen)
}

fn options(way: DataWay) -> BesideOptions {
    let (channels, settings) = (CHANNELS_EACH_MAX, TcpSettings::default());
    BesideOptions { channels, way, is_remote: false, settings }
}

fn accepting(
    control: MemoryControl,
    resolve: &Anywhere,
    address: Option<IpAddr>,
) -> Result<Finished, EndError> {
    let (to, lines) = channel();
    drop(to);
    accept(Accepting {
        beside: Some(BesideAcceptor::new(address)),
        ..Accepting::new(Arc::new(control), lines, resolve)
    })
}

#[test]
fn data_goes_by_tcp_if_the_listener_can_be_reached() {
    for way in [DataWay::Auto, DataWay::Tcp] {
        let resolve = Anywhere(tempfile::tempdir().expect("a folder"));
        let (near, remote) = control_pair();
        thread::scope(|scope| {
            let accepted = scope.spawn(|| accepting(remote, &resolve, Some(HERE)));
            let (sent, chosen) = send(near, options(way), |_| panic!("nothing goes by the pipe"));
            assert_eq!(sent.expect("a sink").outcome.copied, 1);
            assert_eq!(chosen, Some((Carrier::Tcp, None)));
            accepted.join().expect("no panic").expect("a source");
        });
        assert_eq!(fs::read(resolve.0.path().join("file")).expect("a file"), MARKER);
    }
}

/// Sends with these options to an acceptor that was reached at this address. Returns the reason for
/// not using TCP: that of the failed copy if TCP was demanded.
fn reason(options: BesideOptions, address: Option<IpAddr>) -> Option<String> {
    let resolve = Anywhere(tempfile::tempdir().expect("a folder"));
    let (near, remote) = control_pair();
    thread::scope(|scope| {
        let accepted = scope.spawn(|| accepting(remote, &resolve, address));
        let numbers = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&numbers);
        let (sent, chosen) = send(near, options.clone(), move |number| lock(&seen).push(number));
        let failure = sent.expect_err("the pipe of these tests carries nothing");
        // The acceptor waits for nothing: its initiator is gone.
        let _ = accepted.join().expect("no panic");
        if options.way == DataWay::Tcp {
            assert!(lock(&numbers).is_empty());
            return Some(failure.to_string());
        }
        assert_eq!(lock(&numbers)[..], [0], "a pipe has one channel");
        let (carrier, why) = chosen.expect("a choice");
        assert_eq!(carrier, Carrier::Shell);
        why
    })
}

#[test]
fn data_stays_in_the_pipe_with_the_reason() {
    let unknown = Some("the remote shell does not name the address of its host (SSH_CONNECTION)");
    assert_eq!(reason(options(DataWay::Auto), None).as_deref(), unknown);
    let text = reason(options(DataWay::Tcp), None).expect("a reason");
    assert!(text.starts_with("the data cannot go by TCP: the remote shell"), "{text}");
    assert_eq!(reason(options(DataWay::Shell), Some(HERE)), None);
    // An address that this host does not have (RFC 5737).
    let other = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let text = reason(options(DataWay::Auto), Some(other)).expect("a reason");
    assert!(text.starts_with("the other host cannot listen at 192.0.2.1"), "{text}");
    let remote = BesideOptions { is_remote: true, ..options(DataWay::Auto) };
    let text = reason(remote, Some(HERE)).expect("a reason");
    assert_eq!(text, "the other host listens at 127.0.0.1 only");
}

/// Accepts a connection, and answers the request to listen. Returns the next event.
fn answer(
    remote: &MemoryControl,
    connection: &mut Connection,
    epoch: Instant,
    reply: ListenReply,
) -> Event {
    let established = next_event(remote, connection, epoch);
    assert!(matches!(established, Ok(Event::Established(_))), "{established:?}");
    let asked = next_event(remote, connection, epoch);
    assert!(matches!(asked, Ok(Event::Listen)), "{asked:?}");
    connection.answer_listen(reply).expect("asked");
    next_event(remote, connection, epoch).expect("an initiator")
}

fn scripted() -> Connection {
    let features = features() | FEATURE_BESIDE;
    let (token, agent) = (Token::default(), String::new());
    let most =
        Terms { version: VERSION, channels: 2, block_size: BLOCK_SIZE, features, token, agent };
    let policy = Policy { most, block_size_min: BLOCK_SIZE, sessions: 1 };
    Connection::accept(policy, Duration::ZERO)
}

#[test]
fn listener_that_is_not_there_or_is_another_program_is_not_used() {
    let closed = TcpListener::bind((HERE, 0)).and_then(|it| it.local_addr()).expect("a port");
    let other = TcpListener::bind((HERE, 0)).expect("a port");
    // The other program takes connections and says nothing.
    let silent = other.local_addr().expect("a port");
    for (place, reason) in [(closed, "Connection refused"), (silent, "no progress for")] {
        let (near, remote) = control_pair();
        let accepting = thread::spawn(move || {
            let (mut connection, epoch) = (scripted(), Instant::now());
            let secret = new_secret().expect("random bytes");
            let (port, address) = (place.port(), place.ip().to_string());
            let reply = ListenReply::Accepted { port, secret, address };
            let event = answer(&remote, &mut connection, epoch, reply);
            let Event::Open { session, open } = event else { panic!("{event:?}") };
            let request = Request::parse(&open.job).expect("a request");
            assert!(!request.flags.has(Flags::BESIDE));
            let (refusal, text) = (Refusal::Busy, "enough".into());
            connection.answer(session, OpenReply::Refused { refusal, text }).expect("asked");
            flush(&remote, &mut connection, epoch).expect("an initiator");
        });
        let (sent, chosen) = send(near, options(DataWay::Auto), |_| {});
        assert!(matches!(sent, Err(EndError::Peer(_))), "{sent:?}");
        let Some((Carrier::Shell, Some(why))) = chosen else { panic!("{chosen:?}") };
        assert!(why.contains(&place.to_string()) && why.contains(reason), "{why}");
        accepting.join().expect("no panic");
    }
}

/// One granted block, without a session.
struct One(Mutex<Option<Block>>);

impl Grants for One {
    fn head_len(&self) -> usize {
        BlockHeader::LEN
    }

    fn claim(&self, head: &[u8]) -> Result<Claim, Refused> {
        let head = head.first_chunk().ok_or(Refused("short"))?;
        let header = BlockHeader::parse(head).map_err(|_| Refused("no header"))?;
        let block = lock(&self.0).take().ok_or(Refused("one block"))?;
        Ok(Claim::Into { block, len: header.len as usize })
    }

    fn give_back(&self, _head: &[u8], block: Block) {
        *lock(&self.0) = Some(block);
    }
}

#[test]
fn blocks_beside_a_pipe_are_sealed_with_the_key_that_went_through_it() {
    let (near, remote) = control_pair();
    let accepting = thread::spawn(move || {
        let (mut connection, epoch) = (scripted(), Instant::now());
        let secret = new_secret().expect("random bytes");
        let settings = TcpSettings::default();
        let listener = BesideListener::open(HERE, PipeKeys::new(&secret), settings.clone());
        let mut listener = listener.expect("a port");
        let (port, address) = (listener.port(), HERE.to_string());
        let reply = ListenReply::Accepted { port, secret: secret.clone(), address };
        let event = answer(&remote, &mut connection, epoch, reply);
        let Event::Open { session, open: Open { role: Role::Source, job } } = event else {
            panic!("{event:?}")
        };
        assert!(Request::parse(&job).expect("a request").flags.has(Flags::BESIDE));
        let mut lines = listener.close();
        lines.sort_by_key(|(number, _)| *number);
        assert_eq!(lines.len(), 2);
        connection.answer(session, OpenReply::Accepted { job: Vec::new() }).expect("asked");
        flush(&remote, &mut connection, epoch).expect("an initiator");
        let setup = SinkSetup {
            session,
            buffers: vec![RemoteBuffer::default()],
            block_size: BLOCK_SIZE,
            arrivals: Arrivals::Seen,
            first_grant: 1,
        };
        let mut sink = Sink::new(setup);
        while let Some(message) = sink.poll_control() {
            remote.send(&message.emit()).expect("an initiator");
        }
        // Either channel may carry the block.
        let pool = Pool::new(2, BLOCK_SIZE as usize).expect("memory");
        let (to, blocks) = channel();
        for (_, stream) in lines {
            let (to, mut line) = (to.clone(), TcpSink::new(stream, &settings));
            let one = One(Mutex::new(pool.try_take()));
            thread::spawn(move || {
                if let Ok(Received::Block(arrival)) = line.receive(&one, None) {
                    let _ = to.send(arrival);
                }
            });
        }
        let mut arrival = blocks.recv().expect("a block");
        let header = arrival.head.bytes().first_chunk().expect("a header");
        let header = BlockHeader::parse(header).expect("a header");
        assert!(header.flags.sealed);
        let bytes = arrival.block.bytes_mut();
        let has_marker = |bytes: &[u8]| bytes.windows(MARKER.len()).any(|part| part == MARKER);
        assert!(!has_marker(&bytes[..arrival.len]));
        let cipher = cipher(connection.terms().expect("agreed"));
        let secret = PipeKeys::new(&secret).block_secret(session, cipher, Direction::ToServer);
        let opener = Opener::new(secret.expect("the first time"));
        let head = header.authenticated();
        let len = opener.open_in_place(header.nonce, &head, bytes, arrival.len);
        assert!(has_marker(&bytes[..len.expect("authentic")]));
        sink.cancel(Cancel { code: Code::Stopped, text: "enough".into() });
        let mut bytes = Vec::new();
        loop {
            while let Some(message) = sink.poll_control() {
                // The initiator has ended if it has read the reason.
                let _ = remote.send(&message.emit());
            }
            let event = remote.receive(&mut bytes, None).expect("an initiator");
            if event == ControlEvent::Ended {
                return;
            }
            let Message { body, .. } = Message::parse(&bytes).expect("a message");
            if !matches!(body, Body::Ping(_)) {
                sink.handle_control(body).expect("by the rules");
            }
        }
    });
    let (sent, chosen) = send(near, options(DataWay::Tcp), |_| panic!("not by the pipe"));
    assert_eq!(sent.expect_err("cancelled").to_string(), "enough");
    assert_eq!(chosen, Some((Carrier::Tcp, None)));
    accepting.join().expect("no panic");
}

#[test]
fn initiator_that_claims_channels_beside_the_pipe_has_to_have_them() {
    let resolve = Anywhere(tempfile::tempdir().expect("a folder"));
    let (near, remote) = control_pair();
    thread::scope(|scope| {
        let accepted = scope.spawn(|| accepting(remote, &resolve, Some(HERE)));
        let epoch = Instant::now();
        let (channels, features, agent) = (1, features() | FEATURE_BESIDE, String::new());
        let offer = Offer { channels, block_size: BLOCK_SIZE, features, agent };
        let mut connection = Connection::initiate(offer, epoch.elapsed());
        let established = next_event(&near, &mut connection, epoch);
        assert!(matches!(established, Ok(Event::Established(_))), "{established:?}");
        let paths = vec![b"anywhere".to_vec()];
        let request = Request { flags: Flags::BESIDE, paths, ..Request::default() };
        let open = Open { role: Role::Source, job: request.emit().expect("short") };
        connection.open(open).expect("a session");
        let event = next_event(&near, &mut connection, epoch).expect("an acceptor");
        let Event::OpenReply { reply: OpenReply::Refused { refusal, .. }, .. } = event else {
            panic!("{event:?}")
        };
        assert_eq!(refusal, Refusal::Job);
        near.close();
        assert!(accepted.join().expect("no panic").is_err());
    });
}
