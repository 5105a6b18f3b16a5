//! Runs the two ends of a test in processes of their own, over each way to carry a connection.
//!
//! `weft-lab` has these files among its tests, too: there they run over the system's libraries, for
//! which Weft's own are put by `weft run`.

#![allow(dead_code)] // Each test program uses a part.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use weft_fabric::{Carrier, Connected, Endpoint, Fabric, Options};

/// Which end a process is: the address of the listener, empty for the listener itself.
const ROLE: &str = "WEFT_FABRIC_TEST_ROLE";
/// What the listener prints before its address.
const LISTENING: &str = "listening at ";
/// A hang.
const LIMIT: Duration = Duration::from_secs(240);

/// What carries the connections of a process: `engine`, `datagrams` or `system`.
const CARRIER: &str = "WEFT_FABRIC_TEST_CARRIER";
/// The path of the listener, if it is at one.
const PATH: &str = "WEFT_FABRIC_TEST_PATH";
/// The role of a process that has both ends.
const ALONE: &str = "alone";

/// A way to carry the connection of two ends.
struct Way {
    /// As `WEFT_TRANSPORT` names it. With `shm` a connection between processes fails if it cannot
    /// share memory.
    transport: &'static str,
    /// What carries it at the listener, and at the other end.
    carriers: [&'static str; 2],
    /// Whether the listener is at a Unix-domain path.
    by_path: bool,
}

const WAYS: [Way; 4] = [
    Way { transport: "shm", carriers: ["engine", "engine"], by_path: false },
    Way { transport: "tcp", carriers: ["engine", "engine"], by_path: false },
    Way { transport: "shm", carriers: ["engine", "engine"], by_path: true },
    Way { transport: "auto", carriers: ["datagrams", "datagrams"], by_path: false },
];
const WAYS_OF_THE_LAB: [Way; 4] = [
    Way { transport: "shm", carriers: ["system", "system"], by_path: false },
    Way { transport: "tcp", carriers: ["system", "system"], by_path: true },
    Way { transport: "shm", carriers: ["engine", "system"], by_path: false },
    Way { transport: "tcp", carriers: ["system", "engine"], by_path: false },
];

/// Whether this is a test of the lab.
pub(crate) fn is_of_the_lab() -> bool {
    env!("CARGO_PKG_NAME") == "weft-lab"
}

fn ways() -> &'static [Way] {
    if is_of_the_lab() { &WAYS_OF_THE_LAB } else { &WAYS }
}

/// Opens the fabric over what carries the connections of this process.
pub(crate) fn open(options: Options) -> weft_fabric::Result<Fabric> {
    let is_system = std::env::var(CARRIER).is_ok_and(|carrier| carrier == "system");
    let carrier = match is_over_datagrams() {
        true => Carrier::Datagrams,
        false if is_system => Carrier::System,
        false => Carrier::Engine,
    };
    Fabric::open(Options { carrier, ..options })
}

/// Whether reliable datagrams carry the connections of this process.
pub(crate) fn is_over_datagrams() -> bool {
    std::env::var(CARRIER).is_ok_and(|carrier| carrier == "datagrams")
}

fn path() -> Option<PathBuf> {
    std::env::var_os(PATH).map(PathBuf::from)
}

/// An empty directory, which is removed with this value.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("weft-{}-{number}", std::process::id()));
        std::fs::create_dir(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Bytes of private data that fit whatever carries the connections of the other end.
pub(crate) fn private_data_max(fabric: &Fabric) -> usize {
    let max = fabric.private_data_max();
    if is_of_the_lab() { max.min(241) } else { max }
}

/// The name of a test for the harness.
fn full_name(test: &str) -> String {
    // Without the crate and this module.
    let mut modules: Vec<_> = module_path!().split("::").skip(1).collect();
    modules.pop();
    modules.push(test);
    modules.join("::")
}

/// A process that runs a test of this name, over a carrier.
fn process(test: &str, transport: &str, carrier: &str) -> Result<Command> {
    let program = std::env::current_exe()?;
    let mut command = if carrier == "system" {
        let weft = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/bin/weft");
        let mut command = Command::new(weft);
        command.args(["run", "--no-sockets", "--"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.args(["--exact", &full_name(test), "--nocapture", "--test-threads=1"]);
    // The tests connect by the loopback interface.
    command.env(CARRIER, carrier).env("WEFT_TRANSPORT", transport).env("WEFT_DEVICES", "lo");
    Ok(command)
}

/// Runs a test of this name that has both ends in one process, over each carrier.
pub(crate) fn alone(test: &str, run: impl Fn() -> Result<()>) -> Result<()> {
    if std::env::var_os(ROLE).is_some() {
        return run();
    }
    let other = if is_of_the_lab() {
        "system"
    } else {
        run()?;
        "datagrams"
    };
    let mut command = process(test, "auto", other)?;
    let mut process = Kept::start(command.env(ROLE, ALONE).stdout(Stdio::null()))?;
    let status = process.wait(Instant::now() + LIMIT)?;
    ensure!(status.success(), "over {other}: {status}");
    Ok(())
}

/// The options of both ends: little of everything, so that its end is reached often.
pub(crate) fn small() -> Options {
    Options { window: 4, message_max: 3_000, depth: 6, ..Options::default() }
}

/// One of the two ends.
pub(crate) struct Side {
    pub(crate) fabric: Fabric,
    pub(crate) endpoint: Endpoint,
    /// What the peer said when the connection was made.
    pub(crate) greeting: Vec<u8>,
}

/// Runs a test of this name with two connected ends, over each carrier.
pub(crate) fn between(
    test: &str,
    options: &Options,
    server: impl Fn(Side) -> Result<()>,
    client: impl Fn(Side) -> Result<()>,
) -> Result<()> {
    let accept = |fabric: Fabric, address| {
        let listener = match path() {
            Some(path) => fabric.listen_path(path)?,
            None => fabric.listen(address)?,
        };
        announce(listener.address())?;
        let incoming = listener.accept().wait()?;
        let greeting = incoming.private_data().to_vec();
        let endpoint = incoming.accept(b"from the server")?;
        server(Side { fabric, endpoint, greeting })
    };
    let connect = |fabric: Fabric, address| {
        let connecting = match path() {
            Some(path) => fabric.connect_path(path, b"from the client")?,
            None => fabric.connect(address, b"from the client")?,
        };
        let Connected { endpoint, private_data: greeting } = connecting.wait()?;
        client(Side { fabric, endpoint, greeting })
    };
    unconnected(test, options, accept, connect, |[server, client]| {
        ensure!(server.success() && client.success(), "server: {server}, client: {client}");
        Ok(())
    })
}

/// Tells the other process where this one listens.
pub(crate) fn announce(address: SocketAddr) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{LISTENING}{address}")?;
    Ok(stdout.flush()?)
}

/// Runs a test of this name in two processes: `listen` is given the address to listen at and has to
/// [`announce`] one, `dial` is given that. Then `judge` is given how they ended.
pub(crate) fn unconnected(
    test: &str,
    options: &Options,
    listen: impl Fn(Fabric, SocketAddr) -> Result<()>,
    dial: impl Fn(Fabric, SocketAddr) -> Result<()>,
    judge: impl Fn([ExitStatus; 2]) -> Result<()>,
) -> Result<()> {
    match std::env::var(ROLE) {
        Ok(role) if role.is_empty() => listen(open(options.clone())?, "127.0.0.1:0".parse()?),
        Ok(role) => dial(open(options.clone())?, role.parse()?),
        Err(_) => {
            for way in ways() {
                let Way { transport, carriers, by_path } = way;
                let by = if *by_path { "a path" } else { "an address" };
                let over =
                    || format!("{} and {} over {transport} by {by}", carriers[0], carriers[1]);
                run(test, way).and_then(&judge).with_context(over)?;
            }
            Ok(())
        }
    }
}

fn run(test: &str, way: &Way) -> Result<[ExitStatus; 2]> {
    let folder = way.by_path.then(Folder::new).transpose()?;
    let start = |role: &str, stdout: Stdio| {
        let carrier = way.carriers[usize::from(!role.is_empty())];
        let mut command = process(test, way.transport, carrier)?;
        if let Some(Folder(path)) = &folder {
            command.env(PATH, path.join("listener"));
        }
        Kept::start(command.env(ROLE, role).stdout(stdout))
    };
    let mut server = start("", Stdio::piped())?;
    let output = server.child.stdout.take().context("no output of the server")?;
    let mut lines = BufReader::new(output).lines();
    let address = loop {
        let line = lines.next().context("the server ended")??;
        // The harness prints the test's name before it, without an end of line.
        if let Some((_, address)) = line.split_once(LISTENING) {
            break address.to_owned();
        }
    };
    // What the harness prints at the end must not fill the pipe.
    let rest = thread::spawn(move || lines.for_each(drop));
    let mut client = start(&address, Stdio::null())?;
    let deadline = Instant::now() + LIMIT;
    let statuses = [client.wait(deadline)?, server.wait(deadline)?];
    let _ = rest.join();
    let [client, server] = statuses;
    Ok([server, client])
}

/// A process that does not outlive the test.
struct Kept {
    child: Child,
    /// Passes on what the process says, as output of the test.
    errors: Option<JoinHandle<String>>,
}

impl Kept {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stderr(Stdio::piped()).spawn()?;
        let mut stderr = child.stderr.take().context("no messages of the process")?;
        let errors = thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stderr.read_to_end(&mut bytes); // What was read before an error counts.
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Ok(Self { child, errors: Some(errors) })
    }

    fn wait(&mut self, deadline: Instant) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if Instant::now() > deadline {
                bail!("a process hangs");
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // It fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(errors) = self.errors.take().and_then(|errors| errors.join().ok()) {
            eprint!("{errors}");
        }
    }
}

/// Bytes that tell their place: `len` of them from `start` on.
pub(crate) fn pattern(start: usize, len: usize) -> Vec<u8> {
    (start..start + len).map(|at| (at * 7 + at / 251) as u8).collect()
}
