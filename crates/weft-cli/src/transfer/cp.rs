//! `weft cp`: copies files and trees on this host, and to and from servers.

use std::ffi::OsString;
use std::fs;
use std::net::IpAddr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Error, Result, bail};
use weft_transfer::end::{Finished, Observer, Progress};
use weft_transfer::job::{
    Between, CopyDirection, CopyTask, DataWay, DownloadTo, Extras, Flags, Keeps, Over, PlaceError,
    Request, ServerExtras, Target, local_destination, local_selection, local_source,
};
use weft_transfer::transport::tcp::Congestion;
use weft_transfer::tree::modes::Modes;
use weft_transfer::tree::source::{Content, Start};

use super::again::{self, Reached};
use super::between;
use super::keys;
use super::place::{self, By, Place, Remote};
use super::retry;
use super::selection::{self, Selected};
use super::server::Server;
use super::shell::Shell;
use super::show::{self, Chosen, Copied, Line, Problems, Shown};
use super::standard;
use crate::args::{BetweenServers, Compress, CpArgs, Data, Direct, Filter, Filters};
use crate::limits::RULES_DEPTH_MAX;
use crate::manual;
use crate::output::{self, Stream};

/// The exit status if entries of the tree could not be copied.
const INCOMPLETE: u8 = 3;
/// The exit status for arguments that do not go together, as that of the command line's parser.
const WRONG_ARGUMENTS: u8 = 2;

const SEVERAL_HOSTS: &str = "all sources have to be on one host";

/// Copies. The exit status is 0 if everything was copied, 3 if entries are missing, and 1 if the
/// copy failed. With `--json`, an event says why it failed.
pub(crate) fn run(mut args: CpArgs) -> Result<ExitCode> {
    if args.short_help && args.paths.is_empty() && !args.show_key {
        manual::short_help("cp")?;
        return Ok(ExitCode::SUCCESS);
    }
    let settled = args.settle();
    let args = &args;
    if let Err(why) = settled {
        return Ok(wrong(args, &why));
    }
    let result = try_run(args);
    if args.json
        && let Err(error) = &result
    {
        show::failure(stream(args), &output::described(error));
    }
    result
}

/// Reports arguments that do not go together.
fn wrong(args: &CpArgs, why: &str) -> ExitCode {
    if args.json {
        show::failure(stream(args), why);
    }
    output::complain(why);
    ExitCode::from(WRONG_ARGUMENTS)
}

fn try_run(args: &CpArgs) -> Result<ExitCode> {
    if args.show_key {
        output::print(&format!("{}\n", keys::identity()?.public()))?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Err(why) = standard::check(args) {
        return Ok(wrong(args, &why));
    }
    if args.rsh.is_some() && matches!(args.data, Data::Rdma | Data::Memory | Data::Fabric) {
        let text = "by a remote shell the data cannot go by RDMA or the fabric (--data)";
        return Ok(wrong(args, text));
    }
    if args.data == Data::Shell && args.rsh.is_none() {
        return Ok(wrong(args, "without --rsh there is no shell for the data (--data)"));
    }
    let (sources, target) = operands(args)?;
    let is_remote = |place: &Place| matches!(place, Place::Remote(_));
    let has_tcp = matches!(args.data, Data::Auto | Data::Tcp)
        && (is_remote(&target) || sources.iter().any(is_remote));
    if wants_tcp(args) && !has_tcp {
        return Ok(wrong(args, "--congestion and --fair-share are for data that goes by TCP"));
    }
    let selected = match selection::of(args, &sources) {
        Ok(selected) => selected,
        Err(error) => return Ok(wrong(args, &output::described(&error))),
    };
    if let Some(rsh) = &args.rsh
        && let Some((sources, target)) = between::places(&sources, &target)?
    {
        return between::run(args, rsh, &patterns(&args.filters)?, &sources, &target);
    }
    let start = Instant::now();
    let progress = Arc::<Progress>::default();
    let (finished, chosen) = copy(args, (sources, selected.as_ref()), target, &progress)?;
    if !args.quiet || args.json {
        let copied =
            Copied { finished, chosen, took: start.elapsed(), found: show::found(&progress) };
        match args.stats && !args.json {
            true => show::stats(&copied, shown(args)),
            false => show::summary(&copied, shown(args)),
        }
    }
    let is_whole = finished.outcome.failed == 0;
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(INCOMPLETE) })
}

/// Returns the form of what is printed.
fn shown(args: &CpArgs) -> Shown {
    let (is_json, is_dry_run, explains) = (args.json, args.dry_run, args.explain);
    Shown { is_json, is_dry_run, explains, stream: stream(args) }
}

/// Returns the stream for the summary and events.
fn stream(args: &CpArgs) -> Stream {
    if standard::is_output(args) { Stream::Error } else { Stream::Output }
}

/// Whether options demand that the data goes by TCP.
fn wants_tcp(args: &CpArgs) -> bool {
    args.congestion.is_some() || args.fair_share
}

/// Whether the source asks about each file, and the destination can say what it has of it.
fn asks(args: &CpArgs) -> bool {
    flags(args).without(Flags::ASKING) != flags(args)
}

fn flags(args: &CpArgs) -> Flags {
    // Another try would leave what the first one has made of a file.
    let appends = args.append || args.append_verify;
    let leaves = args.ignore_existing || args.size_only || appends || args.remove_source_files;
    Flags::default()
        .with(Flags::SKIPS, args.skip_unchanged || args.no_whole_file)
        .with(Flags::VERSIONS, args.no_whole_file)
        .with(Flags::UPDATES, args.update)
        .with(Flags::CHECKSUM, args.checksum)
        .with(Flags::SIZE_ONLY, args.size_only)
        .with(Flags::KEEPS_EXISTING, args.ignore_existing)
        .with(Flags::SYNCS, args.fsync)
        .with(Flags::RESUMES, args.resume)
        .with(Flags::DELETES, args.delete || args.delete_before)
        .with(Flags::FORCES, args.force)
        .with(Flags::CLEANS, args.clean)
        .with(
            Flags::RETRIES,
            !(args.dry_run || leaves || standard::is_input(args) || standard::is_output(args)),
        )
        .with(Flags::VERIFIES, args.verify)
        .with(Flags::OWNERS, args.owners)
        .with(Flags::NUMERIC_OWNERS, args.numeric_ids)
        .with(Flags::SPECIALS, args.specials)
        .with(Flags::XATTRS, args.xattrs)
        .with(Flags::ONE_FILE_SYSTEM, args.one_file_system)
        .with(Flags::FOLLOWS, args.copy_links)
        .with(Flags::IN_PLACE, args.inplace)
        .with(Flags::APPENDS, appends)
        .with(Flags::REMOVES, args.remove_source_files)
        .with(Flags::TRUSTS, args.append && !args.append_verify)
        .with(Flags::DRY_RUN, args.dry_run)
        .with(Flags::LISTS, args.verbose && (!args.quiet || args.json))
        .with(Flags::STREAM, standard::is_input(args) || standard::is_output(args))
        .with(Flags::DIRECT, args.direct == Direct::Always)
        .with(Flags::CACHED, args.direct == Direct::Never)
        .with(Flags::CLEAR, args.clear)
        .with(Flags::COMPRESSES, matches!(args.compress, Some(Compress::Auto | Compress::Zstd)))
        .with(Flags::COMPRESSES_ALWAYS, args.compress == Some(Compress::Zstd))
}

/// Returns what options with values mean for both ends.
fn extras(args: &CpArgs) -> Result<Extras> {
    let modes = args.chmod.iter().try_fold(Modes::default(), |modes, text| {
        Modes::parse(text).and_then(|more| modes.append(more))
    });
    let modes = modes.context("--chmod")?;
    let thirds = args.link_dest.iter().map(|path| path.as_bytes().to_vec()).collect();
    let servers = ServerExtras::default();
    Ok(Extras { modes, deletes_max: args.max_delete, keeps: keeps(args), thirds, servers })
}

/// Returns how what is replaced is kept.
fn keeps(args: &CpArgs) -> Option<Keeps> {
    let bytes = |text: &OsString| text.as_bytes().to_vec();
    let folder = args.backup_dir.as_ref().map(bytes);
    let usual: &[u8] = if folder.is_some() { b"" } else { b"~" };
    let suffix = args.suffix.as_ref().map_or_else(|| usual.to_vec(), bytes);
    (args.backup || folder.is_some()).then_some(Keeps { suffix, folder })
}

/// Returns a task that may delete so many entries less.
fn less_deletions(task: &CopyTask, deleted: u64) -> CopyTask {
    let mut task = task.clone();
    let left = &mut task.request.extras.deletes_max;
    *left = left.map(|left| left.saturating_sub(deleted));
    task
}

/// Returns the patterns of all options in the order of the command line, each with whether it
/// includes names.
fn patterns(filters: &Filters) -> Result<Vec<(bool, String)>> {
    let mut patterns = Vec::new();
    for filter in &filters.0 {
        add_patterns(&mut patterns, filter, 0)?;
    }
    Ok(patterns)
}

/// Adds the patterns of an option, which may be in files that name others.
fn add_patterns(patterns: &mut Vec<(bool, String)>, filter: &Filter, depth: u32) -> Result<()> {
    let lines = |path: &Path, comments: &[char]| -> Result<Vec<String>> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with(comments));
        Ok(lines.map(str::to_owned).collect())
    };
    match filter {
        Filter::Pattern { includes, pattern } => patterns.push((*includes, pattern.clone())),
        Filter::File { includes, path } => {
            for line in lines(path, &['#', ';'])? {
                add_patterns(patterns, &Filter::of(*includes, &line), depth)?;
            }
        }
        Filter::Rules(path) if depth == RULES_DEPTH_MAX => {
            bail!("{}: files of rules name each other", path.display());
        }
        Filter::Rules(path) => {
            for rule in lines(path, &['#'])? {
                let rule = Filter::parse(&rule).map_err(Error::msg);
                let rule = rule.with_context(|| path.display().to_string())?;
                add_patterns(patterns, &rule, depth + 1)?;
            }
        }
        Filter::Clear => patterns.clear(),
    }
    Ok(())
}

/// Returns the sources and the destination.
fn operands(args: &CpArgs) -> Result<(Vec<Place>, Place)> {
    let by = if args.rsh.is_some() { By::Shell } else { By::Server };
    let operands: Result<Vec<Place>, String> =
        args.paths.iter().map(|path| place::parse(path, by)).collect();
    let mut sources = operands.map_err(Error::msg)?;
    let target = sources.pop().context("no destination")?;
    if let Place::Remote(Remote { path, .. }) = &target
        && path.is_empty()
    {
        let shown = args.paths.last().map(|path| path.display().to_string()).unwrap_or_default();
        bail!("{shown}: a share has to be named: HOST:SHARE/PATH");
    }
    Ok((sources, target))
}

/// Copies. Returns what has carried the blocks, too, if there was a choice.
fn copy(
    args: &CpArgs,
    (mut sources, selected): (Vec<Place>, Option<&Selected>),
    target: Place,
    progress: &Arc<Progress>,
) -> Result<(Finished, Option<Chosen>)> {
    if let Some(Selected { top, .. }) = selected {
        sources = vec![Place::Local(top.clone())];
    }
    let ends_in_slash =
        args.paths.last().is_some_and(|path| path.as_encoded_bytes().ends_with(b"/"));
    let request = Request {
        congestion: match &args.congestion {
            Some(congestion) => congestion.clone(),
            None if args.fair_share => Congestion::System,
            None => Congestion::ByPath,
        },
        flags: flags(args).with(Flags::FOLDER, sources.len() > 1 || ends_in_slash),
        patterns: patterns(&args.filters)?,
        extras: extras(args)?,
        ..Request::default()
    };
    let is_content = |path: &OsString| {
        let path = path.as_encoded_bytes();
        path.ends_with(b"/") || path.ends_with(b"/.")
    };
    let is_named = selected.is_none()
        && sources.len() == 1
        && args.paths.first().is_some_and(|path| !is_content(path));
    let line = Line::new(!args.quiet && !args.json && !args.dry_run)?;
    let stream = stream(args);
    let problems = Arc::new(Problems::new(shown(args), line.clone()));
    let observer = Arc::clone(&problems) as Arc<dyn Observer>;
    let task = CopyTask {
        request,
        observer,
        missing: Vec::new(),
        progress: Arc::clone(progress),
        limit: args.limit,
        is_fair: args.fair_share,
        silence: args.timeout.filter(|it| *it > 0).map(|it| Duration::from_secs(it.into())),
        compresses_between_hosts: args.compress.is_none(),
        versions_between_hosts: !args.whole_file && asks(args),
        sysfs: args.sysfs.clone(),
    };
    let (over, ended) = channel();
    thread::scope(|scope| {
        if (!args.quiet || args.json) && !args.dry_run {
            let events = args.json.then_some(stream);
            let progress = Arc::clone(progress);
            scope.spawn(move || show::progress(&progress, events, &line, &ended));
        }
        // What a lost copy has deleted is unknown, and what it has removed is missing.
        let is_repeatable = args.max_delete.is_none() && !args.remove_source_files;
        let goes_on = args.resume && !args.dry_run && is_repeatable;
        let time =
            if goes_on { Duration::from_secs(args.retry_for.into()) } else { Duration::ZERO };
        let attempt = |task: &CopyTask| {
            again::attempt(
                time,
                || {
                    problems.begin();
                    let sources = (sources.clone(), selected);
                    dispatch(args, sources, target.clone(), task.clone())
                },
                || Reached { is_open: problems.is_open(), bytes: progress.bytes.load(SeqCst) },
                |error| problems.lost(error, time),
            )
        };
        let mut deleted = 0;
        if args.delete_before && !args.dry_run {
            let flags = task.request.flags.without(Flags::RETRIES).without(Flags::ASKING);
            let flags = flags.with(Flags::DRY_RUN, true).with(Flags::ONLY_DELETES, true);
            let request = Request { flags, ..task.request.clone() };
            deleted = attempt(&CopyTask { request, ..task.clone() })?.outcome.deleted;
        }
        let task = less_deletions(&task, deleted);
        let copied = attempt(&task).and_then(|mut first| {
            let task = less_deletions(&task, first.outcome.deleted);
            first.outcome.deleted += deleted;
            let (paths, count) = (problems.take_again(), first.outcome.again);
            if count == 0 {
                return Ok(first);
            }
            let retry = retry::plan(&task.request, &paths, count, is_named);
            let request = retry.request.clone();
            let task = CopyTask { request, versions_between_hosts: false, ..task.clone() };
            let second = attempt(&task)?;
            Ok(Finished { outcome: retry.outcome(first.outcome, second.outcome), ..first })
        });
        drop::<Sender<()>>(over);
        Ok((copied?, problems.chosen()))
    })
}

fn dispatch(
    args: &CpArgs,
    (sources, selected): (Vec<Place>, Option<&Selected>),
    target: Place,
    mut task: CopyTask,
) -> Result<Finished> {
    let request = &mut task.request;
    let mut starts = Vec::new();
    let (mut input, mut absent) = (None, None);
    let is_stream = request.flags.has(Flags::STREAM);
    let mut remotes: Vec<Remote> = Vec::new();
    for source in sources {
        match source {
            Place::Standard => input = Some(standard::input(args.verify)?),
            Place::Local(path) => match local(&path, request.flags, selected) {
                Ok((start, is_one)) => {
                    request.flags = request.flags.with(Flags::FOLDER, is_one);
                    starts.push(start);
                }
                Err(error) => match error.missing(&path) {
                    Some(missing) => {
                        task.missing.push(missing);
                        absent.get_or_insert((path, error));
                    }
                    None => return Err(error).with_context(|| path.display().to_string()),
                },
            },
            Place::Remote(remote) => {
                let is_content = remote.path.ends_with(b"/");
                request.flags = request.flags.with(Flags::FOLDER, is_content);
                remotes.push(remote);
            }
        }
    }
    // Without one of several sources the others are copied.
    if let Some((path, error)) = absent
        && starts.is_empty()
    {
        return Err(error).with_context(|| path.display().to_string());
    }
    if let (Place::Remote(target), [first, ..]) = (&target, &remotes[..])
        && starts.is_empty()
        && input.is_none()
    {
        if !remotes.iter().all(|it| it.is_with(first)) {
            bail!(SEVERAL_HOSTS);
        }
        if matches!(args.data, Data::Rdma | Data::Memory | Data::Fabric) {
            bail!("between two servers the data goes by TCP (--data)");
        }
        if args.remove_source_files {
            bail!("between two servers sources stay (--remove-source-files)");
        }
        return between_servers(args, task, remotes, target.clone());
    }
    let is_folder = request.flags.has(Flags::FOLDER);
    let content = |starts| input.unwrap_or(Content::Entries(starts));
    match target {
        Place::Remote(target) if remotes.is_empty() => {
            request.paths.push(target.path.clone());
            with_host(args, &target, task, CopyDirection::Upload(content(starts)))
        }
        Place::Local(path) if remotes.is_empty() => {
            let to = local_destination(&path, request.flags, &starts);
            let to = to.with_context(|| path.display().to_string())?;
            let mut content = content(starts);
            if let Some(name) = &to.new_name {
                content.rename(name.clone());
            }
            let to = Target::Directory(to);
            let copied = task.within_host(content, to);
            copied.with_context(|| path.display().to_string())
        }
        Place::Standard if remotes.is_empty() => {
            let to = Target::Output(standard::output()?);
            Ok(task.within_host(content(starts), to)?)
        }
        Place::Standard => {
            let server = remotes[0].clone();
            request.paths.push(server.path.clone());
            let to = CopyDirection::Download(DownloadTo::Output(standard::output()?));
            with_host(args, &server, task, to)
        }
        Place::Local(path) if starts.is_empty() && !is_stream => {
            let server = remotes[0].clone();
            if !remotes.iter().all(|it| it.is_with(&server)) {
                bail!(SEVERAL_HOSTS);
            }
            // The server knows whether the only source is a directory, which keeps its name.
            if !is_folder && !path.is_dir() {
                request.new_name = path.file_name().map(|name| name.as_bytes().to_vec());
            }
            request.paths = remotes.into_iter().map(|remote| remote.path).collect();
            let to = CopyDirection::Download(DownloadTo::Path(path));
            with_host(args, &server, task, to)
        }
        _ => bail!(SEVERAL_HOSTS),
    }
}

/// Returns the source of a local path, and whether it means the contents of a directory.
fn local(
    path: &Path,
    flags: Flags,
    selected: Option<&Selected>,
) -> Result<(Start, bool), PlaceError> {
    match selected {
        Some(Selected { selection, .. }) => {
            Ok((local_selection(path, flags, Arc::clone(selection))?, true))
        }
        None => local_source(path, flags),
    }
}

fn with_host(
    args: &CpArgs,
    remote: &Remote,
    task: CopyTask,
    direction: CopyDirection,
) -> Result<Finished> {
    let Some(rsh) = &args.rsh else {
        return with_server(args, remote, task, direction);
    };
    let way = match args.data {
        Data::Auto if wants_tcp(args) => DataWay::Tcp,
        // RDMA and the fabric have been refused.
        Data::Auto | Data::Rdma | Data::Memory | Data::Fabric => DataWay::Auto,
        Data::Tcp => DataWay::Tcp,
        Data::Shell => DataWay::Shell,
    };
    let started = Shell::start(rsh, &remote.host, &args.remote_weft);
    let (shell, control) = started.with_context(|| remote.host.clone())?;
    let finished = task.by_shell(control, direction, way, !is_this_host(&remote.host));
    shell.end(finished.with_context(|| remote.host.clone()))
}

/// Whether a host of a remote shell may be this one. A name that is only configured for the shell
/// counts as another host.
fn is_this_host(host: &str) -> bool {
    let name = host.rsplit_once('@').map_or(host, |(_, name)| name);
    let address = name.parse::<IpAddr>();
    name == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

fn with_server(
    args: &CpArgs,
    remote: &Remote,
    task: CopyTask,
    direction: CopyDirection,
) -> Result<Finished> {
    let server = Server::new(remote, args.accept_new)?;
    let over = match args.data {
        Data::Auto | Data::Memory if wants_tcp(args) => Over::Tcp,
        // The shell has been refused.
        Data::Auto | Data::Shell => Over::Auto,
        Data::Tcp => Over::Tcp,
        Data::Rdma => Over::Rdma,
        Data::Memory => Over::Memory,
        Data::Fabric => Over::Fabric,
    };
    server.result(task.with_server(server.at(), direction, over))
}

/// Copies from one server to another one.
fn between_servers(
    args: &CpArgs,
    mut task: CopyTask,
    sources: Vec<Remote>,
    target: Remote,
) -> Result<Finished> {
    let [from, to] = [&sources[0], &target].map(|remote| Server::new(remote, args.accept_new));
    let (from, to) = (from?, to?);
    task.request.paths = sources.into_iter().map(|source| source.path).collect();
    let way = match args.between {
        BetweenServers::Auto => Between::Auto,
        BetweenServers::Direct => Between::Direct,
        BetweenServers::Relay => Between::Relay,
    };
    let copied = task.between_servers(from.at(), to.at(), target.path, way);
    from.check_key()?;
    to.check_key()?;
    let copied = copied.map_err(|error| {
        // The second server is asked first.
        let last = if from.has_answered() { &from } else { &to };
        match error.is_key_refused() || error.is_unreachable() {
            true => last.explained(error),
            false => Error::new(error).context(format!("{} to {}", from.name(), to.name())),
        }
    })?;
    from.remembered()?;
    to.remembered()?;
    Ok(copied)
}
