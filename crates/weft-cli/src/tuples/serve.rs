//! `weft tuples serve`.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use signal_hook::consts::{SIGINT, SIGTERM};
use weft_tuples::access::{Guard, Token};
use weft_tuples::log::{Cut, Directory, Log};
use weft_tuples::model::Space;
use weft_tuples::server::Server;
use weft_tuples_replica::{Group, Node};

use super::{listen, users};
use crate::args::TuplesServeArgs;
use crate::{output, signals};

/// Serves until a signal ends it.
pub(super) fn serve(args: &TuplesServeArgs) -> Result<()> {
    let group = match (&args.replicas, &args.name) {
        (Some(file), Some(name)) => Some(Group::read(file, name)?),
        _ => None,
    };
    let guard = guard(args)?;
    let open = listen::open(args, group.as_ref(), !guard.is_open())?;
    let memory = usize::try_from(args.memory).unwrap_or(usize::MAX);
    let mut server = Server::new(Space::new(memory), open.listeners, args.connections as usize)
        .context("event loop")?
        .with_guard(guard);
    server = match (&args.state, group) {
        (Some(directory), Some(group)) => join(server, group, directory, (memory, args.log_size))?,
        (Some(directory), None) => restore(server, directory, args.log_size)?,
        (None, _) => server,
    };
    stop_on_signals(&server)?;
    output::print(&format!("listening on {}\n", open.shown))?;
    let served = server.run();
    drop(open.sockets);
    Ok(served?)
}

/// Who may use the server.
fn guard(args: &TuplesServeArgs) -> Result<Guard> {
    match &args.users {
        Some(path) => users::read(path),
        None => Ok(Guard::new(args.token_file.as_deref().map(token).transpose()?)),
    }
}

/// Reads a token.
pub(super) fn token(path: &Path) -> Result<Token> {
    Token::read(path).with_context(|| format!("token file {}", path.display()))
}

/// Lets a server go on where the last one with this directory has ended.
fn restore(server: Server, directory: &Path, log_size: u64) -> Result<Server> {
    let directory = Directory::open(directory)?;
    let open =
        |service: &mut _| Ok(Log::open(Box::new(directory), service)?.with_len_max(log_size));
    let server = server.with_log(open)?;
    if let Some(Cut { offset, len }) = server.log().and_then(Log::cut) {
        output::complain(format!(
            "the last {len} bytes of the log, from byte {offset} on, were not complete: nobody has \
             been answered because of them, and they are removed"
        ));
    }
    Ok(server)
}

/// Makes a server one of several that keep the space together.
fn join(server: Server, group: Group, directory: &Path, sizes: (usize, u64)) -> Result<Server> {
    let stop = server.stop();
    // A loop that cannot be woken up has ended.
    let wake = Arc::new(move || drop(stop.wake()));
    let start = |service: &mut _| Node::start(group, directory, sizes, service, wake);
    Ok(server.with_replica(start)?)
}

fn stop_on_signals(server: &Server) -> Result<()> {
    let stop = server.stop();
    signals::on(&[SIGINT, SIGTERM], move || {
        if let Err(error) = stop.stop() {
            output::complain(error);
        }
    })
}
