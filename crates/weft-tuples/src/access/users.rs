//! Users of the host that may connect by a Unix socket.

use std::os::fd::AsFd;

use rustix::net::sockopt::socket_peercred;
use rustix::process::geteuid;

/// The users that may use a Unix socket: the server's own and root, and others that are named.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// Their numbers.
    others: Vec<u32>,
}

impl Users {
    /// The server's own user, root, and these.
    #[must_use]
    pub fn with(others: Vec<u32>) -> Self {
        Self { others }
    }

    /// Whether the process that has connected a socket may use it, by the kernel's word.
    #[must_use]
    pub fn admit(&self, socket: impl AsFd) -> bool {
        // Without credentials nobody is let in.
        socket_peercred(socket).is_ok_and(|peer| self.has(peer.uid.as_raw()))
    }

    fn has(&self, user: u32) -> bool {
        [0, geteuid().as_raw()].contains(&user) || self.others.contains(&user)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn own_user_root_and_named_ones_are_let_in() {
        let own = geteuid().as_raw();
        let strangers = [own + 1, own + 2];
        let users = Users::default();
        assert!(users.has(own) && users.has(0));
        assert!(!strangers.iter().any(|user| users.has(*user)));
        let users = Users::with(vec![strangers[0]]);
        assert!(users.has(own) && users.has(strangers[0]) && !users.has(strangers[1]));
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(Users::default().admit(&one));
    }
}
