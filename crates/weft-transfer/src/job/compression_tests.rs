//! Agreement on compression, and sinks that receive invalid compressed blocks.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use super::accept::{Accepting, accept};
use super::agree::{FEATURE_ZSTD, features, next_event};
use super::lines::MemoryLine;
use super::request::{Flags, Request};
use super::tests::{Anywhere, answer_requests, send_to};
use crate::blocks::Pool;
use crate::compress::Encoder;
use crate::end::{EndError, Finished};
use crate::limits::BLOCK_SIZE;
use crate::session::{Arrivals, Connection, Event, Offer, Source, SourceSetup};
use crate::transport::memory::{self, control_pair};
use crate::transport::{Control, ControlEvent, DataSource, Head, Payload, Write};
use crate::wire::record::Record;
use crate::wire::{BlockFlags, BlockHeader, Body, Message, Open, OpenReply, Refusal, Role};

/// Sends a payload as the only block of a session. Returns the sink's result.
fn sink_of(
    flags: Flags,
    compressed: bool,
    payload: &[u8],
    table_len: u32,
) -> Result<Finished, EndError> {
    let resolve = Anywhere(tempfile::tempdir().expect("a folder"));
    let (near, remote) = control_pair();
    let (mut line, end) = memory::data_pair();
    let (to, lines) = channel();
    thread::scope(|scope| {
        let accepted = scope.spawn(|| accept(Accepting::new(Arc::new(remote), lines, &resolve)));
        let epoch = Instant::now();
        let offer = Offer {
            channels: 1,
            block_size: BLOCK_SIZE,
            features: features(),
            agent: String::new(),
        };
        let mut connection = Connection::initiate(offer, epoch.elapsed());
        let established = next_event(&near, &mut connection, epoch);
        assert!(matches!(established, Ok(Event::Established(_))), "{established:?}");
        let request = Request { flags, paths: vec![b"share".to_vec()], ..Request::default() };
        let open = Open { role: Role::Source, job: request.emit().expect("short") };
        let session = connection.open(open).expect("a session");
        let opened = next_event(&near, &mut connection, epoch);
        assert!(matches!(opened, Ok(Event::OpenReply { .. })), "{opened:?}");
        to.send((0, Box::new(MemoryLine(end)) as _)).expect("an acceptor");
        drop(to);
        let setup = SourceSetup {
            session,
            blocks: 1,
            block_size: BLOCK_SIZE,
            arrivals: Arrivals::Seen,
            writes_max: 1,
        };
        let mut source = Source::new(setup);
        let len = u32::try_from(payload.len()).expect("short");
        source.submit(0, 0, len).expect("a new one");
        assert!(source.channel_up(0));
        source.finish().expect("one block");
        let pool = Pool::new(1, BLOCK_SIZE as usize).expect("memory");
        let mut bytes = Vec::new();
        loop {
            while let Some(message) = source.poll_control() {
                let _ = near.send(&message.emit());
            }
            while let Some(write) = source.poll_write() {
                let mut block = pool.take().expect("the one");
                block.bytes_mut()[..payload.len()].copy_from_slice(payload);
                let header = BlockHeader {
                    session,
                    flags: BlockFlags { sealed: false, compressed },
                    seq: write.seq,
                    nonce: 0,
                    len,
                    table_len,
                    buffer: write.credit.buffer,
                    generation: write.credit.generation,
                };
                let head = Head::new(&header.emit());
                let payload = Payload::Block { block, len: payload.len() };
                // The sink closes the channel if it refuses the block.
                let result = match line.write(Write { place: None, head, payload }).result {
                    Ok(_) => crate::session::WriteResult::Sent,
                    Err(_) => crate::session::WriteResult::Failed,
                };
                source.handle_written(write.block, result).expect("under way");
                if result == crate::session::WriteResult::Failed {
                    near.close();
                }
            }
            match near.receive(&mut bytes, Some(Duration::from_secs(240))) {
                Ok(ControlEvent::Message) => {}
                Ok(ControlEvent::TimedOut) => panic!("the sink neither ends nor fails"),
                Ok(ControlEvent::Ended) | Err(_) => break,
            }
            let Message { body, .. } = Message::parse(&bytes).expect("a message");
            match body {
                Body::Records(_) => {}
                Body::Cancel(_) | Body::Complete(_) => {
                    near.close();
                    break;
                }
                body => source.handle_control(body).expect("by the rules"),
            }
        }
        accepted.join().expect("no panic")
    })
}

/// Returns the payload of the last block of an empty tree, plain and compressed.
fn payloads() -> (Vec<u8>, Vec<u8>) {
    let mut plain = vec![0; 50_000];
    Record::Finish { entries: 0 }.emit(&mut plain);
    let smaller = Encoder::default().compress(&plain).expect("zeros").to_vec();
    (plain, smaller)
}

#[test]
fn compressed_block_is_applied_like_a_plain_one() {
    let (plain, smaller) = payloads();
    let table_len = u32::try_from(plain.len()).expect("short");
    let finished = sink_of(Flags::COMPRESSES, true, &smaller, table_len).expect("a tree");
    let counted = (finished.compressed.plain, finished.compressed.sent);
    assert_eq!(counted, (plain.len() as u64, smaller.len() as u64));
    let finished = sink_of(Flags::COMPRESSES, false, &plain, table_len).expect("a tree");
    assert_eq!(finished.compressed.plain, finished.compressed.sent);
}

#[test]
fn invalid_compressed_block_ends_the_session_with_the_reason() {
    let (plain, smaller) = payloads();
    let table_len = u32::try_from(plain.len()).expect("short");
    let with =
        |declared: u32, end: &[u8]| [&declared.to_be_bytes()[..], &smaller[4..], end].concat();
    let cases = [
        (with(table_len - 1, b""), "damaged"),
        (with(table_len + 1, b""), "damaged"),
        (with(BLOCK_SIZE + 1, b""), "expands to"),
        (with(table_len, b"garbage"), "damaged"),
        (smaller[..3].to_vec(), "no length"),
    ];
    for (payload, text) in cases {
        let failed = sink_of(Flags::COMPRESSES, true, &payload, table_len);
        let error = failed.expect_err(text).to_string();
        assert!(error.contains(text), "{text}: {error}");
    }
}

#[test]
fn compressed_block_without_agreement_is_refused() {
    let (plain, smaller) = payloads();
    let table_len = u32::try_from(plain.len()).expect("short");
    assert!(sink_of(Flags::default(), true, &smaller, table_len).is_err());
}

/// Asks an acceptor with these features for a copy. Returns the result, and the flags of the
/// request that arrived.
fn request_to(features: u64, flags: Flags) -> (Result<Finished, EndError>, Option<Flags>) {
    let folder = tempfile::tempdir().expect("a folder");
    let (near, remote) = control_pair();
    let acceptor = thread::spawn(move || {
        let reply = OpenReply::Refused { refusal: Refusal::NotAllowed, text: String::new() };
        answer_requests(&remote, features, BLOCK_SIZE, &reply)
    });
    let copied = send_to(near, flags, folder.path());
    let requests = acceptor.join().expect("no panic");
    (copied, requests.first().map(|request| request.flags))
}

#[test]
fn older_peer_is_not_asked_for_compression() {
    let always = Flags::COMPRESSES.with(Flags::COMPRESSES_ALWAYS, true);
    assert_eq!(request_to(FEATURE_ZSTD, always).1, Some(always));
    assert_eq!(request_to(0, Flags::COMPRESSES).1, Some(Flags::default()));
    let (copied, request) = request_to(0, always);
    let error = copied.expect_err("an older peer").to_string();
    assert!(error.contains("does not know compression"), "{error}");
    assert_eq!(request, None);
}
