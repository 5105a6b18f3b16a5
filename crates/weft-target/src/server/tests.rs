//! A server with sockets of this host.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use super::*;
use crate::scsi::Device;
use crate::security::Access;
use crate::session::{Closed, Target};

const LOGIN: &[u8; 46] = b"InitiatorName=iqn.a\0SessionType=Discovery\0\0\0\0\0";

/// A server that runs on a thread.
struct Running {
    address: SocketAddr,
    stop: Arc<Wakeup>,
    events: Receiver<Event>,
    thread: thread::JoinHandle<io::Result<()>>,
}

fn run(logins: LoginLimits, drain_time: Duration) -> Running {
    let target =
        Target::new(Arc::new(Device::new("iqn.b".into(), BTreeMap::new())), Access::default());
    let portal = Arc::new(Portal::new(vec![target], Access::default(), RANDOM));
    let (sender, events) = channel();
    let observer = Arc::new(move |event| {
        let _ = sender.send(event);
    });
    let server = Server::new(portal, Options { loops: 1, logins, drain_time }, observer);
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
