//! The servers of a copy, and the check of their keys.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use anyhow::{Context as _, Result, bail};
use weft_sys::lock;
use weft_transfer::end::EndError;
use weft_transfer::job::ServerAt;
use weft_transfer::secure::{KnownServers, PublicKey, TlsClient, Verdict};

use super::keys;
use super::place::Remote;

/// The key that a server has presented, and what is known about it.
type Seen = Arc<Mutex<Option<(PublicKey, Verdict)>>>;

/// A server to copy with.
pub(super) struct Server {
    name: String,
    addresses: Vec<SocketAddr>,
    tls: TlsClient,
    own_key: PublicKey,
    accepts_new: bool,
    known_servers: PathBuf,
    seen: Seen,
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
        let tls = TlsClient::new(&identity, accepts)?;
        let addresses = (&remote.host[..], remote.port).to_socket_addrs();
        let addresses = addresses.with_context(|| name.clone())?.collect();
        let own_key = identity.public();
        Ok(Self { name, addresses, tls, own_key, accepts_new, known_servers, seen })
    }

    pub(super) fn at(&self) -> ServerAt<'_> {
        ServerAt { addresses: &self.addresses, tls: &self.tls }
    }

    /// Explains the failure of a copy if the server's key was not accepted. After a copy that was
    /// successful, or that the server had accepted before it was lost, remembers a new key.
    pub(super) fn settle<T>(&self, copied: &Result<T, EndError>, is_open: bool) -> Result<()> {
        let seen = *lock(&self.seen);
        let Self { name, known_servers: path, .. } = self;
        match seen {
            Some((key, Verdict::New)) if !self.accepts_new => bail!(
                "{name} is not known. Its key is {key}. If that is right, copy with --accept-new, \
                 or put a line `{name} {key}` into {}",
                path.display()
            ),
            Some((key, Verdict::Changed(before))) => bail!(
                "{name} has another key than before: {key}, not {before}. Somebody else may answer \
                 in its place. If not, mend {}",
                path.display()
            ),
            Some((key, Verdict::New))
                if copied.as_ref().map_or_else(|error| error.is_lost() && is_open, |_| true) =>
            {
                // Another server of the same copy may have been added meanwhile.
                Ok(KnownServers::load(path)?.add(name, key)?)
            }
            _ => Ok(()),
        }
    }

    /// Returns the server's name and this user's key, for an error.
    pub(super) fn context(&self) -> String {
        format!("{} (this user's key, for it to know, is {})", self.name, self.own_key)
    }
}
