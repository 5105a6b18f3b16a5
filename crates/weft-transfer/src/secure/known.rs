//! Files of keys: the servers that a client knows, and the clients that a server accepts.
//!
//! Each line consists of words. Empty lines and lines that begin with `#` are ignored.
//!
//! ```text
//! known-servers:        HOST:PORT ed25519:...
//! authorised-clients:   ed25519:... comment
//! ```

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{PublicKey, SecureError};

/// The result of looking up a server's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The file lists this key for the server.
    Known,
    /// The file lists no key for the server.
    New,
    /// The file lists another key for the server: an impostor may have answered.
    Changed(PublicKey),
}

/// Returns the lines that are neither empty nor comments, with their numbers.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = (1..).zip(text.lines()).map(|(number, line)| (number, line.trim()));
    numbered.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
}

/// Reads a file. A missing file counts as empty.
fn read(path: &Path) -> Result<String, SecureError> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        read => Ok(read?),
    }
}

fn key(text: Option<&str>, path: &Path, line: usize) -> Result<PublicKey, SecureError> {
    let parsed = text.and_then(|text| text.parse().ok());
    let file = || path.display().to_string();
    parsed.ok_or_else(|| SecureError::BadFile { file: file(), line, problem: "no key" })
}

/// The known keys of servers, by the servers' names.
#[derive(Clone, Debug)]
pub struct KnownServers {
    path: PathBuf,
    servers: Vec<(String, PublicKey)>,
}

impl KnownServers {
    /// Loads the file. It may be missing.
    ///
    /// # Errors
    /// If a line is invalid, or a system call fails.
    pub fn load(path: &Path) -> Result<Self, SecureError> {
        Self::parse(&read(path)?, path)
    }

    /// Parses the text of the file.
    ///
    /// # Errors
    /// If a line is invalid.
    pub fn parse(text: &str, path: &Path) -> Result<Self, SecureError> {
        let mut servers = Vec::new();
        for (number, line) in lines(text) {
            let mut words = line.split_whitespace();
            let name = words.next().unwrap_or_default();
            servers.push((name.to_owned(), key(words.next(), path, number)?));
        }
        Ok(Self { path: path.to_owned(), servers })
    }

    /// Looks up a server's key. The server's name is its address as the user wrote it, with the
    /// port. A server may have several keys.
    #[must_use]
    pub fn check(&self, server: &str, key: &PublicKey) -> Verdict {
        let mut keys = self.servers.iter().filter(|(name, _)| name == server).map(|(_, key)| key);
        match keys.next() {
            None => Verdict::New,
            Some(first) if first == key || keys.any(|other| other == key) => Verdict::Known,
            Some(first) => Verdict::Changed(*first),
        }
    }

    /// Appends a server to the file.
    ///
    /// # Errors
    /// If a system call fails; `InvalidInput` if the name contains spaces.
    pub fn add(&mut self, server: &str, key: PublicKey) -> Result<(), SecureError> {
        if server.is_empty() || server.starts_with('#') || server.contains(char::is_whitespace) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
        }
        let folder = self.path.parent().unwrap_or_else(|| Path::new("."));
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?;
        // One write adds the line. The leading newline ends a line that another program left open.
        file.write_all(format!("\n{server} {key}\n").as_bytes())?;
        self.servers.push((server.to_owned(), key));
        Ok(())
    }
}

/// The keys of the clients that a server accepts.
#[derive(Clone, Debug, Default)]
pub struct AuthorisedClients(Vec<PublicKey>);

impl AuthorisedClients {
    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Loads the file. It may be missing.
    ///
    /// # Errors
    /// If a line is invalid, or a system call fails.
    pub fn load(path: &Path) -> Result<Self, SecureError> {
        Self::parse(&read(path)?, path)
    }

    /// Parses the text of the file.
    ///
    /// # Errors
    /// If a line is invalid.
    pub fn parse(text: &str, path: &Path) -> Result<Self, SecureError> {
        let keys =
            lines(text).map(|(number, line)| key(line.split_whitespace().next(), path, number));
        Ok(Self(keys.collect::<Result<_, _>>()?))
    }

    /// Creates the set of these keys.
    #[must_use]
    pub fn of(keys: Vec<PublicKey>) -> Self {
        Self(keys)
    }

    /// Whether the server accepts the client with this key.
    #[must_use]
    pub fn contains(&self, key: &PublicKey) -> bool {
        self.0.contains(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::secure::Identity;

    fn some_key() -> PublicKey {
        Identity::generate().expect("a key").public()
    }

    #[test]
    fn servers_are_remembered_by_name_and_port() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("weft/known-servers");
        let (one, other) = (some_key(), some_key());
        let mut known = KnownServers::load(&path).expect("no file is an empty one");
        assert_eq!(known.check("host:1", &one), Verdict::New);
        known.add("host:1", one).expect("room");
        known.add("host:2", other).expect("room");
        for known in [known, KnownServers::load(&path).expect("a file")] {
            assert_eq!(known.check("host:1", &one), Verdict::Known);
            assert_eq!(known.check("host:1", &other), Verdict::Changed(one));
            assert_eq!(known.check("host:2", &other), Verdict::Known);
            assert_eq!(known.check("host", &one), Verdict::New);
        }
    }

    #[test]
    fn server_name_cannot_inject_a_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("known-servers");
        let mut known = KnownServers::load(&path).expect("no file");
        for name in ["", "#a", "a b", "a\nb"] {
            assert!(known.add(name, some_key()).is_err(), "{name:?}");
        }
        assert!(!path.exists());
    }

    #[test]
    fn server_may_have_two_keys() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("known-servers");
        let (one, other) = (some_key(), some_key());
        fs::write(&path, format!("# ours\nhost:1 {one}\n\nhost:1 {other}")).expect("room");
        let known = KnownServers::load(&path).expect("a file");
        assert_eq!(known.check("host:1", &one), Verdict::Known);
        assert_eq!(known.check("host:1", &other), Verdict::Known);
    }

    #[test]
    fn clients_are_accepted_by_their_keys() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("authorised-clients");
        let ours = some_key();
        fs::write(&path, format!("# all of us\n{ours} me at home\n")).expect("room");
        let clients = AuthorisedClients::load(&path).expect("a file");
        assert!(clients.contains(&ours) && !clients.contains(&some_key()));
        let nobody = AuthorisedClients::load(&folder.path().join("none")).expect("no file");
        assert!(!nobody.contains(&ours));
    }

    #[test]
    fn invalid_line_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("keys");
        fs::write(&path, "\n# fine\nhost:1 rsa:1234\n").expect("room");
        let bad = [KnownServers::load(&path).map(drop), AuthorisedClients::load(&path).map(drop)];
        for result in bad {
            assert!(matches!(result, Err(SecureError::BadFile { line: 3, .. })), "{result:?}");
        }
    }
}
