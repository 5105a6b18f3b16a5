//! Copies between two servers, which do not trust each other: this process passes the blocks on.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use super::agree::{AGENT, agree_on_compression, cipher, establish, features, flush, open_session};
use super::client::{ServerAt, Streams, connect, is_another_host};
use super::initiate::{block_size, connect_all};
use super::path;
use super::places::{Naming, check_apart_on_server, names, parse_answer};
use super::request::{Flags, Request};
use super::settings::{decisions, threads};
use super::task::CopyTask;
use crate::end::{
    Carrier, EndError, Finished, Opened, Progress, RelayPlan, SinkChannel, SourceChannel, run_relay,
};
use crate::limits::BLOCK_SIZE;
use crate::pipeline::Clock;
use crate::placement::settle;
use crate::secure::{Opener, Sealer};
use crate::session::{Connection, Offer};
use crate::transport::tcp::{TcpSettings, TcpSink, TcpSource};
use crate::transport::{Control as _, Limit, Limited, StreamControl};
use crate::tree::apply::Asked;
use crate::wire::{Cancel, Code, Role, Terms};

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
        let channels = task.channels(control.round_trip());
        let offer = Offer { channels, block_size, features: features(), agent: AGENT.into() };
        let (mut connection, terms) = establish(&control, offer, epoch)?;
        task.limit_silence(&mut connection);
        Ok(Self { address, control: Arc::new(control), connection, epoch, terms })
    }

    /// Opens a session. Returns its number and the server's answer.
    fn open(&mut self, role: Role, request: &Request) -> Result<(u32, Vec<u8>), EndError> {
        open_session(&*self.control, &mut self.connection, self.epoch, role, request)
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
    ) -> Result<Finished, EndError> {
        let (limit, settings) = (self.limit, self.tcp_settings()?);
        let bad = |error: &dyn std::fmt::Display| EndError::Here(error.to_string());
        if !self.request.flags.has(Flags::FOLDER) {
            self.request.new_name = ServerLink::new(&self, to, BLOCK_SIZE)?.name_at(&path)?;
        }
        let mut target = ServerLink::new(&self, to, block_size(BLOCK_SIZE, limit))?;
        let mut source = ServerLink::new(&self, from, target.terms.block_size)?;
        self.between_hosts([&source, &target].iter().any(|link| link.is_to_another_host()));
        // The bytes come and go by the same device in most cases.
        let local = source.control.local_address().map(|local| local.ip());
        let binding = settle(&self.sysfs, local, threads());
        let Self { request: mut asking, observer, progress, .. } = self;
        agree_on_compression(&mut asking, &source.terms)?;
        agree_on_compression(&mut asking, &target.terms)?;
        if source.control.peer() == target.control.peer() {
            check_apart_on_server(&asking.paths, &path).map_err(|error| bad(&error))?;
        }
        let (from_session, answer) = source.open(Role::Sink, &asking)?;
        let (is_folder, origins) = parse_answer(&answer);
        let giving = Request {
            flags: asking.flags.with(Flags::FOLDER, is_folder),
            new_name: None,
            congestion: asking.congestion.clone(),
            origins: origins.to_vec(),
            patterns: asking.patterns.clone(),
            extras: asking.extras.clone(),
            paths: vec![path],
        };
        let (to_session, new_name) = target.open(Role::Source, &giving)?;
        if !is_folder && asking.new_name.as_deref().unwrap_or_default() != new_name {
            return Err(EndError::Here("the destination has changed meanwhile".into()));
        }
        let asked = names(&asking, is_folder, Naming::Shares).map_err(|error| bad(&error))?;
        let secrets = |link: &ServerLink, session| match asking.flags.has(Flags::CLEAR) {
            true => Ok(None),
            false => link.control.block_secrets(session, cipher(&link.terms)),
        };
        let (incoming, outgoing) = (secrets(&source, from_session)?, secrets(&target, to_session)?);
        let sealed_by = outgoing.as_ref().map(|(outgoing, _)| outgoing.cipher());
        let block_size = source.terms.block_size;
        let round_trip = source.control.round_trip().max(target.control.round_trip());
        // The blocks of one session become those of the other one.
        let blocks = path::blocks(round_trip, block_size);
        let sizes = (target.terms.channels, block_size, blocks);
        let sealed_by = (sealed_by, binding.placement());
        observer.decided(&decisions(
            &asking,
            sizes,
            round_trip,
            Some(Carrier::Tcp),
            sealed_by,
            false,
        ));
        let limit = limit.map(|limit| Limit::new(limit, Clock::system()));
        let mut streams = Streams::new(source.address, true);
        let from_lines = connect_all(
            &source.terms,
            |terms, number| {
                let stream = streams.take(terms, number)?;
                Ok(Box::new(TcpSink::new(stream, &settings)) as SinkChannel)
            },
            |line| match &limit {
                Some(limit) => Box::new(Limited::new(line, limit.clone())),
                None => line,
            },
        )?;
        let mut streams = Streams::new(target.address, true);
        let to_lines = connect_all(
            &target.terms,
            |terms, number| {
                let stream = streams.take(terms, number)?;
                Ok(Box::new(TcpSource::new(stream, &settings, true)?) as SourceChannel)
            },
            |line| line,
        )?;
        let plan = RelayPlan {
            opener: incoming.map(|(_, incoming)| Opener::new(incoming)),
            from: source.opened(from_session, blocks, Arc::default()),
            sealer: outgoing.map(|(outgoing, _)| Sealer::new(outgoing)),
            to: target.opened(to_session, blocks, progress),
            may_be_compressed: asking.flags.has(Flags::COMPRESSES),
            asked: asked.map(Asked),
            observer,
            lists_changes: asking.flags.lists_changes(),
        };
        run_relay(plan, from_lines, to_lines)
    }
}
