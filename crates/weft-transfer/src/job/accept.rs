//! The acceptor: it receives the initiator's request, and runs the other end.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use super::initiate::{AGENT, Keys, cipher, features, next_event};
use super::places::{self, Destination, PlaceError};
use super::request::{Flags, Request};
use super::settings::{apply_options, source_options, threads};
use crate::end::{
    EndError, Finished, Observer, Opened, Progress, SinkChannel, SinkPlan, SourceChannel,
    SourcePlan, run_sink, run_source,
};
use crate::limits::{BLOCK_SIZE, BLOCK_SIZE_LEAST, CHANNELS_EACH_MAX};
use crate::secure::{Opener, Sealer};
use crate::session::{Connection, Event, Policy};
use crate::transport::Control;
use crate::tree::source::{PAYLOAD_LEN_MIN, Start};
use crate::wire::{Open, OpenReply, Refusal, Role, Terms, Token};

/// A directory that a server shares.
#[derive(Debug)]
pub struct Share {
    /// Its name for clients.
    pub name: Vec<u8>,
    /// The directory.
    pub root: OwnedFd,
}

/// The directories that a server shares.
#[derive(Debug)]
pub struct Shares {
    /// The directories.
    pub shares: Vec<Share>,
    /// Whether clients may only read.
    pub is_read_only: bool,
}

/// The acceptor's answer to a request.
#[derive(Debug)]
pub(super) enum Answer {
    /// The acceptor sends files.
    Send {
        /// The files and directories to send.
        starts: Vec<Start>,
        /// Whether one of them is a directory, so that the destination is one.
        is_folder: bool,
    },
    /// The acceptor writes to this destination.
    Write(Destination),
}

/// Decides on requests.
pub(super) trait Resolve {
    /// Decides on a request.
    ///
    /// # Errors
    /// The reason for a refusal, which is sent to the initiator.
    fn resolve(&self, role: Role, request: &Request) -> Result<Answer, (Refusal, String)>;
}

impl Shares {
    /// Returns the share that a path begins with, and the rest of the path.
    fn find<'a>(&self, path: &'a [u8]) -> Result<(&Share, &'a [u8]), PlaceError> {
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let end = path.iter().position(|&byte| byte == b'/').unwrap_or(path.len());
        let (name, rest) = path.split_at(end);
        let share = self.shares.iter().find(|share| share.name == name);
        Ok((share.ok_or(PlaceError::NoShare)?, rest))
    }
}

fn refused(path: &[u8], error: &PlaceError) -> (Refusal, String) {
    let path = String::from_utf8_lossy(&path[..path.len().min(200)]).into_owned();
    (Refusal::NotFound, format!("{path}: {error}"))
}

impl Resolve for Shares {
    fn resolve(&self, role: Role, request: &Request) -> Result<Answer, (Refusal, String)> {
        if role == Role::Sink {
            let (mut starts, mut is_folder) = (Vec::new(), false);
            for path in &request.paths {
                let found = self
                    .find(path)
                    .and_then(|(share, rest)| places::start(share.root.as_fd(), rest));
                let (start, is_one) = found.map_err(|error| refused(path, &error))?;
                is_folder |= is_one;
                starts.push(start);
            }
            return Ok(Answer::Send { starts, is_folder });
        }
        if self.is_read_only {
            return Err((Refusal::NotAllowed, "the server is for reading only".into()));
        }
        let [path] = &request.paths[..] else {
            return Err((Refusal::Job, "a copy has one destination".into()));
        };
        let found = self.find(path).and_then(|(share, rest)| {
            places::destination(share.root.as_fd(), &places::parts(rest)?, request.flags)
        });
        found.map(Answer::Write).map_err(|error| refused(path, &error))
    }
}

/// A data channel that can become either end.
pub(super) trait Lines: Send {
    /// Makes it the source's end.
    fn into_source(self: Box<Self>, is_sealed: bool) -> Option<SourceChannel>;
    /// Makes it the sink's end.
    fn into_sink(self: Box<Self>) -> Option<SinkChannel>;
}

/// The parameters of an acceptor.
pub(super) struct Accepting<'a> {
    /// The control channel.
    pub control: Arc<dyn Control>,
    /// The keys of blocks.
    pub keys: Keys<'a>,
    /// The token of the session's data channels.
    pub token: Token,
    /// The data channels with that token, as they connect.
    pub lines: Receiver<(u16, Box<dyn Lines>)>,
    /// Decides on the request.
    pub resolve: &'a dyn Resolve,
    /// The counters for progress displays.
    pub progress: Arc<Progress>,
    /// Whether written files may be setuid or setgid.
    pub keeps_special_bits: bool,
}

/// Ignores problems, because an acceptor's source has no user. The sink reports them.
struct Silent;

impl Observer for Silent {
    fn problem(&self, _path: &[u8], _text: &str, _is_warning: bool) {}
}

/// Converts channels to one end, as they connect.
fn forward<C: Send + 'static>(
    lines: Receiver<(u16, Box<dyn Lines>)>,
    terms: &Terms,
    mut turn: impl FnMut(Box<dyn Lines>) -> Option<C> + Send + 'static,
) -> Receiver<(u16, C)> {
    let (to, turned) = channel();
    let channels = terms.channels;
    thread::spawn(move || {
        while let Ok((number, line)) = lines.recv() {
            // Each number is used once: the session remembers the numbers of closed channels.
            if number < channels
                && let Some(line) = turn(line)
                && to.send((number, line)).is_err()
            {
                return;
            }
        }
    });
    turned
}

/// Serves one request of an initiator.
///
/// # Errors
/// If the copy fails.
pub(super) fn accept(plan: Accepting<'_>) -> Result<Finished, EndError> {
    let Accepting { control, keys, token, lines, resolve, progress, .. } = plan;
    let epoch = Instant::now();
    let most = Terms {
        version: crate::limits::VERSION,
        channels: CHANNELS_EACH_MAX,
        block_size: BLOCK_SIZE,
        features: features(),
        token,
        agent: AGENT.into(),
    };
    let policy = Policy { most, block_size_min: BLOCK_SIZE_LEAST, sessions: 1 };
    let mut connection = Connection::accept(policy, epoch.elapsed());
    let terms = match next_event(&*control, &mut connection, epoch)? {
        Event::Established(terms) => terms,
        Event::Refused { text, .. } => return Err(EndError::Here(text)),
        _ => return Err(EndError::Protocol("no hello".into())),
    };
    let Event::Open { session, open: Open { role, job } } =
        next_event(&*control, &mut connection, epoch)?
    else {
        return Err(EndError::Protocol("no opening".into()));
    };
    let request = Request::parse(&job).map_err(|error| (Refusal::Job, error.to_string()));
    let decided = request.and_then(|request| {
        let options = source_options(&request);
        let options = options.map_err(|error| (Refusal::Job, error.to_string()))?;
        Ok((resolve.resolve(role, &request)?, options, request))
    });
    let reply = match &decided {
        Ok((Answer::Write(Destination { new_name, .. }), ..)) => {
            let job = new_name.as_ref().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
            OpenReply::Accepted { job }
        }
        Ok((Answer::Send { is_folder, .. }, ..)) => {
            OpenReply::Accepted { job: vec![u8::from(*is_folder)] }
        }
        Err((refusal, text)) => {
            let mut text = text.clone();
            text.truncate(text.floor_char_boundary(crate::limits::TEXT_LEN_MAX));
            OpenReply::Refused { refusal: *refusal, text }
        }
    };
    let here = |error: &dyn std::fmt::Display| EndError::Here(error.to_string());
    connection.answer(session, reply).map_err(|misuse| here(&misuse))?;
    super::initiate::flush(&*control, &mut connection, epoch)?;
    let (answer, options, request) = match decided {
        Ok(decided) => decided,
        Err((refusal, text)) => {
            // The initiator closes the connection after it has read the answer.
            let _ = next_event(&*control, &mut connection, epoch);
            return Err(EndError::Here(format!("refused: {refusal}: {text}")));
        }
    };
    let secrets = keys(session, cipher(&terms))?;
    let is_sealed = secrets.is_some();
    let opened = Opened {
        control,
        connection,
        epoch,
        session,
        block_size: terms.block_size,
        threads: threads(),
        progress,
    };
    match answer {
        Answer::Send { mut starts, is_folder } => {
            if let ([start], Some(name)) = (&mut starts[..], &request.new_name)
                && !is_folder
            {
                let name = crate::wire::record_name::Name::new(name);
                start.new_name = Some(name.map_err(|error| here(&error))?);
            }
            let lines = forward(lines, &terms, move |line| line.into_source(is_sealed));
            let plan = SourcePlan {
                opened,
                sealer: secrets.map(|(outgoing, _)| Sealer::new(outgoing)),
                starts,
                options,
                observer: Arc::new(Silent),
                is_dry_run: request.flags.has(Flags::DRY_RUN),
            };
            run_source(plan, lines)
        }
        Answer::Write(Destination { root, is_there, .. }) => {
            let lines = forward(lines, &terms, Lines::into_sink);
            let plan = SinkPlan {
                opened,
                opener: secrets.map(|(_, incoming)| Opener::new(incoming)),
                root,
                options: apply_options(request.flags, plan.keeps_special_bits, is_there),
                only: None,
                rules: options.rules,
                observer: None,
            };
            run_sink(plan, lines)
        }
    }
}

const _: () = assert!(BLOCK_SIZE_LEAST as usize >= PAYLOAD_LEN_MIN + crate::secure::SEAL_LEN);
