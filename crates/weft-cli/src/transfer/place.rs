//! Parses the operands of `weft cp`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use weft_transfer::limits::PORT;

/// A source or destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Local(PathBuf),
    /// `-`: standard input as a source, standard output as a destination.
    Standard,
    Remote(Remote),
}

/// A path on a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) host: String,
    /// The server's port, or 0 if a remote shell starts the server.
    pub(crate) port: u16,
    /// The share's name and the path in it; with a remote shell, a path of the remote user.
    pub(crate) path: Vec<u8>,
}

impl Remote {
    /// Whether both paths are on one host, and reached by one server.
    pub(crate) fn is_with(&self, other: &Self) -> bool {
        (&self.host, self.port) == (&other.host, other.port)
    }

    /// Returns the server's name in the file of known servers.
    pub(crate) fn server(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// How the other host is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// `HOST:SHARE/PATH` or `HOST:PORT//SHARE/PATH`: by a server.
    Server,
    /// `[USER@]HOST:PATH`: by a remote shell.
    Shell,
}

/// Parses an operand as a place on another host or as a local path. A colon after a slash belongs
/// to a path, as it does for scp.
pub(crate) fn parse(operand: &OsStr, by: By) -> Result<Place, String> {
    let bytes = operand.as_bytes();
    if bytes == b"-" {
        return Ok(Place::Standard);
    }
    let local = || Ok(Place::Local(PathBuf::from(operand)));
    let (host, rest) = if bytes.starts_with(b"[") {
        let Some(end) = bytes.windows(2).position(|pair| pair == b"]:") else { return local() };
        (&bytes[1..end], &bytes[end + 2..])
    } else {
        match bytes.iter().position(|&byte| byte == b':' || byte == b'/') {
            Some(at) if bytes[at] == b':' => (&bytes[..at], &bytes[at + 1..]),
            _ => return local(),
        }
    };
    let shown = || OsString::from_vec(bytes.to_vec()).display().to_string();
    let host = str::from_utf8(host).map_err(|_| format!("{}: not a valid host name", shown()))?;
    if host.is_empty() || host.contains(char::is_whitespace) {
        return Err(format!("{}: no host name", shown()));
    }
    if by == By::Shell {
        if host.starts_with('-') {
            return Err(format!("{}: the remote shell would take it for an option", shown()));
        }
        // Like scp, copies from or to the home directory, where the remote shell starts.
        let path = match rest {
            b"" => b"./",
            b"~" => &b"~/"[..],
            path => path,
        };
        return Ok(Place::Remote(Remote { host: host.to_owned(), port: 0, path: path.to_vec() }));
    }
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (port, path) = if digits > 0 && rest[digits..].starts_with(b"//") {
        let port = str::from_utf8(&rest[..digits]).ok().and_then(|port| port.parse().ok());
        (port.ok_or_else(|| format!("{}: not a valid port", shown()))?, &rest[digits + 2..])
    } else {
        (PORT, rest)
    };
    Ok(Place::Remote(Remote { host: host.to_owned(), port, path: path.to_vec() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(host: &str, port: u16, path: &str) -> Result<Place, String> {
        Ok(Place::Remote(Remote { host: host.into(), port, path: path.into() }))
    }

    #[test]
    fn operands_are_paths_or_places_of_servers() {
        for path in ["a", "./-", "-a", "./a:b", "/a:b", "a/b:c", "[a", ""] {
            assert_eq!(
                parse(OsStr::new(path), By::Server),
                Ok(Place::Local(path.into())),
                "{path}"
            );
        }
        let parse = |operand: &str| parse(OsStr::new(operand), By::Server);
        assert_eq!(parse("-"), Ok(Place::Standard));
        assert_eq!(parse("h:s/a"), remote("h", PORT, "s/a"));
        assert_eq!(parse("h:70//s/a"), remote("h", 70, "s/a"));
        assert_eq!(parse("h:70/a"), remote("h", PORT, "70/a"));
        assert_eq!(parse("[::1]:70//s"), remote("::1", 70, "s"));
        // All shares.
        assert_eq!(parse("h:"), remote("h", PORT, ""));
        assert_eq!(parse("h:70//"), remote("h", 70, ""));
        for wrong in [":s", "h:99999//s"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn operands_by_a_remote_shell_have_users_and_no_ports() {
        let parse = |operand: &str| parse(OsStr::new(operand), By::Shell);
        assert_eq!(parse("me@h:a/b"), remote("me@h", 0, "a/b"));
        assert_eq!(parse("h:70//a"), remote("h", 0, "70//a"));
        assert_eq!(parse("[::1]:/a"), remote("::1", 0, "/a"));
        assert_eq!(parse("h:"), remote("h", 0, "./"));
        assert_eq!(parse("h:~"), remote("h", 0, "~/"));
        assert_eq!(parse("./h:a"), Ok(Place::Local("./h:a".into())));
        for wrong in [":a", "-oProxyCommand=x:a", "a b:c"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
