//! Port numbers for servers: no two tests get the same one.

use std::net::{Ipv6Addr, SocketAddrV6};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::process;
use std::sync::{Mutex, PoisonError};

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, socket, socket_with,
};

/// The first port. All ports are below the kernel's ephemeral range (32768 and up).
const FIRST: u16 = 20_000;
/// Ports in a block. A process claims a block by binding an abstract Unix socket to its name.
const BLOCK: u16 = 100;
const BLOCKS: u16 = 120;

/// The blocks that this process has claimed until it ends.
struct Claimed {
    names: Vec<OwnedFd>,
    ports: Range<u16>,
}

static CLAIMED: Mutex<Claimed> = Mutex::new(Claimed { names: Vec::new(), ports: 0..0 });

/// Returns a port that no TCP or UDP socket has, and that this function has not returned before,
/// here or in another running lab.
///
/// # Panics
///
/// If every port of the lab's range is taken.
pub fn next() -> u16 {
    let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(port) = claimed.ports.find(|&port| is_free(port)) {
            return port;
        }
        let (name, ports) = claim();
        claimed.names.push(name);
        claimed.ports = ports;
    }
}

/// Claims a block that no process has claimed. The search begins at a block that depends on the
/// pid, because connections of a lab that has just ended may still be closing.
fn claim() -> (OwnedFd, Range<u16>) {
    let begin = (process::id() % u32::from(BLOCKS)) as u16;
    let attempt = |step| {
        let first = FIRST + (begin + step) % BLOCKS * BLOCK;
        let name = format!("weft-lab-ports-{first}");
        let name = SocketAddrUnix::new_abstract_name(name.as_bytes()).ok()?;
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).ok()?;
        bind(&socket, &name).ok()?;
        Some((socket, first..first + BLOCK))
    };
    let claimed = (0..BLOCKS).find_map(attempt);
    claimed.unwrap_or_else(|| panic!("no port is free from {FIRST} on, {BLOCKS} x {BLOCK}"))
}

/// Whether no socket has the port. Binds but does not listen, because another test may wait until
/// its server listens on the port.
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

    #[test]
    fn a_block_is_claimed_once() {
        let ((_one, ports), (_other, others)) = (super::claim(), super::claim());
        assert_ne!(ports, others);
        assert!(ports.end <= super::FIRST + super::BLOCKS * super::BLOCK);
    }
}
