//! Clients of `weft tuples serve --state` make random calls, several at a time, while connections
//! are cut, the network between them and the server is partitioned, clients go away, and the server
//! is stopped and killed. What all of them saw has one order.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use fastrand::Rng;
use rustix::process::Signal;
use weft_histories::{ClientHistory, Clock, Plan, Session, Span, Verdict, check};
use weft_lab::endpoint::Port;
use weft_lab::{Folder, Program, Running, defect, ports, weft};

/// Time limit for what the lab itself does not limit. It detects a hang.
const TIMEOUT: Duration = Duration::from_secs(240);
/// Histories, unless `WEFT_LAB_TUPLES_HISTORIES` says otherwise.
const HISTORIES: u64 = 4;
const CLIENTS: u16 = 6;
/// The most faults of the server in a history.
const FAULTS: u32 = 6;
/// The most instants until the next fault.
const INSTANTS: u64 = 120;
const PLAN: Plan = Plan { calls: 50, depth: 3, wait_max: Duration::from_millis(20) };
/// So small that snapshots are written all the time.
const LOG_SIZE: &str = "20K";

fn start_server(port: u16, state: &Path) -> Result<Running> {
    let line = format!("tuples serve --listen 127.0.0.1:{port} --log-size {LOG_SIZE} --state");
    Program::plain(weft()?).line(&line).arg(state).start()
}

/// The network between the clients and the server.
#[derive(Default)]
struct Network {
    /// Nothing gets through.
    is_partitioned: AtomicBool,
    is_over: AtomicBool,
    links: Mutex<Vec<Arc<Carried>>>,
}

/// A connection of a client, and the one to the server that carries on its bytes.
struct Carried {
    client: TcpStream,
    server: TcpStream,
    /// The server does not learn that the client's end is gone.
    is_half_open: AtomicBool,
}

impl Network {
    /// Accepts connections for a server until the network is over.
    fn run(&self, listener: &TcpListener, port: u16) {
        thread::scope(|scope| {
            for client in listener.incoming() {
                self.wait_for_passage();
                if self.is_over.load(Ordering::Acquire) {
                    break;
                }
                // Without a server the client loses its connection.
                let Ok(client) = client else { continue };
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                let _ = (client.set_nodelay(true), server.set_nodelay(true));
                let link = Arc::new(Carried { client, server, is_half_open: false.into() });
                self.links().push(Arc::clone(&link));
                let other = Arc::clone(&link);
                scope.spawn(move || self.pass(&link, &link.client, &link.server));
                scope.spawn(move || self.pass(&other, &other.server, &other.client));
            }
            for link in self.links().iter() {
                end(&link.client);
                end(&link.server);
            }
        });
    }

    fn links(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Carried>>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for_passage(&self) {
        while self.is_partitioned.load(Ordering::Acquire) && !self.is_over.load(Ordering::Acquire) {
            thread::sleep(Duration::from_micros(200));
        }
    }

    fn pass(&self, link: &Carried, mut from: &TcpStream, mut to: &TcpStream) {
        let mut bytes = [0; 4096];
        while let Ok(len @ 1..) = from.read(&mut bytes) {
            self.wait_for_passage();
            if to.write_all(&bytes[..len]).is_err() {
                break;
            }
        }
        if !link.is_half_open.load(Ordering::Acquire) {
            end(to);
            end(from);
        }
    }

    /// Lets nothing through for a time, in which some clients lose their connections. The server
    /// has these until the same client has a new connection.
    fn partition(&self, rng: &mut Rng) {
        self.is_partitioned.store(true, Ordering::Release);
        for link in self.links().iter().filter(|_| rng.bool()) {
            link.is_half_open.store(true, Ordering::Release);
            end(&link.client);
        }
        thread::sleep(Duration::from_millis(rng.u64(..30)));
        self.is_partitioned.store(false, Ordering::Release);
    }
}

/// Ends a connection, which may have ended.
fn end(stream: &TcpStream) {
    let _ = stream.shutdown(Shutdown::Both);
}

/// Ends a network when nobody needs it, also after an error.
struct Ending<'a>(&'a Network, u16);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        drop(TcpStream::connect(("127.0.0.1", self.1)));
    }
}

/// One client.
struct Client<'a> {
    session: Session,
    rng: Rng,
    clock: &'a Clock,
    port: u16,
}

impl Client<'_> {
    /// Connects to the network, which loses the connection if there is no server.
    fn connect(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(stream)
    }

    /// Does the next thing. Returns false when the connection is to be lost.
    fn step(&mut self, stream: &mut TcpStream) -> Result<bool> {
        let may_begin = !self.session.is_waiting() || self.rng.bool();
        let request = if may_begin { self.session.begin(self.clock) } else { None };
        if let Some(request) = request {
            let is_cut = self.rng.u8(..40) == 0;
            let len = if is_cut { self.rng.usize(..=request.len()) } else { request.len() };
            return Ok(stream.write_all(&request[..len]).is_ok() && !is_cut);
        }
        if self.rng.u8(..60) == 0 {
            return Ok(false);
        }
        let mut bytes = [0; 4096];
        let len = match stream.read(&mut bytes) {
            Ok(0) => return Ok(false),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                return Err(defect(format!("no answer: {:?}", self.session)));
            }
            Err(_) => return Ok(false),
        };
        let output = match self.session.receive(self.clock, &bytes[..len]) {
            Ok(output) => output,
            Err(unexpected) => return Err(defect(unexpected)),
        };
        Ok(stream.write_all(&output).is_ok())
    }

    /// Works until everything is answered, or until the client goes away for good.
    fn run(mut self, is_mortal: bool) -> Result<ClientHistory> {
        let mut left = if is_mortal { self.rng.usize(1..150) } else { usize::MAX };
        let deadline = Instant::now() + TIMEOUT;
        while !self.session.is_over() {
            if Instant::now() >= deadline {
                return Err(defect(format!("not all is answered: {:?}", self.session)));
            }
            let mut stream = self.connect()?;
            let hello = self.session.connect();
            // The next read fails, too, if this does.
            let _ = stream.write_all(&hello);
            while !self.session.is_over() && self.step(&mut stream)? {
                left -= 1;
                if left == 0 {
                    return Ok(self.session.history(true));
                }
            }
            // The server is perhaps starting.
            thread::sleep(Duration::from_millis(1));
        }
        Ok(self.session.history(false))
    }
}

/// Stops and kills the server again and again while clients work, and partitions the network.
struct Trouble<'a> {
    rng: Rng,
    port: u16,
    state: &'a Path,
    clock: &'a Clock,
    network: &'a Network,
    working: &'a AtomicUsize,
    crashes: Vec<Span>,
}

impl Trouble<'_> {
    /// Returns the server that is left.
    fn run(&mut self, mut server: Running) -> Result<Running> {
        for _ in 0..FAULTS {
            let goal = self.clock.instants() + self.rng.u64(1..INSTANTS);
            while self.clock.instants() < goal {
                if self.working.load(Ordering::Acquire) == 0 {
                    return Ok(server);
                }
                ensure!(server.is_running()?, "the server has ended: {}", server.account());
                thread::sleep(Duration::from_micros(self.rng.u64(..500)));
            }
            match self.rng.u8(..4) {
                0 => {
                    server.signal(Signal::STOP)?;
                    thread::sleep(Duration::from_millis(self.rng.u64(..30)));
                    server.signal(Signal::CONT)?;
                }
                1 => self.network.partition(&mut self.rng),
                _ => {
                    let start = self.clock.tick();
                    server.kill()?;
                    self.crashes.push(Span { start, end: Some(self.clock.tick()) });
                    server = start_server(self.port, self.state)?;
                }
            }
        }
        Ok(server)
    }
}

/// Says at the end that a client does not work any more.
struct Working<'a>(&'a AtomicUsize);

impl Drop for Working<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

fn history(seed: u64) -> Result<(Vec<ClientHistory>, Vec<Span>)> {
    let folder = Folder::new(0o700)?;
    let (port, state) = (ports::next(), folder.path().join("state"));
    let server = start_server(port, &state)?.listening(Port::Tcp(port))?;
    let (clock, mut rng) = (Clock::default(), Rng::with_seed(seed));
    let (network, listener) = (Network::default(), TcpListener::bind(("127.0.0.1", 0))?);
    let entry = listener.local_addr()?.port();
    let working = AtomicUsize::new(CLIENTS.into());
    thread::scope(|scope| {
        let _ending = Ending(&network, entry);
        scope.spawn(|| network.run(&listener, port));
        let clients = (0..CLIENTS).map(|number| {
            let session = Session::new(seed, number, PLAN);
            let client = Client { session, rng: rng.fork(), clock: &clock, port: entry };
            // One of them goes away for good.
            let (is_mortal, working) = (number == 0, Working(&working));
            scope.spawn(move || {
                let history = client.run(is_mortal);
                drop(working);
                history
            })
        });
        let clients: Vec<_> = clients.collect();
        let mut trouble = Trouble {
            rng,
            port,
            state: &state,
            clock: &clock,
            network: &network,
            working: &working,
            crashes: Vec::new(),
        };
        let server = trouble.run(server);
        let mut histories = Vec::new();
        for client in clients {
            let Ok(history) = client.join() else { bail!("a client has panicked") };
            histories.push(history?);
        }
        server?.kill()?;
        Ok((histories, trouble.crashes))
    })
}

#[test]
fn what_clients_saw_has_one_order_whatever_breaks() -> Result<()> {
    let count = match std::env::var("WEFT_LAB_TUPLES_HISTORIES") {
        Ok(count) => count.parse().context("WEFT_LAB_TUPLES_HISTORIES")?,
        Err(_) => HISTORIES,
    };
    let (mut calls, mut losses, mut crashed, mut undecided) = (0, 0, 0, 0);
    for seed in 0..count {
        let (histories, crashes) = history(seed).with_context(|| format!("history {seed}"))?;
        match check(&histories, &crashes) {
            Verdict::Consistent => {}
            Verdict::Inconsistent(account) => {
                return Err(defect(format!("history {seed}: no order explains this:\n{account}")));
            }
            Verdict::Undecided => undecided += 1,
        }
        calls += histories.iter().map(|client| client.calls.len()).sum::<usize>();
        crashed += crashes.len();
        losses += histories.iter().map(|client| client.losses.len()).sum::<usize>();
    }
    println!("{count} histories, {calls} calls, {losses} lost connections, {crashed} crashes");
    // How many orders a search has to try depends on what the clients happened to see.
    ensure!(undecided * 2 <= count, "{undecided} of {count} searches have given up");
    let is_loaded = calls as u64 > 100 * count && losses as u64 > count && crashed as u64 > count;
    ensure!(is_loaded, "there was no load");
    Ok(())
}
