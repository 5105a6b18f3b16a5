//! Peers that break the protocol, and servers with several addresses.

use std::fs;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::accept::{Accepting, Answer, Resolve, Share, Shares, accept};
use super::client::{Way, copy_with};
use super::initiate::{Initiating, Wish, flush, initiate, next_event};
use super::lines::MemoryLine;
use super::places::{Naming, local_destination};
use super::request::{Flags, Request};
use super::server::{Log, Server};
use crate::end::{EndError, Finished, Observer, Progress};
use crate::limits::{BLOCK_SIZE, BLOCK_SIZE_MIN, VERSION};
use crate::pipeline::Pool;
use crate::secure::{Identity, TlsClient, TlsServer};
use crate::session::{
    Arrivals, Connection, Event, Offer, Policy, Source, SourceSetup, WriteResult,
};
use crate::transport::memory::{self, control_pair};
use crate::transport::tcp::{self, TcpSettings};
use crate::transport::{Control, ControlEvent, DataSource, Head, Payload, Place, Write};
use crate::wire::record::{Entry, Kind, ROOT, Record, Time};
use crate::wire::record_name::Name;
use crate::wire::{
    BlockFlags, BlockHeader, Body, Message, Open, OpenReply, Refusal, Role, Terms, Token,
};

struct Nobody;

impl Observer for Nobody {
    fn problem(&self, _path: &[u8], _text: &str, _is_warning: bool) {}
}

impl Log for Nobody {
    fn copied(&self, _peer: &str, _finished: &Finished) {}
    fn failed(&self, _peer: &str, _why: &str) {}
}

/// Returns a server of a folder that accepts every client, and a client of it.
fn serve(folder: &Path) -> (SocketAddr, TlsClient) {
    let identity = || Identity::generate().expect("a key");
    let tls = TlsServer::new(&identity(), Arc::new(|_| true)).expect("a server");
    let root = fs::File::open(folder).expect("a folder").into();
    let shares = vec![Share { name: b"share".to_vec(), root }];
    let server = Server::new(tls, Shares { shares, is_read_only: false }, Box::new(Nobody));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("a port");
    thread::spawn(move || server.run(&listener));
    (address, TlsClient::new(&identity(), Arc::new(|_| true)).expect("a client"))
}

fn offer() -> Offer {
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
        let to = Way::From(folder.path().join("got"));
        copy_with(addresses, &tls, request, to, Arc::new(Nobody), Arc::default(), None)
    };
    fs::create_dir(folder.path().join("got")).expect("room");
    let finished = fetch(&[closed, server]).expect("a server");
    assert_eq!(finished.outcome.copied, 1);
    assert!(fetch(&[closed]).is_err() && fetch(&[]).is_err());
}

#[test]
fn block_size_too_small_for_an_entry_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (near, remote) = control_pair();
    let acceptor = thread::spawn(move || {
        let epoch = Instant::now();
        let most = Terms {
            version: VERSION,
            channels: 1,
            block_size: BLOCK_SIZE_MIN,
            features: 0,
            token: Token::default(),
            agent: String::new(),
        };
        let policy = Policy { most, block_size_min: BLOCK_SIZE_MIN, sessions: 1 };
        let mut connection = Connection::accept(policy, epoch.elapsed());
        while let Ok(event) = next_event(&remote, &mut connection, epoch) {
            if let Event::Open { session, .. } = event {
                let reply = OpenReply::Accepted { job: Vec::new() };
                connection.answer(session, reply).expect("an opening");
                let _ = flush(&remote, &mut connection, epoch);
            }
        }
    });
    let to = local_destination(folder.path(), Flags::FOLDER).expect("a folder");
    let copied = initiate(Initiating {
        control: Arc::new(near),
        keys: &|_, _| Ok(None),
        request: Request { paths: vec![b"share".to_vec()], ..Request::default() },
        wish: Wish::Send {
            starts: vec![crate::tree::source::Start {
                directory: to.root,
                name: None,
                new_name: None,
            }],
            connect: Box::new(|_, _| Ok(Box::new(memory::data_pair().0) as _)),
        },
        channels: 1,
        block_size: BLOCK_SIZE,
        limit: None,
        naming: Naming::Shares,
        observer: Arc::new(Nobody),
        progress: Arc::default(),
    });
    assert!(matches!(copied, Err(EndError::Protocol(_))), "{copied:?}");
    acceptor.join().expect("no panic");
}

/// Accepts every request, and writes to one folder.
struct Anywhere(tempfile::TempDir);

impl Resolve for Anywhere {
    fn resolve(&self, _role: Role, _request: &Request) -> Result<Answer, (Refusal, String)> {
        Ok(Answer::Write(local_destination(self.0.path(), Flags::FOLDER).expect("a folder")))
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
            xattrs: Vec::new(),
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
                control: Arc::new(remote),
                keys: &|_, _| Ok(None),
                token: Token::default(),
                lines,
                resolve: &resolve,
                progress: Arc::clone(&progress),
                keeps_special_bits: false,
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
        let pool = Pool::private(1, BLOCK_SIZE as usize).expect("memory");
        let mut bytes = Vec::new();
        loop {
            while let Some(message) = source.poll_control() {
                near.send(&message.emit()).expect("an acceptor");
            }
            while let Some(write) = source.poll_write() {
                let mut block = pool.take().expect("the one");
                block.copy_in(0, &table);
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
                let post = Write { id: 0, place: Place::default(), head, payload };
                assert!(line.post(post).is_ok());
                drop(line.completion(Duration::ZERO));
                source.handle_written(write.block, WriteResult::Sent).expect("under way");
            }
            // A sink that waits for its answers to be read sends nothing more. One that does not
            // wait would grant its free blocks sooner.
            match near.receive(&mut bytes, Some(Duration::from_secs(2))) {
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
