//! Connections whose other end has not proven who it is.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Arc, Mutex};

use weft_sys::{host_of, lock};

/// All of them, in the order of their arrival.
#[derive(Debug, Default)]
pub(super) struct Strangers {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    connections: BTreeMap<u64, (IpAddr, TcpStream)>,
    next: u64,
    /// How many places there are, those of closed connections included.
    places: usize,
}

/// The place of a connection among them, until this is dropped.
#[derive(Debug)]
pub(super) struct Stranger {
    all: Arc<Strangers>,
    number: u64,
}

impl Strangers {
    /// Adds a connection. `None` if the process is out of descriptors.
    pub(super) fn add(self: &Arc<Self>, stream: &TcpStream, from: IpAddr) -> Option<Stranger> {
        let stream = stream.try_clone().ok()?;
        let mut state = lock(&self.state);
        let number = state.next;
        state.next += 1;
        state.places += 1;
        state.connections.insert(number, (host_of(from), stream));
        Some(Stranger { all: Arc::clone(self), number })
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        lock(&self.state).connections.len()
    }

    /// How many there are, with those that have been closed and whose threads have not noticed it.
    pub(super) fn places(&self) -> usize {
        lock(&self.state).places
    }

    /// Closes the oldest connection of the host that has the most. Returns false if there is none.
    ///
    /// A proof takes a moment, so what is closed is most likely silent, however many connections
    /// a stranger makes.
    pub(super) fn close_one(&self) -> bool {
        let mut state = lock(&self.state);
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for (from, _) in state.connections.values() {
            *counts.entry(*from).or_default() += 1;
        }
        let count_of = |from: &IpAddr| counts.get(from).copied().unwrap_or_default();
        let most = counts.values().copied().max().unwrap_or_default();
        let oldest = state.connections.iter().find(|(_, (from, _))| count_of(from) == most);
        let Some(number) = oldest.map(|(number, _)| *number) else { return false };
        if let Some((_, stream)) = state.connections.remove(&number) {
            // It fails if the other end has closed the connection already.
            let _ = stream.shutdown(Shutdown::Both);
        }
        true
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut state = lock(&self.all.state);
        state.connections.remove(&self.number);
        state.places -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn the_oldest_connection_of_the_busiest_host_makes_room() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
        let address = listener.local_addr().expect("bound");
        let strangers = Arc::new(Strangers::default());
        let connect = |from: &str| {
            let remote = TcpStream::connect(address).expect("it listens");
            let (near, _) = listener.accept().expect("a connection");
            let from = from.parse().expect("an address");
            (remote, strangers.add(&near, from).expect("a descriptor"), near)
        };
        let mut one = connect("192.0.2.1");
        let mut busy = ["2001:db8::1", "2001:db8::2", "2001:db8::3"].map(connect);
        // The second one proves who it is, and is closed no more.
        let proven = connect("2001:db8::4");
        drop(proven.1);
        for (remote, ..) in &mut busy[..2] {
            assert!(strangers.close_one());
            assert_eq!(remote.read(&mut [0]).expect("closed in order"), 0);
        }
        assert_eq!((strangers.count(), strangers.places()), (2, 4));
        // One connection of each host is left: the older one.
        assert!(strangers.close_one());
        assert_eq!(one.0.read(&mut [0]).expect("closed in order"), 0);
        assert!(strangers.close_one());
        assert_eq!(busy[2].0.read(&mut [0]).expect("closed in order"), 0);
        assert!(!strangers.close_one());
        proven.0.set_nonblocking(true).expect("a socket");
        assert!((&proven.0).read(&mut [0]).is_err(), "open, without bytes");
        drop((one, busy));
        assert_eq!((strangers.count(), strangers.places()), (0, 0));
    }
}
