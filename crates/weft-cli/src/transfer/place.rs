//! Parses the operands of `weft cp`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use weft_transfer::limits::PORT;

/// A source or destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Place {
    Local(PathBuf),
    Remote(Remote),
}

/// A path on a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    pub(crate) host: String,
    pub(crate) port: u16,
    /// The share's name and the path inside the share.
    pub(crate) path: Vec<u8>,
}

impl Remote {
    /// Returns the server's name in the file of known servers.
    pub(crate) fn server(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

/// Parses `HOST:SHARE/PATH`, `HOST:PORT//SHARE/PATH`, or a local path. As for scp, a colon after a
/// slash belongs to a local path.
pub(crate) fn parse(operand: &OsStr) -> Result<Place, String> {
    let bytes = operand.as_bytes();
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
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (port, path) = if digits > 0 && rest[digits..].starts_with(b"//") {
        let port = str::from_utf8(&rest[..digits]).ok().and_then(|port| port.parse().ok());
        (port.ok_or_else(|| format!("{}: not a valid port", shown()))?, &rest[digits + 2..])
    } else {
        (PORT, rest)
    };
    if path.is_empty() {
        return Err(format!("{}: a share has to be named: HOST:SHARE/PATH", shown()));
    }
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
        for path in ["a", "./a:b", "/a:b", "a/b:c", "[a", ""] {
            assert_eq!(parse(OsStr::new(path)), Ok(Place::Local(path.into())), "{path}");
        }
        assert_eq!(parse(OsStr::new("h:s/a")), remote("h", PORT, "s/a"));
        assert_eq!(parse(OsStr::new("h:70//s/a")), remote("h", 70, "s/a"));
        assert_eq!(parse(OsStr::new("h:70/a")), remote("h", PORT, "70/a"));
        assert_eq!(parse(OsStr::new("[::1]:70//s")), remote("::1", 70, "s"));
        for wrong in ["h:", ":s", "h:99999//s", "h:70//"] {
            assert!(parse(OsStr::new(wrong)).is_err(), "{wrong}");
        }
    }
}
