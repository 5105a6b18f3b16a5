//! A server with sockets of this host.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Condvar, Mutex};

use weft_sys::lock;

use super::*;
use crate::scsi::{Device, Unit};
use crate::security::Access;
use crate::session::{Closed, Target};
use crate::store::{Extent, Ram, Store};

const LOGIN: &[u8; 46] = b"InitiatorName=iqn.a\0SessionType=Discovery\0\0\0\0\0";

/// A server that runs on a thread.
struct Running {
    address: SocketAddr,
    stop: Arc<Wakeup>,
    events: Receiver<Event>,
    thread: thread::JoinHandle<io::Result<()>>,
}

fn run(logins: LoginLimits, drain_time: Duration) -> Running {
    run_with(BTreeMap::new(), logins, drain_time)
}

/// Runs a server with these units.
fn run_with(units: BTreeMap<u8, Arc<Unit>>, logins: LoginLimits, drain_time: Duration) -> Running {
    run_on(1, units, logins, drain_time)
}

/// Runs a server with so many event loops.
fn run_on(
    loops: usize,
    units: BTreeMap<u8, Arc<Unit>>,
    logins: LoginLimits,
    drain_time: Duration,
) -> Running {
    let target = Target::new(Arc::new(Device::new("iqn.b".into(), units)), Access::default());
    let portal = Arc::new(Portal::new(vec![target], Access::default(), RANDOM));
    let (sender, events) = channel();
    let observer = Arc::new(move |event| {
        let _ = sender.send(event);
    });
    let server = Server::new(portal, Options { loops, logins, drain_time }, observer);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let stop = Arc::new(Wakeup::new().unwrap());
    let stopped = Arc::clone(&stop);
    let thread = thread::spawn(move || server.run(vec![listener], vec![], &stopped));
    Running { address, stop, events, thread }
}

impl Running {
    fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).unwrap()
    }

    /// Logs in for discovery.
    fn log_in(&self) -> TcpStream {
        let mut socket = self.connect();
        let mut pdu = [0; 48];
        (pdu[0], pdu[1], pdu[7]) = (0x43, 0x87, LOGIN.len() as u8);
        socket.write_all(&pdu).unwrap();
        socket.write_all(LOGIN).unwrap();
        socket.write_all(&[0; 2]).unwrap();
        let mut header = [0; 48];
        socket.read_exact(&mut header).unwrap();
        assert_eq!((header[0], header[36], header[37]), (0x23, 0, 0));
        let len = usize::from(header[7]).next_multiple_of(4);
        socket.read_exact(&mut vec![0; len]).unwrap();
        socket
    }

    fn stop(self) {
        self.stop.notify();
        self.thread.join().unwrap().unwrap();
    }
}

/// Waits for the end of a connection on which the target has sent nothing.
fn wait_for_end(mut socket: &TcpStream) {
    assert_eq!(socket.read(&mut [0; 48]).unwrap_or(0), 0);
}

#[test]
fn connections_without_a_login_are_limited() {
    let time = Duration::from_secs(3_600);
    let running = run(LoginLimits { count: 9, count_per_address: 2, time }, Duration::ZERO);
    // A session takes no place.
    let _session = running.log_in();
    let held = [running.connect(), running.connect()];
    let refused = running.connect();
    wait_for_end(&refused);
    let is_refusal = |event: &Event| matches!(event, Event::Refused(_));
    let Some(Event::Refused(from)) = running.events.iter().find(is_refusal) else { panic!() };
    assert_eq!(from, refused.local_addr().unwrap());
    // The places of those that leave are free.
    drop(held);
    let is_end = |event: &Event| matches!(event, Event::Ended(_, None));
    assert_eq!(running.events.iter().filter(is_end).take(2).count(), 2);
    drop(running.log_in());
    running.stop();
}

#[test]
fn connection_that_does_not_log_in_is_closed() {
    let limits = LoginLimits { time: Duration::ZERO, ..LoginLimits::default() };
    let running = run(limits, Duration::ZERO);
    wait_for_end(&running.connect());
    let reason = running.events.iter().find_map(|event| match event {
        Event::Ended(_, closed) => Some(closed),
        _ => None,
    });
    assert_eq!(reason, Some(Some(Closed::Protocol("no login in time"))));
    running.stop();
}

/// The kernel's timer of the server's end of a connection is the one of its keep-alive.
#[test]
fn kernel_looks_for_initiators_that_are_gone() {
    let running = run(LoginLimits::default(), Duration::ZERO);
    let socket = running.log_in();
    let ports = [running.address.port(), socket.local_addr().unwrap().port()];
    let [from, to] = ports.map(|port| format!("0100007F:{port:04X}"));
    let has_keepalive = |table: &str| {
        let rows = table.lines().map(|row| row.split_whitespace().collect::<Vec<_>>());
        let mut rows = rows.filter(|row| row[1] == from && row[2] == to);
        // Another timer runs until the response is acknowledged.
        rows.next().is_some_and(|row| row[5].starts_with("02:"))
    };
    let found = (0..24_000).any(|_| {
        thread::sleep(Duration::from_millis(10));
        has_keepalive(&std::fs::read_to_string("/proc/self/net/tcp").unwrap())
    });
    assert!(found);
    drop(socket);
    running.stop();
}

#[test]
fn stopped_server_waits_for_logouts_up_to_a_limit() {
    for (drain_time, logs_out) in
        [(Duration::from_millis(50), false), (Duration::from_secs(600), true)]
    {
        let running = run(LoginLimits::default(), drain_time);
        let late = running.connect();
        let mut socket = running.log_in();
        running.stop.notify();
        wait_for_end(&late);
        let mut message = [0; 48];
        socket.read_exact(&mut message).unwrap();
        assert_eq!((message[0], message[36]), (0x32, 1));
        assert_eq!(message[42..44], (drain_time.as_secs() as u16).to_be_bytes());
        if logs_out {
            let mut logout = [0; 48];
            (logout[0], logout[1]) = (0x46, 0x80);
            socket.write_all(&logout).unwrap();
            let mut response = [0; 48];
            socket.read_exact(&mut response).unwrap();
            assert_eq!((response[0], response[2]), (0x26, 0));
        }
        wait_for_end(&socket);
        running.thread.join().unwrap().unwrap();
        assert!(TcpStream::connect(running.address).is_err(), "it still accepts");
        let from = socket.local_addr().unwrap();
        let reason = running.events.try_iter().find_map(|event| match event {
            Event::Ended(address, closed) if address == from => closed,
            _ => None,
        });
        let expected = if logs_out { Closed::LoggedOut } else { Closed::Stopped };
        assert_eq!(reason, Some(expected));
    }
}

#[test]
fn second_stop_does_not_wait_for_initiators() {
    let running = run(LoginLimits::default(), Duration::from_secs(600));
    let mut socket = running.log_in();
    running.stop.notify();
    socket.read_exact(&mut [0; 48]).unwrap();
    running.stop();
}

/// Memory whose blocks nobody gets before it is released.
#[derive(Debug)]
struct Stuck {
    memory: Ram,
    release: Arc<Release>,
}

#[derive(Debug, Default)]
struct Release {
    is_done: Mutex<bool>,
    changed: Condvar,
}

impl Release {
    fn set(&self) {
        *lock(&self.is_done) = true;
        self.changed.notify_all();
    }

    fn wait(&self) {
        drop(self.changed.wait_while(lock(&self.is_done), |is_done| !*is_done).unwrap());
    }
}

impl Store for Stuck {
    fn len(&self) -> u64 {
        self.memory.len()
    }

    fn medium_len(&self) -> io::Result<u64> {
        self.memory.medium_len()
    }

    fn resize(&self, len: u64) -> io::Result<()> {
        self.memory.resize(len)
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.release.wait();
        self.memory.read(offset, buffer)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.release.wait();
        self.memory.write(offset, bytes)
    }

    fn flush(&self) -> io::Result<()> {
        self.release.wait();
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> io::Result<()> {
        self.release.wait();
        self.memory.discard(range)
    }

    fn extent(&self, offset: u64) -> io::Result<(Extent, u64)> {
        self.release.wait();
        self.memory.extent(offset)
    }

    fn is_thin(&self) -> bool {
        true
    }
}

/// An initiator on a socket, whose commands have no data of its own but zeros.
struct Initiator {
    socket: TcpStream,
    number: u32,
}

impl Initiator {
    fn log_in(address: SocketAddr, name: &str) -> Self {
        let mut socket = TcpStream::connect(address).unwrap();
        // A hang is an error of the test.
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // What is sent arrives at once.
        socket.set_nodelay(true).unwrap();
        let text = format!("InitiatorName=iqn.{name}\0TargetName=iqn.b\0");
        let mut pdu = vec![0; 48];
        (pdu[0], pdu[1], pdu[7], pdu[15]) = (0x43, 0x87, text.len() as u8, 0);
        pdu.extend(text.bytes());
        pdu.resize(pdu.len().next_multiple_of(4), 0);
        socket.write_all(&pdu).unwrap();
        let mut initiator = Self { socket, number: 0 };
        assert_eq!(initiator.response()[36..38], [0, 0]);
        // The unit attentions of both units.
        for lun in [0, 1] {
            initiator.send(lun, 0xc0, &[0; 6], 0);
            initiator.response();
        }
        initiator
    }

    /// Sends a command. Its tag is returned.
    fn send(&mut self, lun: u8, flags: u8, cdb: &[u8], len: u32) -> u32 {
        let mut pdu = vec![0; 48];
        (pdu[0], pdu[1], pdu[9]) = (0x01, flags, lun);
        let sent = if flags & 0x20 != 0 { len } else { 0 };
        pdu[5..8].copy_from_slice(&sent.to_be_bytes()[1..]);
        pdu[16..20].copy_from_slice(&self.number.to_be_bytes());
        pdu[20..24].copy_from_slice(&len.to_be_bytes());
        pdu[24..28].copy_from_slice(&self.number.to_be_bytes());
        pdu[32..32 + cdb.len()].copy_from_slice(cdb);
        pdu.resize(48 + sent as usize, 0);
        self.socket.write_all(&pdu).unwrap();
        self.number += 1;
        self.number - 1
    }

    /// The header of the next response.
    fn response(&mut self) -> [u8; 48] {
        let mut header = [0; 48];
        self.socket.read_exact(&mut header).unwrap();
        let len = u32::from_be_bytes([0, header[5], header[6], header[7]]) as usize;
        self.socket.read_exact(&mut vec![0; len.next_multiple_of(4)]).unwrap();
        header
    }

    fn wait_for(&mut self, task: u32) {
        let header = self.response();
        assert_eq!((&header[16..20], header[3]), (&task.to_be_bytes()[..], 0));
    }
}

/// Units with a store that is stuck, and with memory.
fn stuck_and_memory() -> (BTreeMap<u8, Arc<Unit>>, Arc<Release>) {
    let release = Arc::new(Release::default());
    let memory = || Ram::new(1 << 20).unwrap();
    let stuck = Stuck { memory: memory(), release: Arc::clone(&release) };
    let unit = |store: Box<dyn Store>| Arc::new(Unit::new("serial".into(), <_>::default(), store));
    (BTreeMap::from([(0, unit(Box::new(stuck))), (1, unit(Box::new(memory())))]), release)
}

const LIMITS: LoginLimits =
    LoginLimits { count: 9, count_per_address: 9, time: Duration::from_secs(3_600) };

#[test]
fn initiator_that_is_gone_while_its_logout_waits_is_noticed() {
    let (units, release) = stuck_and_memory();
    let running = run_with(units, LIMITS, Duration::ZERO);
    let mut initiator = Initiator::log_in(running.address, "one");
    initiator.send(0, 0xa0, &[0x2a, 0, 0, 0, 0, 3, 0, 0, 1, 0], 512);
    let mut logout = [0; 48];
    (logout[0], logout[1], logout[27]) = (0x46, 0x80, initiator.number as u8);
    let mut other = Initiator::log_in(running.address, "other");
    initiator.socket.write_all(&logout).unwrap();
    // The loop serves requests in the order in which they come.
    let task = other.send(1, 0xc0, &[0; 6], 0);
    other.wait_for(task);
    // Without a linger time the kernel resets the connection.
    rustix::net::sockopt::set_socket_linger(&initiator.socket, Some(Duration::ZERO)).unwrap();
    drop(initiator);
    let ended = || match running.events.recv_timeout(Duration::from_secs(60)) {
        Ok(event) => matches!(event, Event::Ended(..)),
        Err(error) => panic!("{error}"),
    };
    while !ended() {}
    release.set();
    running.stop();
}

/// A store that does nothing for a while holds up the commands that need it, and no others: not
/// those of other connections of the same loop, nor others of the same connection.
#[test]
fn a_store_that_is_stuck_holds_up_nothing_else() {
    let (units, release) = stuck_and_memory();
    let running = run_with(units, LIMITS, Duration::ZERO);
    let [mut one, mut other] =
        ["one", "other"].map(|name| Initiator::log_in(running.address, name));
    let read = [0x28, 0, 0, 0, 0, 0, 0, 0, 1, 0];
    let write_same = [0x41, 0, 0, 0, 0, 9, 0, 0, 1, 0];
    let write = [0x2a, 0, 0, 0, 0, 3, 0, 0, 1, 0];
    let flush = [0x35, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut stuck = vec![one.send(0, 0xa0, &write, 512), one.send(0, 0xc0, &read, 512)];
    stuck.push(one.send(0, 0xa0, &write_same, 512));
    stuck.push(one.send(0, 0x80, &flush, 0));
    for initiator in [&mut one, &mut other] {
        let task = initiator.send(1, 0xc0, &read, 512);
        initiator.wait_for(task);
        let task = initiator.send(1, 0xa0, &write, 512);
        initiator.wait_for(task);
        let task = initiator.send(0, 0xc0, &[0; 6], 0);
        initiator.wait_for(task);
    }
    // Another one can log in, too.
    Initiator::log_in(running.address, "third");
    release.set();
    for _ in 0..stuck.len() {
        let header = one.response();
        let task = u32::from_be_bytes([header[16], header[17], header[18], header[19]]);
        assert_eq!(header[3], 0);
        stuck.retain(|other| *other != task);
    }
    assert!(stuck.is_empty());
    running.stop();
}

/// Sends a PDU, and returns the response to it with its data.
fn exchange(socket: &mut TcpStream, header: &[u8; 48], data: &[u8]) -> ([u8; 48], Vec<u8>) {
    socket.write_all(&[&header[..], data].concat()).unwrap();
    let mut response = [0; 48];
    socket.read_exact(&mut response).unwrap();
    let len = u32::from_be_bytes([0, response[5], response[6], response[7]]) as usize;
    let mut data = vec![0; len.next_multiple_of(4)];
    socket.read_exact(&mut data).unwrap();
    (response, data)
}

/// Logs in to the session with this number, 0 for a new one. Returns the number.
fn join(running: &Running, tsih: [u8; 2], cid: u8) -> (TcpStream, [u8; 2]) {
    let mut text = b"InitiatorName=iqn.a\0TargetName=iqn.b\0".to_vec();
    if tsih == [0; 2] {
        text.extend(b"MaxConnections=2\0");
    }
    let mut header = [0; 48];
    (header[0], header[1], header[7], header[21]) = (0x43, 0x87, text.len() as u8, cid);
    header[14..16].copy_from_slice(&tsih);
    text.resize(text.len().next_multiple_of(4), 0);
    let mut socket = running.connect();
    socket.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    let (response, _) = exchange(&mut socket, &header, &text);
    assert_eq!((response[0], response[36], response[37]), (0x23, 0, 0));
    (socket, [response[14], response[15]])
}

/// READ (10) or WRITE (10) of the first block by a command with this number.
fn first_block(socket: &mut TcpStream, number: u32, data: &[u8]) -> ([u8; 48], Vec<u8>) {
    let mut header = [0; 48];
    header[0] = 0x01;
    header[1] = if data.is_empty() { 0xc0 } else { 0xa0 };
    header[5..8].copy_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
    header[16..20].copy_from_slice(&number.to_be_bytes());
    header[20..24].copy_from_slice(&512_u32.to_be_bytes());
    header[24..28].copy_from_slice(&number.to_be_bytes());
    header[32] = if data.is_empty() { 0x28 } else { 0x2a };
    header[40] = 1;
    exchange(socket, &header, data)
}

/// Each connection sends every other command, as soon as it can: one waits for the other, which is
/// served by another thread.
#[test]
fn connections_of_a_session_on_several_loops() {
    const COMMANDS: u32 = 2_000;
    let store = Box::new(Ram::new(1 << 20).unwrap());
    let unit = Arc::new(Unit::new("serial".into(), crate::scsi::Options::default(), store));
    let units = BTreeMap::from([(0, unit)]);
    let running = run_on(2, units, LoginLimits::default(), Duration::ZERO);
    let (mut writer, tsih) = join(&running, [0; 2], 0);
    let (mut reader, _) = join(&running, tsih, 1);
    // The unit attention of the login.
    assert_eq!(first_block(&mut writer, 0, &[]).0[3], 2);
    let reads = thread::spawn(move || {
        for number in (2..COMMANDS).step_by(2) {
            let (response, data) = first_block(&mut reader, number, &[]);
            assert_eq!((response[0], response[3]), (0x25, 0));
            assert_eq!(data, [number as u8; 512], "the command before has written");
        }
        reader
    });
    for number in (1..COMMANDS).step_by(2) {
        let (response, _) = first_block(&mut writer, number, &[(number + 1) as u8; 512]);
        assert_eq!((response[0], response[3]), (0x21, 0));
    }
    drop((writer, reads.join().unwrap()));
    running.stop();
}
