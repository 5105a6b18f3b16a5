//! Unix-domain paths as addresses within one host.
//!
//! A listener at a path listens at a free port of the loopback interface, and has a socket at the
//! path besides. A process that may connect to that socket gets the port and a secret; a connection
//! without the secret is refused. So the permissions of the path decide who can connect.
//!
//! A process that is killed leaves its socket at the path. The next listener replaces a socket at
//! which nobody listens, while it holds a lock of the directory, so that two of them do not replace
//! each other's.

use std::fs::{File, remove_file};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat, flock, lstat, open};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with,
    bind, connect, listen, recv, send, socket_with, sockopt,
};
use rustix::rand::{GetRandomFlags, getrandom};
use weft_engine::Errno;
use weft_sys::{Lock, wait_readable};

use crate::limits::{DOOR_CALLS_MAX, RESOLVE_TIME_MAX};
use crate::watcher::Watched;

/// Bytes of the secret, in front of the program's private data.
pub(crate) const SECRET_LEN: usize = 16;

/// What the socket says to each connection: this, the port (big-endian), and the secret.
const MAGIC: [u8; 8] = *b"WFABPATH";
/// Between two attempts to lock a directory, which others lock for a moment.
const LOCK_PAUSE: Duration = Duration::from_millis(2);
const ANSWER_LEN: usize = MAGIC.len() + size_of::<u16>() + SECRET_LEN;

/// The socket at the path of a listener. The path is removed with it.
#[derive(Debug)]
pub(crate) struct Door {
    socket: OwnedFd,
    path: PathBuf,
    /// The file at the path, which another process may have replaced.
    file: (u64, u64),
    secret: [u8; SECRET_LEN],
    port: u16,
    /// Closed for a moment if there is no descriptor for a connection, to end that connection.
    spare: Lock<Option<File>>,
}

impl Door {
    /// Makes the socket.
    ///
    /// # Errors
    /// `EADDRINUSE` if there is a file at the path, unless it is a socket at which nobody listens;
    /// `ETIMEDOUT` if another process keeps the directory locked.
    pub(crate) fn new(path: &Path, port: u16) -> Result<Self, Errno> {
        let mut secret = [0; SECRET_LEN];
        // So few bytes come at once.
        getrandom(&mut secret, GetRandomFlags::empty())?;
        let address = address_of(path)?;
        let socket = socket(SocketFlags::NONBLOCK)?;
        // Until this one listens: before, it looks like one at which nobody does.
        let turn = lock_directory(path)?;
        match bind(&socket, &address) {
            Err(Errno::ADDRINUSE) if turn.is_some() => {
                remove_dead(path, &address)?;
                bind(&socket, &address)?;
            }
            bound => bound?,
        }
        let file = file_of(&lstat(path)?);
        let (path, spare) = (path.to_owned(), Lock::new(null()));
        // From now on the path is removed if this fails.
        let door = Self { socket, path, file, secret, port, spare };
        listen(&door.socket, DOOR_CALLS_MAX)?;
        Ok(door)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// What follows the secret in a request to connect; `None` if it is another one.
    pub(crate) fn known<'a>(&self, program: &'a [u8]) -> Option<&'a [u8]> {
        let (said, rest) = program.split_first_chunk::<SECRET_LEN>()?;
        // The time does not depend on where they differ.
        let difference = said.iter().zip(&self.secret).fold(0, |sum, (a, b)| sum | (a ^ b));
        (difference == 0).then_some(rest)
    }

    fn answer(&self) -> [u8; ANSWER_LEN] {
        let mut answer = [0; ANSWER_LEN];
        answer[..8].copy_from_slice(&MAGIC);
        answer[8..10].copy_from_slice(&self.port.to_be_bytes());
        answer[10..].copy_from_slice(&self.secret);
        answer
    }
}

impl Watched for Door {
    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn readable(&self) {
        for _ in 0..DOOR_CALLS_MAX {
            match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                // A new connection has room for so few bytes. It may have gone.
                Ok(caller) => {
                    let _ = send(&caller, &self.answer(), SendFlags::NOSIGNAL);
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::MFILE | Errno::NFILE) => {
                    let mut spare = self.spare.lock();
                    *spare = None;
                    drop(accept_with(&self.socket, SocketFlags::CLOEXEC));
                    *spare = null();
                }
                Err(_) => return,
            }
        }
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        if lstat(&self.path).is_ok_and(|stat| file_of(&stat) == self.file) {
            // Another process may have removed it meanwhile.
            let _ = remove_file(&self.path);
        }
    }
}

/// # Errors
/// `ENAMETOOLONG` for more than 108 bytes; `ENOENT` for none, which the kernel takes for a name
/// that is not in the file system.
fn address_of(path: &Path) -> Result<SocketAddrUnix, Errno> {
    if path.as_os_str().is_empty() {
        return Err(Errno::NOENT);
    }
    SocketAddrUnix::new(path)
}

/// Locks the directory of a path, for binding or removing a socket in it. `None` if this
/// process may not read the directory, or its file system has no locks.
fn lock_directory(path: &Path) -> Result<Option<OwnedFd>, Errno> {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = open(parent.unwrap_or_else(|| Path::new(".")), flags, Mode::empty()) else {
        return Ok(None);
    };
    let deadline = Instant::now() + RESOLVE_TIME_MAX;
    loop {
        match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(directory)),
            Err(Errno::WOULDBLOCK) if Instant::now() > deadline => return Err(Errno::TIMEDOUT),
            Err(Errno::WOULDBLOCK) => sleep(LOCK_PAUSE),
            Err(_) => return Ok(None),
        }
    }
}

/// Removes a socket at which nobody listens.
///
/// # Errors
/// `EADDRINUSE` for any other file, and for one that this process may not remove.
fn remove_dead(path: &Path, address: &SocketAddrUnix) -> Result<(), Errno> {
    let socket_at = |path: &Path| {
        let stat = lstat(path).ok()?;
        (FileType::from_raw_mode(stat.st_mode) == FileType::Socket).then(|| file_of(&stat))
    };
    let file = socket_at(path).ok_or(Errno::ADDRINUSE)?;
    let probe = socket(SocketFlags::NONBLOCK)?;
    let is_dead = connect(&probe, address) == Err(Errno::CONNREFUSED);
    if !is_dead || socket_at(path) != Some(file) {
        return Err(Errno::ADDRINUSE);
    }
    remove_file(path).map_err(|_| Errno::ADDRINUSE)
}

fn null() -> Option<File> {
    File::open("/dev/null").ok()
}

fn file_of(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn socket(flags: SocketFlags) -> Result<OwnedFd, Errno> {
    socket_with(AddressFamily::UNIX, SocketType::STREAM, flags | SocketFlags::CLOEXEC, None)
}

/// Asks at a path where its listener is, and for the secret.
///
/// # Errors
/// `ENOENT` and `ECONNREFUSED` if nobody listens, `EPROTO` for a socket of another program,
/// `ETIMEDOUT` for one that does not answer.
pub(crate) fn ask(path: &Path) -> Result<(SocketAddr, [u8; SECRET_LEN]), Errno> {
    let deadline = Instant::now() + RESOLVE_TIME_MAX;
    let socket = socket(SocketFlags::empty())?;
    // `connect` waits while many others connect.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(RESOLVE_TIME_MAX))?;
    connect(&socket, &address_of(path)?).map_err(|errno| match errno {
        Errno::AGAIN => Errno::TIMEDOUT,
        other => other,
    })?;
    let (mut answer, mut len) = ([0; ANSWER_LEN], 0);
    while len < ANSWER_LEN {
        let left = deadline.saturating_duration_since(Instant::now());
        match wait_readable([socket.as_fd()], Some(left)) {
            Ok([true]) => {}
            Ok(_) if left.is_zero() => return Err(Errno::TIMEDOUT),
            Ok(_) | Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        }
        match recv(&socket, &mut answer[len..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => return Err(Errno::PROTO),
            Ok((count, _)) => len += count,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    let (magic, rest) = answer.split_first_chunk().ok_or(Errno::PROTO)?;
    let (port, secret) = rest.split_first_chunk().ok_or(Errno::PROTO)?;
    let secret = secret.first_chunk().filter(|_| *magic == MAGIC).ok_or(Errno::PROTO)?;
    Ok(((Ipv4Addr::LOCALHOST, u16::from_be_bytes(*port)).into(), *secret))
}
