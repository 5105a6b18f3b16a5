//! Programs that get this process's sockets: by exec, by children that no handler of `fork` sees
//! (`posix_spawn`, `system`, `popen`, `vfork`), by `fork`, and over Unix sockets. What becomes of
//! the connections is decided in [`weft_stream::inheritance`]; here is what it is decided of.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, BorrowedFd, RawFd};

use rustix::fs::{Mode, OFlags, RawDir};
use rustix::net::{SocketType, sockopt};
use weft_stream::inheritance::{self, Descriptors};

pub(crate) use weft_stream::inheritance::Heir;

use crate::descriptor::{self, Descriptor, is_internet};
use crate::kernel::{End, Host, Kernel as _};
use crate::sockets::{self, Kind};
use crate::stream::Stream;
use crate::{identity, mode, open, shared_files};

/// Bytes of a directory's entries that are looked at together.
const LIST_LEN: usize = 2_048;

/// This process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Own;

impl Descriptors for Own {
    type Kernel = Host;
    type Stream = Stream;

    fn pid(&self) -> u32 {
        identity::number()
    }

    fn streams(&self) -> impl Iterator<Item = RawFd> {
        sockets::all() // [`Own::with`] passes the others over.
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

    /// Without taking memory.
    fn for_each_open(&self, mut act: impl FnMut(RawFd)) -> bool {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open("/proc/self/fd", flags, Mode::empty());
        let Ok(list) = opened else { return false };
        let mut space = [MaybeUninit::<u8>::uninit(); LIST_LEN];
        let mut entries = RawDir::new(&list, &mut space);
        while let Some(entry) = entries.next() {
            let Ok(entry) = entry else { return false };
            if let Ok(fd) = entry.file_name().to_str().unwrap_or_default().parse() {
                act(fd);
            }
        }
        true
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
        let numbers = (Host::network_of(Descriptor::of(fd).as_fd()), cookie);
        End::inherited(shared_files::registry()?, descriptor::addresses(fd)?, numbers, self.pid())
    }

    fn take_over(&self, fd: RawFd, end: End) {
        open::install(fd, Kind::Stream(Stream::inherited(end)));
    }
}

/// What a program that is about to start gets of this process's connections.
pub(crate) type Estate = inheritance::Estate<Host>;

/// Prepares this process's connections for a program that is about to start.
pub(crate) fn prepare(heir: Heir<'_>) -> Estate {
    if mode::is_in_fallback() { Estate::empty() } else { inheritance::prepare(&Own, heir) }
}

/// The program that this process was to become has not started: the process is what it was.
pub(crate) fn take_back() {
    inheritance::take_back(&Own);
}

/// Goes on with the connection of a TCP socket that this process has got from another one or from
/// the program that it was before, if there is something of it in memory.
pub(crate) fn take_over(fd: RawFd) {
    inheritance::take_over(&Own, fd);
}
