//! Hands sockets to programs that get them from this process: by exec, by children that no `fork`
//! handler sees (`posix_spawn`, `system`, `popen`, `vfork`), by `fork`, and over Unix sockets.
//! [`weft_stream::inheritance`] decides what happens to the connections; this module gives it this
//! process's descriptors.

use std::os::fd::{AsFd as _, BorrowedFd, RawFd};

use weft_stream::inheritance::{self, Descriptors};
use weft_sys::calls;
use weft_sys::calls::fs::{Mode, OFlags, for_each_name};
use weft_sys::calls::net::{SocketType, sockopt};

pub(crate) use weft_stream::inheritance::ExecTarget;

use crate::descriptor::{Descriptor, is_internet};
use crate::kernel::{End, Host, Kernel as _};
use crate::sockets::{self, Kind};
use crate::stream::Stream;
use crate::{identity, mode, open, shared_files};

/// Words of eight bytes of directory entries that are read at once.
const LIST_WORDS: usize = 256;

/// The descriptors of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own;

impl Descriptors for Own {
    type Kernel = Host;
    type Stream = Stream;

    fn pid(&self) -> u32 {
        identity::number()
    }

    fn streams(&self) -> impl Iterator<Item = RawFd> {
        sockets::all() // [`Own::with`] skips the others.
    }

    fn with<R>(&self, fd: RawFd, look: impl FnOnce(&Stream) -> R) -> Option<R> {
        let held = sockets::find(fd)?;
        if let Kind::Stream(stream) = &*held { Some(look(stream)) } else { None }
    }

    fn with_socket<R>(&self, fd: RawFd, act: impl FnOnce(BorrowedFd<'_>) -> R) -> R {
        act(Descriptor::of(fd).as_fd())
    }

    fn cookie(&self, fd: RawFd) -> Option<u64> {
        if sockopt::socket_type(Descriptor::of(fd)) != Ok(SocketType::STREAM) || !is_internet(fd) {
            return None;
        }
        Host::cookie(Descriptor::of(fd).as_fd()).ok()
    }

    /// Uses no heap memory.
    fn for_each_open(&self, mut act: impl FnMut(RawFd)) -> bool {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = calls::fs::open("/proc/self/fd", flags, Mode::empty());
        let Ok(list) = opened else { return false };
        let read = for_each_name(&list, &mut [0; LIST_WORDS], |name| {
            if let Ok(fd) = name.to_str().unwrap_or_default().parse() {
                act(fd);
            }
        });
        read.is_ok()
    }

    fn forget(&self, fd: RawFd) {
        open::install(fd, Kind::Stream(Stream::kernels()));
    }

    fn share(&self, fd: RawFd, copy: RawFd) {
        if let Some(held) = sockets::find(fd) {
            sockets::share(&held, copy);
        }
    }

    fn find(&self, fd: RawFd, cookie: u64) -> Option<End> {
        let socket = Descriptor::of(fd);
        let ends = (Host::own_address(socket.as_fd())?, Host::peer_address(socket.as_fd()));
        // A listener has the address of all connections that it has accepted, and is none of them.
        if ends.1.is_none() && Host::is_listening(socket.as_fd()) {
            return None;
        }
        let numbers = (Host::network_of(socket.as_fd()), cookie);
        End::inherited(shared_files::registry()?, ends, numbers, self.pid())
    }

    fn take_over(&self, fd: RawFd, end: End) {
        open::install(fd, Kind::Stream(Stream::inherited(end)));
    }
}

/// The connections of this process that a program which is about to start gets.
pub(crate) type Inheritance = inheritance::Inheritance<Host>;

/// Prepares this process's connections for a program that is about to start.
pub(crate) fn prepare(target: ExecTarget<'_>) -> Inheritance {
    if mode::is_in_fallback() { Inheritance::empty() } else { inheritance::prepare(&Own, target) }
}

/// Restores this process's connections after a failed exec.
pub(crate) fn take_back() {
    inheritance::take_back(&Own);
}

/// Continues the connection of a TCP socket that this process has got from another process, or from
/// the program that it was before, if memory holds a state of it.
pub(crate) fn take_over(fd: RawFd) {
    inheritance::take_over(&Own, fd);
}
