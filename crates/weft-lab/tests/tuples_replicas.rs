//! Three servers keep a tuple space together. Servers are killed and stopped while clients put and
//! take: what a client was answered is so at the next leader.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fastrand::Rng;
use rustix::process::Signal;
use weft_lab::credentials::{certificate, secret};
use weft_lab::endpoint::Port;
use weft_lab::{
    Folder, Namespace, NamespacePair, Program, Running, defect, ensure_data, ports,
    skip_without_namespaces, weft,
};
use weft_tuples::access::{Token, Trust};
use weft_tuples::model::{Count, Criteria, ElementEnd, Name, Operation, Outcome, Tuple};
use weft_tuples::native::{Address, Client, Credentials, Transport};

/// Time limit for what the lab itself does not limit. It detects a hang.
const TIMEOUT: Duration = Duration::from_secs(240);
/// How often a server is killed, unless `WEFT_LAB_TUPLES_KILLS` says otherwise.
const KILLS: u32 = 6;
/// Clients that put and take meanwhile.
const CLIENTS: u64 = 4;
/// The most answers between two kills.
const ANSWERS: u64 = 200;
const NAMES: [&str; 3] = ["one", "two", "three"];
/// So small that snapshots are written all the time.
const LOG_SIZE: &str = "50K";

/// Three servers, some of which run.
struct Group {
    folder: Folder,
    clients: [u16; 3],
    peers: [u16; 3],
    running: [Option<Running>; 3],
    /// More options of each server.
    options: Vec<OsString>,
}

impl Group {
    /// Starts three servers.
    fn start() -> Result<Self> {
        Self::start_with(Folder::new(0o700)?, Vec::new())
    }

    fn start_with(folder: Folder, options: Vec<OsString>) -> Result<Self> {
        let (clients, peers) = ([(); 3].map(|()| ports::next()), [(); 3].map(|()| ports::next()));
        let mut this = Self { folder, clients, peers, running: [None, None, None], options };
        for at in 0..3 {
            this.describe(at, peers)?;
            this.start_one(at)?;
        }
        // A server that is late has no listener by the fabric yet.
        for server in this.running.iter_mut().flatten() {
            server.printed("listening on", TIMEOUT)?;
        }
        Ok(this)
    }

    fn file(&self, at: usize) -> PathBuf {
        self.folder.path().join(format!("{}.toml", NAMES[at]))
    }

    /// Writes the file of a server, in which the others are found at these ports.
    fn describe(&self, at: usize, peers: [u16; 3]) -> Result<()> {
        let mut text = "secret = \"not a secret at all\"\n".to_owned();
        for ((name, clients), peers) in NAMES.iter().zip(self.clients).zip(peers) {
            text += &format!(
                "[[server]]\nname = \"{name}\"\nclients = \"127.0.0.1:{clients}\"\n\
                 peers = \"127.0.0.1:{peers}\"\n"
            );
        }
        let file = self.file(at);
        fs::write(&file, text)?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
        Ok(())
    }

    fn start_one(&mut self, at: usize) -> Result<()> {
        let line = format!("tuples serve --log-size {LOG_SIZE} --name {} --replicas", NAMES[at]);
        let state = self.folder.path().join(NAMES[at]);
        let program = Program::plain(weft()?).line(&line).arg(self.file(at)).arg("--state");
        self.running[at] = Some(program.arg(state).args(&self.options).start()?);
        Ok(())
    }

    fn kill(&mut self, at: usize) -> Result<()> {
        self.running[at].take().context("the server does not run")?.kill()?;
        Ok(())
    }

    fn signal(&mut self, at: usize, signal: Signal) -> Result<()> {
        self.running[at].as_mut().context("the server does not run")?.signal(signal)
    }

    fn address(&self) -> Address {
        let all = self.clients.map(|port| Address::Tcp(format!("127.0.0.1:{port}")));
        Address::Several(all.to_vec())
    }

    fn fabric_address(&self) -> Address {
        let all = self.clients.map(|port| Address::Fabric(format!("127.0.0.1:{port}")));
        Address::Several(all.to_vec())
    }

    fn connect(&self) -> Result<Client> {
        Ok(Client::connect(self.address(), TIMEOUT)?)
    }

    /// Waits for a leader. Returns its number.
    fn leader(&mut self) -> Result<usize> {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            for (at, port) in self.clients.into_iter().enumerate() {
                if self.running[at].is_some()
                    && ask(port, "LLEN nothing").is_ok_and(|it| it == ":0")
                {
                    return Ok(at);
                }
            }
            self.check()?;
            if Instant::now() >= deadline {
                return Err(defect("no server becomes the leader"));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Fails if a server has ended by itself.
    fn check(&mut self) -> Result<()> {
        for server in self.running.iter_mut().flatten() {
            ensure!(server.is_running()?, "a server has ended: {}", server.account());
        }
        Ok(())
    }
}

/// Sends a command by the Redis protocol. Returns the first line of the reply.
fn ask(port: u16, command: &str) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.write_all(format!("{command}\r\n").as_bytes())?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    ensure!(line.ends_with("\r\n"), "no reply");
    Ok(line.trim_end().to_owned())
}

fn name(element: &str) -> Name {
    Rc::from(element.as_bytes())
}

fn put(element: &str, value: &str) -> Operation {
    Operation::Put {
        element: name(element),
        criteria: Criteria::default(),
        end: ElementEnd::Back,
        tuples: vec![Tuple::of(value)],
        is_append: false,
    }
}

fn take(element: &str, count: u32) -> Operation {
    let (elements, end) = (vec![name(element)], ElementEnd::Front);
    Operation::Take { elements, end, count: Count::AtMost(count) }
}

/// Takes all values that are left.
fn drain(client: &mut Client, element: &str) -> Result<Vec<String>> {
    let mut values = Vec::new();
    loop {
        match client.call(take(element, 1_000), Some(Duration::ZERO))? {
            Outcome::Taken(_, items) => {
                for item in items {
                    let value = item.fields.into_iter().next().context("no fields")?;
                    values.push(String::from_utf8(value)?);
                }
            }
            Outcome::Nothing => return Ok(values),
            other => bail!("take: {other:?}"),
        }
    }
}

#[test]
fn a_put_that_was_answered_outlives_the_leader() -> Result<()> {
    let mut group = Group::start()?;
    let first = group.leader()?;
    let mut client = group.connect()?;
    let done = client.call(put("jobs", "frame 17"), None)?;
    ensure!(matches!(done, Outcome::Put(..)), "{done:?}");
    group.kill(first)?;
    let values = drain(&mut client, "jobs")?;
    ensure_data!(values == ["frame 17"], "{values:?}");
    // The other one says who leads, in the words of Redis.
    let deadline = Instant::now() + TIMEOUT;
    loop {
        let second = group.leader()?;
        let follower = (0..3).find(|at| ![first, second].contains(at)).context("no follower")?;
        ensure!(ask(group.clients[follower], "PING")? == "+PONG", "a follower answers no PING");
        let refused = format!(
            "-READONLY You can't write against a read only replica. The leader is 127.0.0.1:{}",
            group.clients[second]
        );
        if ask(group.clients[follower], "RPUSH jobs x")? == refused {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the follower does not know the leader");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_server_without_a_majority_serves_nothing() -> Result<()> {
    let mut group = Group::start()?;
    let leader = group.leader()?;
    let mut client = group.connect()?;
    client.call(put("jobs", "frame 20"), None)?;
    let [one, other] = [(leader + 1) % 3, (leader + 2) % 3];
    group.kill(one)?;
    group.kill(other)?;
    let deadline = Instant::now() + TIMEOUT;
    loop {
        // A leader that does not know yet that it is alone ends the connection.
        let answer = ask(group.clients[leader], "LLEN jobs").unwrap_or_default();
        ensure_data!(!answer.starts_with(':'), "a single server answers {answer}");
        if answer.starts_with("-READONLY") {
            break;
        }
        ensure!(Instant::now() < deadline, "the server does not notice: {answer}");
    }
    // A client says so, though it could not connect to the others. It leaves the server for a while
    // if that is still waiting for them.
    let list = Program::plain(weft()?).line("tuples list --retry 6 --server");
    let list = list.arg(group.address().to_string()).run(TIMEOUT)?;
    ensure!(list.stderr.contains("a majority"), list.error("the reason is not said"));
    group.start_one(one)?;
    let values = drain(&mut client, "jobs")?;
    ensure_data!(values == ["frame 20"], "{values:?}");
    group.check()
}

/// Servers are killed one after the other, the leader among them.
#[test]
fn clients_with_a_token_find_the_leader_by_tls() -> Result<()> {
    let folder = Folder::new(0o700)?;
    let token = secret(&folder, "token", "the token of three servers")?;
    let [cert, key] = certificate(&folder)?;
    let trust = Trust::read(&cert)?;
    let credentials = Credentials { token: Some(Token::read(&token)?), trust: Some(trust) };
    let options = [("--token-file", token), ("--tls-cert", cert), ("--tls-key", key)];
    let options = options.into_iter().flat_map(|(name, file)| [name.into(), file.into()]);
    let mut group = Group::start_with(folder, options.collect())?;
    let servers = group.clients.map(|port| Address::Tls(format!("127.0.0.1:{port}")));
    let servers = Address::Several(servers.to_vec());
    let mut client = Client::connect_with(servers, TIMEOUT, credentials)?;
    client.call(put("jobs", "first"), None)?;
    for at in 0..3 {
        group.kill(at)?;
        client.call(put("jobs", &at.to_string()), None)?;
        ensure!(client.transport() == Some(Transport::Tls), "not by TLS");
        group.start_one(at)?;
    }
    let values = drain(&mut client, "jobs")?;
    ensure_data!(values == ["first", "0", "1", "2"], "{values:?}");
    // Without the token no server says which one leads.
    for port in group.clients {
        let plain = ask(port, "LLEN jobs").unwrap_or_default();
        ensure!(plain.is_empty(), "a server answers {plain} without TLS");
    }
    group.check()
}

/// Two hosts: one server on the left one, the others and a client on the right one. The path
/// between them fails, and comes back. Other hosts can reach the servers, so they have TLS and a
/// token.
#[test]
fn a_partition_leaves_a_majority_that_serves_and_loses_nothing() -> Result<()> {
    skip_without_namespaces!();
    let (pair, folder) = (NamespacePair::new()?, Folder::new(0o700)?);
    let token = secret(&folder, "token", "the token of three servers")?;
    let [cert, key] = certificate(&folder)?;
    let sides = [&pair.left, &pair.right, &pair.right];
    let hosts = sides.map(|side| side.ipv4);
    let mut text = "secret = \"not a secret at all\"\n".to_owned();
    for (at, (name, host)) in NAMES.iter().zip(hosts).enumerate() {
        let clients = 7_417 + 10 * at;
        text += &format!(
            "[[server]]\nname = \"{name}\"\nclients = \"{host}:{clients}\"\n\
             peers = \"{host}:{}\"\n",
            clients + 1
        );
    }
    let file = secret(&folder, "group.toml", &text)?;
    let socket = |at: usize| folder.path().join(format!("socket-{at}"));
    let start = |at: usize| -> Result<Running> {
        let line = format!("tuples serve --log-size {LOG_SIZE} --name {} --replicas", NAMES[at]);
        let program = Program::plain(weft()?).line(&line).arg(&file).arg("--state");
        let program = program.arg(folder.path().join(NAMES[at])).arg("--token-file").arg(&token);
        let program = program.arg("--tls-cert").arg(&cert).arg("--tls-key").arg(&key);
        let program = program.arg("--unix").arg(socket(at));
        let mut server = program.within(Some(sides[at])).start()?;
        server.printed("listening on", TIMEOUT)?;
        Ok(server)
    };
    let servers: Vec<Running> = (0..3).map(start).collect::<Result<_>>()?;
    let address = |at: usize| format!("tls://{}:{}", hosts[at], 7_417 + 10 * at);
    let all = [0, 1, 2].map(address).join(",");
    let ask = |side: &Namespace, words: &str, servers: &str| -> Result<Program> {
        let program = Program::plain(weft()?).line(&format!("tuples {words} --server {servers}"));
        let program = program.arg("--token-file").arg(&token).arg("--tls-ca").arg(&cert);
        Ok(program.within(Some(side)))
    };
    let client = |words: &str| -> Result<String> {
        let program = ask(&pair.right, &format!("{words} --retry 200"), &all)?;
        Ok(program.run(TIMEOUT)?.success()?.stdout)
    };
    client("put jobs first")?;
    pair.link_down()?;
    client("put jobs second")?;
    // Its own address is gone with the path.
    let first = socket(0).display().to_string();
    let alone = ask(&pair.left, "put jobs lost --retry 2", &first)?.run(TIMEOUT)?;
    ensure!(alone.success().is_err(), "a server without a majority has taken a tuple");
    pair.link_up()?;
    client("put jobs third")?;
    let values = client("list jobs")?;
    ensure_data!(values == "first\nsecond\nthird\n", "{values}");
    // What it has missed is at the first server, too: the others need it now.
    let mut servers = servers.into_iter();
    let (Some(_first), Some(second), Some(_third)) =
        (servers.next(), servers.next(), servers.next())
    else {
        bail!("there are three servers");
    };
    second.kill()?;
    let values = client("take jobs -n 10")?;
    ensure_data!(values == "first\nsecond\nthird\n", "{values}");
    Ok(())
}

#[test]
fn a_server_of_several_listens_where_the_command_line_says() -> Result<()> {
    let folder = Folder::new(0o700)?;
    let [named, own, peers] = [(); 3].map(|()| ports::next());
    let text = format!(
        "secret = \"not a secret at all\"\n[[server]]\nname = \"one\"\n\
         clients = \"127.0.0.1:{named}\"\npeers = \"127.0.0.1:{peers}\"\n"
    );
    let file = secret(&folder, "group.toml", &text)?;
    let line = format!("tuples serve --listen 127.0.0.1:{own} --name one --replicas");
    let program = Program::plain(weft()?).line(&line).arg(file).arg("--state");
    let mut server = program.arg(folder.path().join("one")).start()?;
    server.printed(&format!("listening on 127.0.0.1:{own}"), TIMEOUT)?;
    let line = format!("tuples put jobs first --server 127.0.0.1:{own}");
    Program::plain(weft()?).line(&line).run(TIMEOUT)?.success()?;
    ensure!(TcpStream::connect(("127.0.0.1", named)).is_err(), "it listens there, too");
    server.kill()?;
    Ok(())
}

#[test]
fn server_that_strangers_can_reach_is_refused_or_says_so() -> Result<()> {
    let line = format!("tuples serve --no-fabric --listen 0.0.0.0:{}", ports::next());
    let refused = Program::plain(weft()?).line(&line).run(TIMEOUT)?;
    ensure!(refused.stderr.contains("--insecure"), refused.error("an address of all hosts"));
    let mut server = Program::plain(weft()?).line(&line).arg("--insecure").start()?;
    server.printed("listening on", TIMEOUT)?;
    let (_, complaints) = server.output();
    ensure!(complaints.contains("may read and change all tuples"), "{complaints}");
    server.kill()?;
    Ok(())
}

#[test]
fn a_client_that_waits_is_served_by_the_next_leader() -> Result<()> {
    let mut group = Group::start()?;
    next_leader_serves_who_waits(&mut group, Group::kill)?;
    group.check()
}

/// The process of the leader is stopped: its connections are there, and nobody answers.
#[test]
fn a_client_that_waits_leaves_a_leader_that_is_stopped() -> Result<()> {
    let mut group = Group::start()?;
    let first =
        next_leader_serves_who_waits(&mut group, |group, at| group.signal(at, Signal::STOP))?;
    let mut client = group.connect()?;
    client.call(put("jobs", "frame 19"), None)?;
    group.signal(first, Signal::CONT)?;
    // It lacks the last tuple for a while, and then says nothing rather than something old.
    let answer = ask(group.clients[first], "LLEN jobs").unwrap_or_else(|_| "closed".into());
    let is_right = [":1", "closed"].contains(&answer.as_str()) || answer.starts_with("-READONLY");
    ensure_data!(is_right, "the leader of the past answers {answer}");
    let server = Program::plain(weft()?).line("tuples take jobs --server");
    let taken = server.arg(group.address().to_string()).run(TIMEOUT)?.success()?;
    ensure_data!(taken.stdout == "frame 19\n", "{}", taken.stdout);
    group.check()
}

/// Has a client wait for a tuple at the leader, which `end` ends. Returns its number.
fn next_leader_serves_who_waits(
    group: &mut Group,
    end: impl FnOnce(&mut Group, usize) -> Result<()>,
) -> Result<usize> {
    let first = group.leader()?;
    let address = group.address();
    thread::scope(|scope| -> Result<usize> {
        let waiting = scope.spawn(|| -> Result<Vec<String>> {
            let mut client = Client::connect(address, TIMEOUT)?;
            match client.call(take("jobs", 1), None)? {
                Outcome::Taken(_, items) => {
                    let fields = items.into_iter().flat_map(|item| item.fields);
                    Ok(fields.map(String::from_utf8).collect::<Result<_, _>>()?)
                }
                other => bail!("take: {other:?}"),
            }
        });
        let mut client = group.connect()?;
        // The other client waits at the leader.
        loop {
            match client.call(Operation::List, None)? {
                Outcome::Listed(all) if all.iter().any(|element| element.waiting == 1) => break,
                Outcome::Listed(_) => {}
                other => bail!("list: {other:?}"),
            }
            // An element without tuples is not listed unless it is made.
            let create = Operation::Create { element: name("jobs"), criteria: Criteria::default() };
            let made = client.call(create, None)?;
            ensure!(matches!(made, Outcome::Created(_)), "{made:?}");
            thread::sleep(Duration::from_millis(5));
        }
        end(group, first)?;
        client.call(put("jobs", "frame 18"), None)?;
        let Ok(values) = waiting.join() else { bail!("the client has panicked") };
        ensure_data!(values? == ["frame 18"], "the client got another tuple");
        Ok(first)
    })
}

/// What clients were answered.
#[derive(Default)]
struct Seen {
    put: BTreeSet<String>,
    taken: Vec<String>,
}

/// What all clients share.
#[derive(Default)]
struct Load {
    connected: AtomicU64,
    answers: AtomicU64,
    is_over: AtomicBool,
}

fn work(address: Address, number: u64, load: &Load) -> Result<Seen> {
    let mut client = Client::connect(address, TIMEOUT)?;
    let fallback = client.take_fallback();
    load.connected.fetch_add(1, Ordering::Relaxed);
    ensure!(fallback.is_none(), "not by the fabric: {fallback:?}");
    let mut rng = Rng::with_seed(number);
    let (mut seen, mut values) = (Seen::default(), 0);
    while !load.is_over.load(Ordering::Relaxed) {
        if rng.u8(..3) != 0 {
            values += 1;
            let value = format!("{number}-{values}-{}", ".".repeat(rng.usize(..400)));
            match client.call(put("queue", &value), None)? {
                Outcome::Put(..) => drop(seen.put.insert(value)),
                other => bail!("put: {other:?}"),
            }
        } else {
            match client.call(take("queue", 3), Some(Duration::from_millis(rng.u64(..5))))? {
                Outcome::Taken(_, items) => {
                    for item in items {
                        let value = item.fields.into_iter().next().context("no fields")?;
                        seen.taken.push(String::from_utf8(value)?);
                    }
                }
                Outcome::Nothing => {}
                other => bail!("take: {other:?}"),
            }
        }
        load.answers.fetch_add(1, Ordering::Relaxed);
    }
    Ok(seen)
}

fn wait_for_answers(group: &mut Group, load: &Load, more: u64) -> Result<()> {
    let goal = load.answers.load(Ordering::Relaxed) + more;
    let deadline = Instant::now() + TIMEOUT;
    while load.answers.load(Ordering::Relaxed) < goal {
        group.check()?;
        if Instant::now() >= deadline {
            let accounts: Vec<_> =
                group.running.iter_mut().flatten().map(|it| it.account()).collect();
            return Err(defect(format!("no answers: {accounts:?}")));
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Times until clients had answers again, of leaders that were killed and of those that were
/// stopped.
type Pauses = [Vec<Duration>; 2];

/// Kills a server, most times the leader, and starts it again later; or stops it, and lets it go on
/// later.
fn kill_again_and_again(kills: u32, group: &mut Group, load: &Load) -> Result<Pauses> {
    let mut rng = Rng::with_seed(kills.into());
    let mut pauses = Pauses::default();
    for _ in 0..kills {
        wait_for_answers(group, load, rng.u64(1..ANSWERS))?;
        let leader = group.leader()?;
        let victim = if rng.u8(..4) == 0 { rng.usize(..3) } else { leader };
        let is_stopped = rng.u8(..3) == 0;
        if is_stopped {
            group.signal(victim, Signal::STOP)?;
        } else {
            group.kill(victim)?;
        }
        let start = Instant::now();
        wait_for_answers(group, load, CLIENTS + 1)?;
        if victim == leader {
            pauses[usize::from(is_stopped)].push(start.elapsed());
        }
        // Two of three go on, and the third one has to catch up.
        wait_for_answers(group, load, rng.u64(1..ANSWERS))?;
        if is_stopped {
            group.signal(victim, Signal::CONT)?;
            continue;
        }
        group.start_one(victim)?;
        if rng.bool() {
            group.running[victim] = match group.running[victim].take() {
                Some(server) => Some(server.listening(Port::Tcp(group.peers[victim]))?),
                None => None,
            };
        }
    }
    Ok(pauses)
}

#[test]
fn nothing_that_was_answered_is_lost_or_repeated_when_leaders_are_killed() -> Result<()> {
    let kills = match std::env::var("WEFT_LAB_TUPLES_KILLS") {
        Ok(kills) => kills.parse().context("WEFT_LAB_TUPLES_KILLS")?,
        Err(_) => KILLS,
    };
    let mut group = Group::start()?;
    let load = Load::default();
    let mut seen = Seen::default();
    let (address, by_fabric) = (group.address(), group.fabric_address());
    let pauses = thread::scope(|scope| -> Result<Pauses> {
        let start = |number| {
            // One goes by the fabric.
            let address = if number == 0 { by_fabric.clone() } else { address.clone() };
            let load = &load;
            scope.spawn(move || work(address, number, load))
        };
        let clients: Vec<_> = (0..CLIENTS).map(start).collect();
        // A server that is killed while a client connects by the fabric makes it fall back to TCP.
        let deadline = Instant::now() + TIMEOUT;
        while load.connected.load(Ordering::Relaxed) < CLIENTS && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        let killed = kill_again_and_again(kills, &mut group, &load);
        load.is_over.store(true, Ordering::Relaxed);
        for client in clients {
            let Ok(result) = client.join() else { bail!("a client has panicked") };
            let Seen { put, taken } = result?;
            seen.put.extend(put);
            seen.taken.extend(taken);
        }
        killed
    })?;
    // All of them at once.
    for at in 0..3 {
        group.kill(at)?;
    }
    for at in 0..3 {
        group.start_one(at)?;
    }
    seen.taken.extend(drain(&mut group.connect()?, "queue")?);
    let mut taken = BTreeSet::new();
    for value in &seen.taken {
        ensure_data!(taken.insert(value), "{value} was taken twice");
        ensure_data!(seen.put.contains(value), "{value} was not put");
    }
    let lost: Vec<_> = seen.put.iter().filter(|value| !taken.contains(value)).collect();
    ensure_data!(lost.is_empty(), "lost: {lost:?}");
    let answers = load.answers.load(Ordering::Relaxed);
    println!("{kills} kills and stops, {answers} answers, {} tuples", seen.put.len());
    for (mut pauses, what) in pauses.into_iter().zip(["killed", "stopped"]) {
        pauses.sort_unstable();
        let (median, longest) = (pauses.get(pauses.len() / 2), pauses.last());
        println!("{} leaders {what}: median {median:?}, longest {longest:?}", pauses.len());
    }
    ensure!(seen.put.len() > 10, "there was no load");
    group.check()
}
