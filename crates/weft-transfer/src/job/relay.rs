//! Copies between two servers, which do not trust each other. The blocks go from one to the other,
//! if the source's server may connect there; otherwise this process passes them on.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::agree::{
    AGENT, FEATURE_CONNECTS, FEATURE_GRANTS, agree_on_compression, ask_for_grant, cipher,
    establish, features, flush, open_session,
};
use super::client::{ServerAt, Streams, connect, is_another_host};
use super::extras::SendsTo;
use super::initiate::{block_size, connect_all};
use super::path;
use super::places::{Naming, check_apart_on_server, names, parse_answer};
use super::request::{Flags, Request};
use super::settings::{decisions, threads};
use super::task::CopyTask;
use crate::clock::Clock;
use crate::end::{
    Bridge, BridgedSession, Carrier, EndError, Finished, Observer, Opened, Progress, RelayPlan,
    SinkChannel, SourceChannel, run_relay,
};
use crate::limits::{BLOCK_SIZE, CHANNELS_EACH_MAX};
use crate::placement::{Placement, settle};
use crate::secure::{Opener, Sealer};
use crate::session::{Connection, Offer};
use crate::transport::tcp::{TcpSettings, TcpSink, TcpSource};
use crate::transport::{Control as _, Limit, Limited, StreamControl};
use crate::tree::apply::Asked;
use crate::wire::record_name::Name;
use crate::wire::{Cancel, Code, ListenReply, Role, Terms};

/// Which way the data of a copy between two servers goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Between {
    /// From one server to the other one if that is possible, otherwise through this host.
    Auto,
    /// From one server to the other one; if that is not possible, the copy fails.
    Direct,
    /// Through this host.
    Relay,
}

/// A connection to a server.
struct ServerLink {
    address: SocketAddr,
    control: Arc<StreamControl>,
    connection: Connection,
    epoch: Instant,
    terms: Terms,
}

impl ServerLink {
    /// Connects and agrees on the terms.
    fn new(task: &CopyTask, server: ServerAt<'_>, block_size: u32) -> Result<Self, EndError> {
        let settings = TcpSettings::default();
        let (address, control) = connect(server, &settings)?;
        let epoch = Instant::now();
        // The path between the servers may be longer than those to them.
        let channels = if task.is_fair { 1 } else { CHANNELS_EACH_MAX };
        let features = features() | FEATURE_GRANTS | FEATURE_CONNECTS;
        let offer = Offer { channels, block_size, features, agent: AGENT.into() };
        let (mut connection, terms) = establish(&control, offer, epoch)?;
        task.limit_silence(&mut connection);
        Ok(Self { address, control: Arc::new(control), connection, epoch, terms })
    }

    /// The number of data channels to this host.
    fn channels(&self) -> u16 {
        path::channels(self.control.round_trip()).min(self.terms.channels)
    }

    /// Opens a session. Returns its number and the server's answer.
    fn open(&mut self, role: Role, request: &Request) -> Result<(u32, Vec<u8>), EndError> {
        // Nothing was read while this process asked the other server, which may take seconds.
        self.connection.seen(self.epoch.elapsed());
        open_session(&*self.control, &mut self.connection, self.epoch, role, request)
    }

    /// Asks for a grant for the server with which the other link is. Returns what that server needs
    /// to know, or the reason if there is none.
    fn grant(&mut self, source: &Self, limit: Option<u64>) -> Result<SendsTo, Refused> {
        let refused = |text: &str| Err(Refused::Why(text.into()));
        if source.terms.features & FEATURE_CONNECTS == 0 {
            return refused("the source's server does not offer it: weft serve --third-party");
        }
        if self.terms.features & FEATURE_GRANTS == 0 {
            return refused("the destination's weft does not know it");
        }
        let (Some(from), Some(key)) = (source.control.peer(), self.control.peer()) else {
            return refused("the servers have no keys");
        };
        let asked = ask_for_grant(&*self.control, &mut self.connection, self.epoch, &from);
        let secret = match asked.map_err(Refused::Failed)? {
            ListenReply::Accepted { secret, .. } => secret,
            ListenReply::Refused { text, .. } => return Err(Refused::Why(text)),
        };
        let (cipher, channels) = (cipher(&self.terms), self.terms.channels);
        Ok(SendsTo { address: self.address, key, secret, cipher, channels, limit })
    }

    fn bridged(self, session: u32) -> BridgedSession {
        let Self { control, connection, epoch, .. } = self;
        BridgedSession { control, connection, epoch, session }
    }

    fn is_to_another_host(&self) -> bool {
        is_another_host(&self.control, self.address)
    }

    fn opened(self, session: u32, blocks: u32, progress: Arc<Progress>) -> Opened {
        let sizes = (self.terms.block_size, blocks);
        let timed = (self.connection, self.epoch);
        Opened::new(self.control, timed, session, sizes, threads(), progress)
    }

    /// Asks, by a dry run that ends at once, which name the only source gets at a path; `None` if
    /// the path is a directory.
    fn name_at(mut self, path: &[u8]) -> Result<Option<Vec<u8>>, EndError> {
        let paths = vec![path.to_vec()];
        let request = Request { flags: Flags::DRY_RUN, paths, ..Request::default() };
        let (_, answer) = self.open(Role::Source, &request)?;
        let text = "it was a question about the destination".into();
        self.connection.cancel(Cancel { code: Code::Stopped, text });
        // The answer is known, so a failure does not matter.
        let _ = flush(&*self.control, &mut self.connection, self.epoch);
        self.control.close();
        Ok((!answer.is_empty()).then_some(answer))
    }
}

/// Why the data cannot go from one server to the other one.
enum Refused {
    /// A server refuses it, or there was no wish for it.
    Why(String),
    /// The copy fails.
    Failed(EndError),
}

/// The two sessions of a copy, and what they are about.
struct Sessions {
    source: (ServerLink, u32),
    target: (ServerLink, u32),
    asking: Request,
    asked: Option<HashSet<Name>>,
    observer: Arc<dyn Observer>,
    progress: Arc<Progress>,
    limit: Option<u64>,
}

impl CopyTask {
    /// Copies from a server to a path of another one. The request names the sources. Each server
    /// needs to know this user's key, and not the other server.
    ///
    /// # Errors
    /// If the copy fails.
    pub fn between_servers(
        mut self,
        from: ServerAt<'_>,
        to: ServerAt<'_>,
        path: Vec<u8>,
        way: Between,
    ) -> Result<Finished, EndError> {
        let (limit, settings) = (self.limit, self.tcp_settings()?);
        let bad = |error: &dyn std::fmt::Display| EndError::Here(error.to_string());
        if !self.request.flags.has(Flags::FOLDER) {
            self.request.new_name = ServerLink::new(&self, to, BLOCK_SIZE)?.name_at(&path)?;
        }
        let mut target = ServerLink::new(&self, to, block_size(BLOCK_SIZE, limit))?;
        let source = ServerLink::new(&self, from, target.terms.block_size)?;
        self.between_hosts([&source, &target].iter().any(|link| link.is_to_another_host()));
        // The bytes come and go by the same device in most cases.
        let local = source.control.local_address().map(|local| local.ip());
        let binding = settle(&self.sysfs, local, threads());
        // What the two servers have in common is not known here.
        self.request.flags = self.request.flags.without(Flags::VERSIONS);
        agree_on_compression(&mut self.request, &source.terms)?;
        agree_on_compression(&mut self.request, &target.terms)?;
        if source.control.peer() == target.control.peer() {
            check_apart_on_server(&self.request.paths, &path).map_err(|error| bad(&error))?;
        }
        let OpenedSource { link: source, session: from_session, answer, is_direct } =
            self.open_source(from, source, &mut target, way)?;
        let (is_folder, origins) = parse_answer(&answer);
        let Self { request: asking, observer, progress, .. } = self;
        let asked = names(&asking, is_folder, Naming::Shares).map_err(|error| bad(&error))?;
        let mut extras = asking.extras.clone();
        if is_direct {
            // What this process checks otherwise.
            let name = |name: &Name| name.as_bytes().to_vec();
            extras.servers.only = asked.as_ref().map(|names| names.iter().map(name).collect());
        }
        let giving = Request {
            flags: asking.flags.with(Flags::FOLDER, is_folder).with(Flags::GRANTED, is_direct),
            new_name: None,
            congestion: asking.congestion.clone(),
            origins: origins.to_vec(),
            patterns: asking.patterns.clone(),
            extras,
            paths: vec![path],
        };
        let (to_session, new_name) = target.open(Role::Source, &giving)?;
        if !is_folder && asking.new_name.as_deref().unwrap_or_default() != new_name {
            return Err(EndError::Here("the destination has changed meanwhile".into()));
        }
        let (source, target) = ((source, from_session), (target, to_session));
        let sessions = Sessions { source, target, asking, asked, observer, progress, limit };
        match is_direct {
            true => sessions.bridge(binding.placement()),
            false => sessions.relay(&settings, binding.placement()),
        }
    }

    /// Opens the session of the source, whose server connects to the other one if that is possible.
    fn open_source(
        &self,
        from: ServerAt<'_>,
        mut link: ServerLink,
        target: &mut ServerLink,
        way: Between,
    ) -> Result<OpenedSource, EndError> {
        // A dry run moves no data.
        let is_wanted = way != Between::Relay && !self.request.flags.has(Flags::DRY_RUN);
        let mut why = None;
        if is_wanted {
            let opened = target.grant(&link, self.limit).and_then(|to| {
                let mut request = self.request.clone();
                request.extras.servers.sends_to = Some(Box::new(to));
                let opened = link.open(Role::Sink, &request);
                opened.map_err(|error| match error {
                    EndError::Peer(text) | EndError::Here(text) => Refused::Why(text),
                    error => Refused::Failed(error),
                })
            });
            match opened {
                Ok((session, answer)) => {
                    self.observer.chosen(Carrier::Direct, None);
                    return Ok(OpenedSource { link, session, answer, is_direct: true });
                }
                Err(Refused::Failed(error)) => return Err(error),
                Err(Refused::Why(text)) if way == Between::Direct => {
                    let text = format!("the data cannot go from server to server: {text}");
                    return Err(EndError::Here(text));
                }
                Err(Refused::Why(text)) => why = Some(text),
            }
            // The server may have refused that session, and then serves no other one.
            let block_size = link.terms.block_size;
            link = ServerLink::new(self, from, block_size)?;
        }
        let (session, answer) = link.open(Role::Sink, &self.request)?;
        if !self.request.flags.has(Flags::DRY_RUN) {
            self.observer.chosen(Carrier::Relay, why.as_deref());
        }
        Ok(OpenedSource { link, session, answer, is_direct: false })
    }
}

/// The session of a source's server.
struct OpenedSource {
    link: ServerLink,
    session: u32,
    answer: Vec<u8>,
    /// Whether the server has connected to the other one.
    is_direct: bool,
}

impl Sessions {
    /// Passes the control messages on, while the data goes from server to server.
    fn bridge(self, placement: &Placement) -> Result<Finished, EndError> {
        let Self { source: (source, from), target: (target, to), asking, .. } = self;
        if from != to {
            // The headers of blocks contain the number.
            return Err(EndError::Here("the sessions have different numbers".into()));
        }
        let block_size = source.terms.block_size;
        let round_trip = source.control.round_trip().max(target.control.round_trip());
        let sizes = (target.terms.channels, block_size, path::blocks(round_trip, block_size));
        let cipher = (!asking.flags.has(Flags::CLEAR)).then(|| cipher(&target.terms));
        let ends = (cipher, placement);
        let carrier = Some(Carrier::Direct);
        self.observer.decided(&decisions(&asking, sizes, round_trip, carrier, ends, false));
        let sessions = [source.bridged(from), target.bridged(to)];
        let lists_changes = asking.flags.lists_changes();
        Bridge::new(sessions, self.observer, self.progress, lists_changes).run()
    }

    /// Passes the blocks on.
    fn relay(self, settings: &TcpSettings, placement: &Placement) -> Result<Finished, EndError> {
        let Self { source: (source, from), target: (target, to), asking, asked, .. } = self;
        let (observer, progress) = (self.observer, self.progress);
        let secrets = |link: &ServerLink, session| match asking.flags.has(Flags::CLEAR) {
            true => Ok(None),
            false => link.control.block_secrets(session, cipher(&link.terms)),
        };
        let (incoming, outgoing) = (secrets(&source, from)?, secrets(&target, to)?);
        let sealed_by = outgoing.as_ref().map(|(outgoing, _)| outgoing.cipher());
        let block_size = source.terms.block_size;
        let round_trip = source.control.round_trip().max(target.control.round_trip());
        // The blocks of one session become those of the other one.
        let blocks = path::blocks(round_trip, block_size);
        let sizes = (target.channels(), block_size, blocks);
        let ends = (sealed_by, placement);
        let carrier = Some(Carrier::Relay);
        observer.decided(&decisions(&asking, sizes, round_trip, carrier, ends, false));
        let limit = self.limit.map(|limit| Limit::new(limit, Clock::system()));
        let mut streams = Streams::new(source.address, true);
        let from_lines = connect_all(
            &Terms { channels: source.channels(), ..source.terms.clone() },
            |terms, number| {
                let stream = streams.take(terms, number)?;
                Ok(Box::new(TcpSink::new(stream, settings)) as SinkChannel)
            },
            |line| match &limit {
                Some(limit) => Box::new(Limited::new(line, limit.clone())),
                None => line,
            },
        )?;
        let mut streams = Streams::new(target.address, true);
        let to_lines = connect_all(
            &Terms { channels: target.channels(), ..target.terms.clone() },
            |terms, number| {
                let stream = streams.take(terms, number)?;
                Ok(Box::new(TcpSource::new(stream, settings, true)?) as SourceChannel)
            },
            |line| line,
        )?;
        let plan = RelayPlan {
            opener: incoming.map(|(_, incoming)| Opener::new(incoming)),
            from: source.opened(from, blocks, Arc::default()),
            sealer: outgoing.map(|(outgoing, _)| Sealer::new(outgoing)),
            to: target.opened(to, blocks, progress),
            may_be_compressed: asking.flags.has(Flags::COMPRESSES),
            asked: asked.map(Asked),
            observer,
            lists_changes: asking.flags.lists_changes(),
        };
        run_relay(plan, from_lines, to_lines)
    }
}
