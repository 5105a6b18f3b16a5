//! How a process is found by those that want to share memory with it: a Unix socket named after
//! the random identity that it tells its peers. In the abstract name space, which processes of one
//! network namespace share, and, if `WEFT_SHM_DIR` names a directory, also there, for processes in
//! different namespaces or containers that see the same directory.

use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use weft_sys::Forkable;

use super::policy::{Choice, choice};
use super::session::Session;
use crate::hello::ProcessId;
use crate::log::{self, Level};
use crate::strangers::Listener;
use crate::{Errno, Result, random};

const BACKLOG: i32 = 1_024;

/// This process's identity; all zero when it shares no memory. The listeners start with it.
pub(crate) fn own_id() -> &'static ProcessId {
    static ID: Forkable<ProcessId> = Forkable::new(start);
    ID.get()
}

fn start() -> ProcessId {
    if choice() == Choice::Forbidden {
        return ProcessId::default();
    }
    let id: ProcessId = match random::bytes() {
        Ok(id) => id,
        Err(error) => {
            log::write(Level::Warn, format_args!("no shared memory: {error}"));
            return ProcessId::default();
        }
    };
    let abstract_name = name_of(&id);
    let started = SocketAddrUnix::new_abstract_name(abstract_name.as_bytes()).and_then(serve);
    if let Err(error) = started {
        log::write(Level::Warn, format_args!("no shared memory: {error}"));
        return ProcessId::default();
    }
    if let Some(directory) = directory() {
        sweep(&directory);
        let path = directory.join(name_of(&id));
        let started = SocketAddrUnix::new(&path).and_then(serve);
        match started {
            Ok(()) => weft_sys::remove_at_exit(path),
            Err(error) => log::write(Level::Warn, format_args!("{}: {error}", path.display())),
        }
    }
    id
}

/// A connection to a process of this host; `None` when it is not one, or not one that we can see.
pub(super) fn find(id: &ProcessId) -> Option<OwnedFd> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let dial = |address: SocketAddrUnix| {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        connect(&socket, &address)?;
        Ok::<_, Errno>(socket)
    };
    let name = name_of(id);
    let found = SocketAddrUnix::new_abstract_name(name.as_bytes()).and_then(dial);
    found.ok().or_else(|| SocketAddrUnix::new(directory()?.join(name)).and_then(dial).ok())
}

/// Removes the sockets of processes that are gone: one that is killed cannot do it itself.
pub(super) fn sweep_directory() {
    if let Some(directory) = directory() {
        sweep(&directory);
    }
}

fn directory() -> Option<PathBuf> {
    std::env::var_os("WEFT_SHM_DIR").filter(|text| !text.is_empty()).map(PathBuf::from)
}

fn sweep(directory: &Path) {
    const PREFIX: &str = "weft-shm.";
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
        // Of another type, so that a process that lives does not notice (it would sweep in turn).
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
        let (true, Ok(socket), Ok(address)) = (ours, socket, SocketAddrUnix::new(&path)) else {
            continue;
        };
        if connect(&socket, &address) == Err(Errno::CONNREFUSED) {
            // Somebody else may have swept it first.
            let _ = std::fs::remove_file(&path);
        }
    }
}

fn name_of(id: &ProcessId) -> String {
    id.iter().fold(String::from("weft-shm."), |mut name, byte| {
        // Writing to a String cannot fail.
        let _ = write!(name, "{byte:02x}");
        name
    })
}

fn serve(address: SocketAddrUnix) -> Result<()> {
    Listener::serve_unix(&address, SocketType::SEQPACKET, BACKLOG, Session::accept)
}
