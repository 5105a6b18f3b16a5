//! Conversations with a connection.

use proptest::collection::vec;
use proptest::prelude::*;

use super::{Addresses, Connection, Roster};
use crate::access::{Account, Guard, Rights, Token};
use crate::input::Input;
use crate::limits::{FOLLOWED_MAX, UNPROVEN_OUTPUT_LEN_MAX};
use crate::model::{Now, Outcome, Space};

/// A space and its connections.
#[derive(Default)]
struct Server {
    space: Space,
    ms: u64,
}

struct TestClient {
    input: Input,
    connection: Connection,
}

fn guarded(guard: Guard) -> Connection {
    let now = Now { clock: std::time::Duration::ZERO, ms: 0 };
    Connection::new(now, &Roster::default(), Addresses::default(), guard)
}

impl Default for TestClient {
    fn default() -> Self {
        let connection = guarded(Guard::default());
        Self { input: Input::default(), connection }
    }
}

impl Server {
    fn now(&self) -> Now {
        Now { clock: std::time::Duration::from_millis(self.ms), ms: 1_000 + self.ms }
    }

    /// Sends bytes and returns the replies.
    fn send(&mut self, peer: &mut TestClient, mut bytes: &[u8]) -> String {
        while !bytes.is_empty() {
            let space = peer.input.space();
            let len = space.len().min(bytes.len());
            space[..len].copy_from_slice(&bytes[..len]);
            peer.input.received(len);
            bytes = &bytes[len..];
        }
        let now = self.now();
        peer.connection.handle(now, &mut peer.input, &mut self.space);
        replies(peer)
    }

    /// Hands a waiting connection the outcome of its operation, and returns the replies.
    fn poll(&mut self, peer: &mut TestClient) -> String {
        while let Some((ticket, outcome)) = self.space.poll() {
            peer.connection.answer(ticket, outcome);
            let now = self.now();
            peer.connection.handle(now, &mut peer.input, &mut self.space);
        }
        replies(peer)
    }
}

fn replies(peer: &mut TestClient) -> String {
    let text = String::from_utf8_lossy(peer.connection.output()).replace("\r\n", " ");
    let len = peer.connection.output().len();
    peer.connection.sent(len);
    text.trim_end().to_owned()
}

/// Runs lines, and checks the replies behind `=>`.
fn converse(script: &str) {
    converse_by(&mut TestClient::default(), script);
}

fn converse_by(peer: &mut TestClient, script: &str) {
    let mut server = Server::default();
    for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (command, expected) = line.split_once(" => ").expect("a line has a reply");
        let reply = server.send(peer, format!("{command}\r\n").as_bytes());
        assert_eq!(reply, expected, "{command}");
    }
}

#[test]
fn transactions_behave_as_those_of_redis() {
    converse(
        "EXEC => -ERR EXEC without MULTI
         DISCARD => -ERR DISCARD without MULTI
         MULTI => +OK
         CLIENT SETNAME => -ERR wrong number of arguments for 'client|setname' command
         EXEC x => -EXECABORT Transaction discarded because of: wrong number of arguments for \
           'exec' command
         EXEC => -ERR EXEC without MULTI
         MULTI => +OK
         XINFO none l => -ERR unknown subcommand 'none'. Try XINFO HELP.
         CONFIG GET save => +QUEUED
         EXEC => -EXECABORT Transaction discarded because of previous errors.
         MULTI => +OK
         MULTI => -ERR MULTI calls can not be nested
         WATCH l => -ERR WATCH inside MULTI is not allowed
         RPUSH l a b => +QUEUED
         LPOP l => +QUEUED
         LLEN => -ERR wrong number of arguments for 'llen' command
         EXEC => -EXECABORT Transaction discarded because of previous errors.
         LLEN l => :0
         MULTI => +OK
         RPUSH l a b => +QUEUED
         XADD l 1-1 f v => +QUEUED
         BLPOP l 0 => +QUEUED
         BLPOP none 0 => +QUEUED
         BLMOVE none l LEFT LEFT 0 => +QUEUED
         EXEC => *5 :2 -WRONGTYPE Operation against a key holding the wrong kind of value \
           *2 $1 l $1 a *-1 $-1
         MULTI => +OK
         DEL l => +QUEUED
         DISCARD => +OK
         LLEN l => :1
         WATCH l none => +OK
         RPUSH l c => :2
         MULTI => +OK
         DEL l => +QUEUED
         EXEC => *-1
         WATCH l none => +OK
         LREM l 0 x => :0
         MULTI => +OK
         EXEC => *0
         WATCH l => +OK
         DEL l => :1
         UNWATCH => +OK
         MULTI => +OK
         PING => +QUEUED
         RESET => +RESET
         EXEC => -ERR EXEC without MULTI",
    );
}

/// A command that waits is served after the transaction, and does not come before its commands.
#[test]
fn nobody_sees_the_middle_of_a_transaction() {
    let (mut server, mut waiter, mut peer) =
        (Server::default(), TestClient::default(), TestClient::default());
    assert_eq!(server.send(&mut waiter, b"BLPOP l 0\r\n"), "");
    let commands = b"MULTI\r\nRPUSH l a b\r\nLPOP l\r\nLLEN l\r\nEXEC\r\n";
    let replies = server.send(&mut peer, commands);
    assert_eq!(replies, "+OK +QUEUED +QUEUED +QUEUED *3 :2 $1 a :1");
    assert_eq!(server.poll(&mut waiter), "*2 $1 l $1 b");
}

#[test]
fn elements_that_nobody_watches_any_more_are_forgotten() {
    let mut server = Server::default();
    for end in ["EXEC", "MULTI\r\nEXEC", "MULTI\r\nDISCARD", "UNWATCH", "RESET"] {
        for _ in 0..3 {
            let mut peer = TestClient::default();
            let names: Vec<String> = (0..FOLLOWED_MAX / 2).map(|at| at.to_string()).collect();
            for part in names.chunks(1_000) {
                let watch = format!("WATCH {}\r\n", part.join(" "));
                assert_eq!(server.send(&mut peer, watch.as_bytes()), "+OK");
            }
            server.send(&mut peer, format!("{end}\r\n").as_bytes());
            if end == "EXEC" {
                // There was no transaction: the connection still watches, up to its end.
                let now = server.now();
                peer.connection.leave(now, &mut server.space);
            }
        }
    }
    let mut peer = TestClient::default();
    let watch = |from: usize| (from..from + 1_000).map(|at| format!("w{at} ")).collect::<String>();
    for at in 0..FOLLOWED_MAX / 1_000 {
        let watch = format!("WATCH {}\r\n", watch(at * 1_000));
        assert_eq!(server.send(&mut peer, watch.as_bytes()), "+OK");
    }
    let many = format!("WATCH {}\r\n", watch(FOLLOWED_MAX));
    assert!(server.send(&mut peer, many.as_bytes()).starts_with("-BUSY"));
}

fn closed() -> TestClient {
    let token = Token::new(b"0123456789abcdef").unwrap();
    let connection = guarded(Guard::new(Some(token)));
    TestClient { input: Input::default(), connection }
}

/// The replies are those of a Redis with `--requirepass 0123456789abcdef`.
#[test]
fn nothing_is_done_for_a_client_without_the_password() {
    const HELLO: &str = "-NOAUTH HELLO must be called with the client already authenticated, \
         otherwise the HELLO AUTH <user> <pass> option can be used to authenticate the \
         client and select the RESP protocol version at the same time";
    const WRONG: &str = "-WRONGPASS invalid username-password pair or user is disabled.";
    let script = format!(
        "PING => -NOAUTH Authentication required.
         RPUSH l a => -NOAUTH Authentication required.
         CLIENT LIST => -NOAUTH Authentication required.
         COMMAND => -NOAUTH Authentication required.
         LLEN => -ERR wrong number of arguments for 'llen' command
         GET x => -ERR unknown command 'GET', with args beginning with: 'x'
         HELLO 3 => {HELLO}
         HELLO 9 => -NOPROTO unsupported protocol version
         HELLO 3 AUTH default wrong => {WRONG}
         AUTH wrong => {WRONG}
         AUTH other 0123456789abcdef => {WRONG}
         AUTH a b c => -ERR syntax error
         RESET => +RESET
         LLEN l => -NOAUTH Authentication required.
         AUTH 0123456789abcdef => +OK
         LLEN l => :0
         AUTH wrong => {WRONG}
         LLEN l => :0
         RESET => +RESET
         LLEN l => -NOAUTH Authentication required.
         AUTH default 0123456789abcdef => +OK
         LLEN l => :0
         RESET => +RESET
         HELLO 2 AUTH default 0123456789abcdef SETNAME me => *14 $6 server $4 weft $7 version \
           $6 7.0.15 $5 proto :2 $2 id :1 $4 mode $10 standalone $4 role $6 master $7 modules *0
         CLIENT GETNAME => $2 me"
    );
    converse_by(&mut closed(), &script);
}

#[test]
fn commands_and_replies_of_a_client_without_the_password_are_bounded() {
    let mut server = Server::default();
    for (bytes, error) in [
        (&b"*11\r\n"[..], "unauthenticated multibulk length"),
        (b"*2\r\n$4\r\nAUTH\r\n$16381\r\n", "unauthenticated bulk length"),
        (b"*2\r\n$16384\r\n", ""),
    ] {
        let reply = server.send(&mut closed(), bytes);
        assert_eq!(reply.trim_start_matches("-ERR Protocol error: "), error);
    }
    let mut peer = closed();
    let many = "PING\r\n".repeat(10_000);
    let space = peer.input.space();
    let len = space.len().min(many.len()) / 6 * 6;
    space[..len].copy_from_slice(&many.as_bytes()[..len]);
    peer.input.received(len);
    peer.connection.handle(server.now(), &mut peer.input, &mut server.space);
    assert!(peer.connection.output().len() < 2 * UNPROVEN_OUTPUT_LEN_MAX);
    assert!(!peer.input.bytes().is_empty(), "there are more commands");
}

#[test]
fn lists_behave_as_those_of_redis() {
    converse(
        "LPUSH l a b c => :3
         LRANGE l 0 -1 => *3 $1 c $1 b $1 a
         LRANGE l -2 -1 => *2 $1 b $1 a
         LRANGE l 5 9 => *0
         RPUSH l d => :4
         LINDEX l -1 => $1 d
         LINDEX l 9 => $-1
         LLEN l => :4
         RPOP l => $1 d
         LPOP l 2 => *2 $1 c $1 b
         LPOP l 0 => *0
         LPOP none => $-1
         LPOP none 2 => *-1
         LMOVE l m LEFT RIGHT => $1 a
         EXISTS l m m => :2
         TOUCH l m none => :1
         TYPE m => +list
         RPOPLPUSH m m => $1 a
         BLPOP l m 0 => *2 $1 m $1 a
         LMOVE l m LEFT RIGHT => $-1
         LLEN l => :0
         RPUSH l => -ERR wrong number of arguments for 'rpush' command
         LRANGE l x 1 => -ERR value is not an integer or out of range
         LMOVE l m UP RIGHT => -ERR syntax error
         BLPOP l -1 => -ERR timeout is negative
         BLPOP l nan => -ERR timeout is not a float or out of range",
    );
}

#[test]
fn streams_behave_as_those_of_redis() {
    converse(
        "XADD s * f 1 => $6 1000-0
         XADD s * f 2 => $6 1000-1
         XADD s 2000-* f 3 => $6 2000-0
         XADD s 2000-* f 4 => $6 2000-1
         XADD s 1-1 f 4 => -ERR The ID specified in XADD is equal or \
           smaller than the target stream top item
         XADD s 3000 f 5 => $6 3000-0
         XLEN s => :5
         XRANGE s - + COUNT 1 => *1 *2 $6 1000-0 *2 $1 f $1 1
         XRANGE s (1000-0 (2000-0 => *1 *2 $6 1000-1 *2 $1 f $1 2
         XRANGE s 2000 2000 COUNT 1 => *1 *2 $6 2000-0 *2 $1 f $1 3
         XREAD COUNT 1 STREAMS s none 2000-0 0 => *1 *2 $1 s *1 *2 $6 2000-1 *2 $1 f $1 4
         XREAD STREAMS s $ => *-1
         TYPE s => +stream
         LPUSH s x => -WRONGTYPE Operation against a key holding the wrong kind of value
         BLPOP s 0 => -WRONGTYPE Operation against a key holding the wrong kind of value
         XADD s 0-0 f 1 => -ERR The ID specified in XADD must be greater than 0-0
         XADD s * f => -ERR wrong number of arguments for 'xadd' command
         XREAD STREAMS s => -ERR wrong number of arguments for 'xread' command
         XREAD STREAMS s 0 x => -ERR Unbalanced XREAD list of streams: for each stream key an ID \
           or '$' must be specified.
         XADD s a-b f 1 => -ERR Invalid stream ID specified as stream command argument
         RPUSH l x => :1
         XLEN l => -WRONGTYPE Operation against a key holding the wrong kind of value
         KEYS * => *2 $1 l $1 s
         DEL s l none => :2
         DBSIZE => :0",
    );
}

#[test]
fn connections_are_set_up_as_clients_expect() {
    converse(
        "PING => +PONG
         PING hi => $2 hi
         PING a b => -ERR wrong number of arguments for 'ping' command
         ECHO hi => $2 hi
         SELECT 0 => +OK
         SELECT 1 => -ERR DB index is out of range
         CLIENT GETNAME => $-1
         CLIENT SETNAME me => +OK
         CLIENT GETNAME => $2 me
         CLIENT ID => :1
         CLIENT LIST => $68 id=1 addr= laddr= name=me age=0 db=0 user=default cmd=client resp=2
         CLIENT LIST ID 7 1 => $68 id=1 addr= laddr= name=me age=0 db=0 user=default cmd=client \
           resp=2
         CLIENT LIST ID x => -ERR Invalid client ID
         CLIENT LIST ID => -ERR syntax error
         CLIENT LIST TYPE pubsub => $0
         CLIENT LIST TYPE x => -ERR Unknown client type 'x'
         CLIENT SETINFO LIB-NAME x => +OK
         CLIENT KILL => -ERR unknown subcommand 'KILL'. Try CLIENT HELP.
         HELLO 4 => -NOPROTO unsupported protocol version
         AUTH other x => -WRONGPASS invalid username-password pair or user is disabled.
         CONFIG GET save => *2 $4 save $0
         CONFIG GET other => *0
         COMMAND DOCS => *0
         COMMAND INFO lpush none => *2 *6 $5 lpush :-3 *0 :1 :1 :1 *-1
         SCAN 0 => *2 $1 0 *0
         Expire x 1 => -ERR unknown command 'Expire', with args beginning with: 'x' '1'
         RESET => +RESET
         CLIENT GETNAME => $-1",
    );
}

#[test]
fn resp3_has_maps_nulls_and_texts() {
    converse(
        "HELLO 3 SETNAME me => %7 $6 server $4 weft $7 version $6 7.0.15 $5 proto :3 $2 id :1 \
           $4 mode $10 standalone $4 role $6 master $7 modules *0
         CLIENT GETNAME => $2 me
         LPOP none => _
         LPOP none 2 => _
         XADD s 1-1 f v => $3 1-1
         XREAD STREAMS s 0 => %1 $1 s *1 *2 $3 1-1 *2 $1 f $1 v
         XREAD STREAMS s $ => _
         CONFIG GET save => %1 $4 save $0
         COMMAND DOCS => %0
         XINFO STREAM s => %5 $6 length :1 $17 last-generated-id $3 1-1 $6 groups :0 \
           $11 first-entry *2 $3 1-1 *2 $1 f $1 v $10 last-entry *2 $3 1-1 *2 $1 f $1 v
         CLIENT INFO => =72 txt:id=1 addr= laddr= name=me age=0 db=0 user=default cmd=client resp=3
         RESET => +RESET
         LPOP none => $-1",
    );
}

#[test]
fn lists_are_changed_in_the_middle() {
    converse(
        "RPUSH l a b c a => :4
         LINSERT l BEFORE a x => :5
         LINSERT l AFTER a y => :6
         LINSERT l BEFORE none z => :-1
         LRANGE l 0 -1 => *6 $1 x $1 a $1 y $1 b $1 c $1 a
         LSET l -1 d => +OK
         LSET l 6 d => -ERR index out of range
         LSET none 0 d => -ERR no such key
         LPOS l d => :5
         LPOS l a RANK -1 COUNT 0 => *1 :1
         LREM l 0 a => :1
         LTRIM l 1 -2 => +OK
         LRANGE l 0 -1 => *3 $1 y $1 b $1 c
         LMPOP 2 none l RIGHT COUNT 2 => *2 $1 l *2 $1 c $1 b
         LPUSHX none a => :0
         RPUSHX l a => :2
         LTRIM l 5 9 => +OK
         EXISTS l => :0",
    );
}

#[test]
fn streams_are_trimmed() {
    converse(
        "XADD s NOMKSTREAM 1-1 f 1 => $-1
         XADD s 1-1 f 1 => $3 1-1
         XADD s 1-* f 2 => $3 1-2
         XADD s MAXLEN 2 2-1 f 3 => $3 2-1
         XADD s MAXLEN ~ 9 LIMIT 1 3-1 f 4 => $3 3-1
         XREVRANGE s + 2 COUNT 1 => *1 *2 $3 3-1 *2 $1 f $1 4
         XDEL s 2-1 2-1 9-9 => :1
         XTRIM s MINID 3 => :1
         XLEN s => :1
         XTRIM s MAXLEN 0 => :1
         EXISTS s => :1
         XADD s 3-1 f 5 => -ERR The ID specified in XADD is equal or \
           smaller than the target stream top item
         XADD s MAXLEN 1 MINID 1 * f 5 => -ERR syntax error, \
           MAXLEN and MINID options at the same time are not compatible",
    );
}

#[test]
fn a_blocked_connection_begins_no_other_command() {
    let (mut server, mut waiter, mut other) =
        (Server::default(), TestClient::default(), TestClient::default());
    assert_eq!(server.send(&mut waiter, b"BLPOP a b 0\r\nPING\r\n"), "");
    assert_eq!(server.send(&mut other, b"RPUSH b 1\r\nLLEN b\r\n"), ":1 :0");
    assert_eq!(server.poll(&mut waiter), "*2 $1 b $1 1 +PONG");
    assert_eq!(server.send(&mut waiter, b"BLMOVE a b LEFT LEFT 0.5\r\nECHO x\r\n"), "");
    server.ms += 500;
    let now = server.now();
    server.space.expire(now);
    assert_eq!(server.poll(&mut waiter), "*-1 $1 x");
    assert_eq!(server.send(&mut waiter, b"XREAD BLOCK 0 STREAMS s $\r\n"), "");
    assert_eq!(server.send(&mut other, b"XADD s * a b\r\n"), "$6 1500-0");
    assert_eq!(server.poll(&mut waiter), "*1 *2 $1 s *1 *2 $6 1500-0 *2 $1 a $1 b");
}

#[test]
fn quit_and_malformed_commands_end_a_connection() {
    for (bytes, reply) in [
        (&b"QUIT\r\nPING\r\n"[..], "+OK"),
        (b"*1\r\n:1\r\nPING\r\n", "-ERR Protocol error: expected '$'"),
    ] {
        let (mut server, mut peer) = (Server::default(), TestClient::default());
        assert_eq!(server.send(&mut peer, bytes), reply);
        assert!(peer.connection.is_ended());
    }
}

#[test]
fn approximate_trimming_removes_whole_nodes() {
    let (mut server, mut peer) = (Server::default(), TestClient::default());
    for entry in 1..=250 {
        server.send(&mut peer, format!("XADD s {entry} f v\r\n").as_bytes());
    }
    for (command, reply) in [
        ("XTRIM s MAXLEN ~ 151", ":0"),
        ("XTRIM s MAXLEN ~ 40 LIMIT 150", ":100"),
        ("XTRIM s MINID ~ 205", ":100"),
        ("XTRIM s MAXLEN ~ 1", ":0"),
        ("XTRIM s MAXLEN ~ 0 LIMIT 49", ":0"),
        ("XTRIM s MAXLEN ~ 0", ":50"),
    ] {
        assert_eq!(server.send(&mut peer, format!("{command}\r\n").as_bytes()), reply, "{command}");
    }
}

fn word() -> impl Strategy<Value = Vec<u8>> {
    const WORDS: [&str; 50] = [
        "LPUSH",
        "LSET",
        "LREM",
        "LTRIM",
        "LINSERT",
        "BEFORE",
        "LPOS",
        "RANK",
        "LMPOP",
        "XDEL",
        "XTRIM",
        "XREVRANGE",
        "MAXLEN",
        "MINID",
        "~",
        "RPOP",
        "BLPOP",
        "BRPOP",
        "LMOVE",
        "BLMOVE",
        "XADD",
        "XREAD",
        "XRANGE",
        "STREAMS",
        "COUNT",
        "BLOCK",
        "LEFT",
        "RIGHT",
        "DEL",
        "KEYS",
        "CONFIG",
        "GET",
        "LRANGE",
        "HELLO",
        "*",
        "$",
        "0",
        "1",
        "-1",
        "-",
        "+",
        "a",
        "b",
        "1-1",
        "18446744073709551615-*",
        "1e300",
        "(0",
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551615-18446744073709551615",
    ];
    let known = proptest::sample::select(&WORDS[..]).prop_map(|word| word.as_bytes().to_vec());
    prop_oneof![9 => known, 1 => vec(any::<u8>(), 0..4)]
}

proptest! {
    #[test]
    fn any_commands_are_answered(commands in vec(vec(word(), 1..7), 1..20)) {
        let (mut server, mut peer) = (Server::default(), TestClient::default());
        for words in &commands {
            let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
            for word in words {
                bytes.extend(format!("${}\r\n", word.len()).into_bytes());
                bytes.extend(word);
                bytes.extend(b"\r\n");
            }
            let reply = server.send(&mut peer, &bytes);
            match peer.connection.waiting() {
                Some(ticket) => {
                    let now = server.now();
                    prop_assert!(server.space.cancel(now, ticket));
                    while let Some((ticket, outcome)) = server.space.poll() {
                        prop_assert_eq!(&outcome, &Outcome::Cancelled);
                        peer.connection.answer(ticket, outcome);
                    }
                    prop_assert!(!replies(&mut peer).is_empty());
                }
                None => prop_assert!(!reply.is_empty(), "{words:?}"),
            }
        }
    }
}

/// A client of a user that may read `r`, change `w`, and do both with `b`.
fn limited() -> TestClient {
    let token = Token::new(b"0123456789abcdef").unwrap();
    let texts = |texts: &[&str]| texts.iter().map(|it| it.as_bytes().to_vec()).collect();
    let rights = Rights { read: texts(&["r", "b"]), write: texts(&["w", "b"]) };
    let guard = Guard::of(vec![Account { name: "ann".to_owned(), token, rights }]);
    let mut client = TestClient { input: Input::default(), connection: guarded(guard) };
    assert_eq!(Server::default().send(&mut client, b"AUTH ann 0123456789abcdef\r\n"), "+OK");
    client
}

const NO_KEYS: &str =
    "-NOPERM this user has no permissions to access one of the keys used as arguments";

/// The replies are those of a Redis user with `%R~r* %W~w* ~b* +@all -flushall`.
#[test]
fn users_do_what_they_may() {
    const WRONG: &str = "-WRONGPASS invalid username-password pair or user is disabled.";
    let script = format!(
        "AUTH default 0123456789abcdef => {WRONG}
         ACL WHOAMI => $3 ann
         RPUSH r a => {NO_KEYS}
         RPUSH w a => :1
         LLEN w => :1
         LRANGE w 0 -1 => {NO_KEYS}
         LPOP w => {NO_KEYS}
         BLPOP b r 1 => {NO_KEYS}
         LMPOP 2 b r LEFT => {NO_KEYS}
         LMPOP 4 b r LEFT => -ERR syntax error
         LMPOP 02 b r LEFT => {NO_KEYS}
         BLMPOP 1 2 b r LEFT => {NO_KEYS}
         XREAD COUNT 1 STREAMS r w 0 0 => {NO_KEYS}
         XINFO STREAM w => {NO_KEYS}
         RPUSH b a => :1
         LMOVE b w LEFT LEFT => $1 a
         LMOVE w b LEFT LEFT => {NO_KEYS}
         DEL w r => {NO_KEYS}
         LLEN x => {NO_KEYS}
         RPUSH x => -ERR wrong number of arguments for 'rpush' command
         FLUSHALL => -NOPERM this user has no permissions to run the 'flushall' command
         KEYS * => *1 $1 w
         MULTI => +OK
         RPUSH x a => {NO_KEYS}
         EXEC => -EXECABORT Transaction discarded because of previous errors.
         WATCH x => {NO_KEYS}"
    );
    converse_by(&mut limited(), &script);
}

/// Whatever a user asks for, what it may not read is not in the replies, and what it may not change
/// stays as it is.
#[test]
fn no_command_gets_round_the_rights_of_its_user() {
    const WORDS: [&str; 40] = [
        "r1",
        "w1",
        "b1",
        "x1",
        "rs",
        "ws",
        "bs",
        "xs",
        "0",
        "1",
        "2",
        "3",
        "-1",
        "LEFT",
        "RIGHT",
        "COUNT",
        "STREAMS",
        "BLOCK",
        "MATCH",
        "TYPE",
        "STREAM",
        "BEFORE",
        "AFTER",
        "MAXLEN",
        "MINID",
        "~",
        "=",
        "*",
        "-",
        "+",
        "$",
        "0-1",
        "list",
        "stream",
        "secret",
        "a",
        "WITHVALUES",
        "RANK",
        "NOMKSTREAM",
        "LIMIT",
    ];
    let mut random = fastrand::Rng::with_seed(1);
    let state = |server: &Server, names: &[&str]| -> Vec<String> {
        let tuples = |name: &&str| {
            server.space.tuples(&std::rc::Rc::from(name.as_bytes())).collect::<Vec<_>>()
        };
        names.iter().map(|name| format!("{:?}", tuples(name))).collect()
    };
    let names: Vec<&str> = super::commands::names().collect();
    let mut done = 0;
    for _ in 0..600 {
        let mut server = Server::default();
        let mut full = TestClient::default();
        for name in ["r1", "w1", "b1", "x1"] {
            let text = if name == "r1" || name == "b1" { "open" } else { "secret" };
            server.send(&mut full, format!("RPUSH {name} {text} {text} {text}\r\n").as_bytes());
            let stream = name.replace('1', "s");
            server.send(&mut full, format!("XADD {stream} 0-1 f {text}\r\n").as_bytes());
        }
        let before = state(&server, &["r1", "rs", "x1", "xs"]);
        let mut client = limited();
        for _ in 0..60 {
            let name = *random.choice(&names).unwrap();
            if ["auth", "reset", "quit", "hello"].contains(&name) {
                continue;
            }
            let count = random.usize(..8);
            let words: Vec<&str> =
                (0..count).map(|_| *random.choice(WORDS.iter()).unwrap()).collect();
            // What a client says itself may be in its replies.
            if words.contains(&"secret") && !name.contains("push") && !name.contains("ins") {
                continue;
            }
            let mut command = format!("*{}\r\n", count + 1);
            for word in std::iter::once(&name).chain(&words) {
                command.push_str(&format!("${}\r\n{word}\r\n", word.len()));
            }
            let reply = server.send(&mut client, command.as_bytes());
            done += usize::from(!reply.starts_with('-'));
            let is_shown = !words.contains(&"secret") && reply.contains("secret");
            assert!(!is_shown, "{name} {words:?}: {reply}");
            assert_eq!(state(&server, &["r1", "rs", "x1", "xs"]), before, "{name} {words:?}");
            if client.connection.waiting().is_some() {
                let now = server.now();
                client.connection.leave(now, &mut server.space);
                client = limited();
            }
        }
    }
    assert!(done > 1_000, "only {done} commands were done");
}
