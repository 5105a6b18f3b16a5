use std::sync::atomic::AtomicUsize;

use super::*;
use crate::limits::{BLOCK_SIZE, MEMORY_CONTROL_MAX};
use crate::session::{Offer, Policy};
use crate::transport::memory::{MemoryControl, control_pair};
use crate::tree::apply::Summary;
use crate::wire::{Complete, Credits, Open, OpenReply, Role, Terms, Token};

const TIME: Duration = Duration::from_secs(240);
const SESSION: u32 = 1;

/// Collects the paths of problems.
#[derive(Default)]
struct Paths(Mutex<Vec<String>>);

impl Observer for Paths {
    fn problem(&self, path: &[u8], _text: &str, _is_warning: bool) {
        lock(&self.0).push(String::from_utf8_lossy(path).into_owned());
    }
}

/// A server that says what a test has it say.
struct Fake {
    control: MemoryControl,
    connection: Connection,
}

/// Returns a server, and a client's session with it.
fn session(role: Role) -> (Fake, BridgedSession) {
    let zero = Duration::ZERO;
    let (near, control) = control_pair();
    let (block_size, agent) = (BLOCK_SIZE, String::new());
    let offer = Offer { channels: 1, block_size, features: 0, agent: agent.clone() };
    let (version, token) = (crate::limits::VERSION, Token::default());
    let most = Terms { version, channels: 1, block_size, features: 0, token, agent };
    let policy = Policy { most, block_size_min: BLOCK_SIZE, sessions: 1 };
    let mut client = Connection::initiate(offer, zero);
    let mut server = Connection::accept(policy, zero);
    let pass = |from: &mut Connection, to: &mut Connection| {
        let message = from.poll_control(zero).expect("a message");
        to.handle_control(message, zero).expect("no fault")
    };
    pass(&mut client, &mut server);
    pass(&mut server, &mut client);
    assert_eq!(client.open(Open { role, job: vec![1] }), Ok(SESSION));
    pass(&mut client, &mut server);
    server.answer(SESSION, OpenReply::Accepted { job: vec![1] }).expect("an opening");
    pass(&mut server, &mut client);
    let (control_near, epoch) = (Arc::new(near) as Arc<dyn Control>, Instant::now());
    let bridged =
        BridgedSession { control: control_near, connection: client, epoch, session: SESSION };
    (Fake { control, connection: server }, bridged)
}

impl Fake {
    fn say(&self, body: Body) {
        self.control.send(&Message::of(SESSION, body).emit()).expect("room");
    }

    fn tell(&self, note: &Note) {
        self.say(Body::Records(note.emit()));
    }

    /// Returns the next message of the session; `None` if the connection has ended.
    fn hear(&mut self) -> Option<Body> {
        let mut bytes = Vec::new();
        loop {
            match self.control.receive(&mut bytes, Some(TIME)).expect("a channel") {
                ControlEvent::Ended => return None,
                ControlEvent::TimedOut => panic!("no message comes"),
                ControlEvent::Message => {}
            }
            let message = Message::parse(&bytes).expect("a message");
            let event = self.connection.handle_control(message, Duration::ZERO);
            if let Ok(Some(Event::Session(Message { body, .. }))) = event {
                return Some(body);
            }
        }
    }
}

/// Runs a bridge between two servers, which `act` plays. Returns the result, and the paths of the
/// problems that were reported.
fn bridge(act: impl FnOnce(Fake, Fake) + Send) -> (Result<Finished, EndError>, Vec<String>) {
    let [(source, from), (sink, to)] = [Role::Sink, Role::Source].map(session);
    let (paths, progress) = (Arc::<Paths>::default(), Arc::<Progress>::default());
    let observer = Arc::clone(&paths) as Arc<dyn Observer>;
    let bridge = Bridge::new([from, to], observer, Arc::clone(&progress), false);
    let result = thread::scope(|scope| {
        scope.spawn(|| act(source, sink));
        bridge.run()
    });
    let paths = std::mem::take(&mut *lock(&paths.0));
    (result, paths)
}

/// Runs a bridge on which a server says something wrong.
#[track_caller]
fn fails(name: &str, text: &str, act: impl FnOnce(&Fake, &Fake) + Send) -> EndError {
    let (result, _) = bridge(|mut source, mut sink| {
        act(&source, &sink);
        // Both learn of it.
        for server in [&mut source, &mut sink] {
            while let Some(body) = server.hear() {
                if let Body::Cancel(_) = body {
                    break;
                }
            }
        }
    });
    let error = result.expect_err("it fails");
    let said = error.to_string();
    assert!(said.starts_with(name) && said.contains(text), "{said}");
    error
}

#[test]
fn messages_pass_between_the_servers_and_the_result_comes_to_the_client() {
    let total = Complete { blocks: 3, bytes: 7 };
    let credits = || Body::Credits(Credits { cumulative: 2, ..Credits::default() });
    let note = |path: &[u8]| {
        let (path, text) = (path.to_vec(), String::new());
        Note::Problem { path, text, is_warning: false }
    };
    let outcome = Summary { copied: 5, bytes: 7, ..Summary::default() };
    let (result, paths) = bridge(|mut source, mut sink| {
        sink.say(credits());
        assert_eq!(source.hear(), Some(credits()));
        source.say(Body::CreditRequest);
        source.tell(&note(b"source"));
        source.say(Body::Complete(total));
        assert_eq!(sink.hear(), Some(Body::CreditRequest));
        // So both ends count the same bytes of records.
        assert_eq!(sink.hear(), Some(Body::Records(note(b"source").emit())));
        assert_eq!(sink.hear(), Some(Body::Complete(total)));
        sink.tell(&note(b"sink"));
        sink.tell(&Note::Outcome(outcome));
        sink.say(Body::Complete(total));
        assert_eq!(source.hear(), Some(Body::Records(note(b"sink").emit())));
        assert_eq!(source.hear(), Some(Body::Records(Note::Outcome(outcome).emit())));
        assert_eq!(source.hear(), Some(Body::Complete(total)));
        source.control.close();
        assert_eq!(sink.hear(), None);
    });
    assert_eq!(result.expect("a copy").outcome, outcome);
    assert_eq!(paths, ["source", "sink"]);
}

#[test]
fn end_of_one_server_ends_the_other_one() {
    let cancel = |code| Body::Cancel(Cancel { code, text: "why".into() });
    assert!(!fails("the destination: ", "why", |_, sink| sink.say(cancel(Code::Space))).is_lost());
    assert!(!fails("the source: ", "why", |source, _| source.say(cancel(Code::Source))).is_lost());
    // The path between the servers may work again, or that through the client.
    assert!(fails("the source: ", "why", |source, _| source.say(cancel(Code::Channels))).is_lost());
    for is_source in [true, false] {
        let (result, _) = bridge(|mut source, mut sink| {
            let (ended, other) = match is_source {
                true => (&mut source, &mut sink),
                false => (&mut sink, &mut source),
            };
            ended.control.close();
            assert!(matches!(other.hear(), Some(Body::Cancel(_))));
        });
        assert!(result.is_err_and(|error| error.is_lost()));
    }
}

#[test]
fn servers_cannot_say_what_is_not_theirs() {
    let total = Complete { blocks: 0, bytes: 0 };
    fails("the destination: ", "an end before", |_, sink| sink.say(Body::Complete(total)));
    for note in [Note::Outcome(Summary::default()), Note::Again(Vec::new()), Note::Plan(Vec::new())]
    {
        fails("the source: ", "a note", |source, _| source.tell(&note));
    }
    let progress = Note::Progress(Reached::default());
    for note in [progress, Note::Plan(Vec::new()), Note::Removed { failed: 0 }] {
        fails("the destination: ", "a note", |_, sink| sink.tell(&note));
    }
    fails("the source: ", "unknown note", |source, _| source.say(Body::Records(vec![99])));
    fails("the destination: ", "", |_, sink| {
        sink.control.send(b"no message at all").expect("room");
    });
    fails("the source: ", "session", |source, _| {
        source.control.send(&Message::of(7, Body::CreditRequest).emit()).expect("room");
    });
}

#[test]
fn messages_that_one_server_does_not_take_stop_the_other_one() {
    const MANY: usize = 20_000;
    // Those in the channels of both, at the bridge, and one at each thread.
    const WAITING: usize = 2 * MEMORY_CONTROL_MAX + BRIDGE_MESSAGES_MAX + 4;
    let sent = &AtomicUsize::new(0);
    let (result, _) = bridge(|source, mut sink| {
        let source = &source;
        thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..MANY {
                    source.say(Body::CreditRequest);
                    sent.fetch_add(1, SeqCst);
                }
                source.control.close();
            });
            while sent.load(SeqCst) < WAITING - 8 {
                thread::yield_now();
            }
            let mut got = 0;
            while let Some(Body::CreditRequest) = sink.hear() {
                got += 1;
                let waiting = sent.load(SeqCst) - got;
                assert!(waiting <= WAITING, "{waiting}");
            }
            assert_eq!(got, MANY);
        });
    });
    assert!(result.is_err_and(|error| error.is_lost()));
}
