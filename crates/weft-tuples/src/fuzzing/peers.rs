//! What peers may send. The first byte of an input says who the peer is, the second one the length
//! of the pieces in which the rest arrives.

use std::io::{self, ErrorKind, Read, Write};
use std::rc::Rc;
use std::time::Duration;

use crate::access::{Account, Guard, Rights, TlsServer, Token};
use crate::input::Input;
use crate::limits::ANSWER_FRAME_LEN_MAX;
use crate::model::{ElementEnd, Name, Now, Operation, Service, Space, Tuple, Wait};
use crate::resp::{Addresses, Roster};
use crate::server::TlsStream;
use crate::wire::{Hello, Welcome, split};
use crate::{native, resp};

/// What clients of the guarded server show.
const TOKEN: &[u8] = b"token of fuzzing";
/// What nobody but the user of the server may see.
const SECRET: &[u8] = b"hidden from the peer";
/// The element that has it.
const ELEMENT: &[u8] = b"hidden";
const NOW: Now = Now { clock: Duration::from_secs(1), ms: 1_000 };
const MEMORY: usize = 1 << 20;

/// Who the peer is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FuzzedPeer {
    /// A client of a server that lets in all.
    Anyone,
    /// One that has not shown the token.
    Stranger,
    /// One that may use elements whose names begin with `a`.
    Limited,
}

impl FuzzedPeer {
    fn of(byte: u8) -> Self {
        match byte % 3 {
            0 => Self::Anyone,
            1 => Self::Stranger,
            _ => Self::Limited,
        }
    }

    fn guard(self) -> Guard {
        let beginnings = || vec![b"a".to_vec()];
        let rights = match self {
            Self::Anyone => return Guard::default(),
            Self::Stranger => Rights::all(),
            Self::Limited => Rights { read: beginnings(), write: beginnings() },
        };
        // A constant that is long enough.
        let Ok(token) = Token::new(TOKEN) else { return Guard::of(Vec::new()) };
        Guard::of(vec![Account { name: "default".to_owned(), token, rights }])
    }
}

/// Appends bytes to what has arrived.
fn arrive(input: &mut Input, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let space = input.space();
        let len = space.len().min(bytes.len());
        space[..len].copy_from_slice(&bytes[..len]);
        input.received(len);
        bytes = &bytes[len..];
    }
}

fn hidden() -> Operation {
    let (element, tuples): (Name, _) = (Rc::from(ELEMENT), vec![Tuple::of(SECRET)]);
    let (criteria, end) = (Default::default(), ElementEnd::Back);
    Operation::Put { element, criteria, end, tuples, is_append: false }
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Checks what a peer has got, and what it has left of the element that is not its own.
fn check(peer: FuzzedPeer, said: &[u8], got: &[u8], space: &Space) {
    if peer == FuzzedPeer::Anyone || (peer == FuzzedPeer::Stranger && has(said, TOKEN)) {
        return;
    }
    assert!(!has(got, SECRET), "the peer was shown what it may not see");
    let element: Name = Rc::from(ELEMENT);
    let mut left = space.tuples(&element);
    let is_first = left.next().is_some_and(|(_, fields)| fields[0] == SECRET);
    let is_left = is_first && left.next().is_none();
    assert!(is_left, "the peer has changed what it may not change");
}

/// Commands of the Redis protocol. The replies are the same however they are cut, and nobody gets
/// round the guard.
///
/// # Panics
/// If that is not so.
pub fn redis(input: &[u8]) {
    let [peer, len, said @ ..] = input else { return };
    let peer = FuzzedPeer::of(*peer);
    let whole = redis_replies(peer, said, said.len().max(1));
    let cut = redis_replies(peer, said, usize::from(*len % 64) + 1);
    assert!(whole == cut, "the replies depend on how the commands are cut");
}

fn redis_replies(peer: FuzzedPeer, said: &[u8], len: usize) -> Vec<u8> {
    let (mut space, roster) = (Space::new(MEMORY), Roster::default());
    space.call(NOW, hidden(), Wait::No);
    let guard = peer.guard();
    let mut connection = resp::Connection::new(NOW, &roster, Addresses::default(), guard);
    let (mut input, mut got) = (Input::default(), Vec::new());
    if peer == FuzzedPeer::Limited {
        arrive(&mut input, b"*2\r\n$4\r\nAUTH\r\n$16\r\n");
        arrive(&mut input, TOKEN);
        arrive(&mut input, b"\r\n");
    }
    for piece in said.chunks(len) {
        arrive(&mut input, piece);
        loop {
            connection.handle(NOW, &mut input, &mut space);
            let mut goes_on = false;
            while let Some((ticket, outcome)) = space.poll() {
                connection.answer(ticket, outcome);
                goes_on = true;
            }
            let output = connection.output();
            got.extend_from_slice(output);
            let len = output.len();
            connection.sent(len);
            if len == 0 && !goes_on {
                break;
            }
        }
    }
    let is_let_in = peer == FuzzedPeer::Anyone || has(said, TOKEN) || peer == FuzzedPeer::Limited;
    assert!(is_let_in || !connection.is_admitted(), "a stranger is let in");
    check(peer, said, &got, &space);
    connection.leave(NOW, &mut space);
    got
}

/// Bytes of Weft's own protocol: a greeting, and requests. The answers are the same however they
/// are cut, but for their order if some wait, and nobody gets round the guard.
///
/// # Panics
/// If that is not so.
pub fn native(input: &[u8]) {
    let [peer, len, said @ ..] = input else { return };
    let peer = FuzzedPeer::of(*peer);
    let whole = native_answers(peer, said, said.len().max(1));
    let cut = native_answers(peer, said, usize::from(*len % 64) + 1);
    assert!(whole == cut, "the answers depend on how the requests are cut");
}

/// Returns the answers in the order of their bytes, and whether the peer has kept to the protocol.
fn native_answers(peer: FuzzedPeer, said: &[u8], len: usize) -> (Vec<Vec<u8>>, bool) {
    let mut service = Service::new(Space::new(MEMORY));
    service.space().call(NOW, hidden(), Wait::No);
    let mut connection = native::Connection::new(peer.guard());
    let (mut input, mut got) = (Input::default(), Vec::new());
    if peer == FuzzedPeer::Limited {
        let hello = Hello { id: [1; 16], returns: false, token: TOKEN.to_vec() };
        arrive(&mut input, &hello.encode());
    }
    let mut keeps_to_it = true;
    for piece in said.chunks(len) {
        arrive(&mut input, piece);
        while keeps_to_it {
            keeps_to_it = connection.handle(NOW, &mut input, &mut service).is_ok();
            let mut goes_on = false;
            while let Some((ticket, outcome)) = service.poll() {
                connection.answer(ticket, outcome);
                goes_on = true;
            }
            while let Some((number, _)) = connection.next_tail() {
                connection.answer_tail(number, None);
            }
            let output = connection.output();
            got.extend_from_slice(output);
            let len = output.len();
            connection.sent(len);
            if len == 0 && !goes_on {
                break;
            }
        }
    }
    if peer == FuzzedPeer::Stranger && !has(said, TOKEN) {
        assert!(!connection.is_admitted(), "a stranger is let in");
        assert!(got.len() <= Welcome::LEN, "a stranger is shown more than that it is one");
    }
    check(peer, said, &got, service.space());
    (sorted(&got), keeps_to_it)
}

fn sorted(got: &[u8]) -> Vec<Vec<u8>> {
    let (welcome, mut rest) = got.split_at(got.len().min(Welcome::LEN));
    let mut frames = vec![welcome.to_vec()];
    while let Ok(Some(answer)) = split(rest, ANSWER_FRAME_LEN_MAX) {
        frames.push(answer.to_vec());
        rest = &rest[4 + answer.len()..];
    }
    assert!(rest.is_empty(), "an answer is not whole");
    frames.sort_unstable();
    frames
}

/// A socket whose peer has said some bytes, and takes all that it is sent.
struct Said<'bytes> {
    bytes: &'bytes [u8],
    len: usize,
}

impl Read for Said<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.bytes.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let len = into.len().min(self.len).min(self.bytes.len());
        into[..len].copy_from_slice(&self.bytes[..len]);
        self.bytes = &self.bytes[len..];
        Ok(len)
    }
}

impl Write for Said<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The beginning of a session of TLS. A peer that knows no keys gets nothing through to the
/// protocols, and its session waits for more or ends.
///
/// # Panics
/// If it gets something through.
pub fn tls(input: &[u8]) {
    let [_, len, bytes @ ..] = input else { return };
    const CERTIFICATE: &[u8] = include_bytes!("../access/tests/server.pem");
    const KEY: &[u8] = include_bytes!("../access/tests/server.key");
    let Ok(server) = TlsServer::parse(CERTIFICATE, KEY) else { return };
    let said = Said { bytes, len: usize::from(*len) + 1 };
    let Ok(mut stream) = TlsStream::new(said, &server) else { return };
    let mut space = [0; 1 << 10];
    let read = stream.read(&mut space);
    assert!(!matches!(read, Ok(1..)), "a peer without keys gets something through");
    assert!(stream.is_handshaking(), "a peer without keys has agreed on some");
}
