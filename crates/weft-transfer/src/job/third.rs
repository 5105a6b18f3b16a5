//! Data channels between two servers of a client, who has approved that: the source's server
//! connects to the destination's, with a grant of that one.

use std::collections::HashSet;
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::agree::{FEATURE_CONNECTS, FEATURE_GRANTS};
use super::connecting::connect_channels;
use super::extras::SendsTo;
use super::grants::{Grant, Grants};
use super::lines::{Connected, TcpLine};
use super::networks::Network;
use super::request::{Flags, Request};
use crate::clock::Clock;
use crate::limits::GRANT_STEP_TIME;
use crate::secure::pipe::new_secret;
use crate::secure::{Cipher, GrantKeys, Identity, PublicKey, Secret, SecureError};
use crate::transport::tcp::{
    TcpSettings, accept_granted, confirm_granted, connect_granted, round_trip,
};
use crate::transport::{Limit, StreamControl, Token, TransportError};
use crate::wire::record_name::{Name, NameError};
use crate::wire::{ListenReply, Refusal, Role, Terms};
use weft_sys::lock;

type Streams = Sender<(u16, TcpStream)>;

/// What a server needs for copies with other servers.
#[derive(Debug)]
pub(super) struct ThirdParties {
    identity: Identity,
    /// Where it connects to, if a client asks for it.
    networks: Vec<Network>,
    grants: Mutex<Grants<Streams>>,
    /// The moment from which grants measure time.
    epoch: Instant,
}

impl ThirdParties {
    pub(super) fn new(identity: Identity, networks: Vec<Network>) -> Self {
        Self { identity, networks, grants: Mutex::default(), epoch: Instant::now() }
    }

    /// The feature bits of this server.
    pub(super) fn features(&self) -> u64 {
        FEATURE_GRANTS | if self.networks.is_empty() { 0 } else { FEATURE_CONNECTS }
    }

    /// Passes a data channel on, if there is a grant with its token and its initiator proves to be
    /// the server of that grant. Returns the connection if there is no such grant.
    ///
    /// # Errors
    /// If the initiator does not prove it in time, or another one was faster.
    pub(super) fn admit(
        &self,
        (token, channel): (&Token, u16),
        stream: TcpStream,
    ) -> Result<Option<TcpStream>, TransportError> {
        let found = lock(&self.grants).find(token, channel, self.epoch.elapsed());
        let Some(grant) = found else { return Ok(Some(stream)) };
        accept_granted(&stream, channel, (&grant.keys, &self.identity), GRANT_STEP_TIME)?;
        // While it is locked, the grant does not end between the two.
        let mut grants = lock(&self.grants);
        if !grants.take(token, channel, self.epoch.elapsed()) {
            return Err(TransportError::Security(SecureError::NotGranted));
        }
        let confirming = stream.try_clone()?;
        let _ = grant.to.send((channel, stream));
        drop(grants);
        // The client opens the copy as soon as the initiator has this.
        confirm_granted(&confirming)?;
        Ok(None)
    }
}

/// Whether the data of a copy comes from or goes to another server.
pub(super) fn is_bridged(request: &Request) -> bool {
    request.flags.has(Flags::GRANTED) || request.extras.servers.sends_to.is_some()
}

/// Checks what a request says of another server.
///
/// # Errors
/// The reason for a refusal.
pub(super) fn check(
    role: Role,
    request: &Request,
    has_grant: bool,
) -> Result<(), (Refusal, String)> {
    let refused = |text: &str| Err((Refusal::Job, text.to_owned()));
    let (flags, extras) = (request.flags, &request.extras.servers);
    if !is_bridged(request) {
        return match extras.only {
            Some(_) => refused("names without another server"),
            None => Ok(()),
        };
    }
    if [Flags::FABRIC, Flags::BESIDE, Flags::STREAM, Flags::REMOVES].map(|it| flags.has(it))
        != [false; 4]
    {
        return refused("a copy between two servers cannot do that");
    }
    only(request).map_err(|error| (Refusal::Job, error.to_string()))?;
    match role {
        Role::Source if extras.sends_to.is_some() => refused("the destination connects nowhere"),
        Role::Source if !has_grant => refused("there is no grant"),
        Role::Sink if flags.has(Flags::GRANTED) => refused("the source takes no data"),
        _ => Ok(()),
    }
}

/// Connects the data channels of a source.
///
/// # Errors
/// The reason for a refusal.
pub(super) fn connect(
    third: Option<&ThirdParty<'_>>,
    to: &SendsTo,
    terms: &Terms,
) -> Result<(Connected, Secret), (Refusal, String)> {
    let refused = || (Refusal::NotAllowed, "the server connects nowhere".to_owned());
    let connected = third.ok_or_else(refused)?.connect(to, terms);
    connected.map_err(|text| (Refusal::System, text))
}

/// Returns the only names that the source may create in the root, if it is another server.
///
/// # Errors
/// If a name is invalid.
pub(super) fn only(request: &Request) -> Result<Option<HashSet<Name>>, NameError> {
    let names = request.extras.servers.only.as_ref();
    names.map(|names| names.iter().map(|name| Name::new(name)).collect()).transpose()
}

/// Returns the limit of a source that sends to another server.
pub(super) fn limit(request: &Request) -> Option<Limit> {
    let limit = request.extras.servers.sends_to.as_ref()?.limit?;
    Some(Limit::new(limit, Clock::system()))
}

/// One copy's part of it.
#[derive(Debug)]
pub(super) struct ThirdParty<'a> {
    all: &'a ThirdParties,
    /// The address of this server by which the client came.
    address: SocketAddr,
    grant: Mutex<Option<Granted>>,
}

/// The grant of a copy, and its data channels.
#[derive(Debug)]
struct Granted {
    grant: Arc<Grant<Streams>>,
    streams: Receiver<(u16, TcpStream)>,
}

impl<'a> ThirdParty<'a> {
    pub(super) fn new(all: &'a ThirdParties, control: &StreamControl) -> Option<Self> {
        let address = control.local_address()?;
        Some(Self { all, address, grant: Mutex::default() })
    }

    /// The feature bits of this server.
    pub(super) fn features(&self) -> u64 {
        self.all.features()
    }

    /// Grants data channels to the server with this key. Returns the answer for the client.
    pub(super) fn grant(&self, key: [u8; 32]) -> ListenReply {
        let grant = || {
            let (secret, (to, streams)) = (new_secret()?, channel());
            let own = self.all.identity.public();
            let keys = GrantKeys::new(&secret, PublicKey::from_bytes(key), own);
            let grant = lock(&self.all.grants).add(keys, to, self.all.epoch.elapsed())?;
            *lock(&self.grant) = Some(Granted { grant, streams });
            Ok::<_, SecureError>(secret)
        };
        let (port, address) = (self.address.port(), self.address.ip().to_string());
        match grant() {
            Ok(secret) => ListenReply::Accepted { port, secret, address },
            Err(error) => {
                ListenReply::Refused { refusal: Refusal::System, text: error.to_string() }
            }
        }
    }

    /// Ends the grant, and returns the data channels that have connected, with the secret of their
    /// blocks; `None` if there was no grant.
    ///
    /// # Errors
    /// A failure of the cryptographic library.
    pub(super) fn granted(
        &self,
        cipher: Cipher,
    ) -> Result<Option<(Connected, Secret)>, SecureError> {
        let Some(Granted { grant, streams }) = lock(&self.grant).take() else { return Ok(None) };
        lock(&self.all.grants).end(&grant);
        let (to, lines) = channel();
        let mut time = None;
        for (number, stream) in streams.try_iter() {
            time = time.or_else(|| round_trip(&stream));
            let _ = to.send((number, Box::new(TcpLine(stream, TcpSettings::default())) as _));
        }
        Ok(Some(((lines, time), grant.keys.block_secret(cipher)?)))
    }

    /// Connects data channels to another server. Returns the reason if that is not possible.
    pub(super) fn connect(
        &self,
        to: &SendsTo,
        terms: &Terms,
    ) -> Result<(Connected, Secret), String> {
        if !self.all.networks.iter().any(|network| network.contains(to.address.ip())) {
            let address = to.address.ip();
            return Err(format!("the source's server may not connect to {address}"));
        }
        let keys = GrantKeys::new(&to.secret, self.all.identity.public(), to.key);
        let settings = TcpSettings::default();
        let ends = (&keys, &self.all.identity);
        let connect =
            |number| connect_granted(to.address, number, ends, &settings, GRANT_STEP_TIME);
        let failed =
            |error: TransportError| format!("from the source's server, {}: {error}", to.address);
        let most = to.channels.min(terms.channels);
        let connected = connect_channels(most, &connect).map_err(failed)?;
        let (queue, lines) = channel();
        for (number, stream) in (0..).zip(connected.streams) {
            let _ = queue.send((number, Box::new(TcpLine(stream, settings.clone())) as _));
        }
        let secret = keys.block_secret(to.cipher).map_err(|error| error.to_string())?;
        Ok(((lines, connected.round_trip), secret))
    }
}

impl Drop for ThirdParty<'_> {
    fn drop(&mut self) {
        if let Some(Granted { grant, .. }) = lock(&self.grant).take() {
            lock(&self.all.grants).end(&grant);
        }
    }
}
