//! The steps of both ends before a session is open: they agree on features and on a cipher.

use std::sync::mpsc::channel;
use std::thread;
use std::time::Instant;

use super::request::{Flags, Request};
use crate::end::EndError;
use crate::limits::{ALIVE_INTERVAL, BLOCK_SIZE_LEAST, CONTROL_LEN_MAX};
use crate::secure::{Cipher, PublicKey, Secret, SecureError};
use crate::session::{Connection, Event, Offer};
use crate::transport::{Control, ControlEvent, TransportError};
use crate::wire::{ListenReply, Message, Open, OpenReply, Refusal, Role, Terms};

/// Feature bit: the end has instructions for AES.
pub(super) const FEATURE_AES: u64 = 1;

/// Feature bit: the end of a pipe can have its data channels over TCP.
pub(super) const FEATURE_BESIDE: u64 = 4;

/// Feature bit: the end understands blocks that are compressed by Zstandard.
pub(super) const FEATURE_ZSTD: u64 = 16;

/// Feature bit: the end makes parts of files of versions that exist.
pub(super) const FEATURE_VERSIONS: u64 = 128;

/// Feature bit: the acceptor takes data channels of other servers, with a grant.
pub(super) const FEATURE_GRANTS: u64 = 1 << 12;

/// Feature bit: the acceptor connects data channels to other servers.
pub(super) const FEATURE_CONNECTS: u64 = 1 << 13;

/// Returns the features of this end.
pub(super) fn features() -> u64 {
    FEATURE_ZSTD
        | FEATURE_VERSIONS
        | if Cipher::preferred() == Cipher::Aes128Gcm { FEATURE_AES } else { 0 }
}

/// Returns the cipher for blocks between these ends.
pub(super) fn cipher(terms: &Terms) -> Cipher {
    if terms.features & FEATURE_AES != 0 { Cipher::Aes128Gcm } else { Cipher::ChaCha20Poly1305 }
}

/// Whether the blocks of a request are not sealed, although the control channel has keys.
pub(super) fn is_unsealed(flags: Flags) -> bool {
    flags.has(Flags::CLEAR) || flags.has(Flags::UNSEALED)
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
            ControlEvent::TimedOut => return Err(EndError::Lost("no sign of life".into())),
            ControlEvent::Ended => {
                return Err(EndError::Lost("the peer has ended the connection".into()));
            }
        }
        if let Some(event) = handle(control, connection, epoch, &bytes)? {
            return Ok(event);
        }
    }
}

/// Handles a message of a connection that has no sessions yet, and sends what results.
fn handle(
    control: &dyn Control,
    connection: &mut Connection,
    epoch: Instant,
    bytes: &[u8],
) -> Result<Option<Event>, EndError> {
    let message = Message::parse(bytes).map_err(TransportError::from)?;
    let event = connection.handle_control(message, epoch.elapsed());
    let handled = event.map_err(|fault| EndError::Protocol(fault.to_string()));
    flush(control, connection, epoch)?;
    handled
}

/// Does work that may take seconds. Meanwhile the peer sees that this end is alive.
///
/// # Errors
/// If the connection ends, or anything but a sign of life comes.
pub(super) fn alive_during<R: Send>(
    (control, connection): (&dyn Control, &mut Connection),
    epoch: Instant,
    work: impl FnOnce() -> R + Send,
) -> Result<R, EndError> {
    let (done, has_done) = channel();
    thread::scope(|scope| {
        let working = scope.spawn(move || done.send(work()));
        // Most work is done before a peer asks for a sign of life.
        let mut result = has_done.recv_timeout(ALIVE_INTERVAL).ok();
        let mut bytes = Vec::new();
        while result.is_none() && !working.is_finished() {
            flush(control, connection, epoch)?;
            let event = match control.receive(&mut bytes, Some(ALIVE_INTERVAL))? {
                ControlEvent::Message => handle(control, connection, epoch, &bytes)?,
                ControlEvent::TimedOut => None,
                ControlEvent::Ended => {
                    return Err(EndError::Lost("the peer has ended the connection".into()));
                }
            };
            if event.is_some() {
                return Err(EndError::Protocol("a message before the answer".into()));
            }
            result = has_done.try_recv().ok();
        }
        let result = result.or_else(|| has_done.try_recv().ok());
        result.ok_or(EndError::Here("the work has ended without a result".into()))
    })
}

/// Exports the keys of a session's blocks, outgoing and incoming; `None` if blocks are not
/// encrypted.
pub(super) type Keys<'a> =
    &'a (dyn Fn(u32, Cipher) -> Result<Option<(Secret, Secret)>, SecureError> + 'a);

/// Lets files be sent as a whole if the acceptor knows no versions of them.
pub(super) fn agree_on_versions(request: &mut Request, terms: &Terms) {
    if terms.features & FEATURE_VERSIONS == 0 {
        request.flags = request.flags.without(Flags::VERSIONS);
    }
}

/// Removes compression from a request if the acceptor does not understand it.
pub(super) fn agree_on_compression(request: &mut Request, terms: &Terms) -> Result<(), EndError> {
    if terms.features & FEATURE_ZSTD != 0 {
        return Ok(());
    }
    if request.flags.has(Flags::COMPRESSES_ALWAYS) {
        let text = "the other host's weft does not know compression: copy without it";
        return Err(EndError::Here(text.into()));
    }
    request.flags = request.flags.without(Flags::COMPRESSES);
    Ok(())
}

/// Sends a hello. Returns the connection with the agreed terms.
pub(super) fn establish(
    control: &dyn Control,
    offer: Offer,
    epoch: Instant,
) -> Result<(Connection, Terms), EndError> {
    let mut connection = Connection::initiate(offer, epoch.elapsed());
    let terms = match next_event(control, &mut connection, epoch)? {
        Event::Established(terms) => terms,
        Event::Refused { refusal, text } => {
            return Err(EndError::Peer(reason(refusal, text)));
        }
        _ => return Err(EndError::Protocol("no reply to the hello".into())),
    };
    if terms.block_size < BLOCK_SIZE_LEAST {
        return Err(EndError::Protocol(format!("blocks of {} bytes", terms.block_size)));
    }
    Ok((connection, terms))
}

/// Returns the reason for a refusal: the acceptor's text says it more precisely than the code.
fn reason(refusal: Refusal, text: String) -> String {
    if text.is_empty() { refusal.to_string() } else { text }
}

/// Asks the acceptor to listen for data channels.
pub(super) fn ask_to_listen(
    control: &dyn Control,
    connection: &mut Connection,
    epoch: Instant,
) -> Result<ListenReply, EndError> {
    connection.ask_to_listen().map_err(|misuse| EndError::Here(misuse.to_string()))?;
    listen_reply(control, connection, epoch)
}

/// Asks the acceptor to take the data channels of the server with this key.
pub(super) fn ask_for_grant(
    control: &dyn Control,
    connection: &mut Connection,
    epoch: Instant,
    key: &PublicKey,
) -> Result<ListenReply, EndError> {
    let asked = connection.ask_for_grant(key.to_bytes());
    asked.map_err(|misuse| EndError::Here(misuse.to_string()))?;
    listen_reply(control, connection, epoch)
}

fn listen_reply(
    control: &dyn Control,
    connection: &mut Connection,
    epoch: Instant,
) -> Result<ListenReply, EndError> {
    match next_event(control, connection, epoch)? {
        Event::ListenReply(reply) => Ok(reply),
        Event::Cancelled(cancel) => Err(EndError::Peer(cancel.text)),
        _ => Err(EndError::Protocol("no reply to the request to listen".into())),
    }
}

/// Opens a session. Returns its number and the acceptor's answer.
pub(super) fn open_session(
    control: &dyn Control,
    connection: &mut Connection,
    epoch: Instant,
    role: Role,
    request: &Request,
) -> Result<(u32, Vec<u8>), EndError> {
    let job = request.emit().map_err(|error| EndError::Here(error.to_string()))?;
    let session = connection.open(Open { role, job });
    let session = session.map_err(|misuse| EndError::Here(misuse.to_string()))?;
    match next_event(control, connection, epoch)? {
        Event::OpenReply { reply: OpenReply::Accepted { job }, .. } => Ok((session, job)),
        Event::OpenReply { reply: OpenReply::Refused { refusal, text }, .. } => {
            Err(EndError::Peer(reason(refusal, text)))
        }
        Event::Cancelled(cancel) => Err(EndError::Peer(cancel.text)),
        _ => Err(EndError::Protocol("no reply to the opening".into())),
    }
}
