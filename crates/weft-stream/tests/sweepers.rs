//! Tests processes that find the registry full at the same time and sweep it. Each releases slots
//! that killed processes have left, and none that another process has taken meanwhile.

use std::io::IoSliceMut;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::process::getpid;
use weft_stream::{End, Flow, Process, RecvOptions, Registry, Tuple};
use weft_sys::{Buffers, network_namespace};

/// Environment variable by which the children find the registry.
const DIRECTORY: &str = "WEFT_TEST_SWEEPERS";
const CHILDREN: usize = 4;
/// Connections that each child makes. One in four is left behind like that of a killed process.
const ROUNDS: usize = 400;
/// Maximum number of connections that stay open.
const OPEN_MAX: usize = 24;
const MESSAGE_LEN: usize = 3_000;

struct Connection {
    sockets: [TcpStream; 2],
    ends: [End; 2],
    mark: u8,
}

impl Connection {
    /// `None` if the registry is full.
    fn make(registry: &'static Registry, listener: &TcpListener, mark: u8) -> Option<Self> {
        let address = listener.local_addr().expect("bound");
        let client = TcpStream::connect(address).expect("connected");
        let (server, own) = listener.accept().expect("accepted");
        let tuple = Tuple::new(own, address).in_namespace(network_namespace(&client));
        let pid = getpid().as_raw_nonzero().get().unsigned_abs();
        let me = Process { pid, fd: 0, cookie: 0, program: [0; 16] };
        let offered = End::offer(registry, &tuple, &me, Flow::Packed)?;
        let found = End::find(registry, &tuple, &me, (0, 0)).expect("offered");
        found.advance(server.as_fd());
        offered.advance(client.as_fd());
        found.advance(server.as_fd());
        Some(Self { sockets: [client, server], ends: [offered, found], mark })
    }

    /// Checks that the server gets what the client sends.
    fn check(&self) {
        let [client, server] = &self.sockets;
        let mut sent = [self.mark; MESSAGE_LEN];
        let slices = &mut [IoSliceMut::new(&mut sent)];
        let put = self.ends[0].try_send(client.as_fd(), Buffers::of(slices), 0);
        assert_eq!(put, Ok(MESSAGE_LEN));
        let mut got = [0; MESSAGE_LEN + 1];
        let slices = &mut [IoSliceMut::new(&mut got)];
        let taken =
            self.ends[1].try_recv(server.as_fd(), Buffers::of(slices), RecvOptions::default());
        assert_eq!(taken, Ok(MESSAGE_LEN), "bytes of another connection, or none");
        assert!(got[..MESSAGE_LEN].iter().all(|&byte| byte == self.mark), "another one's bytes");
    }

    fn close(self) {
        let pid = getpid().as_raw_nonzero().get().unsigned_abs();
        for end in self.ends {
            let _ = end.release(pid);
        }
    }
}

fn registry(directory: &Path) -> &'static Registry {
    Box::leak(Box::new(Registry::open(directory).expect("a registry")))
}

/// Makes, uses and loses connections in a registry that is full of slots of killed processes.
fn sweep_along(directory: &Path) {
    let registry = registry(directory);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut open = Vec::new();
    let mut made = 0;
    for round in 0..ROUNDS {
        let mark = (round * CHILDREN + getpid().as_raw_nonzero().get() as usize) as u8;
        let Some(connection) = Connection::make(registry, &listener, mark) else { continue };
        connection.check();
        made += 1;
        if round % 4 != 0 {
            open.push(connection); // The others are left like those of a killed process.
        }
        if open.len() > OPEN_MAX {
            open.remove(round % OPEN_MAX).close();
        }
        open.iter().for_each(Connection::check);
    }
    assert!(made > ROUNDS / 2, "the dead have been given back: {made}");
    registry.leave();
}

#[test]
fn sweepers_free_slots_of_dead_processes_only() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        return sweep_along(Path::new(&directory));
    }
    let directory = tempfile::tempdir_in("/dev/shm").expect("a directory");
    let registry = registry(directory.path());
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    // Fill the registry with slots of killed processes.
    let mark = 0;
    while let Some(connection) = Connection::make(registry, &listener, mark) {
        drop(connection);
        if registry.in_use() == weft_stream::limits::CONNECTIONS_MAX {
            break;
        }
    }
    let own = std::env::current_exe().expect("this test");
    let child = || {
        let mut command = Command::new(&own);
        command.arg("sweepers_free_slots_of_dead_processes_only").env(DIRECTORY, directory.path());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("a child")
    };
    let children: Vec<_> = (0..CHILDREN).map(|_| child()).collect();
    for child in children {
        let output = child.wait_with_output().expect("a child");
        let log = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&log));
    }
    registry.leave();
}
