//! The initiator: it connects, sends its request, and runs its end.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use super::places::{self, Destination, Naming, PlaceError};
use super::request::{Flags, Request};
use super::settings::{apply_options, source_options, threads};
use crate::end::{
    Channels, EndError, Finished, Observer, Opened, Progress, SinkChannel, SinkPlan, SourceChannel,
    SourcePlan, run_sink, run_source,
};
use crate::limits::{BLOCK_SIZE_LEAST, CONTROL_LEN_MAX};
use crate::pipeline::Clock;
use crate::secure::{Cipher, Opener, Sealer, Secret, SecureError};
use crate::session::{Connection, Event, Offer};
use crate::transport::{Control, ControlEvent, Limit, Limited, TransportError};
use crate::tree::source::Start;
use crate::wire::record_name::Name;
use crate::wire::{Message, Open, OpenReply, Role, Terms, Token};

/// Feature bit: the end has instructions for AES.
pub(super) const FEATURE_AES: u64 = 1;

/// Returns the features of this end.
pub(super) fn features() -> u64 {
    if Cipher::preferred() == Cipher::Aes128Gcm { FEATURE_AES } else { 0 }
}

/// Returns the cipher for blocks between these ends.
pub(super) fn cipher(terms: &Terms) -> Cipher {
    if terms.features & FEATURE_AES != 0 { Cipher::Aes128Gcm } else { Cipher::ChaCha20Poly1305 }
}

/// The name of this program in hellos.
pub(super) const AGENT: &str = concat!("weft ", env!("CARGO_PKG_VERSION"));

/// Sends the queued messages of a connection that has no sessions yet.
pub(super) fn flush(
    control: &dyn Control,
    connection: &mut Connection,
    epoch: Instant,
) -> Result<(), EndError> {
    while let Some(message) = connection.poll_control(epoch.elapsed()) {
        control.send(&message.emit())?;
    }
    Ok(())
}

/// Returns the next event of a connection that has no sessions yet.
pub(super) fn next_event(
    control: &dyn Control,
    connection: &mut Connection,
    epoch: Instant,
) -> Result<Event, EndError> {
    let mut bytes = Vec::with_capacity(CONTROL_LEN_MAX);
    loop {
        flush(control, connection, epoch)?;
        let left = connection.timeout().saturating_sub(epoch.elapsed());
        match control.receive(&mut bytes, Some(left))? {
            ControlEvent::Message => {}
            ControlEvent::TimedOut if !connection.is_silent(epoch.elapsed()) => continue,
            ControlEvent::TimedOut => return Err(EndError::Here("no sign of life".into())),
            ControlEvent::Ended => {
                return Err(EndError::Here("the peer has ended the connection".into()));
            }
        }
        let message = Message::parse(&bytes).map_err(TransportError::from)?;
        let event = connection.handle_control(message, epoch.elapsed());
        let handled = event.map_err(|fault| EndError::Protocol(fault.to_string()));
        flush(control, connection, epoch)?;
        if let Some(event) = handled? {
            return Ok(event);
        }
    }
}

/// Exports the keys of a session's blocks, outgoing and incoming; `None` if blocks are not
/// encrypted.
pub(super) type Keys<'a> =
    &'a (dyn Fn(u32, Cipher) -> Result<Option<(Secret, Secret)>, SecureError> + 'a);

/// Connects a data channel with this token and number.
pub(super) type Connect<C> = Box<dyn FnMut(Token, u16) -> Result<C, TransportError> + Send>;

/// Opens the directory of a destination.
pub(super) type OpenRoot = Box<dyn FnOnce(bool) -> Result<Destination, PlaceError> + Send>;

/// The role of the initiator.
pub(super) enum Wish {
    /// The initiator sends these to the destination that the request names.
    Send {
        /// The files and directories to send.
        starts: Vec<Start>,
        /// Connects the source's ends of data channels.
        connect: Connect<SourceChannel>,
    },
    /// The initiator receives what the request names.
    Fetch {
        /// Opens the directory to write to. If its argument is true, the path itself is that
        /// directory, and is created if it does not exist.
        root: OpenRoot,
        /// Connects the sink's ends of data channels.
        connect: Connect<SinkChannel>,
    },
}

/// The parameters of an initiator.
pub(super) struct Initiating<'a> {
    /// The control channel.
    pub control: Arc<dyn Control>,
    /// The keys of blocks.
    pub keys: Keys<'a>,
    /// The request to send.
    pub request: Request,
    /// The role of this end.
    pub wish: Wish,
    /// The number of data channels to open.
    pub channels: u16,
    /// The block size in bytes.
    pub block_size: u32,
    /// The most bytes of blocks per second.
    pub limit: Option<u64>,
    /// How the paths of the request are interpreted.
    pub naming: Naming,
    /// Receives problems.
    pub observer: Arc<dyn Observer>,
    /// The counters for progress displays.
    pub progress: Arc<Progress>,
}

/// Connects the data channels of a session.
fn connect_all<C>(
    terms: &Terms,
    connect: &mut Connect<C>,
    limited: impl Fn(C) -> C,
) -> Result<Channels<C>, EndError> {
    let (to, lines) = channel();
    for number in 0..terms.channels {
        let _ = to.send((number, limited(connect(terms.token, number)?)));
    }
    Ok(lines)
}

/// Returns the block size under a rate limit. About eight blocks are sent per second, so that
/// traffic is not bursty.
fn block_size(most: u32, limit: Option<u64>) -> u32 {
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
    let Initiating { control, keys, request, wish, channels, block_size, naming, .. } = plan;
    let (observer, progress) = (plan.observer, plan.progress);
    let limit = plan.limit.map(|limit| Limit::new(limit, Clock::system()));
    let block_size = self::block_size(block_size, plan.limit);
    let bad = |error: &dyn std::fmt::Display| EndError::Here(error.to_string());
    let epoch = Instant::now();
    let offer = Offer { channels, block_size, features: features(), agent: AGENT.into() };
    let mut connection = Connection::initiate(offer, epoch.elapsed());
    let terms = match next_event(&*control, &mut connection, epoch)? {
        Event::Established(terms) => terms,
        Event::Refused { refusal, text } => {
            return Err(EndError::Peer(format!("{refusal}: {text}")));
        }
        _ => return Err(EndError::Protocol("no reply to the hello".into())),
    };
    if terms.block_size < BLOCK_SIZE_LEAST {
        return Err(EndError::Protocol(format!("blocks of {} bytes", terms.block_size)));
    }
    let role = if matches!(wish, Wish::Send { .. }) { Role::Source } else { Role::Sink };
    let open = Open { role, job: request.emit().map_err(|error| bad(&error))? };
    let session = connection.open(open).map_err(|misuse| bad(&misuse))?;
    let answer = match next_event(&*control, &mut connection, epoch)? {
        Event::OpenReply { reply: OpenReply::Accepted { job }, .. } => job,
        Event::OpenReply { reply: OpenReply::Refused { refusal, text }, .. } => {
            return Err(EndError::Peer(format!("{refusal}: {text}")));
        }
        Event::Cancelled(cancel) => return Err(EndError::Peer(cancel.text)),
        _ => return Err(EndError::Protocol("no reply to the opening".into())),
    };
    let secrets = keys(session, cipher(&terms))?;
    let opened = Opened {
        control,
        connection,
        epoch,
        session,
        block_size: terms.block_size,
        threads: threads(),
        progress,
    };
    match wish {
        Wish::Send { mut starts, mut connect } => {
            // The acceptor knows whether the destination is a directory.
            if let [start] = &mut starts[..]
                && !answer.is_empty()
            {
                start.new_name = Some(Name::new(&answer).map_err(|error| bad(&error))?);
            }
            let lines = connect_all(&terms, &mut connect, |line| match &limit {
                Some(limit) => Box::new(Limited::new(line, limit.clone())),
                None => line,
            })?;
            let plan = SourcePlan {
                opened,
                sealer: secrets.map(|(outgoing, _)| Sealer::new(outgoing)),
                starts,
                options: source_options(&request).map_err(|error| bad(&error))?,
                observer,
                is_dry_run: request.flags.has(Flags::DRY_RUN),
            };
            run_source(plan, lines)
        }
        Wish::Fetch { root, mut connect } => {
            let is_folder = answer == [1];
            let Destination { root, is_there, .. } =
                root(is_folder).map_err(|error| bad(&error))?;
            let lines = connect_all(&terms, &mut connect, |line| match &limit {
                Some(limit) => Box::new(Limited::new(line, limit.clone())),
                None => line,
            })?;
            let plan = SinkPlan {
                opened,
                opener: secrets.map(|(_, incoming)| Opener::new(incoming)),
                root,
                options: apply_options(request.flags, true, is_there),
                rules: source_options(&request).map_err(|error| bad(&error))?.rules,
                only: places::names(&request, is_folder, naming).map_err(|error| bad(&error))?,
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
