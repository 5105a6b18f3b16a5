//! The initiator: it connects, sends its request, and runs its end.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use super::agree::{
    AGENT, FEATURE_BESIDE, Keys, agree_on_compression, agree_on_versions, cipher, establish,
    features, is_unsealed, open_session,
};
use super::beside::{Beside, BesideOptions, DataWay};
use super::fabric::{FEATURE_FABRIC, FabricChannels, FabricOptions};
use super::path;
use super::places::{self, Destination, Naming, PlaceError, Target};
use super::rdma::{Connect, FEATURE_RDMA, RdmaPath, numbered};
use super::request::{Flags, Origin};
use super::settings::{apply_options, compression, decisions, source_options, threads};
use super::task::CopyTask;
use crate::clock::Clock;
use crate::end::{
    Carrier, Channels, EndError, Finished, Opened, SinkChannel, SinkPlan, SinkTarget,
    SourceChannel, SourcePlan, run_sink, run_source,
};
use crate::limits::{BLOCK_SIZE_LEAST, PIPE_BLOCK_SIZE, POOL_BLOCKS};
use crate::placement::Placement;
use crate::secure::{Opener, Sealer};
use crate::session::{Connection, Offer};
use crate::transport::{Control, Limit, Limited, TransportError};
use crate::tree::kernel_copy::KernelCopies;
use crate::tree::source::{Content, SourceOptions};
use crate::wire::record_name::Name;
use crate::wire::{Role, Terms};

/// Opens the target of a sink.
pub(super) type OpenTarget = Box<dyn FnOnce(bool, &[Origin]) -> Result<Target, PlaceError> + Send>;

/// The role of the initiator.
pub(super) enum InitiatorRole {
    /// The initiator sends this to the destination that the request names.
    Send {
        /// What to send.
        content: Content,
        /// Connects the source's ends of data channels.
        connect: Connect<SourceChannel>,
    },
    /// The initiator receives what the request names.
    Receive {
        /// Opens the target to write to. If its argument is true, the path itself is the
        /// directory to write to, and is created if it does not exist.
        target: OpenTarget,
        /// Connects the sink's ends of data channels.
        connect: Connect<SinkChannel>,
    },
}

/// The parameters of an initiator.
pub(super) struct Initiating<'a> {
    /// The copy to make.
    pub task: CopyTask,
    /// The control channel.
    pub control: Arc<dyn Control>,
    /// The keys of blocks.
    pub keys: Keys<'a>,
    /// The role of this end.
    pub role: InitiatorRole,
    /// The number of data channels to open.
    pub channels: u16,
    /// The block size in bytes.
    pub block_size: u32,
    /// The open files that the source shares with a sink in this process.
    pub copies: Option<Arc<KernelCopies>>,
    /// How the paths of the request are interpreted.
    pub naming: Naming,
    /// Over a pipe: which way the data goes.
    pub beside: Option<BesideOptions>,
    /// Where the threads of this end run.
    pub placement: &'a Placement,
    /// The way of data channels over RDMA, if they are possible.
    pub rdma: Option<RdmaPath>,
    /// What to try of the fabric.
    pub fabric: Option<FabricOptions>,
}

/// Connects the data channels of a session.
pub(super) fn connect_all<C>(
    terms: &Terms,
    mut connect: impl FnMut(&Terms, u16) -> Result<C, TransportError>,
    limited: impl Fn(C) -> C,
) -> Result<Channels<C>, EndError> {
    let numbered = |terms: &Terms, number| Ok((number, connect(terms, number)?));
    Ok(connect_numbered(terms, numbered, limited)?.lines)
}

/// Data channels, and what passes later ones on.
struct Connected<C> {
    lines: Channels<C>,
    to: Sender<(u16, C)>,
}

/// Connects the data channels of a session, which choose their numbers.
fn connect_numbered<C>(
    terms: &Terms,
    mut connect: impl FnMut(&Terms, u16) -> Result<(u16, C), TransportError>,
    limited: impl Fn(C) -> C,
) -> Result<Connected<C>, EndError> {
    let (to, lines) = channel();
    for number in 0..terms.channels {
        let (number, line) = connect(terms, number)?;
        let _ = to.send((number, limited(line)));
    }
    Ok(Connected { lines, to })
}

/// Connects data channels beside a pipe if that is wanted. Returns the reason if it is not
/// possible; `None` if it is not wanted.
fn connect_beside(
    control: &dyn Control,
    connection: &mut Connection,
    epoch: Instant,
    terms: &Terms,
    options: BesideOptions,
) -> Result<Result<Beside, Option<String>>, EndError> {
    if options.way == DataWay::Shell {
        return Ok(Err(None));
    }
    match Beside::connect(control, connection, epoch, terms, &options)? {
        Ok(beside) => Ok(Ok(beside)),
        Err(why) if options.way == DataWay::Tcp => {
            Err(EndError::Here(format!("the data cannot go by TCP: {why}")))
        }
        Err(why) => Ok(Err(Some(why))),
    }
}

/// Returns the block size under a rate limit. About eight blocks are sent per second, so that
/// traffic is not bursty.
pub(super) fn block_size(most: u32, limit: Option<u64>) -> u32 {
    let Some(limit) = limit else { return most };
    let eighth = u32::try_from(limit / 8).unwrap_or(u32::MAX).max(1);
    most.min(1 << eighth.ilog2()).max(BLOCK_SIZE_LEAST)
}

/// Performs a copy.
///
/// # Errors
/// If the copy fails. Single files that could not be copied are not an error; the outcome counts
/// them.
pub(super) fn initiate(plan: Initiating<'_>) -> Result<Finished, EndError> {
    let Initiating { task, control, keys, role, channels, block_size, copies, naming, .. } = plan;
    let (beside, rdma) = (plan.beside, plan.rdma);
    let block_size = self::block_size(block_size, task.limit);
    let limit = task.limit.map(|limit| Limit::new(limit, Clock::system()));
    let CopyTask { mut request, observer, progress, missing, .. } = task.clone();
    let bad = |error: &dyn std::fmt::Display| EndError::Here(error.to_string());
    let epoch = Instant::now();
    // A dry run moves no data.
    let fabric = plan.fabric.filter(|_| !request.flags.has(Flags::DRY_RUN));
    let beside = beside.map(|options| match request.flags.has(Flags::DRY_RUN) {
        true => BesideOptions { way: DataWay::Shell, ..options },
        false => options,
    });
    let features = features()
        | if beside.is_some() { FEATURE_BESIDE } else { 0 }
        | if rdma.is_some() { FEATURE_RDMA } else { 0 }
        | if fabric.is_some() { FEATURE_FABRIC } else { 0 };
    // Channels that fail over RDMA get other numbers over TCP.
    let channels = if rdma.is_some() { 2 * channels } else { channels };
    let offer = Offer { channels, block_size, features, agent: AGENT.into() };
    let (mut connection, mut terms) = establish(&*control, offer, epoch)?;
    task.limit_silence(&mut connection);
    agree_on_compression(&mut request, &terms)?;
    agree_on_versions(&mut request, &terms);
    let mut block_size = terms.block_size;
    let block_len = terms.block_size as usize;
    let session_role =
        if matches!(role, InitiatorRole::Send { .. }) { Role::Source } else { Role::Sink };
    let mut over_fabric = None;
    if let Some(options) = fabric {
        let via = (&*control, &mut connection);
        match FabricChannels::connect(via, epoch, &terms, options, session_role)? {
            Ok(channels) => {
                observer.chosen(channels.carrier(), None);
                let flags = request.flags.with(Flags::FABRIC, true);
                request.flags = flags.with(Flags::UNSEALED, channels.is_memory());
                terms.channels = channels.count();
                over_fabric = Some(channels);
            }
            Err(why) => observer.chosen(Carrier::Tcp, Some(&why)),
        }
    }
    let rdma = rdma.filter(|_| over_fabric.is_none());
    let rdma = rdma.map(|path| path.agree(&mut terms, &*observer)).transpose()?.flatten();
    let mut lines_beside = None;
    let is_pipe = beside.is_some();
    if let Some(options) = beside {
        match connect_beside(&*control, &mut connection, epoch, &terms, options)? {
            Ok(connected) => {
                observer.chosen(Carrier::Tcp, None);
                request.flags = request.flags.with(Flags::BESIDE, true);
                terms.channels = connected.channels();
                lines_beside = Some(connected);
            }
            Err(why) => {
                observer.chosen(Carrier::Shell, why.as_deref());
                terms.channels = 1;
                // A remote shell may buffer many blocks.
                if matches!(role, InitiatorRole::Send { .. }) {
                    block_size = block_size.min(PIPE_BLOCK_SIZE);
                }
            }
        }
    }
    if let InitiatorRole::Send { content: Content::Entries(starts), .. } = &role {
        request.origins = places::origins(starts);
    }
    let (session, answer) =
        open_session(&*control, &mut connection, epoch, session_role, &request)?;
    let secrets = match &lines_beside {
        Some(beside) => Some(beside.secrets(session, cipher(&terms))?),
        None if is_unsealed(request.flags) => None,
        None => keys(session, cipher(&terms))?,
    };
    let carrier = match (is_pipe, &lines_beside) {
        (true, None) => Some(Carrier::Shell),
        _ if over_fabric.is_some() => over_fabric.as_ref().map(FabricChannels::carrier),
        _ if rdma.is_some() => Some(Carrier::Rdma),
        _ if request.flags.has(Flags::CLEAR) => Some(Carrier::Tcp),
        _ => secrets.as_ref().map(|_| Carrier::Tcp),
    };
    let sealed_by = secrets.as_ref().map(|(outgoing, _)| outgoing.cipher());
    let round_trip = lines_beside.as_ref().map_or_else(|| control.round_trip(), Beside::round_trip);
    let blocks = match rdma.is_some() || over_fabric.is_some() {
        true => POOL_BLOCKS,
        false => path::blocks(round_trip, block_size),
    };
    let sizes = (terms.channels, block_size, blocks);
    observer.decided(&decisions(
        &request,
        sizes,
        round_trip,
        carrier,
        (sealed_by, plan.placement),
        copies.is_some(),
    ));
    let (timed, sizes) = ((connection, epoch), (block_size, blocks));
    let mut opened = Opened::new(control, timed, session, sizes, threads(), progress);
    match role {
        InitiatorRole::Send { mut content, mut connect } => {
            // The acceptor knows whether the destination is a directory.
            if !answer.is_empty() {
                content.rename(Name::new(&answer).map_err(|error| bad(&error))?);
            }
            if let Some(mut beside) = lines_beside {
                connect = Box::new(move |_, _| beside.source());
            }
            let (mut connect, late) = match rdma {
                Some(path) => path.sources(block_len, connect, Arc::clone(&observer)),
                None => (numbered(connect), None),
            };
            if let Some(mut channels) = over_fabric {
                connect = Box::new(move |_, number| Ok((number, channels.source()?)));
            }
            let limited = move |line: SourceChannel| match &limit {
                Some(limit) => Box::new(Limited::new(line, limit.clone())) as SourceChannel,
                None => line,
            };
            let Connected { lines, to } = connect_numbered(&terms, &mut connect, &limited)?;
            opened.spare = late.map(|late| late.spare(&terms, to, limited));
            let plan = SourcePlan {
                opened,
                sealer: secrets.map(|(outgoing, _)| Sealer::new(outgoing)),
                compression: compression(request.flags),
                content,
                options: SourceOptions {
                    copies,
                    missing,
                    ..source_options(&request).map_err(|error| bad(&error))?
                },
                observer: Some(observer),
                lists_changes: request.flags.lists_changes(),
            };
            run_source(plan, lines)
        }
        InitiatorRole::Receive { target, mut connect } => {
            let (is_folder, origins) = places::parse_answer(&answer);
            let target = match target(is_folder, origins).map_err(|error| bad(&error))? {
                Target::Directory(Destination { root, is_there, backup, thirds, .. }) => {
                    SinkTarget::Directory {
                        root,
                        options: apply_options(&request, true, is_there),
                        rules: source_options(&request).map_err(|error| bad(&error))?.rules,
                        quota: None,
                        backup,
                        thirds,
                        only: places::names(&request, is_folder, naming)
                            .map_err(|error| bad(&error))?,
                        copies: None,
                    }
                }
                Target::Output(fd) => SinkTarget::Output(fd, places::only_path(&request)),
                Target::Listing => {
                    SinkTarget::listing(places::anywhere().map_err(|error| bad(&error))?)
                }
            };
            if let Some(mut beside) = lines_beside {
                connect = Box::new(move |_, _| beside.sink());
            }
            let mut buffers = None;
            let (mut connect, late) = match rdma {
                Some(path) => {
                    let sinks = path.sinks(block_len, connect, Arc::clone(&observer))?;
                    buffers = sinks.landing.map(|landing| landing.buffers());
                    (sinks.connect, sinks.late)
                }
                None => (numbered(connect), None),
            };
            if let Some(mut channels) = over_fabric {
                buffers = channels.buffers();
                connect = Box::new(move |_, number| Ok((number, channels.sink()?)));
            }
            let limited = move |line: SinkChannel| match &limit {
                Some(limit) => Box::new(Limited::new(line, limit.clone())) as SinkChannel,
                None => line,
            };
            let Connected { lines, to } = connect_numbered(&terms, &mut connect, &limited)?;
            opened.spare = late.map(|late| late.spare(&terms, to, limited));
            let plan = SinkPlan {
                opened,
                opener: secrets.map(|(_, incoming)| Opener::new(incoming)),
                may_be_compressed: request.flags.has(Flags::COMPRESSES),
                target,
                buffers,
                observer: Some(observer),
            };
            run_sink(plan, lines)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::BLOCK_SIZE;

    #[test]
    fn blocks_under_a_low_limit_are_small() {
        assert_eq!(block_size(BLOCK_SIZE, None), BLOCK_SIZE);
        assert_eq!(block_size(BLOCK_SIZE, Some(u64::MAX)), BLOCK_SIZE);
        assert_eq!(block_size(BLOCK_SIZE, Some(1)), BLOCK_SIZE_LEAST);
        assert_eq!(block_size(BLOCK_SIZE, Some(3 << 20)), 256 << 10);
    }
}
