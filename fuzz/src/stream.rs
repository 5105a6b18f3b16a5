//! Body of the target for streams through shared memory: a peer that writes anything to the words
//! that both ends share.
//!
//! The first byte of the input selects the attacked end and the flow control. Records follow:
//!
//! ```text
//! bytes 0 and 1: index of the word, among those of `peers_words`
//! bytes 2 to 9:  the new value of the word
//! byte 10:       the call that follows on the attacked end
//! byte 11:       the length of the call, in units of 257 bytes
//! ```

use std::fs::{File, read_dir};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::OnceLock;

use weft_stream::hostile_access::{call, peers_words};
use weft_stream::{End, Flow, Process, Registry, Tuple};

const RECORD_LEN: usize = 12;
/// Most records of one input. Each may cost a system call.
const RECORDS_MAX: usize = 64;

/// Returns a registry, and its file opened as another process would open it.
fn shared() -> &'static (Registry, File) {
    static SHARED: OnceLock<(Registry, File)> = OnceLock::new();
    SHARED.get_or_init(|| {
        let directory = std::env::temp_dir().join(format!("weft-fuzz-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("a directory");
        let registry = Registry::open(&directory).expect("a registry");
        let entry = read_dir(&directory).expect("the directory").next().expect("a file");
        let path = entry.expect("an entry").path();
        let file = File::options().write(true).open(path).expect("the file");
        std::fs::remove_dir_all(directory).expect("no other process needs the name");
        (registry, file)
    })
}

/// Returns both ends of a connection that has moved to memory. Returns `None` if slots of earlier
/// inputs are not swept yet.
fn connection(flow: Flow) -> Option<([TcpStream; 2], [End; 2])> {
    let registry = &shared().0;
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let (server, _) = listener.accept().expect("accepted");
    let own = client.local_addr().expect("connected");
    let tuple = Tuple::new(own, client.peer_addr().expect("connected"));
    let me = Process { pid: std::process::id(), fd: 0, cookie: 0, program: [0; 16] };
    let offered = End::offer(registry, &tuple, &me, flow)?;
    let found = End::find(registry, &tuple, &me, (0, 0))?;
    found.advance(server.as_fd());
    offered.advance(client.as_fd());
    found.advance(server.as_fd());
    Some(([client, server], [offered, found]))
}

/// Whatever the peer writes, each call returns, and nothing outside of the connection changes.
pub fn stream(data: &[u8]) {
    let Some((&kind, records)) = data.split_first() else { return };
    let flow = if kind & 2 == 0 { Flow::Packed } else { Flow::Credit };
    let Some((sockets, ends)) = connection(flow) else { return };
    let (end, socket) = (&ends[usize::from(kind & 1)], &sockets[usize::from(kind & 1)]);
    let client = end.tuple().addresses().0;
    let slot = shared().0.connections().find(|found| found.client.address == client);
    let Some(slot) = slot.map(|found| found.slot) else { return };
    let words = peers_words(slot);
    for record in records.chunks_exact(RECORD_LEN).take(RECORDS_MAX) {
        let at = words[usize::from(u16::from_le_bytes([record[0], record[1]])) % words.len()];
        let len = if at.is_multiple_of(8) { 8 } else { 4 };
        shared().1.write_all_at(&record[2..2 + len], at as u64).expect("written");
        call(end, socket.as_fd(), record[10], usize::from(record[11]) * 257);
    }
    for end in ends {
        let _ = end.release(std::process::id());
    }
}
