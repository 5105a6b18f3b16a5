//! Unix sockets that only this user can connect to, or that a server checks the users of.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use rustix::fs::{Mode, fchmod};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

use crate::limits::PENDING_MAX;

/// A socket at which this process listens. Its name is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct PrivateSocket {
    path: PathBuf,
    listener: UnixListener,
}

impl PrivateSocket {
    /// Makes the socket, in the place of a socket that nothing listens at.
    ///
    /// # Errors
    ///
    /// If something else is there, or another process listens.
    pub(crate) fn bind(path: &Path) -> Result<Self> {
        Ok(Self { path: path.to_owned(), listener: listen_at(path)? })
    }

    /// Makes a socket that all users can connect to. The server has to ask the kernel who they are.
    ///
    /// # Errors
    ///
    /// As for [`Self::bind`].
    pub(crate) fn bind_for_all(path: &Path) -> Result<Self> {
        let socket = Self::bind(path)?;
        // Before, the umask would apply.
        fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
        Ok(socket)
    }

    /// Returns another descriptor of the socket.
    ///
    /// # Errors
    ///
    /// If the process is out of descriptors.
    pub(crate) fn listener(&self) -> Result<UnixListener> {
        Ok(self.listener.try_clone()?)
    }
}

impl Drop for PrivateSocket {
    fn drop(&mut self) {
        // If this fails, the next process that listens there removes it.
        let _ = fs::remove_file(&self.path);
    }
}

fn listen_at(path: &Path) -> Result<UnixListener> {
    if let Ok(there) = fs::symlink_metadata(path) {
        ensure!(there.file_type().is_socket(), "something else has this name");
        match UnixStream::connect(path) {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => fs::remove_file(path)?,
            _ => bail!("another process listens there"),
        }
    }
    let (family, kind) = (AddressFamily::UNIX, SocketType::STREAM);
    let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    // The name gets the mode of the socket (unix(7)): at no time can others connect.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    listen(&socket, PENDING_MAX)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn socket_is_for_its_owner_and_replaces_only_a_dead_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let first = PrivateSocket::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let error = format!("{:#}", PrivateSocket::bind(&path).unwrap_err());
        assert!(error.contains("another process listens there"), "{error}");
        drop(first);
        assert!(!path.exists());
        // The socket of a process that was killed.
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        drop(PrivateSocket::bind(&path).unwrap());
        let shared = PrivateSocket::bind_for_all(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o666);
        drop(shared);
        fs::write(&path, "a file").unwrap();
        assert!(PrivateSocket::bind(&path).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"a file");
    }
}
