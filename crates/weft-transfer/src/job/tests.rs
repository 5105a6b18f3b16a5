//! Peers that break the protocol, and servers with several addresses.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::slice;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::accept::{Accepting, Answer, Resolve, Shares, accept};
use super::agree::{flush, next_event};
use super::client::{CopyDirection, DownloadTo, ServerAt};
use super::initiate::{Initiating, InitiatorRole, initiate};
use super::lines::MemoryLine;
use super::places::{Naming, Target, local_destination, local_start};
use super::rdma::Over;
use super::relay::Between;
use super::request::{Flags, Request};
use super::rights::{Access, Share};
use super::server::{Ended, Log, Server};
use super::task::CopyTask;
use crate::blocks::{Block, Pool};
use crate::end::{EndError, Finished, Observer, Progress};
use crate::limits::{
    BLOCK_SIZE, BLOCK_SIZE_MIN, BUSY_MAX, CONNECTIONS_MAX, COPIES_OF_HOST_MAX, DIRECT_FILE_LEN_MIN,
    VERSION,
};
use crate::placement::{Placement, Reason};
use crate::secure::{Identity, TlsClient, TlsServer};
use crate::session::{
    self, Arrivals, Connection, Event, Offer, Policy, RemoteBuffer, Sink, SinkSetup, Source,
    SourceSetup, WriteResult,
};
use crate::transport::memory::{self, control_pair};
use crate::transport::tcp::{self, TcpSettings};
use crate::transport::{Control, ControlEvent, DataSource, Head, Payload, Write};
use crate::tree::source::Content;
use crate::wire::record::{Entry, Kind, ROOT, Record, Time};
use crate::wire::record_name::Name;
use crate::wire::{
    BlockFlags, BlockHeader, Body, Cancel, Code, Message, Open, OpenReply, Refusal, Role, Terms,
    Token,
};
use weft_sys::lock;

pub(super) struct Nobody;

impl Observer for Nobody {
    fn problem(&self, _path: &[u8], _text: &str, _is_warning: bool) {}
}

impl Log for Nobody {
    fn refused(&self, _: &str, _: &crate::secure::PublicKey) {}
    fn ended(&self, _: &Ended<'_>) {}
    fn failed(&self, _peer: &str, _why: &str) {}
}

/// Returns a copy that nobody watches.
pub(super) fn task(request: Request) -> CopyTask {
    CopyTask {
        request,
        observer: Arc::new(Nobody),
        missing: Vec::new(),
        progress: Arc::default(),
        limit: None,
        is_fair: false,
        silence: None,
        compresses_between_hosts: false,
        versions_between_hosts: false,
        sysfs: "/sys".into(),
    }
}

/// Returns a server of a folder that accepts every client, and a client of it.
pub(super) fn serve(folder: &Path) -> (SocketAddr, TlsClient) {
    let (_, address, tls) = serving(folder);
    (address, tls)
}

/// Sends a block in clear that is a table and nothing else, and drops it when it is sent.
pub(super) fn post_table(
    line: &mut impl DataSource,
    session: u32,
    write: &session::Write,
    mut block: Block,
    table: &[u8],
) {
    block.bytes_mut()[..table.len()].copy_from_slice(table);
    let len = u32::try_from(table.len()).expect("short");
    let header = BlockHeader {
        session,
        flags: BlockFlags { sealed: false, compressed: false },
        seq: write.seq,
        nonce: 0,
        len,
        table_len: len,
        buffer: write.credit.buffer,
        generation: write.credit.generation,
    };
    let head = Head::new(&header.emit());
    let payload = Payload::Block { block, len: table.len() };
    assert!(line.write(Write { place: None, head, payload }).result.is_ok());
}

/// Returns a folder as a share of this name.
pub(super) fn share(folder: &Path, access: Access) -> Share {
    let root = Arc::new(fs::File::open(folder).expect("a folder").into());
    Share { name: b"share".to_vec(), root, access, quota: None, limits: None }
}

/// The same with the server itself.
fn serving(folder: &Path) -> (Arc<Server>, SocketAddr, TlsClient) {
    let identity = || Identity::generate().expect("a key");
    let tls = TlsServer::new(&identity(), Arc::new(|_| true)).expect("a server");
    let shares = vec![share(folder, Access::Both)];
    let rights = Arc::new(Shares { shares, allows_clear: false });
    let server = Server::new(tls, rights, Arc::new(Nobody));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("a port");
    let running = Arc::clone(&server);
    thread::spawn(move || running.run(&listener));
    let tls = TlsClient::new(&identity(), Arc::new(|_| true)).expect("a client");
    (server, address, tls)
}

pub(super) fn offer() -> Offer {
    Offer { channels: 2, block_size: BLOCK_SIZE, features: 0, agent: "test".into() }
}

#[test]
fn data_channel_with_a_used_number_is_closed() {
    let folder = tempfile::tempdir().expect("a folder");
    let (server, tls) = serve(folder.path());
    let settings = TcpSettings::default();
    let control = tcp::connect_control(server, Some(&tls), &settings).expect("a server");
    let epoch = Instant::now();
    let mut connection = Connection::initiate(offer(), epoch.elapsed());
    let event = next_event(&control, &mut connection, epoch);
    let Ok(Event::Established(terms)) = event else { panic!("{event:?}") };
    let [one, other] =
        [(); 2].map(|()| tcp::connect_data(server, terms.token, 0, &settings).expect("a server"));
    // The server sends nothing on a data channel, so the one that becomes readable is closed.
    let mut both = [&one, &other].map(|stream| PollFd::new(stream, PollFlags::IN));
    let most = Timespec { tv_sec: 20, tv_nsec: 0 };
    assert_eq!(poll(&mut both, Some(&most)), Ok(1));
}

#[test]
fn server_is_reached_at_the_first_address_that_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("file"), "x").expect("room");
    let (server, tls) = serve(folder.path());
    // This port has no listener any more.
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|it| it.local_addr()).expect("a port");
    let fetch = |addresses: &[SocketAddr]| {
        let request = Request { paths: vec![b"share/file".to_vec()], ..Request::default() };
        let to = CopyDirection::Download(DownloadTo::Path(folder.path().join("got")));
        task(request).with_server(ServerAt { addresses, tls: &tls }, to, Over::Auto)
    };
    fs::create_dir(folder.path().join("got")).expect("room");
    let finished = fetch(&[closed, server]).expect("a server");
    assert_eq!(finished.outcome.copied, 1);
    assert!(fetch(&[closed]).is_err() && fetch(&[]).is_err());
}

#[test]
fn server_with_too_many_connections_says_that_it_is_busy() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("file"), "x").expect("room");
    let (server, address, tls) = serving(folder.path());
    let fetch = || {
        let request = Request { paths: vec![b"share/file".to_vec()], ..Request::default() };
        let to = CopyDirection::Download(DownloadTo::Path(folder.path().join("got")));
        let at = ServerAt { addresses: &[address], tls: &tls };
        task(request).with_server(at, to, Over::Auto).map(drop)
    };
    server.live.fetch_add(CONNECTIONS_MAX, SeqCst);
    let error = fetch().expect_err("it is full").to_string();
    assert_eq!(error, "the server is busy: try again later");
    // Any others learn nothing.
    server.live.fetch_add(BUSY_MAX, SeqCst);
    fetch().expect_err("it is full");
    server.live.fetch_sub(CONNECTIONS_MAX + BUSY_MAX, SeqCst);
    fetch().expect("there is room");
}

#[test]
fn strangers_that_are_being_closed_take_no_places_of_clients() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("file"), "x").expect("room");
    let (server, address, tls) = serving(folder.path());
    let silent = TcpStream::connect(address).expect("it listens");
    let close_one = |_| {
        let from = IpAddr::from([192, 0, 2, 1]);
        let stranger = server.strangers.add(&silent.try_clone().expect("room"), from);
        assert!(server.strangers.close_one());
        stranger.expect("a descriptor")
    };
    let closed: Vec<_> = (0..2 * CONNECTIONS_MAX).map(close_one).collect();
    server.live.fetch_add(closed.len(), SeqCst);
    let request = Request { paths: vec![b"share/file".to_vec()], ..Request::default() };
    let to = CopyDirection::Download(DownloadTo::Path(folder.path().join("got")));
    let at = ServerAt { addresses: &[address], tls: &tls };
    let finished = task(request).with_server(at, to, Over::Auto).expect("there is room");
    assert_eq!(finished.outcome.copied, 1);
}

#[test]
fn host_with_too_many_copies_leaves_the_others_their_places() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("file"), "x").expect("room");
    let (server, address, tls) = serving(folder.path());
    let fetch = || {
        let request = Request { paths: vec![b"share/file".to_vec()], ..Request::default() };
        let to = CopyDirection::Download(DownloadTo::Path(folder.path().join("got")));
        let at = ServerAt { addresses: &[address], tls: &tls };
        task(request).with_server(at, to, Over::Auto).map(drop)
    };
    let add = |from: &str| server.hosts.add(from.parse().expect("an address"));
    let others: Vec<_> = (0..COPIES_OF_HOST_MAX).map(|_| add("192.0.2.1")).collect();
    fetch().expect("the places of another host");
    let own: Vec<_> = (0..COPIES_OF_HOST_MAX).map(|_| add("127.0.0.1")).collect();
    let error = fetch().expect_err("all places of this host are taken").to_string();
    assert_eq!(error, "too many copies from this address at a time: try again later");
    drop(own);
    // A copy gives its place back when the server has seen its end.
    fetch().expect("there is room");
    drop(others);
}

/// Accepts a connection by these terms, and answers each request for a session in the same way
/// until the peer ends the connection. Returns the requests.
pub(super) fn answer_requests(
    control: &dyn Control,
    features: u64,
    block_size: u32,
    reply: &OpenReply,
) -> Vec<Request> {
    let epoch = Instant::now();
    let (channels, token, agent) = (1, Token::default(), String::new());
    let most = Terms { version: VERSION, channels, block_size, features, token, agent };
    let policy = Policy { most, block_size_min: block_size, sessions: 1 };
    let mut connection = Connection::accept(policy, epoch.elapsed());
    let mut requests = Vec::new();
    while let Ok(event) = next_event(control, &mut connection, epoch) {
        if let Event::Open { session, open } = event {
            requests.push(Request::parse(&open.job).expect("a request"));
            connection.answer(session, reply.clone()).expect("an opening");
            let _ = flush(control, &mut connection, epoch);
        }
    }
    requests
}

/// Copies a folder to the share of a peer, which knows no data channels.
pub(super) fn send_to(
    peer: impl Control + 'static,
    flags: Flags,
    folder: &Path,
) -> Result<Finished, EndError> {
    let (start, _) = local_start(folder, Flags::default()).expect("a folder");
    initiate(Initiating {
        task: task(Request { flags, paths: vec![b"share".to_vec()], ..Request::default() }),
        control: Arc::new(peer),
        keys: &|_, _| Ok(None),
        role: InitiatorRole::Send {
            content: Content::Entries(vec![start]),
            connect: Box::new(|_, _| Ok(Box::new(memory::data_pair().0) as _)),
        },
        channels: 1,
        block_size: BLOCK_SIZE,
        copies: None,
        naming: Naming::Shares,
        beside: None,
        placement: &Placement::Anywhere(Reason::NoDevice),
        rdma: None,
        fabric: None,
    })
}

/// A sink that ends the session closes its data channels at once, and its reason may be read later.
#[test]
fn reason_of_a_sink_is_reported_though_its_channels_close_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let (near, remote) = control_pair();
    let sink = thread::spawn(move || {
        let epoch = Instant::now();
        let (channels, token, agent) = (1, Token::default(), String::new());
        let (version, block_size) = (VERSION, BLOCK_SIZE);
        let most = Terms { version, channels, block_size, features: 0, token, agent };
        let policy = Policy { most, block_size_min: BLOCK_SIZE, sessions: 1 };
        let mut connection = Connection::accept(policy, epoch.elapsed());
        let mut next = || next_event(&remote, &mut connection, epoch).expect("an initiator");
        assert!(matches!(next(), Event::Established(_)));
        let Event::Open { session, .. } = next() else { panic!("no opening") };
        let reply = OpenReply::Accepted { job: Vec::new() };
        connection.answer(session, reply).expect("an opening");
        flush(&remote, &mut connection, epoch).expect("an initiator");
        let (buffers, arrivals) = (vec![RemoteBuffer::default()], Arrivals::Seen);
        let setup = SinkSetup { session, buffers, block_size, arrivals, first_grant: 1 };
        let (mut sink, mut bytes) = (Sink::new(setup), Vec::new());
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
            // The other end of the data channel is gone, so the first block fails.
            if matches!(body, Body::ChannelLost(_)) {
                sink.cancel(Cancel { code: Code::Sink, text: "the reason".into() });
            }
            sink.handle_control(body).expect("by the rules");
        }
    });
    let copied = send_to(near, Flags::default(), folder.path());
    let reason = copied.expect_err("no sink").to_string();
    assert_eq!(reason, "the reason");
    sink.join().expect("no panic");
}

#[test]
fn block_size_too_small_for_an_entry_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (near, remote) = control_pair();
    let acceptor = thread::spawn(move || {
        answer_requests(&remote, 0, BLOCK_SIZE_MIN, &OpenReply::Accepted { job: Vec::new() })
    });
    let copied = send_to(near, Flags::default(), folder.path());
    assert!(matches!(copied, Err(EndError::Protocol(_))), "{copied:?}");
    acceptor.join().expect("no panic");
}

/// Collects the problems that are reported to it.
#[derive(Default)]
struct Problems(Mutex<Vec<(String, bool)>>);

impl Observer for Problems {
    fn problem(&self, _path: &[u8], text: &str, is_warning: bool) {
        lock(&self.0).push((text.to_owned(), is_warning));
    }
}

#[test]
fn problems_of_a_server_that_sends_to_another_one_are_reported() {
    // The largest file of a file system that refuses direct reading and exists in most places.
    let kernels = Path::new("/sys/kernel/btf");
    let is_large = |file: fs::Metadata| file.len() >= DIRECT_FILE_LEN_MIN;
    if !fs::metadata(kernels.join("vmlinux")).is_ok_and(is_large) {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (from, to) = (serve(kernels), serve(folder.path()));
    let [from, to] =
        [&from, &to].map(|(address, tls)| ServerAt { addresses: slice::from_ref(address), tls });
    let paths = vec![b"share/vmlinux".to_vec()];
    let problems = Arc::new(Problems::default());
    let request = Request { flags: Flags::DIRECT, paths, ..Request::default() };
    let task = CopyTask { observer: Arc::clone(&problems) as _, ..task(request) };
    task.between_servers(from, to, b"share/copy".to_vec(), Between::Auto).expect("a copy");
    let copied = fs::read(folder.path().join("copy")).expect("a file");
    assert!(copied == fs::read(kernels.join("vmlinux")).expect("a file"));
    let text = "files are read through the page cache, as the file system refuses direct I/O";
    let expected = (text.to_owned(), true);
    let problems = lock(&problems.0);
    assert_eq!(problems.iter().filter(|&it| *it == expected).count(), 1, "{problems:?}");
}

/// Accepts every request, and writes to one folder.
pub(super) struct Anywhere(pub(super) tempfile::TempDir);

impl Resolve for Anywhere {
    fn resolve(&self, _role: Role, _request: &Request) -> Result<Answer, (Refusal, String)> {
        let to = local_destination(self.0.path(), Flags::FOLDER, &[]).expect("a folder");
        Ok(Answer::Write(Target::Directory(to)))
    }
}

/// Returns the table of a block of offers. The answers to any two of them fill the queue of answers
/// and the records' window.
fn offers() -> Vec<u8> {
    let mut table = Vec::new();
    for number in 1..=800 {
        let at = if number % 2 == 1 { number } else { 60_000 + number };
        let entry = Entry {
            number: at,
            parent: ROOT,
            name: Name::new(b"x").ok(),
            kind: Kind::File,
            mode: 0o600,
            uid: 0,
            gid: 0,
            mtime: Time::default(),
            atime: Time::default(),
            size: 1,
            is_linked: false,
            is_unsized: false,
            xattrs: None,
            hash: None,
        };
        Record::Offer(Box::new(entry)).emit(&mut table);
    }
    table
}

#[test]
fn unread_answers_stop_the_blocks_of_the_source() {
    const BLOCKS: u32 = 3;
    let resolve = Anywhere(tempfile::tempdir().expect("a folder"));
    let (near, remote) = control_pair();
    let (mut line, end) = memory::data_pair();
    let (to, lines) = channel();
    let progress = Arc::<Progress>::default();
    thread::scope(|scope| {
        let accepted = scope.spawn(|| {
            accept(Accepting {
                progress: Arc::clone(&progress),
                ..Accepting::new(Arc::new(remote), lines, &resolve)
            })
        });
        let epoch = Instant::now();
        let mut connection = Connection::initiate(offer(), epoch.elapsed());
        let established = next_event(&near, &mut connection, epoch);
        assert!(matches!(established, Ok(Event::Established(_))), "{established:?}");
        let request =
            Request { flags: Flags::SKIPS, paths: vec![b"share".to_vec()], ..Request::default() };
        let open = Open { role: Role::Source, job: request.emit().expect("short") };
        let session = connection.open(open).expect("a session");
        let opened = next_event(&near, &mut connection, epoch);
        assert!(matches!(opened, Ok(Event::OpenReply { .. })), "{opened:?}");
        to.send((0, Box::new(MemoryLine(end)) as _)).expect("an acceptor");
        let setup = SourceSetup {
            session,
            blocks: BLOCKS,
            block_size: BLOCK_SIZE,
            arrivals: Arrivals::Seen,
            writes_max: 1,
        };
        let (mut source, table) = (Source::new(setup), offers());
        let len = u32::try_from(table.len()).expect("short");
        for block in 0..BLOCKS {
            source.submit(block.into(), block, len).expect("a new one");
        }
        assert!(source.channel_up(0));
        let pool = Pool::new(1, BLOCK_SIZE as usize).expect("memory");
        let mut bytes = Vec::new();
        loop {
            while let Some(message) = source.poll_control() {
                near.send(&message.emit()).expect("an acceptor");
            }
            while let Some(write) = source.poll_write() {
                post_table(&mut line, session, &write, pool.take().expect("the one"), &table);
                source.handle_written(write.block, WriteResult::Sent).expect("under way");
            }
            // A sink that waits for its answers to be read sends nothing more. One that does not
            // wait would grant its free blocks sooner.
            match near.receive(&mut bytes, Some(Duration::from_millis(500))) {
                Ok(ControlEvent::Message) => {}
                other => break assert!(matches!(other, Ok(ControlEvent::TimedOut)), "{other:?}"),
            }
            let Message { body, .. } = Message::parse(&bytes).expect("a message");
            if !matches!(body, Body::Records(_)) {
                source.handle_control(body).expect("by the rules");
            }
        }
        assert_eq!(progress.bytes.load(SeqCst), 0, "bytes of blocks that are done with");
        near.close();
        assert!(accepted.join().expect("no panic").is_err());
    });
}
