//! `weft cp`: copies files and trees on this host, and to and from servers.

use std::fs;
use std::net::ToSocketAddrs as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::ExitCode;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use weft_transfer::end::{Finished, Observer, Progress};
use weft_transfer::job::{
    Flags, Request, Way, copy_by_shell, copy_local, copy_with, local_destination, local_start,
};
use weft_transfer::secure::{KnownServers, PublicKey, TlsClient, Verdict};

use super::keys;
use super::place::{self, By, Place, Remote};
use super::shell::Shell;
use super::show::{self, Line, Problems, Shown};
use crate::args::{CpArgs, Filter, Filters};
use crate::output;

/// The exit status if entries of the tree could not be copied.
const INCOMPLETE: u8 = 3;

/// Copies. The exit status is 0 if everything was copied, 3 if entries are missing, and 1 if the
/// copy failed.
pub(crate) fn run(args: &CpArgs) -> Result<ExitCode> {
    if args.show_key {
        output::print(&format!("{}\n", keys::identity()?.public()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let start = Instant::now();
    let finished = copy(args)?;
    if !args.quiet || args.json {
        let as_what = Shown { is_json: args.json, is_dry_run: args.dry_run };
        show::summary(&finished, start.elapsed(), as_what);
    }
    let is_whole = finished.outcome.failed == 0;
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
}

fn flags(args: &CpArgs) -> Flags {
    Flags::default()
        .with(Flags::SKIPS, args.skip_unchanged)
        .with(Flags::RESUMES, args.resume)
        .with(Flags::DELETES, args.delete)
        .with(Flags::VERIFIES, args.verify)
        .with(Flags::OWNERS, args.owners)
        .with(Flags::XATTRS, args.xattrs)
        .with(Flags::DRY_RUN, args.dry_run)
}

/// Returns the patterns of all options in the order of the command line, each with whether it
/// includes names.
fn patterns(filters: &Filters) -> Result<Vec<(bool, String)>> {
    let mut patterns = Vec::new();
    for filter in &filters.0 {
        match filter {
            Filter::Pattern { includes, pattern } => patterns.push((*includes, pattern.clone())),
            Filter::File { includes, path } => {
                let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
                let lines = text.lines().filter(|line| !line.is_empty());
                let lines = lines.filter(|line| !line.starts_with(['#', ';']));
                patterns.extend(lines.map(|line| (*includes, line.to_owned())));
            }
        }
    }
    Ok(patterns)
}

fn copy(args: &CpArgs) -> Result<Finished> {
    let by = if args.rsh.is_some() { By::Shell } else { By::Server };
    let operands: Result<Vec<Place>, String> =
        args.paths.iter().map(|path| place::parse(path, by)).collect();
    let mut sources = operands.map_err(anyhow::Error::msg)?;
    let target = sources.pop().context("no destination")?;
    let ends_in_slash =
        args.paths.last().is_some_and(|path| path.as_encoded_bytes().ends_with(b"/"));
    let request = Request {
        flags: flags(args).with(Flags::FOLDER, sources.len() > 1 || ends_in_slash),
        patterns: patterns(&args.filters)?,
        ..Request::default()
    };
    let line = Line::new(!args.quiet && !args.json && !args.dry_run)?;
    let observer: Arc<dyn Observer> = Arc::new(Problems { is_json: args.json, line: line.clone() });
    let progress = Arc::<Progress>::default();
    let (over, ended) = channel();
    thread::scope(|scope| {
        if (!args.quiet || args.json) && !args.dry_run {
            let progress = Arc::clone(&progress);
            scope.spawn(move || show::progress(&progress, args.json, &line, &ended));
        }
        let finished = dispatch(args, sources, target, request, observer, progress);
        drop::<Sender<()>>(over);
        finished
    })
}

fn dispatch(
    args: &CpArgs,
    sources: Vec<Place>,
    target: Place,
    mut request: Request,
    observer: Arc<dyn Observer>,
    progress: Arc<Progress>,
) -> Result<Finished> {
    let mut starts = Vec::new();
    let mut remotes: Vec<Remote> = Vec::new();
    for source in sources {
        match source {
            Place::Local(path) => {
                let start = local_start(&path);
                let (start, is_one) = start.with_context(|| path.display().to_string())?;
                request.flags = request.flags.with(Flags::FOLDER, is_one);
                starts.push(start);
            }
            Place::Remote(remote) => {
                let is_content = remote.path.ends_with(b"/");
                request.flags = request.flags.with(Flags::FOLDER, is_content);
                remotes.push(remote);
            }
        }
    }
    let is_folder = request.flags.has(Flags::FOLDER);
    match target {
        Place::Remote(target) if remotes.is_empty() => {
            request.paths.push(target.path.clone());
            with_host(args, &target, request, Way::To(starts), observer, progress)
        }
        Place::Local(path) if remotes.is_empty() => {
            let to = local_destination(&path, request.flags);
            let to = to.with_context(|| path.display().to_string())?;
            if let ([start], Some(name)) = (&mut starts[..], &to.new_name) {
                start.new_name = Some(name.clone());
            }
            Ok(copy_local(starts, to, request, observer, progress, args.limit)?)
        }
        Place::Local(path) if starts.is_empty() => {
            let server = remotes[0].clone();
            if remotes.iter().any(|it| (&it.host, it.port) != (&server.host, server.port)) {
                bail!("all sources have to be on one host");
            }
            // The server knows whether the only source is a directory, which keeps its name.
            if !is_folder && !path.is_dir() {
                request.new_name = path.file_name().map(|name| name.as_bytes().to_vec());
            }
            request.paths = remotes.into_iter().map(|remote| remote.path).collect();
            with_host(args, &server, request, Way::From(path), observer, progress)
        }
        _ => bail!("one of the two places has to be on this host"),
    }
}

fn with_host(
    args: &CpArgs,
    remote: &Remote,
    request: Request,
    way: Way,
    observer: Arc<dyn Observer>,
    progress: Arc<Progress>,
) -> Result<Finished> {
    let Some(rsh) = &args.rsh else {
        return with_server(args, remote, request, way, observer, progress);
    };
    let started = Shell::start(rsh, &remote.host, &args.remote_weft);
    let (shell, control) = started.with_context(|| remote.host.clone())?;
    let finished = copy_by_shell(control, request, way, observer, progress, args.limit);
    shell.end(finished.with_context(|| remote.host.clone()))
}

/// The key that the server has presented, and what is known about it.
type Seen = Arc<Mutex<Option<(PublicKey, Verdict)>>>;

fn with_server(
    args: &CpArgs,
    remote: &Remote,
    request: Request,
    way: Way,
    observer: Arc<dyn Observer>,
    progress: Arc<Progress>,
) -> Result<Finished> {
    let identity = keys::identity()?;
    let path = keys::folder()?.join("known-servers");
    let mut known = KnownServers::load(&path)?;
    let server = remote.server();
    let seen = Seen::default();
    let accepts = {
        let (seen, server, accepts_new) = (Arc::clone(&seen), server.clone(), args.accept_new);
        let known = known.clone();
        Arc::new(move |key: &PublicKey| {
            let verdict = known.check(&server, key);
            *seen.lock().unwrap_or_else(PoisonError::into_inner) = Some((*key, verdict));
            verdict == Verdict::Known || (verdict == Verdict::New && accepts_new)
        })
    };
    let tls = TlsClient::new(&identity, accepts)?;
    let addresses = (&remote.host[..], remote.port).to_socket_addrs();
    let addresses: Vec<_> = addresses.with_context(|| server.clone())?.collect();
    let finished = copy_with(&addresses, &tls, request, way, observer, progress, args.limit);
    let seen = *seen.lock().unwrap_or_else(PoisonError::into_inner);
    match seen {
        Some((key, Verdict::New)) if !args.accept_new => bail!(
            "{server} is not known. Its key is {key}. If that is right, copy with --accept-new, or \
             put a line `{server} {key}` into {}",
            path.display()
        ),
        Some((key, Verdict::Changed(before))) => bail!(
            "{server} has another key than before: {key}, not {before}. Somebody else may answer \
             in its place. If not, mend {}",
            path.display()
        ),
        Some((key, Verdict::New)) if finished.is_ok() => known.add(&server, key)?,
        _ => {}
    }
    finished.with_context(|| {
        format!("{server} (this user's key, for it to know, is {})", identity.public())
    })
}
