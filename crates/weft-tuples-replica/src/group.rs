//! The servers of a group, and their secret.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde::Deserialize;

use crate::limits::{GROUP_FILE_LEN_MAX, NAME_LEN_MAX, SECRET_LEN_MIN, SERVERS_MAX};

/// The number of a server in its group.
pub(crate) type ServerId = u64;

/// Why a file does not describe a group.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// It cannot be read.
    #[error("{0}")]
    Io(String, #[source] std::io::Error),
    /// Other users can read the secret in it.
    #[error("{0}: other users can read the secret in it: chmod 600")]
    Open(String),
    /// It is not as described.
    #[error("{0}")]
    Syntax(String, #[source] toml::de::Error),
    /// It is too long.
    #[error("{0}: longer than 64 KiB")]
    Long(String),
    /// The servers are not 1, 3, 5 or 7.
    #[error("a group has 1, 3, 5 or 7 servers, not {0}")]
    Count(usize),
    /// A name is empty, too long, or there twice.
    #[error("{0:?}: each server has a name of its own, of 1 to 64 bytes")]
    Name(String),
    /// The secret is too short.
    #[error("the secret has at least 16 characters")]
    Secret,
    /// No server has the name of this one.
    #[error("{0:?} is not the name of a server in the file")]
    Unknown(String),
}

/// A server of a group.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// Its name.
    pub name: String,
    /// Where its clients find it: a host and a port.
    pub clients: String,
    /// Where the other servers find it: a host and a port.
    pub peers: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    secret: String,
    server: Vec<Server>,
}

/// The servers that keep a space together, and which one this is.
#[derive(Clone)]
pub struct Group {
    /// In the order of their names. The first one has the number 1.
    servers: Vec<Server>,
    own: ServerId,
    /// What only servers of the group know.
    key: [u8; 32],
}

impl std::fmt::Debug for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("servers", &self.servers).field("own", &self.own).finish()
    }
}

impl Group {
    /// Reads a file that describes a group. `name` is that of this server.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, other users can, or it does not describe a group.
    pub fn read(path: &Path, name: &str) -> Result<Self, GroupError> {
        let shown = || path.display().to_string();
        let io = |error| GroupError::Io(shown(), error);
        let mut file = File::open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if metadata.mode() & 0o077 != 0 {
            return Err(GroupError::Open(shown()));
        }
        let mut text = String::new();
        file.by_ref().take(GROUP_FILE_LEN_MAX + 1).read_to_string(&mut text).map_err(io)?;
        if text.len() as u64 > GROUP_FILE_LEN_MAX {
            return Err(GroupError::Long(shown()));
        }
        let document = toml::from_str(&text).map_err(|error| GroupError::Syntax(shown(), error))?;
        Self::new(document, name)
    }

    fn new(document: Document, name: &str) -> Result<Self, GroupError> {
        let Document { secret, server: mut servers } = document;
        if secret.len() < SECRET_LEN_MIN {
            return Err(GroupError::Secret);
        }
        if servers.len() > SERVERS_MAX || servers.len().is_multiple_of(2) {
            return Err(GroupError::Count(servers.len()));
        }
        servers.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        for (at, server) in servers.iter().enumerate() {
            let is_repeated = servers[..at].iter().any(|other| other.name == server.name);
            if is_repeated || !(1..=NAME_LEN_MAX).contains(&server.name.len()) {
                return Err(GroupError::Name(server.name.clone()));
            }
        }
        let own = servers.iter().position(|server| server.name == name);
        let own = own.ok_or_else(|| GroupError::Unknown(name.to_owned()))? as ServerId + 1;
        // Servers that do not agree on the members do not understand one another.
        let mut hasher = blake3::Hasher::new_derive_key("weft tuples 2026-11 servers of a group");
        hasher.update(secret.as_bytes());
        add_names(&mut hasher, &servers);
        Ok(Self { servers, own, key: hasher.finalize().into() })
    }

    /// Parses a description, for tests and fuzzing.
    pub(crate) fn parse(text: &str, name: &str) -> Result<Self, GroupError> {
        let document = toml::from_str(text);
        Self::new(document.map_err(|error| GroupError::Syntax(String::new(), error))?, name)
    }

    /// This server.
    #[must_use]
    pub fn own(&self) -> &Server {
        &self.servers[self.own as usize - 1]
    }

    pub(crate) fn own_id(&self) -> ServerId {
        self.own
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = ServerId> {
        1..=self.servers.len() as ServerId
    }

    pub(crate) fn server(&self, id: ServerId) -> Option<&Server> {
        self.servers.get(usize::try_from(id).ok()?.checked_sub(1)?)
    }

    pub(crate) fn key(&self) -> &[u8; 32] {
        &self.key
    }

    /// Names the group and this server in files: those of another one are refused.
    pub(crate) fn identity(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new_derive_key("weft tuples 2026-11 files of a server");
        add_names(&mut hasher, &self.servers);
        hasher.update(&self.own.to_be_bytes());
        hasher.finalize().into()
    }
}

fn add_names(hasher: &mut blake3::Hasher, servers: &[Server]) {
    for server in servers {
        hasher.update(&(server.name.len() as u64).to_be_bytes());
        hasher.update(server.name.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        secret = "0123456789abcdef"
        server = [
            { name = "b", clients = "127.0.0.1:2", peers = "127.0.0.1:5" },
            { name = "a", clients = "127.0.0.1:1", peers = "127.0.0.1:4" },
            { name = "c", clients = "127.0.0.1:3", peers = "127.0.0.1:6" },
        ]
    "#;

    #[test]
    fn servers_are_numbered_by_their_names() {
        let group = Group::parse(TEXT, "b").unwrap();
        assert_eq!((group.own_id(), group.own().name.as_str()), (2, "b"));
        assert_eq!(group.server(1).unwrap().clients, "127.0.0.1:1");
        assert!(group.server(0).is_none() && group.server(4).is_none());
    }

    #[test]
    fn description_that_is_none_is_refused() {
        assert!(matches!(Group::parse(TEXT, "d"), Err(GroupError::Unknown(_))));
        let short = TEXT.replace("0123456789abcdef", "0123");
        assert!(matches!(Group::parse(&short, "a"), Err(GroupError::Secret)));
        let twice = TEXT.replace("name = \"b\"", "name = \"a\"");
        assert!(matches!(Group::parse(&twice, "a"), Err(GroupError::Name(_))));
        let more = TEXT.replace("peers = \"127.0.0.1:5\"", "peers = \"\", x = 1");
        assert!(matches!(Group::parse(&more, "a"), Err(GroupError::Syntax(..))));
        let none = "secret = \"0123456789abcdef\"\nserver = []";
        assert!(matches!(Group::parse(none, "a"), Err(GroupError::Count(0))));
    }

    #[test]
    fn files_and_keys_differ_between_groups_and_servers() {
        let [a, b] = ["a", "b"].map(|name| Group::parse(TEXT, name).unwrap());
        assert_eq!(a.key(), b.key());
        assert_ne!(a.identity(), b.identity());
        let renamed = TEXT.replace("name = \"c\"", "name = \"d\"");
        assert_ne!(a.key(), Group::parse(&renamed, "a").unwrap().key());
        let other = TEXT.replace("0123456789abcdef", "0123456789abcdeg");
        assert_ne!(a.key(), Group::parse(&other, "a").unwrap().key());
    }
}
