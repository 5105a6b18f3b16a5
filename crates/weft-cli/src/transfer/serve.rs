//! `weft serve`: shares directories with `weft cp` on other hosts.

use std::fs::File;
use std::io::{stdin, stdout};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use indicatif::BinaryBytes;
use weft_transfer::end::Finished;
use weft_transfer::job::{Log, Server, Share, Shares, serve_shell};
use weft_transfer::secure::{AuthorisedClients, PublicKey, TlsServer};

use super::keys;
use crate::args::ServeArgs;
use crate::output;

/// Serves until the process is ended.
pub(crate) fn run(args: &ServeArgs) -> Result<()> {
    if args.stdio {
        return by_shell(args);
    }
    let shares = shares(args)?;
    let identity = keys::identity()?;
    let file = match &args.authorised {
        Some(file) => file.clone(),
        None => keys::folder()?.join("authorised-clients"),
    };
    // Report an error in the file now, not at the first client.
    AuthorisedClients::load(&file)?;
    let allowed = args.allow.clone();
    let accepts = move |key: &PublicKey| {
        let from_file = || AuthorisedClients::load(&file).is_ok_and(|keys| keys.contains(key));
        allowed.contains(key) || from_file()
    };
    let tls = TlsServer::new(&identity, Arc::new(accepts))?;
    let bind = |address: IpAddr| {
        let listener = TcpListener::bind((address, args.port));
        listener.with_context(|| SocketAddr::new(address, args.port).to_string())
    };
    let listener = match args.bind {
        Some(address) => bind(address)?,
        // The host may not support IPv6.
        None => {
            bind(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| bind(Ipv4Addr::UNSPECIFIED.into()))?
        }
    };
    let address = listener.local_addr()?;
    output::print(&format!("listening on {address}, key {}\n", identity.public()))?;
    Server::new(tls, shares, Box::new(Lines)).run(&listener);
    Ok(())
}

/// Does one copy on the standard streams, for a `weft cp` that has started this process by a remote
/// shell. Errors are ignored here, because that `weft cp` reports them.
fn by_shell(args: &ServeArgs) -> Result<()> {
    let shares = if args.directories.is_empty() { None } else { Some(shares(args)?) };
    let [input, output] =
        [stdin().as_fd().try_clone_to_owned()?, stdout().as_fd().try_clone_to_owned()?];
    let _ = serve_shell(input, output, shares.as_ref());
    Ok(())
}

fn shares(args: &ServeArgs) -> Result<Shares> {
    let mut shares: Vec<Share> = Vec::new();
    for directory in &args.directories {
        let share = share(directory)?;
        if shares.iter().any(|other| other.name == share.name) {
            bail!("two shares are called {}", String::from_utf8_lossy(&share.name));
        }
        shares.push(share);
    }
    Ok(Shares { shares, is_read_only: args.read_only })
}

/// Parses `NAME=DIR`, or `DIR`, which is named after its last component. A directory with `=` in
/// its path needs a name.
fn share(text: &std::ffi::OsStr) -> Result<Share> {
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
    Ok(Share { name, root: root.into() })
}

/// Logs copies and failures on standard error.
struct Lines;

impl Log for Lines {
    fn copied(&self, peer: &str, finished: &Finished) {
        let outcome = finished.outcome;
        output::complain(format!(
            "{peer}: copied {} files, {}, {} failed",
            outcome.copied,
            BinaryBytes(outcome.bytes),
            outcome.failed
        ));
    }

    fn failed(&self, peer: &str, why: &str) {
        output::complain(output::printable(&format!("{peer}: {why}")));
    }
}
