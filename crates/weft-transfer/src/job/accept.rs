//! The acceptor: it receives the initiator's request, and runs the other end.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Instant;

use weft_rdma::Device;

use super::agree::{
    AGENT, FEATURE_BESIDE, Keys, alive_during, cipher, features, flush, is_unsealed, next_event,
};
use super::beside::BesideAcceptor;
use super::fabric::{FEATURE_FABRIC, FabricAcceptor, FabricChannels};
use super::lines::{Lines, SourceSettings};
use super::path;
use super::places::{self, Destination, PlaceError, Target};
use super::rdma::{self, FEATURE_RDMA};
use super::request::{Flags, Request};
use super::rights::{Access, Share};
use super::settings::{apply_options, compression, source_options, threads};
use super::third::{self, ThirdParty};
use crate::end::{
    EndError, Finished, Opened, Progress, SinkChannel, SinkPlan, SinkTarget, SourceChannel,
    SourcePlan, run_sink, run_source,
};
use crate::limits::{
    BLOCK_SIZE, BLOCK_SIZE_LEAST, CHANNELS_EACH_MAX, PIPE_BLOCK_SIZE, POOL_BLOCKS,
};
use crate::secure::{Opener, Sealer};
use crate::session::{Connection, Event, Policy};
use crate::transport::rdma::Landing;
use crate::transport::{Control, Limit, Limited, TransportError};
use crate::tree::apply::{ApplyOptions, Quota};
use crate::tree::kernel_copy::KernelCopies;
use crate::tree::source::{Content, Missing, PAYLOAD_LEN_MIN, SourceOptions, Start};
use crate::wire::record_name::Name;
use crate::wire::{Open, OpenReply, Refusal, Role, Terms, Token};

/// The directories that a server shares with a client.
#[derive(Clone, Debug)]
pub struct Shares {
    /// The directories.
    pub shares: Vec<Share>,
    /// Whether the data of copies may go without encryption, if a client wants that.
    pub allows_clear: bool,
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
        /// Those that cannot be found.
        missing: Vec<Missing>,
    },
    /// The acceptor writes to this target.
    Write(Target),
}

/// Decides on requests.
pub(super) trait Resolve {
    /// Decides on a request.
    ///
    /// # Errors
    /// The reason for a refusal, which is sent to the initiator.
    fn resolve(&self, role: Role, request: &Request) -> Result<Answer, (Refusal, String)>;

    /// Returns the rate limits of the copy that has been decided on.
    fn rates(&self) -> Vec<Limit> {
        Vec::new()
    }
}

impl Shares {
    /// Returns the share that a path begins with, and the rest of the path.
    fn find<'a>(&self, path: &'a [u8]) -> Result<(&Share, &'a [u8]), PlaceError> {
        let path = path.strip_prefix(b"/").unwrap_or(path);
        let end = path.iter().position(|&byte| byte == b'/').unwrap_or(path.len());
        let (name, rest) = path.split_at(end);
        let share = self.shares.iter().find(|share| share.name == name);
        let names = || {
            let names = self.shares.iter().map(|share| String::from_utf8_lossy(&share.name));
            names.collect::<Vec<_>>().join(", ")
        };
        Ok((share.ok_or_else(|| PlaceError::NoShare(names()))?, rest))
    }
}

impl Shares {
    /// Returns all shares that the client may read, as directories with their names.
    fn all(&self) -> Result<Answer, PlaceError> {
        let start = |share: &Share| {
            let new_name = Some(Name::new(&share.name).map_err(|_| PlaceError::Path)?);
            Ok(Start { new_name, ..Start::contents(share.root.try_clone()?) })
        };
        let readable = self.shares.iter().filter(|share| share.access.reads());
        let starts = readable.map(start).collect::<Result<_, PlaceError>>()?;
        Ok(Answer::Send { starts, is_folder: true, missing: Vec::new() })
    }

    /// Returns the shares that a request names.
    pub(super) fn of(&self, request: &Request) -> Vec<&Share> {
        match is_of_all(request) {
            true => self.shares.iter().filter(|share| share.access.reads()).collect(),
            false => {
                request.paths.iter().filter_map(|path| self.find(path).ok()?.0.into()).collect()
            }
        }
    }

    /// Refuses what the client may not do in a share.
    fn check(share: &Share, role: Role, request: &Request) -> Result<(), PlaceError> {
        let flags = request.flags;
        match (role, share.access) {
            (_, Access::Both) => Ok(()),
            (Role::Sink, Access::Write) => Err(PlaceError::Access("is for writing only")),
            (Role::Sink, Access::Read) if flags.has(Flags::REMOVES) => {
                Err(PlaceError::Access("is for reading only, so its files stay"))
            }
            (Role::Sink, Access::Read) => Ok(()),
            (Role::Source, Access::Read) => Err(PlaceError::Access("is for reading only")),
            (Role::Source, Access::Write) => match is_blind(request) {
                true => Ok(()),
                false => Err(PlaceError::Access(
                    "is for writing only: nothing that is there can be compared, listed, resumed, \
                     linked to or deleted",
                )),
            },
        }
    }
}

/// Whether a request of a sink names no path, and so means all shares.
fn is_of_all(request: &Request) -> bool {
    request.paths == [b""] && !request.flags.has(Flags::STREAM)
}

/// Whether a copy to a share tells the client nothing of what is there, and removes nothing but
/// what it replaces by name.
fn is_blind(request: &Request) -> bool {
    let telling = [
        Flags::DRY_RUN,
        Flags::DELETES,
        Flags::LISTS,
        Flags::CLEANS,
        Flags::FORCES,
        Flags::VERSIONS,
    ];
    let tells = telling.into_iter().any(|flag| request.flags.has(flag));
    let asks = request.flags.without(Flags::ASKING) != request.flags;
    !tells && !asks && request.extras.thirds.is_empty()
}

pub(super) fn refused(path: &[u8], error: &PlaceError) -> (Refusal, String) {
    let path = String::from_utf8_lossy(&path[..path.len().min(200)]).into_owned();
    let refusal = match error {
        PlaceError::Access(_) => Refusal::NotAllowed,
        _ => Refusal::NotFound,
    };
    (refusal, format!("{path}: {error}"))
}

/// Finds the sources of a request. If only some of them can be found, these are sent.
pub(super) fn sources(
    request: &Request,
    find: impl Fn(&[u8]) -> Result<(Start, bool), PlaceError>,
) -> Result<Answer, (Refusal, String)> {
    let (mut starts, mut is_folder, mut missing) = (Vec::new(), false, Vec::new());
    let mut refusal = None;
    for path in &request.paths {
        match find(path) {
            Ok((start, is_one)) => {
                check_stream(request, &start)?;
                is_folder |= is_one;
                starts.push(start);
            }
            Err(error) => {
                let refused = refused(path, &error);
                let Some(one) = error.missing(Path::new(OsStr::from_bytes(path))) else {
                    return Err(refused);
                };
                refusal.get_or_insert(refused);
                missing.push(one);
            }
        }
    }
    match refusal {
        Some(refusal) if starts.is_empty() => Err(refusal),
        // The destination of several sources is a directory.
        _ => Ok(Answer::Send { starts, is_folder, missing }),
    }
}

/// Refuses the source of a request for a stream if it is not one file.
pub(super) fn check_stream(request: &Request, start: &Start) -> Result<(), (Refusal, String)> {
    if !request.flags.has(Flags::STREAM) {
        return Ok(());
    }
    match &request.paths[..] {
        [path] => places::check_file(start).map_err(|error| refused(path, &error)),
        _ => Err((Refusal::Job, "standard output takes a single file".into())),
    }
}

impl Resolve for Shares {
    fn resolve(&self, role: Role, request: &Request) -> Result<Answer, (Refusal, String)> {
        if request.flags.has(Flags::CLEAR) && !self.allows_clear {
            let text = "the server encrypts all data (it was started without --allow-clear)";
            return Err((Refusal::NotAllowed, text.into()));
        }
        if role == Role::Sink && is_of_all(request) {
            for share in self.of(request) {
                let checked = Self::check(share, role, request);
                checked.map_err(|error| refused(&share.name, &error))?;
            }
            return self.all().map_err(|error| refused(b"", &error));
        }
        if role == Role::Sink {
            return sources(request, |path| {
                let (share, rest) = self.find(path)?;
                Self::check(share, role, request)?;
                places::start(share.root.as_fd(), rest, request.flags)
            });
        }
        let [path] = &request.paths[..] else {
            return Err((Refusal::Job, "a copy has one destination".into()));
        };
        let found = self.find(path).and_then(|(share, rest)| {
            Self::check(share, role, request)?;
            let parts = places::parts(rest)?;
            let quota = share.quota.as_ref().map(Quota::begin).transpose()?;
            let (root, origins) = (share.root.as_fd(), &request.origins);
            let to = places::destination(root, &parts, request.flags, origins, quota.as_ref())?;
            let to = to.with_shared_asides(root, &parts, &request.extras)?;
            Ok(Destination { quota, is_blind: !share.access.reads(), ..to })
        });
        let found = found.map(|to| Answer::Write(Target::Directory(to)));
        found.map_err(|error| refused(path, &error))
    }
}

/// The parameters of an acceptor.
pub(super) struct Accepting<'a> {
    /// The control channel.
    pub control: Arc<dyn Control>,
    /// The keys of blocks.
    pub keys: Keys<'a>,
    /// The most data channels.
    pub channels: u16,
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
    /// Whether the source is on this host.
    pub is_same_host: bool,
    /// The open files of a source in this process.
    pub copies: Option<Arc<KernelCopies>>,
    /// The data channels beside a pipe.
    pub beside: Option<BesideAcceptor>,
    /// The device for data channels over RDMA.
    pub rdma: Option<OverRdma<'a>>,
    /// The data channels over the fabric.
    pub fabric: Option<FabricAcceptor>,
    /// The data channels from and to other servers.
    pub third: Option<ThirdParty<'a>>,
}

impl<'a> Accepting<'a> {
    /// An acceptor with the data channels of `lines` alone, whose blocks are not sealed.
    pub(super) fn new(
        control: Arc<dyn Control>,
        lines: Receiver<(u16, Box<dyn Lines>)>,
        resolve: &'a dyn Resolve,
    ) -> Self {
        Self {
            control,
            keys: &|_, _| Ok(None),
            channels: CHANNELS_EACH_MAX,
            token: Token::default(),
            lines,
            resolve,
            progress: Arc::default(),
            keeps_special_bits: false,
            is_same_host: false,
            copies: None,
            beside: None,
            rdma: None,
            fabric: None,
            third: None,
        }
    }
}

/// The device of an acceptor's data channels over RDMA.
pub(super) struct OverRdma<'a> {
    /// The device.
    pub device: Arc<Device>,
    /// Logs a failure.
    pub failed: &'a dyn Fn(&str),
}

impl OverRdma<'_> {
    /// Registers the memory of a sink. A failure is logged, and the initiator's channels over RDMA
    /// are refused.
    fn landing(&self, block_len: usize) -> Option<Arc<Landing>> {
        let landing = Landing::new(&self.device, POOL_BLOCKS, block_len);
        landing.inspect_err(|error| (self.failed)(&rdma::reason(&self.device, error))).ok()
    }
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

/// Returns the channels over the fabric as those of one end.
fn all<C>(
    mut channels: FabricChannels,
    mut next: impl FnMut(&mut FabricChannels) -> Result<C, TransportError>,
) -> Receiver<(u16, C)> {
    let (to, turned) = channel();
    for number in 0..channels.count() {
        // One of another role than the session's is closed.
        if let Ok(line) = next(&mut channels) {
            let _ = to.send((number, line));
        }
    }
    turned
}

/// Checks what a request says of the channels over the fabric.
fn check_fabric(flags: Flags, channels: Option<&FabricChannels>) -> Result<(), (Refusal, String)> {
    let is_memory = channels.is_some_and(FabricChannels::is_memory);
    if flags.has(Flags::FABRIC) && channels.is_none() {
        return Err((Refusal::Job, "there are no data channels over the fabric".into()));
    }
    if flags.has(Flags::UNSEALED) && !(flags.has(Flags::FABRIC) && is_memory) {
        let text = "blocks without encryption go through shared memory only";
        return Err((Refusal::NotAllowed, text.into()));
    }
    Ok(())
}

/// Puts a channel under rate limits.
fn limited_source(channel: SourceChannel, rates: &[Limit]) -> SourceChannel {
    let under = |channel, rate: &Limit| Box::new(Limited::new(channel, rate.clone())) as _;
    rates.iter().fold(channel, under)
}

/// Puts a channel under rate limits.
fn limited_sink(channel: SinkChannel, rates: &[Limit]) -> SinkChannel {
    let under = |channel, rate: &Limit| Box::new(Limited::new(channel, rate.clone())) as _;
    rates.iter().fold(channel, under)
}

/// Serves one request of an initiator.
///
/// # Errors
/// If the copy fails.
pub(super) fn accept(plan: Accepting<'_>) -> Result<Finished, EndError> {
    let Accepting { control, keys, token, mut lines, resolve, progress, beside, .. } = plan;
    let epoch = Instant::now();
    let here = |error: &dyn std::fmt::Display| EndError::Here(error.to_string());
    let most = Terms {
        version: crate::limits::VERSION,
        channels: plan.channels,
        block_size: BLOCK_SIZE,
        features: features()
            | if beside.is_some() { FEATURE_BESIDE } else { 0 }
            | if plan.rdma.is_some() { FEATURE_RDMA } else { 0 }
            | if plan.fabric.is_some() { FEATURE_FABRIC } else { 0 }
            | plan.third.as_ref().map_or(0, ThirdParty::features),
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
    let mut event = next_event(&*control, &mut connection, epoch)?;
    let fabric = plan.fabric.filter(|_| terms.features & FEATURE_FABRIC != 0);
    let listening = match (&event, &beside, &fabric) {
        (Event::Listen, Some(beside), _) => Some(beside.listen()),
        (Event::Listen, None, Some(fabric)) => Some(fabric.listen(&terms)),
        (Event::Grant(key), ..) => plan.third.as_ref().map(|third| third.grant(*key)),
        _ => None,
    };
    if let Some(reply) = listening {
        connection.answer_listen(reply).map_err(|misuse| here(&misuse))?;
        event = next_event(&*control, &mut connection, epoch)?;
    }
    let Event::Open { session, open: Open { role, job } } = event else {
        return Err(EndError::Protocol("no opening".into()));
    };
    // The initiator has connected all of its channels.
    let lines_beside = beside.as_ref().and_then(BesideAcceptor::close);
    let mut over_fabric = fabric.as_ref().and_then(FabricAcceptor::close);
    let granted = plan.third.as_ref().map(|third| third.granted(cipher(&terms))).transpose()?;
    let mut between = granted.flatten();
    let request = Request::parse(&job).map_err(|error| (Refusal::Job, error.to_string()));
    let decided = request.and_then(|request| {
        if request.flags.has(Flags::BESIDE) && lines_beside.is_none() {
            return Err((Refusal::Job, "there are no data channels beside this one".into()));
        }
        check_fabric(request.flags, over_fabric.as_ref())?;
        if role == Role::Sink {
            // This end will send the data.
            let checked = request.congestion.check_for_peer();
            checked.map_err(|error| (Refusal::System, error.to_string()))?;
        }
        third::check(role, &request, between.is_some())?;
        let options = source_options(&request);
        let options = options.map_err(|error| (Refusal::Job, error.to_string()))?;
        let answer = resolve.resolve(role, &request)?;
        if let Some(to) = &request.extras.servers.sends_to {
            // Nothing connects for a client that may not have the files.
            let ends = (&*control as &dyn Control, &mut connection);
            let connect = || third::connect(plan.third.as_ref(), to, &terms);
            let connected = alive_during(ends, epoch, connect);
            let lost = |error: EndError| (Refusal::System, error.to_string());
            between = Some(connected.map_err(lost)??);
        }
        Ok((answer, options, request))
    });
    let reply = match &decided {
        Ok((Answer::Write(Target::Directory(Destination { new_name, .. })), ..)) => {
            let job = new_name.as_ref().map(|name| name.as_bytes().to_vec()).unwrap_or_default();
            OpenReply::Accepted { job }
        }
        Ok((Answer::Write(Target::Output(_) | Target::Listing), ..)) => {
            OpenReply::Accepted { job: Vec::new() }
        }
        Ok((Answer::Send { is_folder, starts, .. }, ..)) => {
            let origins = places::origins(starts);
            let job = [&[u8::from(*is_folder)], origins.as_flattened()].concat();
            OpenReply::Accepted { job }
        }
        Err((refusal, text)) => {
            let mut text = text.clone();
            text.truncate(text.floor_char_boundary(crate::limits::TEXT_LEN_MAX));
            OpenReply::Refused { refusal: *refusal, text }
        }
    };
    connection.answer(session, reply).map_err(|misuse| here(&misuse))?;
    flush(&*control, &mut connection, epoch)?;
    let (answer, options, request) = match decided {
        Ok(decided) => decided,
        Err((refusal, text)) => {
            // The initiator closes the connection after it has read the answer.
            let _ = next_event(&*control, &mut connection, epoch);
            return Err(EndError::Here(format!("refused: {refusal}: {text}")));
        }
    };
    let mut rates = resolve.rates();
    rates.extend(third::limit(&request));
    over_fabric = over_fabric.filter(|_| request.flags.has(Flags::FABRIC));
    let mut secrets = match is_unsealed(request.flags) {
        true => None,
        false => keys(session, cipher(&terms))?,
    };
    let (mut block_size, mut round_trip) = (terms.block_size, control.round_trip());
    match (lines_beside, &beside) {
        (Some(others), Some(beside)) if request.flags.has(Flags::BESIDE) => {
            (lines, round_trip) = others;
            secrets = beside.secrets(session, cipher(&terms))?;
        }
        // A remote shell may buffer many blocks.
        (_, Some(_)) if role == Role::Sink => block_size = block_size.min(PIPE_BLOCK_SIZE),
        _ => {}
    }
    let is_bridged = third::is_bridged(&request);
    let mut only_secret = None;
    if let Some((others, secret)) = between.filter(|_| is_bridged) {
        (lines, round_trip) = others;
        // Blocks go one way, and the keys between this server and the client are not used.
        only_secret = secrets.take().map(|_| secret);
    }
    let is_sealed = secrets.is_some() || only_secret.is_some();
    let may_use_rdma = terms.features & FEATURE_RDMA != 0 && over_fabric.is_none() && !is_bridged;
    let rdma = plan.rdma.filter(|_| may_use_rdma);
    let blocks = match rdma.is_some() || over_fabric.is_some() {
        true => POOL_BLOCKS,
        false => path::blocks(round_trip, block_size),
    };
    let (timed, sizes) = ((connection, epoch), (block_size, blocks));
    let mut opened = Opened::new(control, timed, session, sizes, threads(), progress);
    opened.is_bridged = is_bridged;
    let (outgoing, incoming) = match (secrets, only_secret) {
        (_, Some(secret)) if role == Role::Sink => (Some(secret), None),
        (_, Some(secret)) => (None, Some(secret)),
        (secrets, None) => secrets.unzip(),
    };
    match answer {
        Answer::Send { mut starts, is_folder, missing } => {
            if let ([start], Some(name)) = (&mut starts[..], &request.new_name)
                && !is_folder
            {
                let name = Name::new(name);
                start.new_name = Some(name.map_err(|error| here(&error))?);
            }
            let block_len = terms.block_size as usize;
            let congestion = request.congestion.clone();
            let settings = SourceSettings { is_sealed, block_len, congestion };
            let lines = match over_fabric {
                Some(channels) => all(channels, |it| Ok(limited_source(it.source()?, &rates))),
                None => forward(lines, &terms, move |line| {
                    Some(limited_source(line.into_source(&settings)?, &rates))
                }),
            };
            let plan = SourcePlan {
                opened,
                sealer: outgoing.map(Sealer::new),
                compression: compression(request.flags),
                content: Content::Entries(starts),
                options: SourceOptions { missing, ..options },
                observer: None,
                lists_changes: request.flags.lists_changes(),
            };
            run_source(plan, lines)
        }
        Answer::Write(target) => {
            let landing = rdma.and_then(|rdma| rdma.landing(terms.block_size as usize));
            let own = landing.clone();
            let mut buffers = landing.map(|landing| landing.buffers());
            let lines = match over_fabric {
                Some(channels) => {
                    buffers = channels.buffers();
                    all(channels, |it| Ok(limited_sink(it.sink()?, &rates)))
                }
                None => forward(lines, &terms, move |line| {
                    Some(limited_sink(line.into_sink(own.as_ref())?, &rates))
                }),
            };
            let target = match target {
                Target::Directory(Destination {
                    root,
                    is_there,
                    quota,
                    is_blind,
                    backup,
                    thirds,
                    ..
                }) => SinkTarget::Directory {
                    root,
                    quota,
                    backup,
                    thirds,
                    options: ApplyOptions {
                        is_same_host: plan.is_same_host,
                        is_blind,
                        ..apply_options(&request, plan.keeps_special_bits, is_there)
                    },
                    only: third::only(&request).map_err(|error| here(&error))?,
                    rules: options.rules,
                    copies: plan.copies,
                },
                Target::Output(fd) => SinkTarget::Output(fd, places::only_path(&request)),
                Target::Listing => SinkTarget::listing(places::anywhere().map_err(|it| here(&it))?),
            };
            let plan = SinkPlan {
                opened,
                opener: incoming.map(Opener::new),
                may_be_compressed: request.flags.has(Flags::COMPRESSES),
                target,
                buffers,
                observer: None,
            };
            run_sink(plan, lines)
        }
    }
}

const _: () = assert!(BLOCK_SIZE_LEAST as usize >= PAYLOAD_LEN_MIN + crate::secure::SEAL_LEN);
