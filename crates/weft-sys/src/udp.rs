//! UDP sockets that move many datagrams by one system call.
//!
//! # Safety
//! Each call builds the kernel's structures on the stack from slices that outlive it, and reads
//! what the kernel wrote no further than the kernel said. Socket options and group requests are
//! plain structures in local variables.
#![allow(unsafe_code)]

use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use libc::{c_int, c_void, cmsghdr, group_req, iovec, mmsghdr, sockaddr_in6, socklen_t};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with, sockopt};

pub use crate::limits::{SEGMENTS_MAX, SEND_RUNS_MAX};

/// Buffers of a [`RecvBatch`]: runs that one system call receives.
const RECEIVE_RUNS: usize = 16;
/// Bytes of each: a run is at most what an IP packet carries.
const RECEIVE_LEN: usize = 64 << 10;
/// Room for the ancillary data that is asked for, aligned as the kernel wants it.
const CONTROL_WORDS: usize = 16;

type Control = [u64; CONTROL_WORDS];

/// A UDP socket that does not block.
#[derive(Debug)]
pub struct UdpSocket {
    fd: OwnedFd,
    /// IPv4 addresses are mapped into IPv6 ones, for the kernel.
    is_ipv6: bool,
    can_segment: bool,
}

/// Datagrams of one destination that lie one behind the other: all `segment` bytes long, but for
/// the last, which may be shorter.
#[derive(Clone, Debug)]
pub struct Run {
    /// Where they lie.
    pub bytes: Range<usize>,
    /// Bytes of each.
    pub segment: usize,
    /// To whom.
    pub to: SocketAddr,
    /// From which of the host's addresses, and by which interface (0: as the routes say).
    pub from: (IpAddr, u32),
}

/// Whence a run of datagrams came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The sender.
    pub from: SocketAddr,
    /// To which address it was sent: one of the host's, or a group's.
    pub to: IpAddr,
    /// The interface that it came by.
    pub interface: u32,
}

#[derive(Clone, Copy, Debug)]
struct Received {
    arrival: Arrival,
    len: usize,
    segment: usize,
}

/// Room for datagrams, and what the last [`UdpSocket::receive`] brought.
#[derive(Debug)]
pub struct RecvBatch {
    bytes: Vec<u8>,
    received: Vec<Option<Received>>,
}

impl Default for RecvBatch {
    fn default() -> Self {
        Self {
            bytes: vec![0; RECEIVE_RUNS * RECEIVE_LEN],
            received: Vec::with_capacity(RECEIVE_RUNS),
        }
    }
}

impl RecvBatch {
    /// The datagrams of the batch in the order in which they came.
    pub fn datagrams(&self) -> impl Iterator<Item = (Arrival, &[u8])> {
        let buffers = self.bytes.chunks_exact(RECEIVE_LEN).zip(&self.received);
        buffers.flat_map(|(buffer, received)| {
            received.iter().flat_map(move |received| {
                // An empty datagram has no chunk, and nobody misses it.
                buffer[..received.len].chunks(received.segment).map(|one| (received.arrival, one))
            })
        })
    }
}

impl UdpSocket {
    /// Binds `port` (0: any). Several sockets may have a `shared` port, each of which then gets the
    /// datagrams of the groups that it has joined.
    ///
    /// # Errors
    /// `EADDRINUSE` and the like.
    pub fn bind(port: u16, shared: bool) -> Result<Self, Errno> {
        let v6 = Self::bind_to(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), shared, false);
        // A machine without IPv6 has no socket of that family.
        v6.or_else(|error| match error {
            Errno::ADDRINUSE | Errno::ACCESS => Err(error),
            _ => Self::bind_to(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), shared, false),
        })
    }

    /// Binds one address, or all of a family; those of IPv6 are all of IPv4, too, unless
    /// `only_ipv6`.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EADDRNOTAVAIL` and the like.
    pub fn bind_address(address: SocketAddr, only_ipv6: bool) -> Result<Self, Errno> {
        Self::bind_to(address, false, only_ipv6)
    }

    fn bind_to(address: SocketAddr, shared: bool, only_ipv6: bool) -> Result<Self, Errno> {
        let is_ipv6 = address.is_ipv6();
        let family = if is_ipv6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let fd = socket_with(family, SocketType::DGRAM, flags, Some(ipproto::UDP))?;
        if is_ipv6 {
            sockopt::set_ipv6_v6only(&fd, only_ipv6)?;
            set(&fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &1)?;
            // Groups that another program of the host has joined are not ours.
            set(&fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL, &0)?;
        } else {
            set(&fd, libc::IPPROTO_IP, libc::IP_PKTINFO, &1)?;
        }
        set(&fd, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, &0)?;
        if shared {
            sockopt::set_socket_reuseaddr(&fd, true)?;
        }
        bind(&fd, &address)?;
        // A kernel that lacks either (before 4.18 and 5.0) moves datagrams one by one.
        let can_segment = set(&fd, libc::SOL_UDP, libc::UDP_SEGMENT, &0).is_ok();
        let _ = set(&fd, libc::SOL_UDP, libc::UDP_GRO, &1);
        Ok(Self { fd, is_ipv6, can_segment })
    }

    /// The port.
    ///
    /// # Errors
    /// What `getsockname(2)` reports.
    pub fn port(&self) -> Result<u16, Errno> {
        let address: SocketAddr = rustix::net::getsockname(&self.fd)?.try_into()?;
        Ok(address.port())
    }

    /// Asks for this many bytes of room for datagrams in either direction; who lacks the right to
    /// more gets what the system allows everybody.
    pub fn set_room(&self, bytes: c_int) {
        for (forced, plain) in
            [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
        {
            if set(&self.fd, libc::SOL_SOCKET, forced, &bytes).is_err() {
                let _ = set(&self.fd, libc::SOL_SOCKET, plain, &bytes);
            }
        }
    }

    /// Whether the kernel cuts a run of datagrams itself. Otherwise each [`Run`] must be one.
    #[must_use]
    pub fn can_segment(&self) -> bool {
        self.can_segment
    }

    /// Gets the datagrams of a group that come by an interface.
    ///
    /// # Errors
    /// `EADDRINUSE` when it does already, `ENODEV` for an unknown interface, `ENOBUFS` and the like
    /// when the system's bounds are reached.
    pub fn join(&self, group: IpAddr, interface: u32) -> Result<(), Errno> {
        self.change_membership(libc::MCAST_JOIN_GROUP, group, interface)
    }

    /// Gets them no longer.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` when it did not.
    pub fn leave(&self, group: IpAddr, interface: u32) -> Result<(), Errno> {
        self.change_membership(libc::MCAST_LEAVE_GROUP, group, interface)
    }

    fn change_membership(&self, what: c_int, group: IpAddr, interface: u32) -> Result<(), Errno> {
        let level = if group.is_ipv4() { libc::IPPROTO_IP } else { libc::IPPROTO_IPV6 };
        // SAFETY: a structure of plain numbers, for which zero is a value.
        let mut request: group_req = unsafe { zeroed() };
        request.gr_interface = interface;
        // SAFETY: a structure of plain numbers, for which zero is a value.
        let mut name: sockaddr_in6 = unsafe { zeroed() };
        encode(SocketAddr::new(group, 0), false, &mut name);
        // SAFETY: a `sockaddr_storage` has room and alignment for every kind of address.
        unsafe { (&raw mut request.gr_group).cast::<sockaddr_in6>().write(name) };
        set(&self.fd, level, what, &request)
    }

    /// Hands runs of `bytes` to the kernel, at most [`SEND_RUNS_MAX`], and returns how many it
    /// took.
    ///
    /// # Errors
    /// That of the first run, none of which is sent: `EAGAIN` when there is no room, `EINVAL` or
    /// `EMSGSIZE` for a run whose datagrams do not fit the path whole, and what the network says.
    ///
    /// # Panics
    /// When a run does not lie within `bytes`.
    pub fn send(&self, bytes: &[u8], runs: &[Run]) -> Result<usize, Errno> {
        // SAFETY: structures of plain numbers and pointers, for which zero is a value.
        let mut headers: [mmsghdr; SEND_RUNS_MAX] = unsafe { zeroed() };
        // SAFETY: structures of plain numbers and pointers, for which zero is a value.
        let mut pieces: [iovec; SEND_RUNS_MAX] = unsafe { zeroed() };
        // SAFETY: structures of plain numbers and pointers, for which zero is a value.
        let mut names: [sockaddr_in6; SEND_RUNS_MAX] = unsafe { zeroed() };
        let mut controls: [Control; SEND_RUNS_MAX] = [[0; CONTROL_WORDS]; SEND_RUNS_MAX];
        let count = runs.len().min(SEND_RUNS_MAX);
        for (index, run) in runs[..count].iter().enumerate() {
            let datagrams = &bytes[run.bytes.clone()];
            pieces[index] =
                iovec { iov_base: datagrams.as_ptr().cast_mut().cast(), iov_len: datagrams.len() };
            let name_len = encode(run.to, self.is_ipv6, &mut names[index]);
            let mut control = ControlWriter { words: &mut controls[index], len: 0 };
            self.put_source(&mut control, run);
            if datagrams.len() > run.segment {
                let segment = u16::try_from(run.segment).map_err(|_| Errno::MSGSIZE)?;
                control.put(libc::SOL_UDP, libc::UDP_SEGMENT, &segment);
            }
            let control_len = control.len;
            let header = &mut headers[index].msg_hdr;
            header.msg_name = (&raw mut names[index]).cast();
            header.msg_namelen = name_len;
            header.msg_iov = &raw mut pieces[index];
            header.msg_iovlen = 1;
            header.msg_control = controls[index].as_mut_ptr().cast();
            header.msg_controllen = control_len;
        }
        // SAFETY: `count` initialised headers, whose names, pieces and control data are the local
        // arrays above; the kernel only reads the bytes that the pieces name.
        let sent = unsafe {
            libc::sendmmsg(
                self.fd.as_raw_fd(),
                headers.as_mut_ptr(),
                count as u32,
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
            )
        };
        usize::try_from(sent).map_err(|_| last_error())
    }

    fn put_source(&self, control: &mut ControlWriter<'_>, run: &Run) {
        let (address, interface) = run.from;
        match address {
            IpAddr::V4(v4) if !self.is_ipv6 => {
                let info = libc::in_pktinfo {
                    ipi_ifindex: interface.cast_signed(),
                    ipi_spec_dst: libc::in_addr { s_addr: u32::from_ne_bytes(v4.octets()) },
                    ipi_addr: libc::in_addr { s_addr: 0 },
                };
                control.put(libc::IPPROTO_IP, libc::IP_PKTINFO, &info);
            }
            _ => {
                let info = libc::in6_pktinfo {
                    ipi6_addr: libc::in6_addr { s6_addr: mapped(address).octets() },
                    ipi6_ifindex: interface,
                };
                control.put(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info);
            }
        }
    }

    /// Takes what the socket holds into `batch`, in place of what was there. Returns whether there
    /// may be more.
    ///
    /// # Errors
    /// `EAGAIN` when nothing is there; what an earlier datagram met with, which concerns no one.
    pub fn receive(&self, batch: &mut RecvBatch) -> Result<bool, Errno> {
        batch.received.clear();
        // SAFETY: structures of plain numbers and pointers, for which zero is a value.
        let mut headers: [mmsghdr; RECEIVE_RUNS] = unsafe { zeroed() };
        // SAFETY: structures of plain numbers and pointers, for which zero is a value.
        let mut pieces: [iovec; RECEIVE_RUNS] = unsafe { zeroed() };
        // SAFETY: structures of plain numbers and pointers, for which zero is a value.
        let mut names: [sockaddr_in6; RECEIVE_RUNS] = unsafe { zeroed() };
        let mut controls: [Control; RECEIVE_RUNS] = [[0; CONTROL_WORDS]; RECEIVE_RUNS];
        for (index, buffer) in batch.bytes.chunks_exact_mut(RECEIVE_LEN).enumerate() {
            pieces[index] = iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let header = &mut headers[index].msg_hdr;
            header.msg_name = (&raw mut names[index]).cast();
            header.msg_namelen = size_of::<sockaddr_in6>() as socklen_t;
            header.msg_iov = &raw mut pieces[index];
            header.msg_iovlen = 1;
            header.msg_control = controls[index].as_mut_ptr().cast();
            header.msg_controllen = size_of::<Control>();
        }
        // SAFETY: as many initialised headers as it says; names and control data are the local
        // arrays, and the pieces are disjoint buffers of the batch, which is borrowed mutably.
        let count = unsafe {
            libc::recvmmsg(
                self.fd.as_raw_fd(),
                headers.as_mut_ptr(),
                RECEIVE_RUNS as u32,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        let count = usize::try_from(count).map_err(|_| last_error())?;
        for (header, name) in headers[..count].iter().zip(&names) {
            batch.received.push(received(header, name));
        }
        Ok(count == RECEIVE_RUNS)
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// What a received message says about itself; `None` if it was cut or its sender is unknown.
fn received(message: &mmsghdr, name: &sockaddr_in6) -> Option<Received> {
    let header = &message.msg_hdr;
    if header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
        return None;
    }
    let len = message.msg_len as usize;
    let from = decode(name)?;
    let (mut to, mut interface, mut segment) = (None, 0, len);
    // SAFETY: the kernel has written `msg_controllen` bytes of control data at `msg_control`.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !next.is_null() {
        // SAFETY: a whole header within the control data, as CMSG_FIRSTHDR and CMSG_NXTHDR check.
        let cmsg = unsafe { &*next };
        match (cmsg.cmsg_level, cmsg.cmsg_type) {
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                if let Some(info) = content::<libc::in6_pktinfo>(cmsg) {
                    to = Some(Ipv6Addr::from(info.ipi6_addr.s6_addr).to_canonical());
                    interface = info.ipi6_ifindex;
                }
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                if let Some(info) = content::<libc::in_pktinfo>(cmsg) {
                    to = Some(Ipv4Addr::from(info.ipi_addr.s_addr.to_ne_bytes()).into());
                    interface = info.ipi_ifindex.cast_unsigned();
                }
            }
            (libc::SOL_UDP, libc::UDP_GRO) => {
                if let Some(size) = content::<c_int>(cmsg) {
                    segment = usize::try_from(size).ok().filter(|&size| size != 0)?;
                }
            }
            _ => {}
        }
        // SAFETY: both are of the same message, whose control data the kernel has filled in.
        next = unsafe { libc::CMSG_NXTHDR(header, next) };
    }
    let arrival = Arrival { from, to: to?, interface };
    Some(Received { arrival, len, segment: segment.max(1) })
}

/// The content of an ancillary message, if it is long enough.
fn content<T: Copy>(cmsg: &cmsghdr) -> Option<T> {
    // SAFETY: arithmetic on a length only.
    let needed = unsafe { libc::CMSG_LEN(size_of::<T>() as u32) };
    if cmsg.cmsg_len < needed as usize {
        return None;
    }
    // SAFETY: the data follows its header.
    let data = unsafe { libc::CMSG_DATA(cmsg) };
    // SAFETY: `T` is one of the kernel's structures of plain numbers, and that long (checked).
    Some(unsafe { data.cast::<T>().read_unaligned() })
}

/// Ancillary data that is being written.
struct ControlWriter<'a> {
    words: &'a mut Control,
    len: usize,
}

impl ControlWriter<'_> {
    fn put<T: Copy>(&mut self, level: c_int, kind: c_int, value: &T) {
        // SAFETY: arithmetic on a length only.
        let len = unsafe { libc::CMSG_LEN(size_of::<T>() as u32) };
        // SAFETY: arithmetic on a length only.
        let space = unsafe { libc::CMSG_SPACE(size_of::<T>() as u32) };
        assert!(self.len + space as usize <= size_of::<Control>(), "room for ancillary data");
        // SAFETY: within the words (asserted).
        let cmsg = unsafe { self.words.as_mut_ptr().cast::<u8>().add(self.len) };
        let header = cmsghdr { cmsg_len: len as usize, cmsg_level: level, cmsg_type: kind };
        // SAFETY: within the words (asserted); a multiple of eight bytes behind an aligned start.
        unsafe { cmsg.cast::<cmsghdr>().write(header) };
        // SAFETY: the data follows its header, within the space that was asserted.
        let data = unsafe { libc::CMSG_DATA(cmsg.cast()) };
        // SAFETY: the data follows its header, within the space that was asserted.
        unsafe { data.cast::<T>().write_unaligned(*value) };
        self.len += space as usize;
    }
}

fn mapped(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// Writes a socket address in the kernel's form and returns its length.
fn encode(address: SocketAddr, as_ipv6: bool, place: &mut sockaddr_in6) -> socklen_t {
    if let SocketAddr::V4(v4) = address
        && !as_ipv6
    {
        let inet = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: v4.port().to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(v4.ip().octets()) },
            sin_zero: [0; 8],
        };
        // SAFETY: the shorter structure at the place of the longer one, of the same alignment.
        unsafe { ptr::from_mut(place).cast::<libc::sockaddr_in>().write(inet) };
        return size_of::<libc::sockaddr_in>() as socklen_t;
    }
    let scope = if let SocketAddr::V6(v6) = address { v6.scope_id() } else { 0 };
    *place = sockaddr_in6 {
        sin6_family: libc::AF_INET6 as u16,
        sin6_port: address.port().to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: mapped(address.ip()).octets() },
        sin6_scope_id: scope,
    };
    size_of::<sockaddr_in6>() as socklen_t
}

/// A socket address in its plain form: IPv4 unmapped.
fn decode(name: &sockaddr_in6) -> Option<SocketAddr> {
    match c_int::from(name.sin6_family) {
        libc::AF_INET6 => {
            let address = Ipv6Addr::from(name.sin6_addr.s6_addr);
            let port = u16::from_be(name.sin6_port);
            Some(match address.to_ipv4_mapped() {
                Some(v4) => SocketAddrV4::new(v4, port).into(),
                None => SocketAddrV6::new(address, port, 0, name.sin6_scope_id).into(),
            })
        }
        libc::AF_INET => {
            // SAFETY: an address of this family is the shorter structure, of the same alignment.
            let inet = unsafe { ptr::from_ref(name).cast::<libc::sockaddr_in>().read() };
            let address = Ipv4Addr::from(inet.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(address, u16::from_be(inet.sin_port)).into())
        }
        _ => None,
    }
}

fn set<T: Copy>(fd: &OwnedFd, level: c_int, option: c_int, value: &T) -> Result<(), Errno> {
    // SAFETY: `value` is readable for the length that is given beside it.
    let code = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            ptr::from_ref(value).cast::<c_void>(),
            size_of::<T>() as socklen_t,
        )
    };
    if code == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait_and_receive(socket: &UdpSocket, batch: &mut RecvBatch) {
        crate::wait_readable([socket.as_fd()], None).expect("no signal");
        socket.receive(batch).expect("a datagram");
    }

    fn run(bytes: Range<usize>, segment: usize, to: SocketAddr) -> Run {
        let from = if to.is_ipv4() { IpAddr::V4([127, 0, 0, 1].into()) } else { to.ip() };
        Run { bytes, segment, to, from: (from, 0) }
    }

    #[test]
    fn runs_arrive_as_the_datagrams_that_they_are() {
        let (sender, receiver) = (UdpSocket::bind(0, false), UdpSocket::bind(0, false));
        let (sender, receiver) = (sender.expect("a socket"), receiver.expect("a socket"));
        let port = receiver.port().expect("a port");
        let to = SocketAddr::from(([127, 0, 0, 9], port));
        let bytes: Vec<u8> = (0..250).collect();
        let runs = [run(0..100, 40, to), run(100..101, 1, to), run(101..250, 149, to)];
        assert!(sender.can_segment(), "the kernel of the tests has UDP_SEGMENT");
        assert_eq!(sender.send(&bytes, &runs), Ok(3));
        let mut batch = RecvBatch::default();
        let mut found = Vec::new();
        while found.len() < 5 {
            wait_and_receive(&receiver, &mut batch);
            for (arrival, datagram) in batch.datagrams() {
                assert_eq!(arrival.from.ip(), IpAddr::V4([127, 0, 0, 1].into()));
                assert_eq!(arrival.from.port(), sender.port().expect("a port"));
                assert_eq!(arrival.to, to.ip());
                found.push(datagram.to_vec());
            }
        }
        let expected = [&bytes[..40], &bytes[40..80], &bytes[80..100], &bytes[100..101]];
        assert_eq!(found[..4], expected.map(<[u8]>::to_vec));
        assert_eq!(found[4], bytes[101..]);
        assert_eq!(receiver.receive(&mut batch), Err(Errno::AGAIN));
    }

    #[test]
    fn groups_reach_each_socket_that_joined_on_a_shared_port() {
        let first = UdpSocket::bind(0, true).expect("a socket");
        let port = first.port().expect("a port");
        let others = [(); 2].map(|()| UdpSocket::bind(port, true).expect("the same port"));
        let loopback = crate::interface_addresses().expect("interfaces");
        let loopback = loopback.iter().find(|found| found.loopback).expect("loopback").index;
        let group = IpAddr::V4([239, 255, 77, 1].into());
        first.join(group, loopback).expect("a group");
        others[0].join(group, loopback).expect("a group");
        let to = SocketAddr::new(group, port);
        let mut outgoing = run(0..4, 4, to);
        outgoing.from.1 = loopback;
        assert_eq!(others[1].send(b"ping", &[outgoing]), Ok(1));
        let mut batch = RecvBatch::default();
        for socket in [&first, &others[0]] {
            wait_and_receive(socket, &mut batch);
            let (arrival, datagram) = batch.datagrams().next().expect("one");
            assert_eq!((arrival.to, datagram), (group, b"ping".as_slice()));
            assert_eq!(arrival.interface, loopback);
        }
        assert_eq!(others[1].receive(&mut batch), Err(Errno::AGAIN), "it did not join");
        first.leave(group, loopback).expect("a member");
        assert_eq!(first.leave(group, loopback), Err(Errno::ADDRNOTAVAIL));
    }
}
