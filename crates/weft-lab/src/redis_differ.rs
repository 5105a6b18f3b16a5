//! Random commands of the Redis protocol go to two servers, and their replies are compared byte by
//! byte.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use fastrand::Rng;

use crate::defect;

/// Time limit for a reply. It detects a hang.
const TIMEOUT: Duration = Duration::from_secs(240);
/// The last identity of all.
const LAST_ID: &str = "18446744073709551615-18446744073709551615";
/// The commands that a failure prints.
const LOG_LEN: usize = 40;

type Words = Vec<Vec<u8>>;

/// A connection to a server.
struct Client {
    socket: TcpStream,
    bytes: Vec<u8>,
}

/// Returns the length of the first reply, if it is complete.
fn reply_len(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")? + 2;
    let number = || std::str::from_utf8(&bytes[1..end - 2]).ok()?.parse::<i64>().ok();
    let members = match bytes[0] {
        b'$' | b'=' | b'!' => {
            let len = usize::try_from(number()?).map_or(end, |len| end + len + 2);
            return (bytes.len() >= len).then_some(len);
        }
        b'*' | b'~' | b'>' => number()?,
        b'%' => 2 * number()?,
        _ => return Some(end),
    };
    (0..members).try_fold(end, |at, _| Some(at + reply_len(&bytes[at..])?))
}

fn encode(words: &Words) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n", word.len()).into_bytes());
        bytes.extend(word);
        bytes.extend(b"\r\n");
    }
    bytes
}

impl Client {
    fn connect(port: u16) -> Result<Self> {
        let socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self { socket, bytes: Vec::new() })
    }

    /// Returns the next reply.
    fn reply(&mut self) -> Result<Vec<u8>> {
        loop {
            if let Some(len) = reply_len(&self.bytes) {
                let rest = self.bytes.split_off(len);
                return Ok(std::mem::replace(&mut self.bytes, rest));
            }
            let mut space = [0; 16 << 10];
            let len = self.socket.read(&mut space).context("a reply")?;
            if len == 0 {
                bail!("the server has closed the connection");
            }
            self.bytes.extend_from_slice(&space[..len]);
        }
    }

    /// Whether a reply has begun to arrive.
    fn has_reply(&mut self) -> Result<bool> {
        self.socket.set_nonblocking(true)?;
        let peeked = self.socket.peek(&mut [0]);
        self.socket.set_nonblocking(false)?;
        match peeked {
            Ok(len) => Ok(len != 0),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(!self.bytes.is_empty()),
            Err(error) => Err(error.into()),
        }
    }

    fn ask(&mut self, command: &str) -> Result<Vec<u8>> {
        self.does(&command.split(' ').map(|word| word.as_bytes().to_vec()).collect())
    }

    fn does(&mut self, words: &Words) -> Result<Vec<u8>> {
        self.socket.write_all(&encode(words))?;
        self.reply()
    }
}

/// A server: a client, another one that waits, and one that looks at the server.
struct Side {
    client: Client,
    waiter: Client,
    watcher: Client,
}

impl Side {
    fn connect(port: u16, logins: Option<Logins>) -> Result<Self> {
        let connect = || Client::connect(port);
        let mut side = Self { client: connect()?, waiter: connect()?, watcher: connect()? };
        if let Some(Logins { all, limited }) = logins {
            side.watcher.ask(all)?;
            side.client.ask(limited)?;
            side.waiter.ask(limited)?;
        }
        side.watcher.ask("FLUSHALL")?;
        Ok(side)
    }

    /// Whether the command of the waiter waits: then the server says so. Otherwise the reply is
    /// there.
    fn waits(&mut self) -> Result<bool> {
        let start = Instant::now();
        while start.elapsed() < TIMEOUT {
            if self.waiter.has_reply()? {
                return Ok(false);
            }
            let info = self.watcher.ask("INFO clients")?;
            if String::from_utf8_lossy(&info).contains("blocked_clients:1") {
                return Ok(true);
            }
        }
        bail!("neither does the command wait nor is there a reply")
    }
}

/// The commands by which clients become users of both servers.
#[derive(Clone, Copy, Debug)]
pub struct Logins {
    /// The user may do everything.
    pub all: &'static str,
    /// The user may do some things only. What the commands that name no key show of others is not
    /// compared.
    pub limited: &'static str,
}

/// Compares the replies of the servers at two ports to random commands, which depend on the seed
/// alone. The first server is the right one.
///
/// # Errors
///
/// If the replies differ, or a server does not answer.
pub fn compare(seed: u64, steps: usize, ports: [u16; 2], logins: Option<Logins>) -> Result<()> {
    let mut differ = Differ {
        rng: Rng::with_seed(seed),
        sides: [Side::connect(ports[0], logins)?, Side::connect(ports[1], logins)?],
        logins,
        log: Vec::new(),
        waits: false,
    };
    differ.run(steps).with_context(|| format!("seed {seed}\n{}", differ.last_commands()))
}

struct Differ {
    rng: Rng,
    sides: [Side; 2],
    logins: Option<Logins>,
    log: Vec<String>,
    /// The waiter has a command that waits.
    waits: bool,
}

impl Differ {
    fn last_commands(&self) -> String {
        self.log[self.log.len().saturating_sub(LOG_LEN)..].join("\n")
    }

    fn note(&mut self, who: &str, words: &Words) {
        let words: Vec<_> = words.iter().map(|it| String::from_utf8_lossy(it)).collect();
        self.log.push(format!("{who}: {}", words.join(" ")));
    }

    fn run(&mut self, steps: usize) -> Result<()> {
        if self.rng.bool() {
            self.log.push("HELLO 3".to_owned());
            for side in &mut self.sides {
                side.client.ask("HELLO 3")?;
                side.waiter.ask("HELLO 3")?;
            }
        }
        for _ in 0..steps {
            if !self.waits && self.rng.u8(..8) == 0 {
                self.begin_wait()?;
            } else if self.rng.u8(..12) == 0 {
                self.transact()?;
            } else {
                self.send()?;
            }
        }
        self.end_wait()
    }

    /// Sends some commands at once, however cut, and compares the replies.
    fn send(&mut self) -> Result<()> {
        let count = if self.waits { 1 } else { self.rng.usize(1..=4) };
        let mut commands = Vec::new();
        for _ in 0..count {
            self.commands(&mut commands);
        }
        let bytes: Vec<u8> = commands.iter().flat_map(encode).collect();
        let cut = self.rng.usize(..=bytes.len());
        for side in &mut self.sides {
            side.client.socket.write_all(&bytes[..cut])?;
            side.client.socket.write_all(&bytes[cut..])?;
        }
        for words in &commands {
            self.note("client", words);
            let [right, found] = &mut self.sides;
            let (right, found) = (right.client.reply()?, found.client.reply()?);
            same(&right, &found)?;
        }
        self.look_at_waiter()
    }

    /// Does a transaction, which watches elements that another client may change.
    fn transact(&mut self) -> Result<()> {
        let is_watching = self.rng.bool();
        if is_watching {
            let watch = vec![b"WATCH".to_vec(), self.list(), self.stream()];
            self.client(&watch)?;
            if self.rng.bool() {
                let mut commands = Vec::new();
                self.commands(&mut commands);
                for words in &commands {
                    self.note("watcher", words);
                    let [right, found] = &mut self.sides;
                    same(&right.watcher.does(words)?, &found.watcher.does(words)?)?;
                }
                self.look_at_waiter()?;
            }
        }
        self.client(&vec![b"MULTI".to_vec()])?;
        // One that waits for several elements would get from another one than in Redis.
        let most = if self.waits { 1 } else { 4 };
        for _ in 0..self.rng.usize(..=most) {
            let mut commands = Vec::new();
            self.commands(&mut commands);
            for words in commands {
                self.client(&words)?;
            }
        }
        let end = self.pick(&["EXEC", "EXEC", "EXEC", "exec", "DISCARD", "RESET"]);
        self.client(&vec![end])?;
        // What is left of it is looked for.
        let rest = self.pick(&["UNWATCH", "EXEC", "DISCARD"]);
        self.client(&vec![rest])?;
        // RESET has ended it.
        if let Some(Logins { limited, .. }) = self.logins {
            for side in &mut self.sides {
                side.client.ask(limited)?;
            }
        }
        self.look_at_waiter()
    }

    /// Compares the replies to a command of the client.
    fn client(&mut self, words: &Words) -> Result<()> {
        self.note("client", words);
        let [right, found] = &mut self.sides;
        same(&right.client.does(words)?, &found.client.does(words)?)
    }

    /// Begins a command that may wait.
    fn begin_wait(&mut self) -> Result<()> {
        let is_over_soon = self.rng.u8(..6) == 0;
        let words = self.waiting_command(if is_over_soon { "0.01" } else { "0" });
        self.note("waiter", &words);
        for side in &mut self.sides {
            side.waiter.socket.write_all(&encode(&words))?;
        }
        if is_over_soon {
            let [right, found] = &mut self.sides;
            self.waits = false;
            return same(&right.waiter.reply()?, &found.waiter.reply()?);
        }
        self.look_at_waiter()
    }

    /// Compares whether the waiter's command still waits, and its reply if it does not.
    fn look_at_waiter(&mut self) -> Result<()> {
        if !self.waits {
            return Ok(());
        }
        let [right, found] = &mut self.sides;
        let waits = [right.waits()?, found.waits()?];
        if waits[0] != waits[1] {
            return Err(defect(format!("the waiter waits: {} and {}", waits[0], waits[1])));
        }
        if !waits[0] {
            let replies = [right.waiter.reply()?, found.waiter.reply()?];
            self.log.push(format!("waiter gets {:?}", String::from_utf8_lossy(&replies[0])));
            self.waits = false;
            return same(&replies[0], &replies[1]);
        }
        Ok(())
    }

    /// Lets the waiter have what it waits for.
    fn end_wait(&mut self) -> Result<()> {
        for key in ["l1", "l2", "l3"] {
            for command in [format!("DEL {key}"), format!("RPUSH {key} a b c")] {
                self.both(&command)?;
            }
        }
        for key in ["s1", "s2"] {
            for command in [format!("DEL {key}"), format!("XADD {key} {LAST_ID} a b")] {
                self.both(&command)?;
            }
        }
        if self.waits { bail!("the waiter waits for ever") } else { Ok(()) }
    }

    fn both(&mut self, command: &str) -> Result<()> {
        self.log.push(command.to_owned());
        let [right, found] = &mut self.sides;
        same(&right.watcher.ask(command)?, &found.watcher.ask(command)?)?;
        self.look_at_waiter()
    }
}

fn same(right: &[u8], found: &[u8]) -> Result<()> {
    if right == found {
        return Ok(());
    }
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace("\r\n", " ");
    Err(defect(format!("the reply is\n{}\nin place of\n{}", text(found), text(right))))
}

/// The random commands.
impl Differ {
    fn pick(&mut self, words: &[&str]) -> Vec<u8> {
        words[self.rng.usize(..words.len())].as_bytes().to_vec()
    }

    /// A list, or rarely a stream.
    fn list(&mut self) -> Vec<u8> {
        let is_other = !self.waits && self.rng.u8(..20) == 0;
        self.pick(if is_other { &["s1", "none"] } else { &["l1", "l2", "l3"] })
    }

    fn stream(&mut self) -> Vec<u8> {
        let is_other = !self.waits && self.rng.u8(..20) == 0;
        self.pick(if is_other { &["l1", "none"] } else { &["s1", "s2"] })
    }

    fn value(&mut self) -> Vec<u8> {
        self.pick(&["a", "b", "c", "", "long value\r\n", "\u{1f980}"])
    }

    fn integer(&mut self) -> Vec<u8> {
        if self.rng.u8(..8) != 0 {
            return self.rng.i8(-6..6).to_string().into_bytes();
        }
        self.pick(&[
            "x",
            "",
            "01",
            "+1",
            "-0",
            " 1",
            "1.5",
            "9223372036854775807",
            "9223372036854775808",
            "-9223372036854775807",
            "4294967296",
            "1000",
        ])
    }

    fn side(&mut self) -> Vec<u8> {
        self.pick(&["LEFT", "RIGHT", "left", "Right", "LEFT", "RIGHT", "UP"])
    }

    /// An identity of an entry.
    fn id(&mut self) -> Vec<u8> {
        if self.rng.u8(..8) != 0 {
            let (ms, count) = (self.rng.u8(..12), self.rng.u8(..4));
            let text = if self.rng.bool() { format!("{ms}-{count}") } else { ms.to_string() };
            return text.into_bytes();
        }
        self.pick(&[
            "0-0",
            "-",
            "+",
            "$",
            ">",
            "",
            "x",
            "1-x",
            "1-2-3",
            "1-",
            "-1",
            "*-1",
            "007-1",
            "18446744073709551615",
            "18446744073709551616",
            "18446744073709551615-0",
            "5-*",
        ])
    }

    fn bound(&mut self) -> Vec<u8> {
        match self.rng.u8(..6) {
            0 => b"-".to_vec(),
            1 => b"+".to_vec(),
            2 => [b"(".to_vec(), self.id()].concat(),
            _ => self.id(),
        }
    }

    /// Appends some words that are options of `XADD` and `XTRIM`.
    fn trimming(&mut self, words: &mut Words) {
        let strategy = self.pick(&["MAXLEN", "MINID", "maxlen", "MINID"]);
        let is_length = strategy.eq_ignore_ascii_case(b"MAXLEN");
        words.push(strategy);
        match self.rng.u8(..4) {
            0 => words.push(b"=".to_vec()),
            1 => {
                // Streams are short: they go as a whole, or stay as they are.
                words.push(b"~".to_vec());
                words.push(if is_length { self.integer() } else { self.id() });
                if self.rng.bool() {
                    words.push(b"LIMIT".to_vec());
                    words.push(self.integer());
                }
                return;
            }
            _ => {}
        }
        words.push(if is_length { self.integer() } else { self.id() });
        if self.rng.u8(..12) == 0 {
            words.push(b"LIMIT".to_vec());
            words.push(self.integer());
        }
    }

    fn add(&mut self) -> Words {
        let mut words = vec![b"XADD".to_vec(), self.stream()];
        if self.rng.u8(..6) == 0 {
            words.push(b"NOMKSTREAM".to_vec());
        }
        // Redis trims before it serves who waits.
        if !self.waits && self.rng.u8(..4) == 0 {
            self.trimming(&mut words);
        }
        let id = match self.rng.u8(..3) {
            0 => format!("{}-*", self.rng.u8(..30)).into_bytes(),
            1 => format!("{}-{}", self.rng.u8(..30), self.rng.u8(..4)).into_bytes(),
            _ => self.id(),
        };
        words.push(id);
        let fields = if self.rng.u8(..8) == 0 { self.rng.usize(..5) } else { 2 };
        words.extend((0..fields).map(|_| self.value()));
        words
    }

    fn range(&mut self, name: &str) -> Words {
        let mut words = vec![name.as_bytes().to_vec(), self.stream(), self.bound(), self.bound()];
        while self.rng.u8(..3) == 0 {
            words.push(self.pick(&["COUNT", "count", "COUNT", "LIMIT"]));
            words.push(self.integer());
        }
        words
    }

    fn read(&mut self, block: Option<&str>) -> Words {
        let mut words = vec![b"XREAD".to_vec()];
        if let Some(time) = block {
            words.extend([b"BLOCK".to_vec(), time.as_bytes().to_vec()]);
        }
        if self.rng.u8(..3) == 0 {
            words.extend([b"COUNT".to_vec(), self.integer()]);
        }
        words.push(b"STREAMS".to_vec());
        let count = self.rng.usize(1..=2);
        let names = (0..count).map(|at| if at == 0 { b"s1".to_vec() } else { b"s2".to_vec() });
        words.extend(names);
        for _ in 0..count {
            let id = if self.rng.u8(..3) == 0 { b"$".to_vec() } else { self.id() };
            words.push(id);
        }
        words
    }

    fn multi_pop(&mut self, name: &str, timeout: Option<&str>) -> Words {
        let count = self.rng.usize(1..=3);
        let mut words = vec![name.as_bytes().to_vec()];
        words.extend(timeout.map(|timeout| timeout.as_bytes().to_vec()));
        let said = if self.rng.u8(..10) == 0 { self.integer() } else { count.to_string().into() };
        words.push(said);
        words.extend((0..count).map(|_| self.list()));
        words.push(self.side());
        if self.rng.bool() {
            words.extend([b"COUNT".to_vec(), self.integer()]);
        }
        words
    }

    fn waiting_command(&mut self, timeout: &str) -> Words {
        // No key of another kind: it may become one while the command waits.
        self.waits = true;
        let mut words = match self.rng.u8(..6) {
            0 | 1 => {
                let name = self.pick(&["BLPOP", "BRPOP"]);
                let count = self.rng.usize(1..=3);
                let mut words = vec![name];
                words.extend((0..count).map(|_| self.list()));
                words
            }
            2 => vec![b"BLMOVE".to_vec(), self.list(), self.list(), self.side(), self.side()],
            3 => vec![b"BRPOPLPUSH".to_vec(), self.list(), self.list()],
            4 => return self.multi_pop("BLMPOP", Some(timeout)),
            _ => {
                let time = if timeout == "0" { "0" } else { "10" };
                return self.read(Some(time));
            }
        };
        words.push(timeout.as_bytes().to_vec());
        words
    }

    fn list_command(&mut self) -> Words {
        let mut words: Words = match self.rng.u8(..16) {
            0..5 => {
                let name = self.pick(&["LPUSH", "RPUSH", "LPUSH", "RPUSH", "LPUSHX", "RPUSHX"]);
                let count = self.rng.usize(1..=4);
                let mut words = vec![name, self.list()];
                words.extend((0..count).map(|_| self.value()));
                return words;
            }
            5 => {
                let mut words = vec![self.pick(&["LPOP", "RPOP"]), self.list()];
                if self.rng.bool() {
                    words.push(self.integer());
                }
                return words;
            }
            6 => vec![b"LRANGE".to_vec()],
            7 => vec![b"LTRIM".to_vec()],
            8 => return vec![b"LINDEX".to_vec(), self.list(), self.integer()],
            9 => return vec![b"LSET".to_vec(), self.list(), self.integer(), self.value()],
            10 => return vec![b"LREM".to_vec(), self.list(), self.integer(), self.value()],
            11 => {
                let side = self.pick(&["BEFORE", "AFTER", "before", "After", "AT"]);
                return vec![b"LINSERT".to_vec(), self.list(), side, self.value(), self.value()];
            }
            12 => {
                let mut words = vec![b"LPOS".to_vec(), self.list(), self.value()];
                while self.rng.bool() {
                    words.push(self.pick(&["RANK", "COUNT", "MAXLEN", "rank", "NONE"]));
                    words.push(self.integer());
                }
                return words;
            }
            13 => return self.multi_pop("LMPOP", None),
            14 => {
                let (from, to) = (self.list(), self.list());
                return vec![b"LMOVE".to_vec(), from, to, self.side(), self.side()];
            }
            _ => return vec![b"RPOPLPUSH".to_vec(), self.list(), self.list()],
        };
        words.extend([self.list(), self.integer(), self.integer()]);
        words
    }

    fn stream_command(&mut self) -> Words {
        match self.rng.u8(..8) {
            0..4 => self.add(),
            4 => {
                let name = self.pick(&["XRANGE", "XREVRANGE"]);
                self.range(&String::from_utf8_lossy(&name))
            }
            5 => self.read(None),
            6 => {
                let mut words = vec![b"XTRIM".to_vec(), self.stream()];
                self.trimming(&mut words);
                words
            }
            _ => {
                let count = self.rng.usize(1..=3);
                let mut words = vec![b"XDEL".to_vec(), self.stream()];
                words.extend((0..count).map(|_| self.id()));
                words
            }
        }
    }

    fn other_command(&mut self) -> Words {
        let key = if self.rng.bool() { self.list() } else { self.stream() };
        let kind = match self.rng.u8(..14) {
            5..=7 if self.logins.is_some() => 9,
            kind => kind,
        };
        match kind {
            0 => vec![b"LLEN".to_vec(), key],
            1 => vec![b"XLEN".to_vec(), key],
            2 => vec![b"TYPE".to_vec(), key],
            3 => vec![self.pick(&["EXISTS", "TOUCH"]), key.clone(), b"none".to_vec(), key],
            4 => vec![self.pick(&["DEL", "UNLINK"]), key, b"none".to_vec()],
            5 => vec![b"DBSIZE".to_vec()],
            6 => vec![b"KEYS".to_vec(), key],
            7 => {
                let (pattern, count) = ([b"MATCH".to_vec(), key], b"1000".to_vec());
                let mut words = vec![b"SCAN".to_vec(), b"0".to_vec()];
                words.extend(pattern);
                words.extend([b"COUNT".to_vec(), count]);
                if self.rng.bool() {
                    words.extend([b"TYPE".to_vec(), self.pick(&["list", "stream", "string"])]);
                }
                words
            }
            8 => vec![self.pick(&["FLUSHALL", "FLUSHDB"]), self.pick(&["SYNC", "async", "x"])],
            9 => vec![b"PING".to_vec(), self.value()],
            10 => vec![self.pick(&["NOSUCH", "no such", "xnone", ""]), key, self.value()],
            11 if self.rng.bool() => {
                let (option, value) = (["ID", "TYPE", "id", "NO"], ["x", "pubsub", "0", "Master"]);
                let (option, value) = (self.pick(&option), self.pick(&value));
                vec![b"CLIENT".to_vec(), b"LIST".to_vec(), option, value]
            }
            11 => {
                let mut words = vec![b"CLIENT".to_vec()];
                words.push(self.pick(&["GETNAME", "SETNAME", "NO-EVICT", "none", "setname"]));
                if self.rng.bool() {
                    words.push(self.pick(&["me", "on", "two words", ""]));
                }
                words
            }
            12 => vec![b"HELLO".to_vec(), self.pick(&["1", "4", "x", ""])],
            _ => {
                let mut words = vec![self.pick(&["AUTH", "SELECT", "ECHO", "CONFIG", "XINFO"])];
                words.extend((0..self.rng.usize(..3)).map(|_| self.value()));
                words
            }
        }
    }

    /// Appends a command, or several that belong together.
    fn commands(&mut self, commands: &mut Vec<Words>) {
        let mut words = match self.rng.u8(..10) {
            0..5 => self.list_command(),
            5..8 => self.stream_command(),
            _ => self.other_command(),
        };
        // The reply to HELLO without a version differs.
        if self.rng.u8(..40) == 0 && words[0] != b"HELLO" {
            words.pop();
        } else if self.rng.u8(..40) == 0 {
            words.push(self.value());
        }
        if self.rng.u8(..4) == 0 {
            words.first_mut().into_iter().for_each(|name| name.make_ascii_lowercase());
        }
        if !words.is_empty() {
            commands.push(words);
        }
        if self.rng.u8(..30) == 0 {
            // The second identity is the server's own, which follows one in the far future.
            let stream = self.stream();
            for id in ["99999999999999-*", "*"] {
                let words = ["XADD", "", id, "f", "v"].map(|word| word.as_bytes().to_vec());
                let mut words = words.to_vec();
                words[1].clone_from(&stream);
                commands.push(words);
            }
        }
    }
}
