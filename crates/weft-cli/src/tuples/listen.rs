//! Where `weft tuples serve` listens, and for whom.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use weft_tuples::access::{TlsServer, Users};
use weft_tuples::fabric::FabricListener;
use weft_tuples::limits::PORT;
use weft_tuples::server::Listener;
use weft_tuples_replica::Group;

use crate::args::{TuplesListen, TuplesServeArgs};
use crate::listening;
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
    /// Listens by TCP, within TLS if there is a certificate, and at the same address by the fabric.
    /// That is in clear: beside TLS it has to be of this host only, or wanted.
    fn add_tcp(&mut self, address: &str, args: &TuplesServeArgs, has_token: bool) -> Result<()> {
        let tls = tls(args)?;
        let tcp = listening::listen(address, "--listen")?;
        tcp.set_nonblocking(true)?;
        let address = tcp.local_addr()?;
        let has_tls = tls.is_some();
        check(address, args.insecure, has_token, has_tls)?;
        self.listeners.push(match tls {
            Some(tls) => Listener::of_tls(tcp, tls),
            None => Listener::of_tcp(tcp),
        });
        self.shown = address.to_string();
        let may_be_clear = !has_tls || address.ip().is_loopback() || args.insecure;
        if !args.no_fabric && may_be_clear {
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

/// The certificate and the key of the command line, if there are any.
fn tls(args: &TuplesServeArgs) -> Result<Option<TlsServer>> {
    let (Some(certificate), Some(key)) = (&args.tls_cert, &args.tls_key) else { return Ok(None) };
    let tls = TlsServer::read(certificate, key);
    let files = || format!("certificate {} and key {}", certificate.display(), key.display());
    tls.map(Some).with_context(files)
}

/// Refuses an address that other hosts can reach without TLS and a token, unless the user wants it.
/// Then it says what that means.
fn check(address: SocketAddr, is_wanted: bool, has_token: bool, has_tls: bool) -> Result<()> {
    if address.ip().is_loopback() || (has_token && has_tls) {
        return Ok(());
    }
    let consequence = match (has_token, has_tls) {
        (true, _) => "who can read packets on the way can read the token and all tuples",
        (_, true) => "everyone who reaches it may read and change all tuples",
        _ => "everyone who reaches it may read and change all tuples, and nothing is encrypted",
    };
    if !is_wanted {
        bail!(
            "{address}: other hosts can reach it, and {consequence}: use --token-file or --users, \
             and --tls-cert, or --insecure"
        );
    }
    output::complain(format!(
        "INSECURE: at {address}, {consequence}: let a firewall keep strangers away"
    ));
    Ok(())
}
