//! `weft serve`: shares directories with `weft cp` on other hosts.

use std::fs::File;
use std::io::{stdin, stdout};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::SIGHUP;
use weft_transfer::job::{Access, Log, RdmaListener, Rights, Server, Share, Shares, serve_shell};
use weft_transfer::secure::{AuthorisedClients, PublicKey, TlsServer};
use weft_transfer::tree::apply::{Quota, Usage};

use super::config::{self, Fixed, Plan, SharePlan};
use super::keys;
use super::log::ServeLog;
use super::rights::Configured;
use crate::args::{Networks, ServeArgs};
use crate::listening::listen;
use crate::notify::{State, notify};
use crate::{output, signals};

/// Serves until the process is ended.
pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    if args.stdio {
        return by_shell(args);
    }
    if let Some(path) = &args.config {
        return by_file(path, args.check);
    }
    let shares = shares(args)?;
    let file = match &args.authorised {
        Some(file) => file.clone(),
        None => keys::folder()?.join("authorised-clients"),
    };
    // Report an error in the file now, not at the first client.
    let keys = AuthorisedClients::load(&file)?.count();
    let allowed = args.allow.clone();
    let named = file.clone();
    let accepts = move |key: &PublicKey| {
        let from_file = || AuthorisedClients::load(&named).is_ok_and(|keys| keys.contains(key));
        allowed.contains(key) || from_file()
    };
    let advice = format!("a line with it in {} lets it in", file.display());
    let networks = args.third_party.iter().flat_map(|Networks(networks)| networks);
    let third_party = networks.copied().collect();
    let fixed = Fixed { bind: args.bind, port: args.port, rdma: args.rdma, third_party };
    let offer = described(args, &shares, &file, keys);
    let log = Arc::new(ServeLog::new(advice, None)?);
    serve(&fixed, Arc::new(accepts), Arc::new(shares), log, &offer)
}

/// Serves what a file describes, until the process is ended.
fn by_file(path: &Path, checks_only: bool) -> Result<()> {
    let plan = config::read(path)?;
    let offer = described_plan(&plan);
    if checks_only {
        return output::print(&offer);
    }
    let advice = format!("`keys` of a [[user]] in {} lets it in", path.display());
    let log = Arc::new(ServeLog::new(advice, plan.log.as_deref())?);
    let fixed = plan.fixed.clone();
    let rights = Arc::new(Configured::new(plan)?);
    reload_on_hangup(path.to_owned(), fixed.clone(), Arc::clone(&rights), Arc::clone(&log))?;
    let lets_in = Arc::clone(&rights);
    let accepts = Arc::new(move |key: &PublicKey| lets_in.lets_in(key));
    serve(&fixed, accepts, rights, log, &offer)
}

/// Reads the file again at each SIGHUP.
fn reload_on_hangup(
    path: PathBuf,
    fixed: Fixed,
    rights: Arc<Configured>,
    log: Arc<ServeLog>,
) -> Result<()> {
    signals::on(&[SIGHUP], move || match reload(&path, &fixed, &rights, &log) {
        // Nobody may be there to read it.
        Ok(()) => drop(output::print(&format!("reloaded {}\n", path.display()))),
        Err(error) => output::complain(error.context("not reloaded")),
    })
}

/// Reads the file again.
///
/// # Errors
/// If something in it is wrong, or another value takes a restart. All goes on as before then.
fn reload(path: &Path, fixed: &Fixed, rights: &Configured, log: &ServeLog) -> Result<()> {
    let plan = config::read(path)?;
    let keys = fixed.differences(&plan.fixed);
    let named = path.display();
    ensure!(keys.is_empty(), "{named}: another value of {} takes a restart", keys.join(", "));
    log.reopen(plan.log.as_deref())?;
    rights.replace(plan)
}

/// Serves the clients that `accepts` accepts, and prints first where, and what.
fn serve(
    fixed: &Fixed,
    accepts: Arc<dyn Fn(&PublicKey) -> bool + Send + Sync>,
    rights: Arc<dyn Rights>,
    log: Arc<dyn Log>,
    offer: &str,
) -> Result<()> {
    // Each connection of a stranger takes descriptors that clients need.
    more_descriptors();
    let identity = keys::identity()?;
    let tls = TlsServer::new(&identity, accepts)?;
    let bind = |address: IpAddr| listen(&SocketAddr::new(address, fixed.port), "--port");
    let listener = match fixed.bind {
        Some(address) => bind(address)?,
        // The host may not support IPv6.
        None => {
            bind(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| bind(Ipv4Addr::UNSPECIFIED.into()))?
        }
    };
    let address = listener.local_addr()?;
    let key = identity.public();
    let server = Server::new(tls, rights, log);
    server.copy_with_servers(identity, fixed.third_party.clone());
    let mut rdma = String::new();
    if fixed.rdma {
        let (listener, address) = RdmaListener::bind(address).context("RDMA")?;
        server.offer_rdma(listener);
        rdma = format!(" and {address} (RDMA)");
    }
    let first = format!("listening on {address}{rdma}, key {key}\n");
    output::print(&(first + offer))?;
    // A process without a service manager may have inherited the address of one.
    if let Err(error) = notify(State::Ready) {
        output::complain(error);
    }
    server.run(&listener);
    Ok(())
}

/// Returns who may do what, in a line for each share.
fn described_plan(plan: &Plan) -> String {
    let mut text = String::new();
    for share in &plan.shares {
        let SharePlan { name, path, readers, writers, .. } = share;
        let path = path.display();
        let line =
            format!("sharing {name}: {path}, for reading: {readers}; for writing: {writers}");
        text.push_str(&output::printable(&line));
        text.push('\n');
    }
    text
}

/// Raises the limit of descriptors to what this process may have.
fn more_descriptors() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current != maximum {
        // With the limit as it is, fewer strangers have a connection at a time.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    }
}

/// Returns what the server shares, and whom it lets in, in a line each.
fn described(args: &ServeArgs, shares: &Shares, file: &Path, keys: usize) -> String {
    let mut text = String::new();
    let access = if args.read_only { "for reading" } else { "for reading and writing" };
    for (share, directory) in shares.shares.iter().zip(&args.directories) {
        let name = String::from_utf8_lossy(&share.name);
        let bytes = directory.as_bytes();
        let path = bytes.iter().position(|&byte| byte == b'=').map_or(bytes, |at| &bytes[at + 1..]);
        let path = String::from_utf8_lossy(path);
        let line = format!("sharing {name}: {path}, {access}");
        text.push_str(&output::printable(&line));
        text.push('\n');
    }
    let file = file.display();
    let allowed = args.allow.len();
    let line = match (keys, allowed) {
        (0, 0) => format!(
            "letting in nobody: put the keys of clients (weft cp --show-key) into {file}, which \
             is read for each client"
        ),
        (keys, 0) => format!("letting in the clients of {file}, {keys} now"),
        (keys, allowed) => {
            format!("letting in {allowed} clients by --allow, and those of {file}, {keys} now")
        }
    };
    text.push_str(&output::printable(&line));
    text.push('\n');
    text
}

/// Does one copy on the standard streams, for a `weft cp` that has started this process by a remote
/// shell. Errors are ignored here, because that `weft cp` reports them.
fn by_shell(args: &ServeArgs) -> Result<()> {
    let shares = if args.directories.is_empty() { None } else { Some(shares(args)?) };
    let [input, output] =
        [stdin().as_fd().try_clone_to_owned()?, stdout().as_fd().try_clone_to_owned()?];
    let _ = serve_shell(input, output, shares.as_ref(), reached_at());
    Ok(())
}

/// Returns the address by which ssh has reached this host: the third word of `SSH_CONNECTION`.
fn reached_at() -> Option<IpAddr> {
    let connection = std::env::var("SSH_CONNECTION").ok()?;
    connection.split_whitespace().nth(2)?.parse().ok()
}

fn shares(args: &ServeArgs) -> Result<Shares> {
    let mut shares: Vec<Share> = Vec::new();
    for directory in &args.directories {
        let share = share(directory, args)?;
        if shares.iter().any(|other| other.name == share.name) {
            bail!("two shares are called {}", String::from_utf8_lossy(&share.name));
        }
        shares.push(share);
    }
    Ok(Shares { shares, allows_clear: args.allow_clear })
}

/// Parses `NAME=DIR`, or `DIR`, which is named after its last component. A directory with `=` in
/// its path needs a name.
fn share(text: &std::ffi::OsStr, args: &ServeArgs) -> Result<Share> {
    let bytes = text.as_bytes();
    let (name, path) = match bytes.iter().position(|&byte| byte == b'=') {
        Some(at) => {
            (bytes[..at].to_vec(), PathBuf::from(std::ffi::OsStr::from_bytes(&bytes[at + 1..])))
        }
        None => {
            let path = Path::new(text);
            let whole = path.canonicalize().with_context(|| path.display().to_string())?;
            let name = whole.file_name().map(|name| name.as_bytes().to_vec());
            (name.unwrap_or_default(), path.to_owned())
        }
    };
    if name.is_empty() || name.contains(&b'/') {
        bail!("{}: a name is needed: NAME=DIR", path.display());
    }
    let root = File::open(&path).with_context(|| path.display().to_string())?;
    if !root.metadata()?.is_dir() {
        bail!("{} is not a directory", path.display());
    }
    let root = OwnedFd::from(root);
    let quota = match (args.quota, args.quota_files) {
        (None, None) => None,
        (bytes, names) => {
            let most = |most: Option<u64>| most.unwrap_or(u64::MAX);
            let most = Usage { bytes: most(bytes), names: most(names) };
            Some(Quota::new(root.try_clone()?, most))
        }
    };
    let access = if args.read_only { Access::Read } else { Access::Both };
    Ok(Share { name, root: Arc::new(root), access, quota, limits: None })
}
