//! Reports to a service manager: the protocol of sd_notify(3).

use std::env;
use std::ffi::OsStr;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use anyhow::{Context as _, Result};

/// The state of the service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It serves.
    Ready,
    /// It ends.
    Stopping,
}

/// Reports a state to the service manager that `NOTIFY_SOCKET` names. Without one it does nothing.
///
/// # Errors
///
/// If the socket is there and cannot be used.
pub(crate) fn notify(state: State) -> Result<()> {
    match env::var_os("NOTIFY_SOCKET") {
        Some(name) if !name.is_empty() => {
            send(&name, state).with_context(|| format!("NOTIFY_SOCKET={}", name.display()))
        }
        _ => Ok(()),
    }
}

fn send(name: &OsStr, state: State) -> Result<()> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    let text = match state {
        State::Ready => "READY=1",
        State::Stopping => "STOPPING=1",
    };
    UnixDatagram::unbound()?.send_to_addr(text.as_bytes(), &address)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut text = [0; 64];
        let len = socket.recv(&mut text).unwrap();
        String::from_utf8(text[..len].to_vec()).unwrap()
    }

    #[test]
    fn states_arrive_at_a_path_and_at_an_abstract_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), State::Ready).unwrap();
        assert_eq!(received(&socket), "READY=1");

        let name = format!("weft-target-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), State::Stopping).unwrap();
        assert_eq!(received(&socket), "STOPPING=1");
    }

    #[test]
    fn a_missing_socket_is_an_error() {
        assert!(send(OsStr::new("/nonexistent/notify"), State::Ready).is_err());
    }
}
