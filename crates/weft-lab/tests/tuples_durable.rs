//! `weft tuples serve --state` is killed at random times while clients put and take. What a client
//! was answered is so after each restart: no tuple is lost, and none is there twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fastrand::Rng;
use weft_lab::endpoint::Port;
use weft_lab::{Folder, Program, Running, defect, ensure_data, ports, weft};
use weft_tuples::model::{
    Count, Criteria, ElementEnd, Item, Name, Operation, Order, Outcome, Rank, Refusal, Sync, Tuple,
};
use weft_tuples::native::{Address, Client};

/// Time limit for what the lab itself does not limit. It detects a hang.
const TIMEOUT: Duration = Duration::from_secs(240);
/// How often the server is killed, unless `WEFT_LAB_TUPLES_KILLS` says otherwise.
const KILLS: u32 = 30;
/// Clients that repeat an operation after a lost connection.
const CLIENTS: u64 = 4;
/// Clients by the Redis protocol, which cannot.
const REDIS_CLIENTS: u64 = 2;
/// So small that snapshots are written all the time.
const LOG_SIZE: &str = "100K";
/// The most answers between a start and the next kill.
const ANSWERS: u64 = 300;
const ELEMENTS: [(&str, Order, Sync); 5] = [
    ("queue", Order::Arrival, Sync::Unbounded),
    ("keyed", Order::Key, Sync::Unbounded),
    ("timed", Order::Time, Sync::Unbounded),
    ("bounded", Order::Arrival, Sync::Bound(40)),
    ("watched", Order::Arrival, Sync::Unread(40)),
];
const REDIS_LIST: &str = "list";

fn start(port: u16, state: &Path) -> Result<Running> {
    let line = format!("tuples serve --listen 127.0.0.1:{port} --log-size {LOG_SIZE} --state");
    Program::plain(weft()?).line(&line).arg(state).start()
}

fn name(element: &str) -> Name {
    Rc::from(element.as_bytes())
}

fn connect(port: u16) -> Result<Client> {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        match Client::connect(Address::Tcp(format!("127.0.0.1:{port}")), TIMEOUT) {
            Err(error) if Instant::now() >= deadline => return Err(error.into()),
            Err(_) => thread::yield_now(),
            Ok(client) => return Ok(client),
        }
    }
}

/// What all clients share while the server is killed.
#[derive(Default)]
struct Load {
    answers: AtomicU64,
    is_over: AtomicBool,
}

/// What clients were answered.
#[derive(Default)]
struct Seen {
    /// The values that were put, with the ranks that the server has named.
    put: BTreeMap<String, Option<Rank>>,
    /// Puts without an answer.
    maybe_put: BTreeSet<String>,
    /// Values that were taken, with their elements and ranks.
    taken: Vec<(String, String, Rank)>,
    /// Values that are in another element than the one into which they were put.
    moved: BTreeSet<String>,
    /// Takes without an answer.
    maybe_taken: usize,
}

impl Seen {
    fn add(&mut self, other: Self) {
        self.put.extend(other.put);
        self.maybe_put.extend(other.maybe_put);
        self.taken.extend(other.taken);
        self.moved.extend(other.moved);
        self.maybe_taken += other.maybe_taken;
    }

    fn take(&mut self, element: &str, items: Vec<Item>) -> Result<()> {
        for item in items {
            let value = item.fields.first().context("a tuple without fields")?;
            let value = String::from_utf8(value.clone())?;
            self.taken.push((value, element.to_owned(), item.rank));
        }
        Ok(())
    }

    /// Compares what was put with what was taken, when nothing is left.
    fn check(&self) -> Result<()> {
        let mut taken = BTreeSet::new();
        for (value, element, rank) in &self.taken {
            ensure_data!(taken.insert(value), "{value} was taken twice");
            let put = self.put.get(value);
            let is_known = put.is_some() || self.maybe_put.contains(value);
            ensure_data!(is_known, "{value} was not put");
            if let Some(Some(expected)) = put
                && !self.moved.contains(value)
            {
                ensure_data!(rank == expected, "{value} in {element}: {rank:?}, not {expected:?}");
            }
        }
        let lost: Vec<_> = self.put.keys().filter(|value| !taken.contains(value)).collect();
        let most = self.maybe_taken;
        let are_enough = lost.len() <= most;
        ensure_data!(are_enough, "{most} takes have no answer, but these are lost: {lost:?}");
        Ok(())
    }
}

/// A client that repeats what it was not answered.
fn work(port: u16, number: u64, load: &Load) -> Result<Seen> {
    let mut client = connect(port)?;
    let mut rng = Rng::with_seed(number);
    let (mut seen, mut values, mut last) = (Seen::default(), 0, i64::MIN);
    while !load.is_over.load(Ordering::Relaxed) {
        let (element, order, _) = ELEMENTS[rng.usize(..ELEMENTS.len())];
        let wait = Some(Duration::from_millis(rng.u64(..10)));
        match rng.u8(..8) {
            0..4 => {
                let mut new = Vec::new();
                let mut tuple = |_| {
                    values += 1;
                    new.push(format!("{number}-{values}"));
                    let key = if order == Order::Key { vec![rng.u8(..4)] } else { Vec::new() };
                    let padding = vec![b'.'; rng.usize(..600)];
                    let fields = [new[new.len() - 1].clone().into_bytes(), padding];
                    Tuple { key, stamp: None, fields: fields.into_iter().collect() }
                };
                let tuples: Vec<_> = (0..3).map(&mut tuple).collect();
                let put = Operation::Put {
                    element: name(element),
                    criteria: Criteria::default(),
                    end: ElementEnd::Back,
                    tuples,
                    is_append: false,
                };
                match client.call(put, wait)? {
                    Outcome::Put(rank, _) => {
                        let is_behind = rank.position > last;
                        ensure_data!(is_behind, "{element}: {rank:?} is not behind {last}");
                        last = rank.position;
                        let named = new.pop();
                        seen.put.extend(new.into_iter().map(|value| (value, None)));
                        seen.put.extend(named.map(|value| (value, Some(rank))));
                    }
                    Outcome::Nothing | Outcome::Refused(Refusal::Full) => {}
                    other => bail!("put into {element}: {other:?}"),
                }
            }
            4..6 => {
                let (elements, end) = (vec![name(element)], ElementEnd::Front);
                let take = Operation::Take { elements, end, count: Count::AtMost(4) };
                match client.call(take, wait)? {
                    Outcome::Taken(_, items) => seen.take(element, items)?,
                    Outcome::Nothing => {}
                    other => bail!("take from {element}: {other:?}"),
                }
            }
            6 => {
                let (from, to) =
                    ((name("queue"), ElementEnd::Front), (name("bounded"), ElementEnd::Back));
                match client.call(Operation::Transfer { from, to }, wait)? {
                    Outcome::Transferred(item) => {
                        let value = item.fields.into_iter().next().context("no fields")?;
                        seen.moved.insert(String::from_utf8(value)?);
                    }
                    Outcome::Nothing | Outcome::Refused(Refusal::Full) => {}
                    other => bail!("transfer: {other:?}"),
                }
            }
            _ => {
                let (elements, count) = (vec![(name("watched"), None)], Count::AtMost(20));
                match client.call(Operation::Observe { elements, count }, wait)? {
                    Outcome::Observed(_) | Outcome::Nothing => {}
                    other => bail!("observe: {other:?}"),
                }
            }
        }
        load.answers.fetch_add(1, Ordering::Relaxed);
    }
    Ok(seen)
}

/// A connection by the Redis protocol. It ends with the server.
struct Redis(BufReader<TcpStream>);

impl Redis {
    /// Sends a command with two arguments at most. Returns the first line of the reply, and the
    /// second one of a text.
    fn ask(&mut self, words: &[&str]) -> std::io::Result<(String, String)> {
        let mut command = format!("*{}\r\n", words.len());
        for word in words {
            command += &format!("${}\r\n{word}\r\n", word.len());
        }
        self.0.get_mut().write_all(command.as_bytes())?;
        let first = self.line()?;
        let is_text = first.starts_with('$') && first != "$-1";
        let second = if is_text { self.line()? } else { String::new() };
        Ok((first, second))
    }

    fn line(&mut self) -> std::io::Result<String> {
        let mut line = String::new();
        self.0.read_line(&mut line)?;
        if !line.ends_with("\r\n") {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}

/// A client by the Redis protocol. It does not know what became of what it was not answered.
fn work_by_redis(port: u16, number: u64, load: &Load) -> Result<Seen> {
    let mut rng = Rng::with_seed(number);
    let (mut seen, mut values) = (Seen::default(), 0);
    let mut connection: Option<Redis> = None;
    while !load.is_over.load(Ordering::Relaxed) {
        let Some(redis) = &mut connection else {
            let stream = TcpStream::connect(("127.0.0.1", port)).ok();
            connection = stream.map(|stream| Redis(BufReader::new(stream)));
            thread::yield_now();
            continue;
        };
        let is_answered = if rng.bool() {
            values += 1;
            let value = format!("redis-{number}-{values}");
            match redis.ask(&["RPUSH", REDIS_LIST, &value]) {
                Ok((reply, _)) => {
                    ensure!(reply.starts_with(':'), "RPUSH: {reply}");
                    seen.put.insert(value, None).is_none()
                }
                Err(_) => !seen.maybe_put.insert(value),
            }
        } else {
            match redis.ask(&["LPOP", REDIS_LIST]) {
                Ok((reply, value)) if !value.is_empty() => {
                    ensure!(reply.starts_with('$'), "LPOP: {reply}");
                    seen.taken.push((value, REDIS_LIST.to_owned(), Rank::default()));
                    true
                }
                Ok((reply, _)) => {
                    ensure!(reply == "$-1", "LPOP: {reply}");
                    true
                }
                Err(_) => {
                    seen.maybe_taken += 1;
                    false
                }
            }
        };
        if is_answered {
            load.answers.fetch_add(1, Ordering::Relaxed);
        } else {
            connection = None;
        }
    }
    Ok(seen)
}

/// Kills the server again and again, each time after some answers. Returns it at last.
fn kill_again_and_again(
    kills: u32,
    port: u16,
    state: &Path,
    mut server: Running,
    load: &Load,
) -> Result<Running> {
    let mut rng = Rng::with_seed(kills.into());
    for _ in 0..kills {
        // At times before it has answered at all, or listens.
        let more = if rng.u8(..6) == 0 { 0 } else { rng.u64(..ANSWERS) };
        let goal = load.answers.load(Ordering::Relaxed) + more;
        let deadline = Instant::now() + TIMEOUT;
        while load.answers.load(Ordering::Relaxed) < goal {
            ensure!(server.is_running()?, "the server has ended: {}", server.account());
            if Instant::now() >= deadline {
                return Err(defect(format!("no answers: {}", server.account())));
            }
            thread::sleep(Duration::from_micros(rng.u64(..500)));
        }
        server.kill()?;
        server = start(port, state)?;
    }
    Ok(server)
}

#[test]
fn nothing_that_was_answered_is_lost_or_repeated_when_the_server_is_killed() -> Result<()> {
    let kills = match std::env::var("WEFT_LAB_TUPLES_KILLS") {
        Ok(kills) => kills.parse().context("WEFT_LAB_TUPLES_KILLS")?,
        Err(_) => KILLS,
    };
    let folder = Folder::new(0o700)?;
    let (port, state) = (ports::next(), folder.path().join("state"));
    let server = start(port, &state)?.listening(Port::Tcp(port))?;
    let mut client = connect(port)?;
    for (element, order, sync) in ELEMENTS {
        let criteria = Criteria { order, sync };
        let made = client.call(Operation::Create { element: name(element), criteria }, None)?;
        ensure!(made == Outcome::Created(true), "{element}: {made:?}");
    }
    let load = Load::default();
    let mut seen = Seen::default();
    let server = thread::scope(|scope| -> Result<Running> {
        let clients = (0..CLIENTS).map(|number| {
            let load = &load;
            scope.spawn(move || work(port, number, load))
        });
        let clients: Vec<_> = clients.collect();
        let redis = (0..REDIS_CLIENTS).map(|number| {
            let load = &load;
            scope.spawn(move || work_by_redis(port, number, load))
        });
        let redis: Vec<_> = redis.collect();
        let server = kill_again_and_again(kills, port, &state, server, &load);
        load.is_over.store(true, Ordering::Relaxed);
        let server = server?.listening(Port::Tcp(port))?;
        for client in clients.into_iter().chain(redis) {
            let Ok(result) = client.join() else { bail!("a client has panicked") };
            seen.add(result?);
        }
        Ok(server)
    })?;
    server.kill()?;
    let mut server = start(port, &state)?.listening(Port::Tcp(port))?;
    for element in ELEMENTS.map(|(element, ..)| element).into_iter().chain([REDIS_LIST]) {
        let elements = vec![name(element)];
        let take =
            Operation::Take { elements, end: ElementEnd::Front, count: Count::AtMost(1_000) };
        while let Outcome::Taken(_, items) = client.call(take.clone(), Some(Duration::ZERO))? {
            if element == REDIS_LIST {
                // Its ranks are not compared.
                let values = items.into_iter().map(|item| Item { rank: Rank::default(), ..item });
                seen.take(element, values.collect())?;
            } else {
                seen.take(element, items)?;
            }
        }
    }
    seen.check()?;
    let answers = load.answers.load(Ordering::Relaxed);
    println!("{kills} kills, {answers} answers, {} tuples", seen.put.len());
    ensure!(seen.put.len() > 10 && !seen.moved.is_empty(), "there was no load");
    // The number of the first record has grown with each snapshot.
    let header = fs::read(state.join("log"))?;
    let first = header.get(20..28).context("no log")?;
    ensure!(u64::from_be_bytes(first.try_into()?) > 1, "there was no snapshot");
    server.signal(rustix::process::Signal::TERM)?;
    server.wait(TIMEOUT)?.success()?;
    Ok(())
}

#[test]
fn state_is_for_one_server_and_a_damaged_one_is_refused() -> Result<()> {
    let folder = Folder::new(0o700)?;
    let (port, state) = (ports::next(), folder.path().join("state"));
    let server = start(port, &state)?.listening(Port::Tcp(port))?;
    let other = start(ports::next(), &state)?.wait(TIMEOUT)?;
    ensure!(other.stderr.contains("another server uses it"), other.error("a second server"));
    let mut client = connect(port)?;
    for value in ["1", "2", "3"] {
        let put = Operation::Put {
            element: name("a"),
            criteria: Criteria::default(),
            end: ElementEnd::Back,
            tuples: vec![Tuple::of(value)],
            is_append: false,
        };
        client.call(put, None)?;
    }
    server.kill()?;
    let log = state.join("log");
    let mut bytes = fs::read(&log)?;
    let at = 45;
    bytes[at] ^= 1;
    fs::write(&log, &bytes)?;
    let refused = start(port, &state)?.wait(TIMEOUT)?;
    let text = format!("{}: the record at byte 40 is damaged", log.display());
    ensure!(refused.stderr.contains(&text), refused.error("a damaged log"));
    ensure!(!refused.status.success(), "a damaged log is a success");
    bytes[at] ^= 1;
    bytes.extend_from_slice(b"torn");
    fs::write(&log, &bytes)?;
    let mut server = start(port, &state)?.listening(Port::Tcp(port))?;
    server.printed("the last 4 bytes of the log", TIMEOUT)?;
    let elements = vec![name("a")];
    let take = Operation::Take { elements, end: ElementEnd::Front, count: Count::AtMost(9) };
    let Outcome::Taken(_, items) = client.call(take, None)? else {
        return Err(defect("the tuples are lost"));
    };
    ensure_data!(items.len() == 3, "{items:?}");
    server.kill()?;
    Ok(())
}
