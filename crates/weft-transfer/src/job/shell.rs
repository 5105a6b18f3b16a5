//! Copies to another host through a remote shell, and the end that the shell starts there.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;

use super::accept::{Accepting, Answer, Lines, Resolve, Shares, accept};
use super::client::Way;
use super::initiate::{Initiating, Wish, initiate};
use super::lines::PipeLine;
use super::places::{Naming, PlaceError, from_home, local_destination, local_start};
use super::request::{Flags, Request};
use crate::end::{EndError, Finished, Observer, Progress, SinkChannel, SourceChannel};
use crate::limits::PIPE_BLOCK_SIZE;
use crate::transport::pipe::PipeControl;
use crate::wire::{Refusal, Role, Token};

/// Copies with the end that a remote shell has started. The shell authenticates and encrypts, so
/// the transport does not. The other end runs as the user of the shell, and the paths of the
/// request are that user's.
/// `limit` is the most bytes of blocks per second.
///
/// # Errors
/// If the copy fails.
pub fn copy_by_shell(
    control: PipeControl,
    request: Request,
    way: Way,
    observer: Arc<dyn Observer>,
    progress: Arc<Progress>,
    limit: Option<u64>,
) -> Result<Finished, EndError> {
    let (control, flags) = (Arc::new(control), request.flags);
    let pipe = Arc::clone(&control);
    let wish = match way {
        Way::To(starts) => Wish::Send {
            starts,
            connect: Box::new(move |_, _| Ok(Box::new(pipe.source()) as SourceChannel)),
        },
        Way::From(path) => Wish::Fetch {
            root: Box::new(move |is_one| {
                local_destination(&path, flags.with(Flags::FOLDER, is_one))
            }),
            connect: Box::new(move |_, _| Ok(Box::new(pipe.sink()) as SinkChannel)),
        },
    };
    initiate(Initiating {
        control,
        keys: &|_, _| Ok(None),
        request,
        wish,
        channels: 1,
        block_size: PIPE_BLOCK_SIZE,
        limit,
        naming: Naming::Paths,
        observer,
        progress,
    })
}

/// Resolves requests to any file that this process's user can access.
struct Own;

fn refused(path: &[u8], error: &PlaceError) -> (Refusal, String) {
    let path = String::from_utf8_lossy(&path[..path.len().min(200)]).into_owned();
    (Refusal::NotFound, format!("{path}: {error}"))
}

impl Resolve for Own {
    fn resolve(&self, role: Role, request: &Request) -> Result<Answer, (Refusal, String)> {
        let own = |path: &[u8]| -> Result<PathBuf, (Refusal, String)> {
            from_home(path).map_err(|error| refused(path, &error))
        };
        if role == Role::Sink {
            let (mut starts, mut is_folder) = (Vec::new(), false);
            for path in &request.paths {
                let found = local_start(&own(path)?);
                let (start, is_one) = found.map_err(|error| refused(path, &error))?;
                is_folder |= is_one;
                starts.push(start);
            }
            return Ok(Answer::Send { starts, is_folder });
        }
        let [path] = &request.paths[..] else {
            return Err((Refusal::Job, "a copy has one destination".into()));
        };
        let to = local_destination(&own(path)?, request.flags);
        to.map(Answer::Write).map_err(|error| refused(path, &error))
    }
}

/// Serves one copy of the process that has started this one through a remote shell. Without shares,
/// paths are those of this process's user, with all of that user's permissions.
///
/// # Errors
/// If the copy fails.
pub fn serve_shell(
    input: OwnedFd,
    output: OwnedFd,
    shares: Option<&Shares>,
) -> Result<Finished, EndError> {
    let control = Arc::new(PipeControl::meet(input, output)?);
    let (to, lines) = channel();
    let _ = to.send((0, Box::new(PipeLine(Arc::clone(&control))) as Box<dyn Lines>));
    drop(to);
    accept(Accepting {
        control,
        keys: &|_, _| Ok(None),
        token: Token::default(),
        lines,
        resolve: shares.map_or(&Own as &dyn Resolve, |shares| shares),
        progress: Arc::default(),
        keeps_special_bits: shares.is_none(),
    })
}
