//! UDP sockets that move many datagrams with one system call.
//!
//! # Safety
//! Each call builds the kernel's structures on the stack from slices that outlive it, and reads
//! only as much of the kernel's output as the kernel reports. Socket options and group requests are
//! structures in local variables.
#![allow(unsafe_code)]

use std::mem::{size_of, zeroed};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;

use libc::{c_int, cmsghdr, group_req, iovec, mmsghdr, sockaddr_in6, socklen_t};

use crate::calls::io::Errno;
use crate::calls::net::{
    AddressFamily, SocketFlags, SocketType, bind, ipproto, socket_with, sockopt,
};
use crate::calls::{call, set_option};
pub use crate::limits::{SEGMENTS_MAX, SEND_RUNS_MAX};

/// Number of buffers of a [`RecvBatch`], and so of runs that one system call receives.
const RECEIVE_RUNS: usize = 16;
/// Length of each buffer: a run is at most what one IP packet can carry.
const RECEIVE_LEN: usize = 64 << 10;
/// Room for the requested ancillary data, aligned as the kernel requires.
const CONTROL_WORDS: usize = 16;

type Control = [u64; CONTROL_WORDS];

/// A non-blocking UDP socket.
#[derive(Debug)]
pub struct UdpSocket {
    fd: OwnedFd,
    /// IPv4 addresses are passed to the kernel as mapped IPv6 ones.
    is_ipv6: bool,
    can_segment: bool,
}

/// Contiguous datagrams to one destination. All have `segment` bytes, except the last, which may be
/// shorter.
#[derive(Clone, Debug)]
pub struct Run {
    /// The range of their bytes.
    pub bytes: Range<usize>,
    /// Length of each datagram.
    pub segment: usize,
    /// The destination.
    pub to: SocketAddr,
    /// The source address on this host, and the interface (0 lets the routes decide).
    pub from: (IpAddr, u32),
}

/// What became of a datagram that did not reach a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounce {
    /// Where it was sent.
    pub to: SocketAddr,
    /// Whether the host of that address has answered that no program receives at the port.
    pub is_refused: bool,
    /// How many bytes of the beginning of the datagram the answer repeats, as far as they fit.
    pub len: usize,
}

/// The origin of a run of datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The sender.
    pub from: SocketAddr,
    /// The destination address: one of this host's, or a group's.
    pub to: IpAddr,
    /// The interface by which it came.
    pub interface: u32,
}

#[derive(Clone, Copy, Debug)]
struct Received {
    arrival: Arrival,
    len: usize,
    segment: usize,
}

/// A buffer for datagrams, with the result of the last [`UdpSocket::receive`].
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
    /// The datagrams of the batch, in the order of their arrival.
    pub fn datagrams(&self) -> impl Iterator<Item = (Arrival, &[u8])> {
        let buffers = self.bytes.chunks_exact(RECEIVE_LEN).zip(&self.received);
        buffers.flat_map(|(buffer, received)| {
            received.iter().flat_map(move |received| {
                // An empty datagram has no chunk, and is skipped.
                buffer[..received.len].chunks(received.segment).map(|one| (received.arrival, one))
            })
        })
    }
}

impl UdpSocket {
    /// Binds `port` (0: any). Several sockets may have a `shared` port; each gets the datagrams of
    /// the groups that it has joined.
    ///
    /// # Errors
    /// `EADDRINUSE` and similar errors.
    pub fn bind(port: u16, shared: bool) -> Result<Self, Errno> {
        let v6 = Self::bind_to(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)), shared, false);
        // A machine without IPv6 has no socket of that family.
        v6.or_else(|error| match error {
            Errno::ADDRINUSE | Errno::ACCESS => Err(error),
            _ => Self::bind_to(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), shared, false),
        })
    }

    /// Binds one address, or all of a family. All addresses of IPv6 include those of IPv4, unless
    /// `only_ipv6`.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EADDRNOTAVAIL` and similar errors.
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
            set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &1)?;
            // Ignore groups that only other programs of the host have joined.
            set_option(&fd, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_ALL, &0)?;
        } else {
            set_option(&fd, libc::IPPROTO_IP, libc::IP_PKTINFO, &1)?;
        }
        set_option(&fd, libc::IPPROTO_IP, libc::IP_MULTICAST_ALL, &0)?;
        if shared {
            sockopt::set_socket_reuseaddr(&fd, true)?;
        }
        bind(&fd, &address)?;
        // Kernels that lack either (before 4.18 and 5.0) move datagrams one by one.
        let can_segment = set_option(&fd, libc::SOL_UDP, libc::UDP_SEGMENT, &0).is_ok();
        let _ = set_option(&fd, libc::SOL_UDP, libc::UDP_GRO, &1);
        Ok(Self { fd, is_ipv6, can_segment })
    }

    /// The port.
    ///
    /// # Errors
    /// An error of `getsockname(2)`.
    pub fn port(&self) -> Result<u16, Errno> {
        let address: SocketAddr = crate::calls::net::getsockname(&self.fd)?.try_into()?;
        Ok(address.port())
    }

    /// Requests buffers of this many bytes in both directions. Without the right to exceed the
    /// system's limit the socket gets what that allows.
    pub fn set_room(&self, bytes: c_int) {
        for (forced, plain) in
            [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
        {
            if set_option(&self.fd, libc::SOL_SOCKET, forced, &bytes).is_err() {
                let _ = set_option(&self.fd, libc::SOL_SOCKET, plain, &bytes);
            }
        }
    }

    /// Has the kernel keep what others answer to datagrams that reach no program, for
    /// [`UdpSocket::take_bounce`]. From now on each of them makes one call of
    /// [`UdpSocket::receive`] or [`UdpSocket::send`] fail, or send less than it could.
    ///
    /// # Errors
    /// An error of `setsockopt(2)`.
    pub fn keep_bounces(&self) -> Result<(), Errno> {
        if self.is_ipv6 {
            set_option(&self.fd, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, &1)?;
        }
        set_option(&self.fd, libc::IPPROTO_IP, libc::IP_RECVERR, &1)
    }

    /// The next of them, with the beginning of the datagram in `quote`.
    ///
    /// # Errors
    /// `EAGAIN` if there is none.
    pub fn take_bounce(&self, quote: &mut [u8]) -> Result<Bounce, Errno> {
        // SAFETY: the structure consists of integers, for which zero is a valid value.
        let mut name: sockaddr_in6 = unsafe { zeroed() };
        let mut control: Control = [0; CONTROL_WORDS];
        let mut piece = iovec { iov_base: quote.as_mut_ptr().cast(), iov_len: quote.len() };
        // SAFETY: the structure consists of integers and pointers, for which zero is a valid value.
        let mut header: libc::msghdr = unsafe { zeroed() };
        header.msg_name = (&raw mut name).cast();
        header.msg_namelen = size_of::<sockaddr_in6>() as socklen_t;
        header.msg_iov = &raw mut piece;
        header.msg_iovlen = 1;
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of::<Control>();
        // SAFETY: the name and the control data are in local variables, and the piece is `quote`,
        // which is borrowed mutably.
        let len = unsafe {
            let (fd, message) = (self.fd.as_raw_fd() as usize, &raw mut header as usize);
            let flags = (libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE) as usize;
            call(libc::SYS_recvmsg, [fd, message, flags, 0, 0, 0])
        }?;
        let is_refused = ancillary(&header).any(|cmsg| match (cmsg.cmsg_level, cmsg.cmsg_type) {
            (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) | (libc::IPPROTO_IP, libc::IP_RECVERR) => {
                content::<libc::sock_extended_err>(cmsg).is_some_and(|error| is_refusal(&error))
            }
            _ => false,
        });
        let to = decode(&name).ok_or(Errno::AFNOSUPPORT)?;
        Ok(Bounce { to, is_refused, len })
    }

    /// Whether the kernel can split a run into datagrams. Otherwise each [`Run`] must have only
    /// one.
    #[must_use]
    pub fn can_segment(&self) -> bool {
        self.can_segment
    }

    /// Joins a group on an interface, to receive its datagrams.
    ///
    /// # Errors
    /// `EADDRINUSE` if the socket is a member already, `ENODEV` for an unknown interface, `ENOBUFS`
    /// and similar errors at the system's limits.
    pub fn join(&self, group: IpAddr, interface: u32) -> Result<(), Errno> {
        self.change_membership(libc::MCAST_JOIN_GROUP, group, interface)
    }

    /// Leaves a group on an interface.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL` if the socket is not a member.
    pub fn leave(&self, group: IpAddr, interface: u32) -> Result<(), Errno> {
        self.change_membership(libc::MCAST_LEAVE_GROUP, group, interface)
    }

    fn change_membership(&self, what: c_int, group: IpAddr, interface: u32) -> Result<(), Errno> {
        let level = if group.is_ipv4() { libc::IPPROTO_IP } else { libc::IPPROTO_IPV6 };
        // SAFETY: the structure consists of integers, for which zero is a valid value.
        let mut request: group_req = unsafe { zeroed() };
        request.gr_interface = interface;
        // SAFETY: the structure consists of integers, for which zero is a valid value.
        let mut name: sockaddr_in6 = unsafe { zeroed() };
        encode(SocketAddr::new(group, 0), false, &mut name);
        // SAFETY: a `sockaddr_storage` has size and alignment for every kind of address.
        unsafe { (&raw mut request.gr_group).cast::<sockaddr_in6>().write(name) };
        set_option(&self.fd, level, what, &request)
    }

    /// Sends runs of `bytes`, at most [`SEND_RUNS_MAX`], and returns how many the kernel took.
    ///
    /// # Errors
    /// The error of the first run, none of which is sent: `EAGAIN` if there is no room, `EINVAL` or
    /// `EMSGSIZE` if its datagrams do not fit the path's MTU, or an error of the network.
    ///
    /// # Panics
    /// If a run does not lie within `bytes`.
    pub fn send(&self, bytes: &[u8], runs: &[Run]) -> Result<usize, Errno> {
        // SAFETY: the structures consist of integers and pointers, for which zero is a valid value.
        let mut headers: [mmsghdr; SEND_RUNS_MAX] = unsafe { zeroed() };
        // SAFETY: the structures consist of integers and pointers, for which zero is a valid value.
        let mut pieces: [iovec; SEND_RUNS_MAX] = unsafe { zeroed() };
        // SAFETY: the structures consist of integers, for which zero is a valid value.
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
        // SAFETY: `count` headers are initialised, and their names, pieces and control data are in
        // the local arrays above. The kernel only reads the bytes that the pieces name.
        unsafe {
            let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
            let list = headers.as_mut_ptr() as usize;
            call(libc::SYS_sendmmsg, [self.fd.as_raw_fd() as usize, list, count, flags, 0, 0])
        }
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

    /// Receives datagrams into `batch`, replacing its contents. Returns whether there may be more.
    ///
    /// # Errors
    /// `EAGAIN` if nothing is there; an error of an earlier datagram, which callers may ignore.
    pub fn receive(&self, batch: &mut RecvBatch) -> Result<bool, Errno> {
        batch.received.clear();
        // SAFETY: the structures consist of integers and pointers, for which zero is a valid value.
        let mut headers: [mmsghdr; RECEIVE_RUNS] = unsafe { zeroed() };
        // SAFETY: the structures consist of integers and pointers, for which zero is a valid value.
        let mut pieces: [iovec; RECEIVE_RUNS] = unsafe { zeroed() };
        // SAFETY: the structures consist of integers, for which zero is a valid value.
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
        // SAFETY: the number is that of the headers, all of which are initialised. Names and
        // control data are in the local arrays, and the pieces are disjoint buffers of the batch,
        // which is borrowed mutably.
        let count = unsafe {
            let (fd, list) = (self.fd.as_raw_fd() as usize, headers.as_mut_ptr() as usize);
            let flags = libc::MSG_DONTWAIT as usize;
            call(libc::SYS_recvmmsg, [fd, list, RECEIVE_RUNS, flags, 0, 0])
        }?;
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

/// Decodes a received message; `None` if it was truncated or its sender is unknown.
fn received(message: &mmsghdr, name: &sockaddr_in6) -> Option<Received> {
    let header = &message.msg_hdr;
    if header.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
        return None;
    }
    let len = message.msg_len as usize;
    let from = decode(name)?;
    let (mut to, mut interface, mut segment) = (None, 0, len);
    for cmsg in ancillary(header) {
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
    }
    let arrival = Arrival { from, to: to?, interface };
    Some(Received { arrival, len, segment: segment.max(1) })
}

/// Whether an error is the answer that no program receives at the port.
fn is_refusal(error: &libc::sock_extended_err) -> bool {
    /// "Port unreachable": type and code of ICMP (RFC 792) and of ICMPv6 (RFC 4443).
    const REFUSALS: [(u8, u8, u8); 2] =
        [(libc::SO_EE_ORIGIN_ICMP, 3, 3), (libc::SO_EE_ORIGIN_ICMP6, 1, 4)];
    REFUSALS.contains(&(error.ee_origin, error.ee_type, error.ee_code))
}

/// The ancillary messages of a message that the kernel has written.
fn ancillary(header: &libc::msghdr) -> impl Iterator<Item = &cmsghdr> {
    // SAFETY: the kernel has written `msg_controllen` bytes of control data at `msg_control`.
    let first = unsafe { libc::CMSG_FIRSTHDR(header) };
    let next = move |cmsg: &&cmsghdr| {
        // SAFETY: `cmsg` is a header of this message, whose control data the kernel has filled.
        let next = unsafe { libc::CMSG_NXTHDR(header, *cmsg) };
        // SAFETY: `CMSG_NXTHDR` returns only headers that lie within the control data.
        unsafe { next.as_ref() }
    };
    // SAFETY: `CMSG_FIRSTHDR` returns only a header that lies within the control data.
    std::iter::successors(unsafe { first.as_ref() }, next)
}

/// The contents of an ancillary message, if it is long enough.
fn content<T: Copy>(cmsg: &cmsghdr) -> Option<T> {
    // SAFETY: the function only computes a length.
    let needed = unsafe { libc::CMSG_LEN(size_of::<T>() as u32) };
    if cmsg.cmsg_len < needed as usize {
        return None;
    }
    // SAFETY: `cmsg` is a whole header, and its data follows it.
    let data = unsafe { libc::CMSG_DATA(cmsg) };
    // SAFETY: the message has room for `T` (checked), which is one of the kernel's structures of
    // integers.
    Some(unsafe { data.cast::<T>().read_unaligned() })
}

/// Writes ancillary data.
struct ControlWriter<'a> {
    words: &'a mut Control,
    len: usize,
}

impl ControlWriter<'_> {
    fn put<T: Copy>(&mut self, level: c_int, kind: c_int, value: &T) {
        // SAFETY: the function only computes a length.
        let len = unsafe { libc::CMSG_LEN(size_of::<T>() as u32) };
        // SAFETY: the function only computes a length.
        let space = unsafe { libc::CMSG_SPACE(size_of::<T>() as u32) };
        assert!(self.len + space as usize <= size_of::<Control>(), "room for ancillary data");
        // SAFETY: the offset lies within the words (asserted).
        let cmsg = unsafe { self.words.as_mut_ptr().cast::<u8>().add(self.len) };
        let header = cmsghdr { cmsg_len: len as usize, cmsg_level: level, cmsg_type: kind };
        // SAFETY: the header lies within the words (asserted), at a multiple of eight bytes from an
        // aligned start.
        unsafe { cmsg.cast::<cmsghdr>().write(header) };
        // SAFETY: the data follows its header, within the space that was asserted.
        let data = unsafe { libc::CMSG_DATA(cmsg.cast()) };
        // SAFETY: `data` has room for `T`, within the space that was asserted.
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

/// Writes a socket address in the kernel's form, and returns its length.
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
        // SAFETY: the place has room for the shorter structure, which has the same alignment.
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

/// Decodes a socket address, with IPv4 unmapped.
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
            // SAFETY: an address of this family is the shorter structure, which has the same
            // alignment.
            let inet = unsafe { ptr::from_ref(name).cast::<libc::sockaddr_in>().read() };
            let address = Ipv4Addr::from(inet.sin_addr.s_addr.to_ne_bytes());
            Some(SocketAddrV4::new(address, u16::from_be(inet.sin_port)).into())
        }
        _ => None,
    }
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
    fn runs_arrive_as_separate_datagrams() {
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
    fn refused_datagrams_are_reported_with_their_beginning() {
        for (own, to) in [("[::]:0", "127.0.0.1"), ("[::]:0", "::1"), ("127.0.0.1:0", "127.0.0.1")]
        {
            let own: SocketAddr = own.parse().expect("an address");
            let sender = UdpSocket::bind_address(own, false).expect("a socket");
            sender.keep_bounces().expect("an option");
            let mut quote = [0; 32];
            assert_eq!(sender.take_bounce(&mut quote), Err(Errno::AGAIN));
            let gone = UdpSocket::bind(0, false).expect("a socket");
            let to = SocketAddr::new(to.parse().expect("an address"), gone.port().expect("bound"));
            drop(gone);
            let bytes: Vec<u8> = (0..250).collect();
            // A run is answered as one datagram, or each of its datagrams is.
            let unspecified = if to.is_ipv4() { [0; 4].into() } else { [0_u8; 16].into() };
            let runs = [Run { bytes: 0..200, segment: 100, to, from: (unspecified, 0) }];
            assert_eq!(sender.send(&bytes, &runs), Ok(1));
            assert_eq!(sender.receive(&mut RecvBatch::default()), Err(Errno::CONNREFUSED));
            let bounce = sender.take_bounce(&mut quote).expect("an answer");
            assert_eq!(bounce, Bounce { to, is_refused: true, len: 32 });
            assert_eq!(quote, bytes[..32]);
        }
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
