//! Clients that try to do, or to learn, what they may not.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use super::accept::{Accepting, Resolve as _, Shares, accept};
use super::admission::{Admission, Caller};
use super::agree::next_event;
use super::extras::{Extras, Keeps};
use super::lines::MemoryLine;
use super::request::{Flags, Request};
use super::rights::{Access, Bounds, Limits, Share};
use super::tests::{offer, post_table, share};
use crate::blocks::Pool;
use crate::limits::BLOCK_SIZE;
use crate::session::{Arrivals, Connection, Event, Source, SourceSetup, WriteResult};
use crate::transport::memory::{self, control_pair};
use crate::transport::{Control, ControlEvent};
use crate::tree::apply::{Quota, Usage};
use crate::wire::record::{Entry, Kind, ROOT, Record, Time};
use crate::wire::record_name::Name;
use crate::wire::record_wants::Wants;
use crate::wire::{Body, Message, Open, Refusal, Role};

/// The first byte of an answer to offers.
const WANTS: u8 = 1;

fn shares(shares: Vec<Share>) -> Shares {
    Shares { shares, allows_clear: false }
}

fn request(flags: Flags, path: &str) -> Request {
    Request { flags, paths: vec![path.into()], ..Request::default() }
}

/// Opens a copy to a server, and sends one block with this table, whatever the request says.
/// Returns which of the offered files the server wants.
fn wanted(server: &Shares, request: &Request, table: &[u8]) -> Vec<bool> {
    let (near, remote) = control_pair();
    let (mut line, end) = memory::data_pair();
    let (to, lines) = channel();
    thread::scope(|scope| {
        let accepted = scope.spawn(|| accept(Accepting::new(Arc::new(remote), lines, server)));
        let epoch = Instant::now();
        let mut connection = Connection::initiate(offer(), epoch.elapsed());
        let established = next_event(&near, &mut connection, epoch);
        assert!(matches!(established, Ok(Event::Established(_))), "{established:?}");
        let open = Open { role: Role::Source, job: request.emit().expect("short") };
        let session = connection.open(open).expect("a session");
        let opened = next_event(&near, &mut connection, epoch);
        assert!(matches!(opened, Ok(Event::OpenReply { .. })), "{opened:?}");
        to.send((0, Box::new(MemoryLine(end)) as _)).expect("an acceptor");
        let (block_size, arrivals) = (BLOCK_SIZE, Arrivals::Seen);
        let setup = SourceSetup { session, blocks: 1, block_size, arrivals, writes_max: 1 };
        let mut source = Source::new(setup);
        let len = u32::try_from(table.len()).expect("short");
        source.submit(0, 0, len).expect("a new one");
        assert!(source.channel_up(0));
        let pool = Pool::new(1, BLOCK_SIZE as usize).expect("memory");
        let mut bytes = Vec::new();
        let wants = loop {
            while let Some(message) = source.poll_control() {
                near.send(&message.emit()).expect("an acceptor");
            }
            while let Some(write) = source.poll_write() {
                post_table(&mut line, session, &write, pool.take().expect("the one"), table);
                source.handle_written(write.block, WriteResult::Sent).expect("under way");
            }
            let event = near.receive(&mut bytes, Some(Duration::from_secs(60)));
            assert_eq!(event.expect("an acceptor"), ControlEvent::Message);
            let Message { body, .. } = Message::parse(&bytes).expect("a message");
            match &body {
                Body::Records(records) if records.first() == Some(&WANTS) => {
                    break Wants::parse(&records[1..]).expect("an answer").wanted;
                }
                _ => source.handle_control(body).expect("by the rules"),
            }
        };
        near.close();
        assert!(accepted.join().expect("no panic").is_err());
        wants
    })
}

/// Returns an offer of a file that is just like one that is there.
fn same(file: &Path, hash: Option<[u8; 32]>) -> Vec<u8> {
    use std::os::unix::fs::MetadataExt as _;
    let there = fs::metadata(file).expect("a file");
    let nanoseconds = u32::try_from(there.mtime_nsec()).expect("below a second");
    let mtime = Time { seconds: there.mtime(), nanoseconds };
    let entry = Entry {
        number: 1,
        parent: ROOT,
        name: Name::new(b"there").ok(),
        kind: Kind::File,
        mode: u16::try_from(there.mode() & 0o777).expect("a mode"),
        uid: there.uid(),
        gid: there.gid(),
        mtime,
        atime: mtime,
        size: there.len(),
        is_linked: false,
        is_unsized: false,
        xattrs: None,
        hash,
    };
    let mut table = Vec::new();
    Record::Offer(Box::new(entry)).emit(&mut table);
    table
}

#[test]
fn client_that_may_only_write_does_not_learn_what_is_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("there");
    fs::write(&file, "secret").expect("room");
    let hash = *blake3::hash(b"secret").as_bytes();
    let to = request(Flags::default(), "share");
    for (access, is_wanted) in [(Access::Write, true), (Access::Both, false)] {
        let server = shares(vec![share(folder.path(), access)]);
        // A client can offer files, with a digest too, although its request does not say so.
        for hash in [None, Some(hash)] {
            assert_eq!(wanted(&server, &to, &same(&file, hash)), [is_wanted], "{access:?}");
        }
    }
    let server = shares(vec![share(folder.path(), Access::Write)]);
    let refused = |role, request: &Request| {
        let (refusal, text) = server.resolve(role, request).expect_err("it would tell");
        assert_eq!(refusal, Refusal::NotAllowed, "{text}");
        assert!(text.contains("for writing only"), "{text}");
    };
    for flag in [
        Flags::SKIPS,
        Flags::RESUMES,
        Flags::DELETES,
        Flags::DRY_RUN,
        Flags::CLEANS,
        Flags::FORCES,
        Flags::UPDATES,
        Flags::CHECKSUM,
        Flags::SIZE_ONLY,
        Flags::KEEPS_EXISTING,
        Flags::LISTS,
        Flags::VERSIONS,
        Flags::IN_PLACE.with(Flags::APPENDS, true),
    ] {
        refused(Role::Source, &request(flag.with(Flags::FOLDER, true), "share/new"));
    }
    let thirds = Extras { thirds: vec![b"../other".to_vec()], ..Extras::default() };
    refused(Role::Source, &Request { extras: thirds, ..to.clone() });
    refused(Role::Sink, &request(Flags::default(), "share/there"));
    refused(Role::Sink, &request(Flags::DRY_RUN, "share"));
    refused(Role::Sink, &request(Flags::STREAM, "share/there"));
    assert!(!folder.path().join("new").exists());
    let keeps = Some(Keeps { suffix: b"~".to_vec(), folder: None });
    let backup = Request { extras: Extras { keeps, ..Extras::default() }, ..to };
    for allowed in [
        request(Flags::OWNERS.with(Flags::VERIFIES, true), "share"),
        request(Flags::IN_PLACE.with(Flags::SYNCS, true), "share"),
        backup,
    ] {
        server.resolve(Role::Source, &allowed).expect("a place");
    }
}

#[test]
fn client_that_may_only_read_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = shares(vec![share(folder.path(), Access::Read)]);
    for (role, flags, path) in [
        (Role::Source, Flags::FOLDER, "share/new"),
        (Role::Source, Flags::DRY_RUN, "share"),
        (Role::Source, Flags::STREAM, "share/new"),
        (Role::Sink, Flags::REMOVES, "share"),
        (Role::Sink, Flags::REMOVES, ""),
    ] {
        let (refusal, text) = server.resolve(role, &request(flags, path)).expect_err("it writes");
        assert_eq!(refusal, Refusal::NotAllowed, "{text}");
        assert!(text.contains("for reading only"), "{text}");
    }
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    for path in ["share", ""] {
        server.resolve(Role::Sink, &request(Flags::default(), path)).expect("a source");
    }
}

#[test]
fn shares_of_others_are_as_if_they_were_not_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = shares(vec![share(folder.path(), Access::Both)]);
    for path in ["other", "other/x", "nothing", "nothing/x", "../share", "/etc"] {
        for role in [Role::Sink, Role::Source] {
            let refused = server.resolve(role, &request(Flags::default(), path));
            let (refusal, text) = refused.expect_err("no share");
            assert_eq!(refusal, Refusal::NotFound);
            let expected = format!("{path}: there is no such share; this server has: share");
            assert_eq!(text, expected);
        }
    }
}

#[test]
fn copies_have_places_in_all_limits_or_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let bounds = Bounds { copies: Some(1), rate: Some(1 << 20) };
    let of_share = Limits::new("the share share".into(), bounds);
    let of_user = Limits::new("the user ann".into(), Bounds { copies: Some(2), rate: None });
    let admission = || {
        let limits = Some(Arc::clone(&of_share));
        let share = Share { limits, ..share(folder.path(), Access::Both) };
        let limits = vec![Arc::clone(&of_user)];
        Admission::new(Caller { name: Some("ann".into()), shares: shares(vec![share]), limits })
    };
    let (one, two) = (admission(), admission());
    let mut reading = request(Flags::default(), "share");
    // The same share twice is one place.
    reading.paths.push(b"share/".to_vec());
    one.resolve(Role::Sink, &reading).expect("a place");
    assert_eq!(one.rates().len(), 1);
    let (refusal, text) = two.resolve(Role::Sink, &reading).expect_err("one at a time");
    assert_eq!(refusal, Refusal::Busy);
    assert!(text.starts_with("the share share has 1 copies at a time"), "{text}");
    drop(one);
    // All shares at once are a copy of each.
    let three = admission();
    three.resolve(Role::Sink, &request(Flags::DRY_RUN, "")).expect("a place");
    let (_, text) = admission().resolve(Role::Sink, &reading).expect_err("two of the user run");
    assert!(text.starts_with("the user ann has 2 copies at a time"), "{text}");
    drop(two);
    admission().resolve(Role::Sink, &reading).expect_err("one of the share runs");
    drop(three);
    admission().resolve(Role::Sink, &reading).expect("a place");
}

#[test]
fn directory_of_a_copy_counts_before_it_is_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let root = || fs::File::open(folder.path()).expect("a folder").into();
    let quota = Some(Quota::new(root(), Usage { bytes: u64::MAX, names: 2 }));
    let server = shares(vec![Share { quota, ..share(folder.path(), Access::Both) }]);
    let mut copies = Vec::new();
    for number in 0..4 {
        let to = request(Flags::FOLDER, &format!("share/{number}"));
        let made = server.resolve(Role::Source, &to);
        if let Err((_, text)) = &made {
            assert!(text.contains("quota of the shared directory, 2 files"), "{text}");
        }
        // The first ones run while the others begin.
        copies.push(made);
    }
    assert_eq!(copies.iter().filter(|copy| copy.is_ok()).count(), 2);
    assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 2);
}
