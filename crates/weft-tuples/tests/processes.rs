//! A server and clients by the fabric, in processes of their own, over shared memory and over
//! iWARP.

#![allow(clippy::unwrap_used)] // All of it is a test.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use weft_tuples::fabric::FabricListener;
use weft_tuples::limits::CONNECTIONS_MAX;
use weft_tuples::log::{Directory, Log};
use weft_tuples::model::{Count, Criteria, ElementEnd, Name, Operation, Outcome, Space, Tuple};
use weft_tuples::native::{Address, Client, Transport};
use weft_tuples::server::{Listener, Server};

/// What a process is: `serve ADDRESS DIRECTORY` or `take ADDRESS`.
const ROLE: &str = "WEFT_TUPLES_TEST_ROLE";
/// A process prints this before what the test wants to know.
const SAYS: &str = "says: ";
/// A hang.
const LIMIT: Duration = Duration::from_secs(240);
/// How the fabric carries connections, as `WEFT_TRANSPORT` names it.
const WAYS: [(&str, Transport); 2] = [("shm", Transport::Memory), ("tcp", Transport::Iwarp)];

fn name(text: &str) -> Name {
    Rc::from(text.as_bytes())
}

fn put(element: &str, value: impl Into<Vec<u8>>) -> Operation {
    let (criteria, end) = (Criteria::default(), ElementEnd::Back);
    let tuples = vec![Tuple::of(value)];
    Operation::Put { element: name(element), criteria, end, tuples, is_append: false }
}

fn take(element: &str) -> Operation {
    let elements = vec![name(element)];
    Operation::Take { elements, end: ElementEnd::Front, count: Count::AtMost(1) }
}

fn taken(outcome: Outcome) -> Vec<u8> {
    match outcome {
        Outcome::Taken(_, items) => items[0].fields[0].clone(),
        other => panic!("{other:?}"),
    }
}

fn connect(address: SocketAddr) -> Client {
    Client::connect(Address::Fabric(address.to_string()), LIMIT).unwrap()
}

/// What the processes of these tests run.
#[test]
fn role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut words = role.split(' ');
    match (words.next(), words.next(), words.next()) {
        (Some("serve"), Some(address), Some(directory)) => {
            serve(address.parse().unwrap(), Path::new(directory));
        }
        (Some("take"), Some(address), None) => {
            let outcome = connect(address.parse().unwrap()).call(take("queue"), None).unwrap();
            println!("{SAYS}{}", String::from_utf8(taken(outcome)).unwrap());
        }
        other => panic!("{other:?}"),
    }
}

/// A port that no system gives to those who ask for any, so that it is free when the next server
/// starts.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let own = u16::try_from(std::process::id() % 1_000).unwrap() * 10;
    loop {
        let port = 20_000 + (own + NEXT.fetch_add(1, Ordering::Relaxed)) % 10_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok()
            && UdpSocket::bind(("127.0.0.1", port)).is_ok()
        {
            return port;
        }
    }
}

fn serve(address: SocketAddr, directory: &Path) {
    let tcp = TcpListener::bind(address).expect("the TCP port");
    tcp.set_nonblocking(true).unwrap();
    let fabric = FabricListener::bind(address).expect("the port of the fabric");
    let listeners = vec![Listener::of_tcp(tcp), Listener::Fabric(fabric)];
    let server = Server::new(Space::default(), listeners, CONNECTIONS_MAX).unwrap();
    let directory = Directory::open(directory).unwrap();
    let server = server.with_log(|service| Log::open(Box::new(directory), service)).unwrap();
    println!("{SAYS}{address}");
    std::io::stdout().flush().unwrap();
    server.run().unwrap();
}

/// A process that does not outlive the test.
struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(transport: &str, role: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "role", "--nocapture", "--test-threads=1"]);
        // The tests connect by the loopback interface.
        command.env(ROLE, role).env("WEFT_TRANSPORT", transport).env("WEFT_DEVICES", "lo");
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// What it has to say.
    fn says(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "it has ended");
            // The harness prints the test's name before it, without an end of line.
            if let Some((_, text)) = line.split_once(SAYS) {
                return text.trim_end().to_owned();
            }
        }
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn end(mut self) {
        self.output.read_to_end(&mut Vec::new()).unwrap();
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server with its directory.
struct Running {
    transport: &'static str,
    process: Process,
    address: SocketAddr,
    directory: PathBuf,
    _folder: tempfile::TempDir,
}

impl Running {
    fn start(transport: &'static str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("state");
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let process = Self::serve(transport, address, &directory);
        Self { transport, process, address, directory, _folder: folder }
    }

    fn serve(transport: &str, address: SocketAddr, directory: &Path) -> Process {
        let role = format!("serve {address} {}", directory.display());
        let mut process = Process::start(transport, &role);
        assert_eq!(process.says(), address.to_string());
        process
    }

    /// Kills the server, and starts another one in its place.
    fn restart(&mut self) {
        self.process.child.kill().unwrap();
        self.process.child.wait().unwrap();
        self.process = Self::serve(self.transport, self.address, &self.directory);
    }

    /// A process that takes a tuple from `queue`.
    fn taker(&self) -> Process {
        Process::start(self.transport, &format!("take {}", self.address))
    }
}

/// Until so many operations wait for `queue`.
fn wait_for(client: &mut Client, waiting: usize) {
    let deadline = Instant::now() + LIMIT;
    loop {
        let described = client.call(Operation::Describe { element: name("queue") }, None).unwrap();
        let Outcome::Described(Some(found)) = described else { panic!("{described:?}") };
        if found.waiting == waiting {
            return;
        }
        assert!(Instant::now() < deadline, "{} wait, not {waiting}", found.waiting);
        sleep(Duration::from_millis(1));
    }
}

fn create(client: &mut Client) {
    let (element, criteria) = (name("queue"), Criteria::default());
    client.call(Operation::Create { element, criteria }, None).unwrap();
}

#[test]
fn processes_wait_for_each_other_and_may_be_killed() {
    for (transport, expected) in WAYS {
        let running = Running::start(transport);
        let mut client = connect(running.address);
        assert!(client.take_fallback().is_none());
        assert_eq!(client.transport(), Some(expected));
        create(&mut client);
        for round in 0..3 {
            let mut taker = running.taker();
            wait_for(&mut client, 1);
            client.call(put("queue", format!("{round}")), None).unwrap();
            assert_eq!(taker.says(), round.to_string(), "{transport}");
            taker.end();
            let killed = running.taker();
            wait_for(&mut client, 1);
            killed.kill();
            wait_for(&mut client, 0);
            client.call(put("queue", "kept"), None).unwrap();
            let outcome = client.call(take("queue"), Some(Duration::ZERO)).unwrap();
            assert_eq!(taken(outcome), b"kept", "{transport}");
        }
        let long: Vec<u8> = (0..3_000_000).map(|at| (at * 7 + at / 251) as u8).collect();
        client.call(put("queue", long.clone()), None).unwrap();
        assert!(taken(client.call(take("queue"), None).unwrap()) == long, "{transport}");
        // So that both sleep.
        let late = client.call(take("queue"), Some(Duration::from_millis(50))).unwrap();
        assert_eq!(late, Outcome::Nothing);
    }
}

#[test]
fn clients_outlive_a_killed_server() {
    for (transport, _) in WAYS {
        let mut running = Running::start(transport);
        let mut client = connect(running.address);
        create(&mut client);
        for round in 0..3 {
            client.call(put("kept", format!("{round}")), None).unwrap();
            let mut taker = running.taker();
            wait_for(&mut client, 1);
            running.restart();
            wait_for(&mut client, 1);
            client.call(put("queue", "late"), None).unwrap();
            assert_eq!(taker.says(), "late", "{transport}");
            taker.end();
            let outcome = client.call(take("kept"), Some(Duration::ZERO)).unwrap();
            assert_eq!(taken(outcome), round.to_string().as_bytes(), "{transport}");
        }
    }
}
