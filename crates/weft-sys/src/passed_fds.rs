//! Packets of a Unix socket that pass descriptors on (`SCM_RIGHTS`, unix(7)), sent and received by
//! the calls of [`calls`](crate::calls).
//!
//! # Safety
//! The message header names memory of its own function. What the kernel has written is walked by
//! the C library's macros, within the length that the kernel returns.
#![allow(unsafe_code)]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};

use crate::calls::call;
use crate::calls::io::Errno;
use crate::calls::net::{RecvFlags, SendFlags};
pub use crate::limits::PASSED_FDS_MAX;

/// Room for one control message with [`PASSED_FDS_MAX`] descriptors.
const CONTROL_LEN: usize = size_of::<libc::cmsghdr>() + PASSED_FDS_MAX * size_of::<RawFd>();

#[repr(C, align(8))]
struct Control([u8; CONTROL_LEN]);

/// A packet with the descriptors that came with it.
#[derive(Debug)]
pub struct PacketWithFds {
    /// How many bytes came.
    pub len: usize,
    /// The descriptors, from the first place on.
    pub fds: [Option<OwnedFd>; PASSED_FDS_MAX],
    /// Whether bytes or descriptors did not fit, and are lost.
    pub is_cut: bool,
}

/// Receives a packet with up to [`PASSED_FDS_MAX`] descriptors, which a program that is executed
/// does not inherit.
///
/// # Errors
/// An error of `recvmsg(2)`.
pub fn recv_with_fds(
    socket: impl AsFd,
    bytes: &mut [u8],
    flags: RecvFlags,
) -> Result<PacketWithFds, Errno> {
    let mut control = Control([0; CONTROL_LEN]);
    let mut buffer = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    // SAFETY: zeros are a valid `msghdr`: it consists of numbers and pointers.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut buffer;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = CONTROL_LEN;
    let number = socket.as_fd().as_raw_fd().cast_unsigned() as usize;
    let flags = (flags | RecvFlags::CMSG_CLOEXEC).bits() as usize;
    // SAFETY: the header, the buffer that it names and the room for control messages live until the
    // call returns, and nobody else accesses them.
    let len =
        unsafe { call(libc::SYS_recvmsg, [number, (&raw mut message) as usize, flags, 0, 0, 0]) }?;
    let is_cut = message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0;
    Ok(PacketWithFds { len, fds: received_fds(&message), is_cut })
}

/// Takes the descriptors of a header that `recvmsg` has filled, which the caller has not taken.
fn received_fds(message: &libc::msghdr) -> [Option<OwnedFd>; PASSED_FDS_MAX] {
    let mut fds = [const { None }; PASSED_FDS_MAX];
    let mut places = fds.iter_mut();
    // SAFETY: it only computes.
    let before = unsafe { libc::CMSG_LEN(0) } as usize;
    // SAFETY: the header names room for control messages, of which the kernel has filled
    // `msg_controllen` bytes.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !next.is_null() {
        // SAFETY: `CMSG_FIRSTHDR` and `CMSG_NXTHDR` return only headers that lie within the filled
        // room, which is aligned for them.
        let header = unsafe { next.read() };
        if header.cmsg_level == libc::SOL_SOCKET && header.cmsg_type == libc::SCM_RIGHTS {
            // SAFETY: it only computes the address behind the header.
            let data = unsafe { libc::CMSG_DATA(next) }.cast::<RawFd>();
            for at in 0..header.cmsg_len.saturating_sub(before) / size_of::<RawFd>() {
                // SAFETY: the kernel has written that many descriptors behind this header, within
                // the filled room.
                let place = unsafe { data.add(at) };
                // SAFETY: the kernel has written a descriptor there.
                let fd = unsafe { place.read_unaligned() };
                // SAFETY: the kernel has just made this descriptor for this process, and nothing
                // else owns it.
                let fd = unsafe { OwnedFd::from_raw_fd(fd) };
                if let Some(place) = places.next() {
                    *place = Some(fd);
                }
            }
        }
        // SAFETY: `next` is a header of this message, whose room the kernel has filled.
        next = unsafe { libc::CMSG_NXTHDR(message, next) };
    }
    fds
}

/// Sends bytes with descriptors (`SCM_RIGHTS`), and returns the number of bytes.
///
/// # Errors
/// `EINVAL` for more than [`PASSED_FDS_MAX`] descriptors, and those of `sendmsg(2)`.
pub fn send_with_fds(
    socket: impl AsFd,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<usize, Errno> {
    /// A control message as it lies in memory.
    #[repr(C)]
    struct Control {
        header: libc::cmsghdr,
        fds: [libc::c_int; PASSED_FDS_MAX],
    }
    const HEADER_LEN: usize = size_of::<libc::cmsghdr>();
    const _: () = assert!(std::mem::offset_of!(Control, fds) == HEADER_LEN);
    let mut numbers = [0; PASSED_FDS_MAX];
    let places = numbers.get_mut(..fds.len()).ok_or(Errno::INVAL)?;
    for (place, fd) in places.iter_mut().zip(fds) {
        *place = fd.as_raw_fd();
    }
    let len = HEADER_LEN + size_of_val(places);
    // SAFETY: zeros are a valid `cmsghdr`: it consists of numbers.
    let mut header: libc::cmsghdr = unsafe { std::mem::zeroed() };
    (header.cmsg_level, header.cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    header.cmsg_len = len as _;
    let mut control = Control { header, fds: numbers };
    let mut buffer =
        libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: zeros are a valid `msghdr`: it consists of numbers and pointers.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut buffer, 1);
    if !fds.is_empty() {
        (message.msg_control, message.msg_controllen) = ((&raw mut control).cast(), len as _);
    }
    let arguments = [
        socket.as_fd().as_raw_fd() as usize,
        &raw const message as usize,
        flags.bits() as usize,
        0,
        0,
        0,
    ];
    // SAFETY: the header, the bytes and the control message live until the call returns, and the
    // kernel only reads them.
    unsafe { call(libc::SYS_sendmsg, arguments) }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::mem::MaybeUninit;
    use std::os::fd::{BorrowedFd, OwnedFd};

    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
        SocketType, sendmsg, socketpair,
    };

    use super::*;

    fn pair() -> (OwnedFd, OwnedFd) {
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("a pair")
    }

    fn send(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(fds.is_empty() || control.push(SendAncillaryMessage::ScmRights(fds)));
        sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).expect("sent");
    }

    /// Returns the number of this process's descriptors of a socket. Other tests open and close
    /// other files meanwhile.
    fn descriptors_of(socket: &OwnedFd) -> usize {
        let inode = rustix::fs::fstat(socket).expect("known").st_ino;
        let name = std::path::PathBuf::from(format!("socket:[{inode}]"));
        let all = std::fs::read_dir("/proc/self/fd").expect("listed").flatten();
        all.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|it| it == name)).count()
    }

    #[test]
    fn packets_come_with_their_descriptors_or_are_cut() {
        let (one, other) = pair();
        let (file, _file) = pair();
        let flags = RecvFlags::DONTWAIT;
        let mut bytes = [0; 4];
        assert_eq!(recv_with_fds(&one, &mut bytes, flags).err(), Some(Errno::AGAIN));
        for passed in 0..PASSED_FDS_MAX + 3 {
            send(&other, b"ab", &vec![file.as_fd(); passed]);
            let packet = recv_with_fds(&one, &mut bytes, flags).expect("a packet");
            let came = packet.fds.iter().flatten().count();
            assert_eq!((packet.len, &bytes[..2]), (2, &b"ab"[..]));
            assert_eq!(came, passed.min(PASSED_FDS_MAX));
            assert_eq!(packet.is_cut, passed > PASSED_FDS_MAX, "{passed}");
            for fd in packet.fds.iter().flatten() {
                let inode = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).expect("known").st_ino;
                assert_eq!(inode(fd.as_fd()), inode(file.as_fd()));
                let fd_flags = rustix::io::fcntl_getfd(fd).expect("open");
                assert!(fd_flags.contains(rustix::io::FdFlags::CLOEXEC));
            }
            drop(packet);
            assert_eq!(descriptors_of(&file), 1, "{passed}");
        }
        send(&other, b"abcdef", &[]);
        assert!(recv_with_fds(&one, &mut bytes, flags).expect("a packet").is_cut);
        drop(other);
        let end = recv_with_fds(&one, &mut bytes, flags).expect("the end");
        assert_eq!((end.len, end.is_cut), (0, false));
    }

    #[test]
    fn sent_descriptors_arrive() {
        let (flags, kind) = (SocketFlags::CLOEXEC, SocketType::SEQPACKET);
        let pair = socketpair(AddressFamily::UNIX, kind, flags, None).expect("a pair");
        let fds = [pair.0.as_fd(), pair.1.as_fd()];
        for passed in 0..=fds.len() {
            let sent = send_with_fds(&pair.0, b"xy", &fds[..passed], SendFlags::NOSIGNAL);
            assert_eq!(sent, Ok(2));
            let mut room = [0; 4];
            let packet = recv_with_fds(&pair.1, &mut room, RecvFlags::empty()).expect("a packet");
            let inode = |fd: BorrowedFd<'_>| rustix::fs::fstat(fd).expect("a state").st_ino;
            let came = packet.fds.iter().flatten().map(|fd| inode(fd.as_fd()));
            assert!(came.eq(fds[..passed].iter().map(|fd| inode(*fd))));
            assert_eq!((packet.len, packet.is_cut), (2, false));
        }
        let many = [pair.0.as_fd(); PASSED_FDS_MAX + 1];
        let sent = send_with_fds(&pair.0, b"x", &many, SendFlags::NOSIGNAL);
        assert_eq!(sent, Err(Errno::INVAL));
    }
}
