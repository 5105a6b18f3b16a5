//! Connections between two sockets of this process. Unit tests have this file, too.

use std::net::{TcpListener, TcpStream};

use weft_stream::{End, Flow, Process, Registry, Tuple};

/// A socket, and its end of the connection.
pub(crate) struct Side {
    pub(crate) socket: TcpStream,
    pub(crate) end: End,
}

/// Both sides of a connection, the connector's first. It has not been used, and has a registry of
/// its own.
pub(crate) fn connected(flow: Flow) -> [Side; 2] {
    let dir = tempfile::tempdir().expect("a directory");
    let registry: &'static Registry =
        Box::leak(Box::new(Registry::open(dir.path()).expect("a registry")));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (server, _) = listener.accept().expect("accepted");
    let tuple =
        Tuple::new(client.local_addr().expect("connected"), client.peer_addr().expect("connected"));
    let process = |cookie| Process { pid: std::process::id(), fd: 0, cookie, program: [0; 16] };
    let offer = End::offer(registry, &tuple, &process(1), flow).expect("room");
    let found = End::find(registry, &tuple, &process(2), (0, 0)).expect("an offer");
    [Side { socket: client, end: offer }, Side { socket: server, end: found }]
}
