//! The directory of processes on this host that share memory: their sockets are named after the
//! identity in the hello.

use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use weft_sys::calls::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
};

use crate::Errno;
use crate::hello::ProcessId;

/// Connects to a process of this host; `None` if it is not on this host, or not visible to us.
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

/// Removes the socket files of processes that have ended: a killed process cannot do that itself.
pub(super) fn sweep_directory() {
    if let Some(directory) = directory() {
        sweep(&directory);
    }
}

pub(super) fn directory() -> Option<PathBuf> {
    std::env::var_os("WEFT_SHM_DIR").filter(|text| !text.is_empty()).map(PathBuf::from)
}

pub(super) fn sweep(directory: &Path) {
    const PREFIX: &str = "weft-shm.";
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let ours = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX));
        // Connect with another socket type, so that a live process does not notice (it would sweep
        // in turn).
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
        let (true, Ok(socket), Ok(address)) = (ours, socket, SocketAddrUnix::new(&path)) else {
            continue;
        };
        if connect(&socket, &address) == Err(Errno::CONNREFUSED) {
            // Another process may have removed the file first.
            let _ = std::fs::remove_file(&path);
        }
    }
}

pub(super) fn name_of(id: &ProcessId) -> String {
    id.iter().fold(String::from("weft-shm."), |mut name, byte| {
        // Writing to a String cannot fail.
        let _ = write!(name, "{byte:02x}");
        name
    })
}
