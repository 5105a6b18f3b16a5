//! Foreign peers connect to the ports of a process. Whatever they send, or if they send nothing,
//! the process has the same descriptors and memory afterwards, and peers can connect meanwhile.

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    send, socket_with, sockopt,
};
use rustix::process::{Pid, Resource, Rlimit, prlimit};
use rustix::time::Timespec;
use weft_lab::endpoint::Port;
use weft_lab::resources::{falls_to, still};
use weft_lab::{Program, Running, compile, ports};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit for a poll, which the lab does not extend itself.
const LONG_TIMEOUT: Timespec = Timespec { tv_sec: 240, tv_nsec: 0 };
/// Limit of the victim's open descriptors.
const DESCRIPTORS: u64 = 256;
/// Growth of the victim's memory that allocators and the kernel may cause.
const SLACK_KIB: i64 = 1_024;
/// Number of strangers, unless `WEFT_STRANGERS` sets another.
const STRANGERS: usize = 6_000;
/// Upper bound of the descriptors that a victim without connections has open.
const IDLE: u64 = 20;
/// Late connections that each connecting thread keeps open: more than the victim accepts at a time.
const SILENT_MAX: usize = 100;

struct Victim {
    running: Running,
    port: u16,
    /// Number of a queue pair that waits for a peer.
    number: u32,
}

impl Victim {
    fn start() -> Result<Self> {
        let port = ports::next();
        let program = Program::weft(compile("foreign_peers")?).arg(port.to_string());
        let running = program.start()?.listening(Port::Tcp(port))?;
        let mut victim = Self { running, port, number: 0 };
        victim.limit(DESCRIPTORS)?;
        // The victim creates shared objects with its first connection, before the test counts.
        victim.client(20)?.success()?;
        let (stdout, _) = victim.running.output();
        let number = stdout.lines().find_map(|line| line.strip_prefix("queue pair: "));
        victim.number = number.with_context(|| victim.running.account())?.parse()?;
        Ok(victim)
    }

    fn pid(&self) -> u32 {
        self.running.pid()
    }

    fn limit(&self, descriptors: u64) -> Result<()> {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw);
        let limit = Rlimit { current: Some(descriptors), maximum: Some(DESCRIPTORS) };
        prlimit(pid, Resource::Nofile, limit)?;
        Ok(())
    }

    fn descriptors(&self) -> Result<u64> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.pid()))?.count() as u64)
    }

    /// Returns the lowest unused descriptor number. With this as the limit, the victim cannot open
    /// another descriptor.
    fn first_free(&self) -> Result<u64> {
        let entries = fs::read_dir(format!("/proc/{}/fd", self.pid()))?;
        let used: HashSet<u64> =
            entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect();
        (0..).find(|number| !used.contains(number)).context("no number is free")
    }

    fn memory_kib(&self) -> Result<i64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        let value = line.and_then(|line| line.split_whitespace().next()).context("no RssAnon")?;
        Ok(value.parse()?)
    }

    /// Runs a peer that connects and disconnects `count` times.
    fn client(&self, count: u32) -> Result<weft_lab::Finished> {
        self.start_client(count)?.wait(TIMEOUT)
    }

    fn start_client(&self, count: u32) -> Result<Running> {
        let program = Program::weft(compile("connections")?).args(["churn", "127.0.0.1"]);
        program.args([self.port.to_string(), count.to_string()]).start()
    }

    /// Waits until the victim has no more descriptors open than `before`.
    fn settles(&mut self, before: u64) -> Result<()> {
        let fallen = falls_to(before, || self.descriptors());
        fallen.with_context(|| format!("descriptors\n{}", self.running.account()))
    }

    /// Waits until the victim has no connections and frees nothing any more. Returns its
    /// descriptors and memory.
    fn idle(&mut self) -> Result<(u64, i64)> {
        self.settles(IDLE)?;
        still(|| Ok((self.descriptors()?, self.memory_kib()?)))
    }

    /// Returns the TCP ports and Unix sockets on which the victim listens.
    fn listeners(&self) -> Result<Vec<Listener>> {
        let pid = self.pid();
        let links = fs::read_dir(format!("/proc/{pid}/fd"))?;
        let links = links.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        let inodes: HashSet<String> = links
            .filter_map(|link| {
                let link = link.into_os_string().into_string().ok()?;
                Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
            })
            .collect();
        let mut listeners = Vec::new();
        for table in ["tcp", "tcp6"] {
            for line in fs::read_to_string(format!("/proc/{pid}/net/{table}"))?.lines().skip(1) {
                let columns: Vec<&str> = line.split_whitespace().collect();
                let port = columns[1].rsplit_once(':').context("no port")?.1;
                if columns[3] == "0A" && inodes.contains(columns[9]) {
                    listeners.push(Listener::Tcp(u16::from_str_radix(port, 16)?));
                }
            }
        }
        for line in fs::read_to_string(format!("/proc/{pid}/net/unix"))?.lines().skip(1) {
            let columns: Vec<&str> = line.split_whitespace().collect();
            const LISTENS: &str = "00010000";
            if let [_, _, _, LISTENS, kind, _, inode, name] = columns[..]
                && inodes.contains(inode)
                && let Some(name) = name.strip_prefix('@')
            {
                let kind = if kind == "0005" { SocketType::SEQPACKET } else { SocketType::STREAM };
                listeners.push(Listener::Unix(name.to_owned(), kind));
            }
        }
        Ok(listeners)
    }
}

/// A TCP port or Unix socket on which the victim accepts connections.
#[derive(Clone, Debug)]
enum Listener {
    Tcp(u16),
    /// A name in the abstract namespace.
    Unix(String, SocketType),
}

/// What a stranger sends before it leaves.
#[derive(Clone, Copy, Debug)]
enum Payload {
    Nothing,
    HalfARequest,
    Garbage,
    /// A valid request of a peer.
    Request,
    /// The beginning of a request, byte by byte.
    Drip,
}

/// How a stranger leaves.
#[derive(Clone, Copy, Debug)]
enum Close {
    AtOnce,
    ByReset,
    /// After many other strangers have connected.
    Late,
}

const SHAPES: [(Payload, Close); 12] = [
    (Payload::Nothing, Close::AtOnce),
    (Payload::Nothing, Close::ByReset),
    (Payload::Nothing, Close::Late),
    (Payload::HalfARequest, Close::AtOnce),
    (Payload::HalfARequest, Close::ByReset),
    (Payload::HalfARequest, Close::Late),
    (Payload::Garbage, Close::AtOnce),
    (Payload::Garbage, Close::Late),
    (Payload::Request, Close::AtOnce),
    (Payload::Request, Close::ByReset),
    (Payload::Request, Close::Late),
    (Payload::Drip, Close::Late),
];

/// Builds a Weft peer's MPA request for the queue pair `number` (`weft-engine`, `hello.rs`).
fn request(number: u32) -> Vec<u8> {
    let mut bytes = b"MPA ID Req Frame\x10\x02\0\x3c\x80\x04\xc0\x04".to_vec();
    bytes.extend_from_slice(b"\xf7WeftQP\x1a\x02\0\0\0");
    // The sender's queue pair, which no peer has, the wanted queue pair, and a key.
    for word in [1, number, 0x0acc_0001_u32] {
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    bytes.extend_from_slice(&Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets());
    bytes.extend_from_slice(&[0; 16]);
    bytes
}

/// An open connection of a stranger.
#[derive(Debug)]
enum Open {
    Tcp(TcpStream),
    Unix(OwnedFd),
}

impl Open {
    /// Sends `bytes`. The victim may have closed the connection already, so errors are ignored.
    fn send(&mut self, bytes: &[u8]) {
        let _ = match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(socket) => {
                send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map_err(Into::into)
            }
        };
    }

    /// Waits until the victim closes the connection, and returns whether it did so in time.
    fn is_closed_by_victim(&self) -> Result<bool> {
        loop {
            let mut fds = [PollFd::new(self, PollFlags::IN)];
            if poll(&mut fds, Some(&LONG_TIMEOUT))? == 0 {
                return Ok(false);
            }
            match recv(self, &mut [0; 4096][..], RecvFlags::DONTWAIT) {
                Ok((1.., _)) => {}
                Ok(_) | Err(Errno::CONNRESET) => return Ok(true),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Open {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(socket) => socket.as_fd(),
        }
    }
}

/// Connects as one stranger. Returns the connection if the stranger is to leave late.
fn visit(listener: &Listener, (payload, close): (Payload, Close), number: u32) -> Option<Open> {
    let mut open = match listener {
        Listener::Tcp(port) => {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
            // If the listener's queue is full the kernel drops the SYN, and TCP sends it again.
            let stream = TcpStream::connect_timeout(&address, TIMEOUT).ok()?;
            if matches!(close, Close::ByReset | Close::Late) {
                sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).ok()?;
            }
            Open::Tcp(stream)
        }
        Listener::Unix(name, kind) => {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, *kind, flags, None).ok()?;
            connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?).ok()?;
            Open::Unix(socket)
        }
    };
    let whole = request(number);
    match payload {
        Payload::Nothing => {}
        Payload::HalfARequest => open.send(&whole[..30]),
        Payload::Garbage => open.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        Payload::Request => open.send(&whole),
        Payload::Drip => whole[..8].iter().for_each(|byte| {
            open.send(&[*byte]);
            thread::sleep(Duration::from_millis(1));
        }),
    }
    matches!(close, Close::Late).then_some(open)
}

/// Has `count` strangers of all shapes connect to all listeners, and returns how many did.
fn connect_strangers(
    victim: &Victim,
    listeners: &[Listener],
    count: usize,
    stop: &AtomicBool,
) -> usize {
    let (came, next) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut late = VecDeque::new();
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count || stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let shape = SHAPES[index % SHAPES.len()];
                    let listener = &listeners[index / SHAPES.len() % listeners.len()];
                    late.extend(visit(listener, shape, victim.number));
                    if late.len() > SILENT_MAX {
                        late.pop_front();
                    }
                    came.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    came.into_inner()
}

#[test]
fn strangers_of_every_shape_leave_a_process_as_it_was() -> Result<()> {
    let count = match std::env::var("WEFT_STRANGERS") {
        Ok(count) => count.parse().context("WEFT_STRANGERS")?,
        Err(_) => STRANGERS,
    };
    let mut victim = Victim::start()?;
    let listeners = victim.listeners()?;
    ensure!(
        listeners.iter().filter(|listener| matches!(listener, Listener::Tcp(_))).count() >= 2,
        "{listeners:?}"
    );
    // The first strangers make caches and pools grow to their final size.
    connect_strangers(&victim, &listeners, 500.min(count), &AtomicBool::new(false));
    let (before, memory) = victim.idle()?;

    let stop = AtomicBool::new(false);
    let (came, clients) = thread::scope(|scope| {
        let strangers_thread = scope.spawn(|| connect_strangers(&victim, &listeners, count, &stop));
        let mut clients = 0;
        let served = (|| -> Result<()> {
            while !strangers_thread.is_finished() {
                victim.client(5)?.success().context("a peer did not get in")?;
                clients += 1;
            }
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        let came = strangers_thread.join().expect("no panic");
        served.map(|()| (came, clients))
    })?;
    println!("{came} strangers, {clients} peers beside them");
    ensure!(came == count && clients > 0, "{came} strangers, {clients} peers");
    victim.settles(before)?;
    let fallen = falls_to(memory + SLACK_KIB, || victim.memory_kib());
    fallen.with_context(|| format!("KiB, {memory} before\n{}", victim.running.account()))?;
    victim.client(20)?.success()?;
    victim.running.kill()?;
    Ok(())
}

/// At the limit of descriptors a listener accepts nobody. It accepts the peers that have connected
/// meanwhile as soon as a descriptor is free.
#[test]
fn listeners_survive_the_limit_of_descriptors() -> Result<()> {
    let mut victim = Victim::start()?;
    let listeners = victim.listeners()?;
    let (before, _) = victim.idle()?;
    victim.limit(victim.first_free()?)?;
    let come = |listener| visit(listener, (Payload::Nothing, Close::Late), victim.number);
    let strangers: Vec<(&Listener, Open)> =
        listeners.iter().filter_map(|listener| Some((listener, come(listener)?))).collect();
    ensure!(strangers.len() == listeners.len(), "{} of {listeners:?}", strangers.len());
    let mut client = victim.start_client(5)?;
    // In this time accepting fails at the limit. A listener that does not retry stays lost.
    thread::sleep(Duration::from_millis(500));
    ensure!(victim.descriptors()? == before, "the limit does not hold");
    ensure!(client.is_running()?, client.account());
    victim.limit(DESCRIPTORS)?;
    client.wait(TIMEOUT)?.success()?;
    for (listener, stranger) in strangers {
        // The victim closes a silent connection after a timeout, so it has accepted it.
        ensure!(stranger.is_closed_by_victim()?, "{listener:?}\n{}", victim.running.account());
    }
    victim.settles(before)?;
    victim.running.kill()?;
    Ok(())
}
