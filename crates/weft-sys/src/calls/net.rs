//! Sockets.
//!
//! # Safety
//! Each call passes addresses and lengths of its own arguments, which live until it returns.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, FromRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::addr::{SocketAddrArg, SocketAddrStorage};
pub use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, Shutdown, SocketAddrAny, SocketAddrUnix,
    SocketFlags, SocketType, ipproto, netlink,
};

pub use super::data::send_bytes as send;
use super::raw::{call, number, open_by};
pub use super::sockopt;

/// Room for an address that the kernel writes.
#[repr(C, align(8))]
struct AddressRoom {
    bytes: [u8; size_of::<SocketAddrStorage>()],
    len: u32,
}

impl AddressRoom {
    const fn new() -> Self {
        const LEN: usize = size_of::<SocketAddrStorage>();
        Self { bytes: [0; LEN], len: LEN as u32 }
    }

    /// The addresses of the address and of its length.
    fn arguments(&mut self) -> [usize; 2] {
        [self.bytes.as_mut_ptr() as usize, &raw mut self.len as usize]
    }

    /// The address, if the kernel has written one.
    fn address(&self) -> Option<SocketAddrAny> {
        const FAMILY_LEN: usize = size_of::<libc::sa_family_t>();
        let len = usize::try_from(self.len).ok().filter(|len| *len <= self.bytes.len())?;
        if len < FAMILY_LEN || self.bytes[..FAMILY_LEN] == [0; FAMILY_LEN] {
            return None;
        }
        // SAFETY: all bytes are initialised, the length is at most theirs and at least that of a
        // family, and the kernel has written the address.
        Some(unsafe { SocketAddrAny::read(self.bytes.as_ptr().cast(), self.len) })
    }
}

/// Passes the place of an address and its length to a function. They are valid while it runs.
fn with_address<R>(address: &impl SocketAddrArg, act: impl FnOnce(usize, usize) -> R) -> R {
    // SAFETY: the callers use the pointer only while the closure runs.
    unsafe { address.with_sockaddr(|place, len| act(place as usize, len as usize)) }
}

/// Makes a call whose second and third arguments are an address and its length.
fn call_with(
    number_of_call: libc::c_long,
    socket: impl AsFd,
    address: &impl SocketAddrArg,
) -> Result<(), Errno> {
    let socket = number(&socket);
    with_address(address, |place, len| {
        // SAFETY: the address can be read for its length while the closure runs.
        unsafe { call(number_of_call, [socket, place, len, 0, 0, 0]) }.map(drop)
    })
}

/// Makes a socket.
///
/// # Errors
/// Those of `socket(2)`.
pub fn socket_with(
    family: AddressFamily,
    kind: SocketType,
    flags: SocketFlags,
    protocol: Option<Protocol>,
) -> Result<OwnedFd, Errno> {
    let kind = kind.as_raw() | flags.bits();
    let protocol = protocol.map_or(0, |protocol| protocol.as_raw().get());
    let arguments = [family.as_raw() as usize, kind as usize, protocol as usize, 0, 0, 0];
    // SAFETY: the call accesses no memory, and returns a new descriptor.
    unsafe { open_by(libc::SYS_socket, arguments) }
}

/// Makes two connected sockets.
///
/// # Errors
/// Those of `socketpair(2)`.
pub fn socketpair(
    family: AddressFamily,
    kind: SocketType,
    flags: SocketFlags,
    protocol: Option<Protocol>,
) -> Result<(OwnedFd, OwnedFd), Errno> {
    let kind = kind.as_raw() | flags.bits();
    let protocol = protocol.map_or(0, |protocol| protocol.as_raw().get());
    let mut ends: [libc::c_int; 2] = [0; 2];
    let place = ends.as_mut_ptr() as usize;
    let arguments = [family.as_raw() as usize, kind as usize, protocol as usize, place, 0, 0];
    // SAFETY: the kernel writes two numbers to a local variable.
    unsafe { call(libc::SYS_socketpair, arguments) }?;
    // SAFETY: the kernel has just made both descriptors, and nothing else owns them.
    let [one, other] = ends.map(|end| unsafe { OwnedFd::from_raw_fd(end) });
    Ok((one, other))
}

/// Gives a socket an address.
///
/// # Errors
/// Those of `bind(2)`.
pub fn bind(socket: impl AsFd, address: &impl SocketAddrArg) -> Result<(), Errno> {
    call_with(libc::SYS_bind, socket, address)
}

/// Connects a socket.
///
/// # Errors
/// Those of `connect(2)`.
pub fn connect(socket: impl AsFd, address: &impl SocketAddrArg) -> Result<(), Errno> {
    call_with(libc::SYS_connect, socket, address)
}

/// Ends the connection of a socket (`AF_UNSPEC`).
///
/// # Errors
/// Those of `connect(2)`.
pub fn connect_unspec(socket: impl AsFd) -> Result<(), Errno> {
    const _: () = assert!(libc::AF_UNSPEC == 0);
    let nowhere = [0_u8; size_of::<libc::sockaddr>()];
    let arguments = [number(&socket), nowhere.as_ptr() as usize, nowhere.len(), 0, 0, 0];
    // SAFETY: the address is a local variable with this length.
    unsafe { call(libc::SYS_connect, arguments) }.map(drop)
}

/// Has a socket accept connections.
///
/// # Errors
/// Those of `listen(2)`.
pub fn listen(socket: impl AsFd, backlog: i32) -> Result<(), Errno> {
    // SAFETY: the call accesses no memory.
    unsafe { call(libc::SYS_listen, [number(&socket), backlog as usize, 0, 0, 0, 0]) }.map(drop)
}

/// Accepts a connection.
///
/// # Errors
/// Those of `accept4(2)`.
pub fn accept_with(listener: impl AsFd, flags: SocketFlags) -> Result<OwnedFd, Errno> {
    let arguments = [number(&listener), 0, 0, flags.bits() as usize, 0, 0];
    // SAFETY: no address is asked for, and the call returns a new descriptor.
    unsafe { open_by(libc::SYS_accept4, arguments) }
}

/// Accepts a connection, and returns its peer's address, if it has one.
///
/// # Errors
/// Those of `accept4(2)`.
pub fn acceptfrom_with(
    listener: impl AsFd,
    flags: SocketFlags,
) -> Result<(OwnedFd, Option<SocketAddrAny>), Errno> {
    let mut room = AddressRoom::new();
    let [place, len] = room.arguments();
    let arguments = [number(&listener), place, len, flags.bits() as usize, 0, 0];
    // SAFETY: the room lives during the call and has this length; the call returns a new
    // descriptor.
    let socket = unsafe { open_by(libc::SYS_accept4, arguments) }?;
    Ok((socket, room.address()))
}

fn address_by(
    number_of_call: libc::c_long,
    socket: impl AsFd,
) -> Result<Option<SocketAddrAny>, Errno> {
    let mut room = AddressRoom::new();
    let [place, len] = room.arguments();
    // SAFETY: the room lives during the call and has this length.
    unsafe { call(number_of_call, [number(&socket), place, len, 0, 0, 0]) }?;
    Ok(room.address())
}

/// The address of a socket.
///
/// # Errors
/// Those of `getsockname(2)`.
pub fn getsockname(socket: impl AsFd) -> Result<SocketAddrAny, Errno> {
    address_by(libc::SYS_getsockname, socket)?.ok_or(Errno::AFNOSUPPORT)
}

/// The address of a socket's peer, if it has one.
///
/// # Errors
/// Those of `getpeername(2)`.
pub fn getpeername(socket: impl AsFd) -> Result<Option<SocketAddrAny>, Errno> {
    address_by(libc::SYS_getpeername, socket)
}

/// Ends a direction of a connection, or both.
///
/// # Errors
/// Those of `shutdown(2)`.
pub fn shutdown(socket: impl AsFd, how: Shutdown) -> Result<(), Errno> {
    // SAFETY: the call accesses no memory.
    unsafe { call(libc::SYS_shutdown, [number(&socket), how as usize, 0, 0, 0, 0]) }.map(drop)
}

/// Receives from a socket. Returns the number of bytes in `bytes`, and with `MSG_TRUNC` the length
/// of the message.
///
/// # Errors
/// Those of `recv(2)`.
pub fn recv(
    socket: impl AsFd,
    bytes: &mut [u8],
    flags: RecvFlags,
) -> Result<(usize, usize), Errno> {
    let (place, flags) = (bytes.as_mut_ptr() as usize, flags.bits() as usize);
    let arguments = [number(&socket), place, bytes.len(), flags, 0, 0];
    // SAFETY: the length is that of the buffer, which lives during the call.
    let len = unsafe { call(libc::SYS_recvfrom, arguments) }?;
    Ok((len.min(bytes.len()), len))
}

/// Receives like [`recv`], and returns the sender's address, too, if it has one.
///
/// # Errors
/// Those of `recvfrom(2)`.
pub fn recvfrom(
    socket: impl AsFd,
    bytes: &mut [u8],
    flags: RecvFlags,
) -> Result<(usize, usize, Option<SocketAddrAny>), Errno> {
    let mut room = AddressRoom::new();
    let [address, address_len] = room.arguments();
    let (place, flags) = (bytes.as_mut_ptr() as usize, flags.bits() as usize);
    let arguments = [number(&socket), place, bytes.len(), flags, address, address_len];
    // SAFETY: the lengths are those of the buffer and of the room, which live during the call.
    let len = unsafe { call(libc::SYS_recvfrom, arguments) }?;
    Ok((len.min(bytes.len()), len, room.address()))
}

/// Sends to an address.
///
/// # Errors
/// Those of `sendto(2)`.
pub fn sendto(
    socket: impl AsFd,
    bytes: &[u8],
    flags: SendFlags,
    to: &impl SocketAddrArg,
) -> Result<usize, Errno> {
    let (socket, flags) = (number(&socket), flags.bits() as usize);
    with_address(to, |place, len| {
        let arguments = [socket, bytes.as_ptr() as usize, bytes.len(), flags, place, len];
        // SAFETY: address and bytes can be read for their lengths while the closure runs.
        unsafe { call(libc::SYS_sendto, arguments) }
    })
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn udp() -> OwnedFd {
        let flags = SocketFlags::CLOEXEC;
        let kind = SocketType::DGRAM;
        let socket = socket_with(AddressFamily::INET, kind, flags, Some(ipproto::UDP));
        let socket = socket.expect("a socket");
        bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("an address");
        socket
    }

    #[test]
    fn datagrams_are_sent_and_received_with_their_addresses() {
        let (one, other) = (udp(), udp());
        let [here, there] = [&one, &other].map(|socket| {
            SocketAddr::try_from(getsockname(socket).expect("an address")).expect("of the internet")
        });
        assert_eq!(Ok(here), rustix::net::getsockname(&one).expect("an address").try_into());
        assert_eq!(getpeername(&one).map(|_| ()), Err(Errno::NOTCONN));
        assert_eq!(sendto(&one, b"abcd", SendFlags::empty(), &there), Ok(4));
        let mut room = [0; 3];
        let (len, whole, from) = recvfrom(&other, &mut room, RecvFlags::TRUNC).expect("a message");
        assert_eq!((len, whole, &room), (3, 4, b"abc"));
        assert_eq!(from.and_then(|from| SocketAddr::try_from(from).ok()), Some(here));
        assert_eq!(connect(&one, &there), Ok(()));
        let peer = getpeername(&one).expect("connected").expect("an address");
        assert_eq!(SocketAddr::try_from(peer), Ok(there));
        assert_eq!(send(&one, b"e", SendFlags::empty()), Ok(1));
        assert_eq!(recv(&other, &mut room, RecvFlags::DONTWAIT), Ok((1, 1)));
        assert_eq!(recv(&other, &mut room, RecvFlags::DONTWAIT), Err(Errno::AGAIN));
        assert_eq!(connect_unspec(&one), Ok(()));
        assert_eq!(getpeername(&one).map(|_| ()), Err(Errno::NOTCONN));
    }

    #[test]
    fn connections_are_accepted_with_and_without_an_address() {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let stream =
            || socket_with(AddressFamily::INET, SocketType::STREAM, flags, None).expect("a socket");
        let listener = stream();
        bind(&listener, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("an address");
        listen(&listener, 4).expect("it listens");
        assert_eq!(accept_with(&listener, flags).map(drop), Err(Errno::AGAIN));
        let address = SocketAddr::try_from(getsockname(&listener).expect("an address"));
        let address = address.expect("of the internet");
        let clients = [stream(), stream()];
        for client in &clients {
            assert!(matches!(connect(client, &address), Ok(()) | Err(Errno::INPROGRESS)));
        }
        let (_first, peer) = acceptfrom_with(&listener, flags).expect("a connection");
        let peer = SocketAddr::try_from(peer.expect("an address"));
        assert_eq!(peer, getsockname(&clients[0]).expect("an address").try_into());
        let second = accept_with(&listener, flags).expect("a connection");
        assert_eq!(shutdown(&second, Shutdown::Write), Ok(()));
    }
}
