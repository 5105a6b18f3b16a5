//! The servers of a copy, and the check of their keys.

use std::mem;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Error, Result, anyhow, bail};
use weft_sys::lock;
use weft_transfer::end::EndError;
use weft_transfer::job::ServerAt;
use weft_transfer::secure::{KnownServers, PublicKey, SecureError, TlsClient, Verdict};

use super::keys;
use super::place::Remote;

/// The key that a server has presented, and what is known about it.
type Seen = Arc<Mutex<Option<(PublicKey, Verdict)>>>;

/// How remembering a new server went.
type Remembered = Arc<Mutex<Result<(), SecureError>>>;

/// A server to copy with.
pub(super) struct Server {
    name: String,
    addresses: Vec<SocketAddr>,
    tls: TlsClient,
    own_key: PublicKey,
    accepts_new: bool,
    known_servers: PathBuf,
    seen: Seen,
    remembered: Remembered,
}

impl Server {
    /// Finds the addresses of a server, and prepares the check of its key.
    pub(super) fn new(remote: &Remote, accepts_new: bool) -> Result<Self> {
        let identity = keys::identity()?;
        let known_servers = keys::folder()?.join("known-servers");
        let known = KnownServers::load(&known_servers)?;
        let (name, seen) = (remote.server(), Seen::default());
        let accepts = {
            let (seen, name) = (Arc::clone(&seen), name.clone());
            Arc::new(move |key: &PublicKey| {
                let verdict = known.check(&name, key);
                *lock(&seen) = Some((*key, verdict));
                verdict == Verdict::Known || (verdict == Verdict::New && accepts_new)
            })
        };
        let remembered: Remembered = Arc::new(Mutex::new(Ok(())));
        // A server that has proven its key is remembered, whatever becomes of the copy.
        let proven = {
            let (seen, name, path) = (Arc::clone(&seen), name.clone(), known_servers.clone());
            let remembered = Arc::clone(&remembered);
            Arc::new(move |key: &PublicKey| {
                if matches!(*lock(&seen), Some((_, Verdict::New))) {
                    *lock(&remembered) = remember(&path, &name, key);
                }
            })
        };
        let tls = TlsClient::new(&identity, accepts)?.reporting(proven);
        let addresses = (&remote.host[..], remote.port).to_socket_addrs();
        let addresses = addresses.with_context(|| name.clone())?.collect();
        let own_key = identity.public();
        Ok(Self { name, addresses, tls, own_key, accepts_new, known_servers, seen, remembered })
    }

    pub(super) fn at(&self) -> ServerAt<'_> {
        ServerAt { addresses: &self.addresses, tls: &self.tls }
    }

    /// Checks the key that the server has shown, if it has shown one.
    ///
    /// # Errors
    /// If it is not that of the server, or not known.
    pub(super) fn check_key(&self) -> Result<()> {
        let Self { name, known_servers: path, .. } = self;
        match *lock(&self.seen) {
            Some((key, Verdict::New)) if !self.accepts_new => bail!(
                "{name} is not known. Its key is {key}. If that is right, copy with --accept-new, \
                 or put a line `{name} {key}` into {}",
                path.display()
            ),
            Some((key, Verdict::Changed(before))) => bail!(
                "{name} has another key than before: {key}, not {before}. Somebody else may answer \
                 in its place. If its key was changed on purpose, remove its line from {}",
                path.display()
            ),
            _ => Ok(()),
        }
    }

    /// Whether the server has shown a key.
    pub(super) fn has_answered(&self) -> bool {
        lock(&self.seen).is_some()
    }

    /// Returns the failure of a copy with the server's name, and what to do about it.
    pub(super) fn explained(&self, error: EndError) -> Error {
        let name = &self.name;
        if error.is_key_refused() {
            return anyhow!(
                "{name} does not let this user in. On that host, the user who runs weft serve can \
                 put this user's key into ~/.config/weft/authorised-clients, on a line of its \
                 own: {}",
                self.own_key
            );
        }
        let is_unreachable = error.is_unreachable();
        let error = Error::new(error);
        match is_unreachable {
            true => error.context(format!(
                "{name}: does weft serve run there? HOST:PORT//SHARE names another port"
            )),
            false => error.context(name.clone()),
        }
    }

    /// Returns the result of a copy with this server.
    ///
    /// # Errors
    /// The failure, or why a new server could not be remembered.
    pub(super) fn result<T>(&self, copied: Result<T, EndError>) -> Result<T> {
        self.check_key()?;
        let copied = copied.map_err(|error| self.explained(error))?;
        self.remembered()?;
        Ok(copied)
    }

    /// Tells whether a new server could be remembered.
    ///
    /// # Errors
    /// If not, why.
    pub(super) fn remembered(&self) -> Result<()> {
        let remembered = mem::replace(&mut *lock(&self.remembered), Ok(()));
        remembered.with_context(|| self.known_servers.display().to_string())
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

/// Adds a server to the file of known ones, unless another copy has added it meanwhile.
fn remember(path: &Path, name: &str, key: &PublicKey) -> Result<(), SecureError> {
    let mut known = KnownServers::load(path)?;
    match known.check(name, key) {
        Verdict::New => known.add(name, *key),
        _ => Ok(()),
    }
}
