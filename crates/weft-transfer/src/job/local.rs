//! Copies within one host, with both ends in one process.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use super::accept::{Accepting, Answer, Lines, Resolve, accept};
use super::initiate::{Initiating, Wish, initiate};
use super::lines::MemoryLine;
use super::places::{Destination, Naming, check_apart};
use super::request::Request;
use crate::end::{EndError, Finished, Observer, Progress, SourceChannel};
use crate::limits::{BLOCK_SIZE, LOCAL_CHANNELS};
use crate::mutex::lock;
use crate::transport::memory;
use crate::tree::source::Start;
use crate::wire::{Refusal, Role, Token};

/// The destination of the only copy.
struct Here(Mutex<Option<Destination>>);

impl Resolve for Here {
    fn resolve(&self, _role: Role, _request: &Request) -> Result<Answer, (Refusal, String)> {
        let taken = lock(&self.0).take();
        taken.map(Answer::Write).ok_or_else(|| (Refusal::Busy, "one copy at a time".into()))
    }
}

/// Copies within this host.
/// `limit` is the most bytes of blocks per second.
///
/// # Errors
/// If the copy fails.
pub fn copy_local(
    starts: Vec<Start>,
    destination: Destination,
    request: Request,
    observer: Arc<dyn Observer>,
    progress: Arc<Progress>,
    limit: Option<u64>,
) -> Result<Finished, EndError> {
    check_apart(&starts, &destination).map_err(|error| EndError::Here(error.to_string()))?;
    let (near, remote) = memory::control_pair();
    let (to, lines): (Sender<(u16, Box<dyn Lines>)>, _) = channel();
    let resolve = Here(Mutex::new(Some(destination)));
    thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            accept(Accepting {
                control: Arc::new(remote),
                keys: &|_, _| Ok(None),
                token: Token::default(),
                lines,
                resolve: &resolve,
                progress: Arc::default(),
                keeps_special_bits: true,
            })
        });
        let connect = Box::new(move |_: Token, number: u16| {
            let (source, sink) = memory::data_pair();
            let _ = to.send((number, Box::new(MemoryLine(sink)) as Box<dyn Lines>));
            Ok(Box::new(source) as SourceChannel)
        });
        let finished = initiate(Initiating {
            control: Arc::new(near),
            keys: &|_, _| Ok(None),
            request,
            wish: Wish::Send { starts, connect },
            channels: LOCAL_CHANNELS,
            block_size: BLOCK_SIZE,
            limit,
            naming: Naming::Shares,
            observer,
            progress,
        });
        // The acceptor's error would only repeat the initiator's.
        let _ = accepting.join();
        finished
    })
}
