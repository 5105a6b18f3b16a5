//! The congestion control of data channels.

use std::fmt;
use std::fs;
use std::io;
use std::net::TcpStream;

use rustix::io::Errno;
use rustix::net::sockopt::set_tcp_congestion;
use rustix::net::{AddressFamily, SocketType, socket};

use crate::limits::{CONGESTION_LEN_MAX, LONG_PATH, LONG_PATH_CONGESTION};
use weft_sys::calls::tcp_round_trip;

/// Those that the kernel has loaded.
const LOADED: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
/// Those of them that any user may choose.
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";

/// Which congestion control the source's ends of data channels use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// BBR over long paths if the kernel has it, and otherwise the system's.
    #[default]
    ByPath,
    /// The system's.
    System,
    /// The one with this name.
    Named(String),
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ByPath => "by the path",
            Self::System => "the system's",
            Self::Named(name) => name,
        })
    }
}

/// Why a congestion control cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CongestionError {
    /// It is no name.
    #[error("the name of a congestion control has 1 to 15 letters, digits, - and _")]
    Name,
    /// The kernel does not have it.
    #[error(
        "the kernel has no congestion control {name:?}; it has {loaded} (modprobe tcp_NAME loads \
         another one)"
    )]
    Unknown {
        /// The name.
        name: String,
        /// The names of those that it has.
        loaded: String,
    },
    /// The user may not choose it.
    #[error(
        "this user may not choose the congestion control {name:?}, only {allowed} \
         (net.ipv4.tcp_allowed_congestion_control)"
    )]
    Denied {
        /// The name.
        name: String,
        /// The names of those that the user may choose.
        allowed: String,
    },
    /// A system call failed.
    #[error("congestion control {name:?}: {errno}")]
    System {
        /// The name.
        name: String,
        /// The error.
        errno: Errno,
    },
}

/// Whether the path of a connection is long.
fn is_long(stream: &TcpStream) -> bool {
    tcp_round_trip(stream).ok().flatten().is_some_and(|time| time >= LONG_PATH)
}

fn names(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default().trim().to_owned()
}

impl Congestion {
    /// Returns the congestion control with this name.
    ///
    /// # Errors
    /// If it is no name.
    pub fn named(name: &str) -> Result<Self, CongestionError> {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        let is_name = (1..=CONGESTION_LEN_MAX).contains(&name.len()) && name.bytes().all(is_part);
        if is_name { Ok(Self::Named(name.to_owned())) } else { Err(CongestionError::Name) }
    }

    /// Checks that connections of this process can use it. The kernel may load a module for that.
    ///
    /// # Errors
    /// If they cannot.
    pub fn check(&self) -> Result<(), CongestionError> {
        let Self::Named(name) = self else { return Ok(()) };
        let tried = socket(AddressFamily::INET, SocketType::STREAM, None)
            .and_then(|socket| set_tcp_congestion(socket, name));
        let name = name.clone();
        match tried {
            Ok(()) => Ok(()),
            Err(Errno::NOENT) => Err(CongestionError::Unknown { name, loaded: names(LOADED) }),
            Err(Errno::PERM) => Err(CongestionError::Denied { name, allowed: names(ALLOWED) }),
            Err(errno) => Err(CongestionError::System { name, errno }),
        }
    }

    /// Does the same for a peer, which must not have the kernel load modules.
    ///
    /// # Errors
    /// If connections of this process cannot use it, or it is not loaded.
    pub fn check_for_peer(&self) -> Result<(), CongestionError> {
        if let Self::Named(name) = self {
            let (loaded, name) = (names(LOADED), name.clone());
            if !loaded.split_whitespace().any(|it| it == name) {
                return Err(CongestionError::Unknown { name, loaded });
            }
        }
        self.check()
    }

    /// Sets it for a connection that sends data.
    pub(super) fn apply(&self, stream: &TcpStream) -> io::Result<()> {
        match self {
            Self::Named(name) => Ok(set_tcp_congestion(stream, name)?),
            Self::ByPath if is_long(stream) => {
                // A kernel without it, or one that does not allow it, keeps the system's.
                let _ = set_tcp_congestion(stream, LONG_PATH_CONGESTION);
                Ok(())
            }
            Self::ByPath | Self::System => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_congestion_control_is_refused_with_those_that_there_are() {
        let named = |name| Congestion::named(name).expect("a name");
        // Every kernel has it, and allows it to everyone.
        assert_eq!(named("reno").check(), Ok(()));
        assert_eq!(named("reno").check_for_peer(), Ok(()));
        for tried in [named("none-such").check(), named("none-such").check_for_peer()] {
            let error = tried.expect_err("unknown").to_string();
            assert!(error.contains("none-such") && error.contains("reno"), "{error}");
        }
        for name in ["", "../x", "sixteen-letters-", "a b"] {
            assert_eq!(Congestion::named(name), Err(CongestionError::Name), "{name}");
        }
    }
}
