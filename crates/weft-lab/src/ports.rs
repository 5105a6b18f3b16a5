//! Port numbers for servers, so that tests never meet each other.

use std::net::{Ipv6Addr, SocketAddrV6};
use std::process;
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::net::{AddressFamily, SocketType, bind, socket};

/// Below the range that the kernel gives to outgoing connections (32768 and up).
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A port that no one listens on, TCP or UDP, and that this process has not had before.
///
/// # Panics
///
/// If every port of the lab's range is taken.
pub fn next() -> u16 {
    // Test binaries that run side by side start at different places.
    let offset = (process::id() % u32::from(COUNT)) as u16 / 100 * 100;
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = FIRST + offset.wrapping_add(step) % COUNT;
        if is_free(port) {
            return port;
        }
    }
    panic!("no port is free between {FIRST} and {}", FIRST + COUNT);
}

/// By binding, not by listening: a test beside this one may wait for a server at the port.
fn is_free(port: u16) -> bool {
    let any = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0);
    let can_bind = |kind| {
        socket(AddressFamily::INET6, kind, None).is_ok_and(|socket| bind(&socket, &any).is_ok())
    };
    can_bind(SocketType::STREAM) && can_bind(SocketType::DGRAM)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    #[test]
    fn ports_are_new_and_free() {
        let first = super::next();
        let _taken = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, first)).unwrap();
        assert_ne!(first, super::next());
        assert!(!super::is_free(first));
    }
}
