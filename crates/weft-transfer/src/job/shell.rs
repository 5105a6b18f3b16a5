//! Copies to another host through a remote shell, and the end that the shell starts there.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;

use super::accept::{Accepting, Answer, Resolve, Shares, accept, refused, sources};
use super::beside::{BesideAcceptor, BesideOptions, DataWay};
use super::client::CopyDirection;
use super::initiate::{Initiating, InitiatorRole, initiate};
use super::lines::{Lines, PipeLine};
use super::places::{Naming, Target, from_home, local_destination_outside, local_source};
use super::request::{Flags, Request};
use super::task::CopyTask;
use crate::end::{EndError, Finished, SinkChannel, SourceChannel};
use crate::limits::{BLOCK_SIZE, CHANNELS_EACH_MAX};
use crate::placement::{Placement, Reason};
use crate::transport::pipe::PipeControl;
use crate::wire::{Refusal, Role};

impl CopyTask {
    /// Copies with the end that a remote shell has started. The shell authenticates and encrypts,
    /// so the transport does not. The other end runs as the user of the shell, and the paths of the
    /// request are that user's. `is_remote` is false if the other end may be this host.
    ///
    /// # Errors
    /// If the copy fails.
    pub fn by_shell(
        mut self,
        control: PipeControl,
        direction: CopyDirection,
        way: DataWay,
        is_remote: bool,
    ) -> Result<Finished, EndError> {
        self.between_hosts(is_remote);
        let settings = self.tcp_settings()?;
        let channels = if self.is_fair { 1 } else { CHANNELS_EACH_MAX };
        let control = Arc::new(control);
        let pipe = Arc::clone(&control);
        let role = match direction {
            CopyDirection::Upload(content) => InitiatorRole::Send {
                content,
                connect: Box::new(move |_, _| Ok(Box::new(pipe.source()) as SourceChannel)),
            },
            CopyDirection::Download(to) => InitiatorRole::Receive {
                target: to.opening(&self.request),
                connect: Box::new(move |_, _| Ok(Box::new(pipe.sink()) as SinkChannel)),
            },
        };
        initiate(Initiating {
            task: self,
            control,
            keys: &|_, _| Ok(None),
            role,
            // The path's delay, which is not known yet, decides how many are connected.
            channels: CHANNELS_EACH_MAX,
            block_size: BLOCK_SIZE,
            copies: None,
            naming: Naming::Paths,
            beside: Some(BesideOptions { channels, way, is_remote, settings }),
            placement: &Placement::Anywhere(Reason::NoDevice),
            rdma: None,
            fabric: None,
        })
    }
}

/// Resolves requests to any file that this process's user can access.
struct Own;

impl Resolve for Own {
    fn resolve(&self, role: Role, request: &Request) -> Result<Answer, (Refusal, String)> {
        if request.flags.has(Flags::CLEAR) {
            return Err((Refusal::NotAllowed, "a remote shell decides on encryption".into()));
        }
        let own = |path: &[u8]| -> Result<PathBuf, (Refusal, String)> {
            from_home(path).map_err(|error| refused(path, &error))
        };
        if role == Role::Sink {
            return sources(request, |path| local_source(&from_home(path)?, request.flags));
        }
        let [path] = &request.paths[..] else {
            return Err((Refusal::Job, "a copy has one destination".into()));
        };
        let to = local_destination_outside(&own(path)?, request.flags, &request.origins);
        let to = to.and_then(|to| to.with_own_asides(&request.extras));
        let to = to.map(|to| Answer::Write(Target::Directory(to)));
        to.map_err(|error| refused(path, &error))
    }
}

/// Serves one copy of the process that has started this one through a remote shell. Without shares,
/// paths are those of this process's user, with all of that user's permissions. `address` is that
/// by which the remote shell has reached this host, if it is known.
///
/// # Errors
/// If the copy fails.
pub fn serve_shell(
    input: OwnedFd,
    output: OwnedFd,
    shares: Option<&Shares>,
    address: Option<IpAddr>,
) -> Result<Finished, EndError> {
    let control = Arc::new(PipeControl::meet(input, output)?);
    let (to, lines) = channel();
    let _ = to.send((0, Box::new(PipeLine(Arc::clone(&control))) as Box<dyn Lines>));
    drop(to);
    accept(Accepting {
        keeps_special_bits: shares.is_none(),
        beside: Some(BesideAcceptor::new(address)),
        ..Accepting::new(control, lines, shares.map_or(&Own as &dyn Resolve, |shares| shares))
    })
}
