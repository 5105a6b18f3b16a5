//! Strangers at a process's ports: whatever they send or leave unsaid, the process is afterwards as
//! it was, and peers get in meanwhile.

use std::collections::{HashSet, VecDeque};
use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

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
use weft_lab::{Program, Running, compile, ports};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Descriptors that the victim may open.
const DESCRIPTORS: u64 = 256;
/// What allocators and the kernel may keep for later.
const SLACK_KIB: i64 = 1_024;
/// Strangers, unless `WEFT_STRANGERS` says how many.
const STRANGERS: usize = 6_000;
/// Descriptors of a victim without connections, or some more.
const IDLE: u64 = 20;
/// Silent ones at a time: more than the victim has places for.
const SILENT_MAX: usize = 100;

struct Victim {
    running: Running,
    port: u16,
    /// A queue pair that waits for a peer.
    number: u32,
}

impl Victim {
    fn start() -> Result<Self> {
        let port = ports::next();
        let program = Program::weft(compile("besieged")?).arg(port.to_string());
        let running = program.start()?.listening(Port::Tcp(port))?;
        let mut victim = Self { running, port, number: 0 };
        victim.limit(DESCRIPTORS)?;
        // What is made once is made before anything is counted.
        victim.client(20)?.success()?;
        let (said, _) = victim.running.output();
        let number = said.lines().find_map(|line| line.strip_prefix("queue pair: "));
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

    /// The lowest number that no descriptor has: with this as the limit there will be no more.
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

    /// A peer that connects and leaves `count` times.
    fn client(&self, count: u32) -> Result<weft_lab::Finished> {
        self.start_client(count)?.wait(TIMEOUT)
    }

    fn start_client(&self, count: u32) -> Result<Running> {
        let program = Program::weft(compile("connections")?).args(["churn", "127.0.0.1"]);
        program.args([self.port.to_string(), count.to_string()]).start()
    }

    /// Waits until the victim has no more descriptors open than `before`.
    fn settles(&mut self, before: u64) -> Result<()> {
        let start = Instant::now();
        while self.descriptors()? > before {
            ensure!(
                start.elapsed() < TIMEOUT,
                "{} descriptors, {before} before\n{}",
                self.descriptors()?,
                self.running.account()
            );
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The doors of the victim: its TCP ports and Unix sockets on which it listens.
    fn doors(&self) -> Result<Vec<Door>> {
        let pid = self.pid();
        let links = fs::read_dir(format!("/proc/{pid}/fd"))?;
        let links = links.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        let inodes: HashSet<String> = links
            .filter_map(|link| {
                let link = link.into_os_string().into_string().ok()?;
                Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
            })
            .collect();
        let mut doors = Vec::new();
        for table in ["tcp", "tcp6"] {
            for line in fs::read_to_string(format!("/proc/{pid}/net/{table}"))?.lines().skip(1) {
                let columns: Vec<&str> = line.split_whitespace().collect();
                let port = columns[1].rsplit_once(':').context("no port")?.1;
                if columns[3] == "0A" && inodes.contains(columns[9]) {
                    doors.push(Door::Tcp(u16::from_str_radix(port, 16)?));
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
                doors.push(Door::Unix(name.to_owned(), kind));
            }
        }
        Ok(doors)
    }
}

/// Where the victim accepts connections.
#[derive(Clone, Debug)]
enum Door {
    Tcp(u16),
    /// In the abstract name space.
    Unix(String, SocketType),
}

/// What a stranger does before it leaves.
#[derive(Clone, Copy, Debug)]
enum Words {
    Nothing,
    HalfARequest,
    Garbage,
    /// A request that could be a peer's.
    Request,
    /// A byte at a time.
    Drip,
}

/// How it leaves.
#[derive(Clone, Copy, Debug)]
enum Leaving {
    AtOnce,
    ByReset,
    /// Not before many others have come.
    Late,
}

const SHAPES: [(Words, Leaving); 12] = [
    (Words::Nothing, Leaving::AtOnce),
    (Words::Nothing, Leaving::ByReset),
    (Words::Nothing, Leaving::Late),
    (Words::HalfARequest, Leaving::AtOnce),
    (Words::HalfARequest, Leaving::ByReset),
    (Words::HalfARequest, Leaving::Late),
    (Words::Garbage, Leaving::AtOnce),
    (Words::Garbage, Leaving::Late),
    (Words::Request, Leaving::AtOnce),
    (Words::Request, Leaving::ByReset),
    (Words::Request, Leaving::Late),
    (Words::Drip, Leaving::Late),
];

/// The MPA request of a Weft peer for the queue pair of this number (`weft-engine`, `hello.rs`).
fn request(number: u32) -> Vec<u8> {
    let mut bytes = b"MPA ID Req Frame\x10\x02\0\x3c\x80\x04\xc0\x04".to_vec();
    bytes.extend_from_slice(b"\xf7WeftQP\x1a\x02\0\0\0");
    // From a number that no peer has, for the one wanted, and a key.
    for word in [1, number, 0x0acc_0001_u32] {
        bytes.extend_from_slice(&word.to_be_bytes());
    }
    bytes.extend_from_slice(&Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets());
    bytes.extend_from_slice(&[0; 16]);
    bytes
}

/// A connection of a stranger's, still open.
#[derive(Debug)]
enum Open {
    Tcp(TcpStream),
    Unix(OwnedFd),
}

impl Open {
    /// Sends what may already be refused.
    fn say(&mut self, bytes: &[u8]) {
        let _ = match self {
            Self::Tcp(stream) => stream.write(bytes),
            Self::Unix(socket) => {
                send(socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT).map_err(Into::into)
            }
        };
    }

    /// Whether the other side closes the connection.
    fn is_turned_away(&self) -> Result<bool> {
        let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
        loop {
            let mut fds = [PollFd::new(self, PollFlags::IN)];
            if poll(&mut fds, Some(&timeout))? == 0 {
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

/// One stranger's visit; what stays is returned.
fn visit(door: &Door, (words, leaving): (Words, Leaving), number: u32) -> Option<Open> {
    let mut open = match door {
        Door::Tcp(port) => {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, *port));
            // A full queue in the kernel drops those who come; they are tried again.
            let stream = TcpStream::connect_timeout(&address, Duration::from_secs(5)).ok()?;
            if matches!(leaving, Leaving::ByReset | Leaving::Late) {
                sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).ok()?;
            }
            Open::Tcp(stream)
        }
        Door::Unix(name, kind) => {
            let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
            let socket = socket_with(AddressFamily::UNIX, *kind, flags, None).ok()?;
            connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?).ok()?;
            Open::Unix(socket)
        }
    };
    let whole = request(number);
    match words {
        Words::Nothing => {}
        Words::HalfARequest => open.say(&whole[..30]),
        Words::Garbage => open.say(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"),
        Words::Request => open.say(&whole),
        Words::Drip => whole[..8].iter().for_each(|byte| {
            open.say(&[*byte]);
            thread::sleep(Duration::from_millis(1));
        }),
    }
    matches!(leaving, Leaving::Late).then_some(open)
}

/// Sends `count` strangers of all shapes to all doors.
fn besiege(victim: &Victim, doors: &[Door], count: usize, stop: &AtomicBool) -> usize {
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
                    let door = &doors[index / SHAPES.len() % doors.len()];
                    late.extend(visit(door, shape, victim.number));
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
    let doors = victim.doors()?;
    ensure!(doors.iter().filter(|door| matches!(door, Door::Tcp(_))).count() >= 2, "{doors:?}");
    // The first ones fill what grows once.
    besiege(&victim, &doors, 500.min(count), &AtomicBool::new(false));
    victim.settles(IDLE)?;
    let before = victim.descriptors()?;
    let memory = victim.memory_kib()?;

    let stop = AtomicBool::new(false);
    let (came, clients) = thread::scope(|scope| {
        let siege = scope.spawn(|| besiege(&victim, &doors, count, &stop));
        let mut clients = 0;
        let served = (|| -> Result<()> {
            while !siege.is_finished() {
                victim.client(5)?.success().context("a peer did not get in")?;
                clients += 1;
            }
            Ok(())
        })();
        stop.store(true, Ordering::Relaxed);
        let came = siege.join().expect("no panic");
        served.map(|()| (came, clients))
    })?;
    println!("{came} strangers, {clients} peers beside them");
    ensure!(came == count && clients > 0, "{came} strangers, {clients} peers");
    victim.settles(before)?;
    let grown = victim.memory_kib()? - memory;
    ensure!(grown <= SLACK_KIB, "{grown} KiB more\n{}", victim.running.account());
    victim.client(20)?.success()?;
    victim.running.kill()?;
    Ok(())
}

/// Without a descriptor left nobody is accepted, and all who came meanwhile are when there is one.
#[test]
fn listeners_survive_the_limit_of_descriptors() -> Result<()> {
    let mut victim = Victim::start()?;
    let doors = victim.doors()?;
    victim.settles(IDLE)?;
    let before = victim.descriptors()?;
    victim.limit(victim.first_free()?)?;
    let come = |door| visit(door, (Words::Nothing, Leaving::Late), victim.number);
    let strangers: Vec<(&Door, Open)> =
        doors.iter().filter_map(|door| Some((door, come(door)?))).collect();
    ensure!(strangers.len() == doors.len(), "{} of {doors:?}", strangers.len());
    let mut client = victim.start_client(5)?;
    // Long enough for listeners that do not try again to be lost, and for others to fail.
    thread::sleep(Duration::from_millis(500));
    ensure!(victim.descriptors()? == before, "the limit does not hold");
    ensure!(client.is_running()?, client.account());
    victim.limit(DESCRIPTORS)?;
    client.wait(TIMEOUT)?.success()?;
    for (door, stranger) in strangers {
        // Who says nothing is turned away in the end, and so has been accepted.
        ensure!(stranger.is_turned_away()?, "{door:?}\n{}", victim.running.account());
    }
    victim.settles(before)?;
    victim.running.kill()?;
    Ok(())
}
