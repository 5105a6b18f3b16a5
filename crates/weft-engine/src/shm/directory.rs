//! Where the processes of this host are found that share memory: sockets named after the identity
//! that a process tells its peers.

use std::fmt::Write as _;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::Errno;
use crate::hello::ProcessId;

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

pub(super) fn directory() -> Option<PathBuf> {
    std::env::var_os("WEFT_SHM_DIR").filter(|text| !text.is_empty()).map(PathBuf::from)
}

pub(super) fn sweep(directory: &Path) {
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

pub(super) fn name_of(id: &ProcessId) -> String {
    id.iter().fold(String::from("weft-shm."), |mut name, byte| {
        // Writing to a String cannot fail.
        let _ = write!(name, "{byte:02x}");
        name
    })
}
