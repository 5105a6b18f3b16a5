//! Where `weft tuples serve` listens, and for whom.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use weft_tuples::access::Users;
use weft_tuples::fabric::FabricListener;
use weft_tuples::limits::PORT;
use weft_tuples::server::Listener;
use weft_tuples_replica::Group;

use crate::args::{TuplesListen, TuplesServeArgs};
use crate::output;
use crate::private_socket::PrivateSocket;

/// What a server listens at.
pub(super) struct Open {
    pub(super) listeners: Vec<Listener>,
    /// The first of them, for the user.
    pub(super) shown: String,
    /// Their names are removed when they are dropped.
    pub(super) sockets: Vec<PrivateSocket>,
}

/// Opens all that the command line names.
pub(super) fn open(args: &TuplesServeArgs, group: Option<&Group>, has_token: bool) -> Result<Open> {
    let mut open = Open { listeners: Vec::new(), shown: String::new(), sockets: Vec::new() };
    match (&args.listen, group) {
        (Some(TuplesListen::Unix(path)), _) => {
            open.add_unix(path, args)?;
            open.shown = format!("unix:{}", path.display());
        }
        (Some(TuplesListen::Tcp(address)), _) => {
            open.add_tcp(&address.to_string(), args, has_token)?;
        }
        (None, Some(group)) => open.add_tcp(&group.own().clients, args, has_token)?,
        (None, None) => open.add_tcp(&format!("127.0.0.1:{PORT}"), args, has_token)?,
    }
    if let Some(path) = &args.unix {
        open.add_unix(path, args)?;
    }
    ensure!(
        args.allow_user.is_empty() || !open.sockets.is_empty(),
        "--allow-user is about Unix sockets, and there is none"
    );
    Ok(open)
}

impl Open {
    /// Listens by TCP and, at the same address, by the fabric.
    fn add_tcp(&mut self, address: &str, args: &TuplesServeArgs, has_token: bool) -> Result<()> {
        let tcp = TcpListener::bind(address).with_context(|| address.to_owned())?;
        tcp.set_nonblocking(true)?;
        let address = tcp.local_addr()?;
        check(address, args, has_token)?;
        self.listeners.push(Listener::of_tcp(tcp));
        self.shown = address.to_string();
        if !args.no_fabric {
            match FabricListener::bind(address) {
                Ok(listener) => self.listeners.push(Listener::Fabric(listener)),
                Err(error) => {
                    output::complain(format!("nobody can connect by the fabric: {error}"));
                }
            }
        }
        Ok(())
    }

    fn add_unix(&mut self, path: &Path, args: &TuplesServeArgs) -> Result<()> {
        let users = Users::with(args.allow_user.clone());
        let socket = match args.allow_user.as_slice() {
            [] => PrivateSocket::bind(path),
            _ => PrivateSocket::bind_for_all(path),
        };
        let socket = socket.with_context(|| format!("Unix socket {}", path.display()))?;
        let listener = socket.listener()?;
        listener.set_nonblocking(true)?;
        self.listeners.push(Listener::of_unix(listener, users));
        self.sockets.push(socket);
        Ok(())
    }
}

/// Refuses an address that other hosts can reach, unless the user wants it. Then it says what that
/// means.
fn check(address: SocketAddr, args: &TuplesServeArgs, has_token: bool) -> Result<()> {
    if address.ip().is_loopback() {
        return Ok(());
    }
    let consequence = if has_token {
        "who can read packets on the way can read the token and all tuples"
    } else {
        "everyone who reaches it may read and change all tuples"
    };
    if !args.insecure {
        bail!(
            "{address}: other hosts can reach it, and nothing is encrypted: {consequence}; \
             --insecure allows it"
        );
    }
    output::complain(format!(
        "INSECURE: {consequence}, at {address}, and nothing is encrypted: let a firewall keep \
         strangers away"
    ));
    Ok(())
}
