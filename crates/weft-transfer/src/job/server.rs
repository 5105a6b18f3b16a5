//! The server: each connection is the control channel of a copy or one of its data channels.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use rustix::rand::{GetRandomFlags, getrandom};

use super::accept::{Accepting, Lines, Shares, accept};
use super::lines::TcpLine;
use crate::end::Finished;
use crate::limits::{ACCEPT_PAUSE, CHANNELS_EACH_MAX, CONNECTIONS_MAX};
use crate::mutex::lock;
use crate::secure::TlsServer;
use crate::transport::tcp::{self, Accepted, TcpSettings};
use crate::transport::{StreamControl, Token};

/// Receives the events of a server.
pub trait Log: Send + Sync {
    /// A copy has ended. `peer` is the client's address and key.
    fn copied(&self, peer: &str, finished: &Finished);
    /// A connection or copy failed.
    fn failed(&self, peer: &str, why: &str);
}

/// The copies that wait for data channels, by token.
type Copies = HashMap<Token, Copy>;

/// A copy that waits for data channels.
struct Copy {
    to: Sender<(u16, Box<dyn Lines>)>,
    /// The channel numbers that have not connected. Each is accepted once, which bounds a client's
    /// connections.
    numbers: BTreeSet<u16>,
}

/// The server of `weft serve`.
pub struct Server {
    tls: TlsServer,
    shares: Shares,
    settings: TcpSettings,
    log: Box<dyn Log>,
    /// The copies that wait for data channels.
    copies: Mutex<Copies>,
    live: AtomicUsize,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

/// A counted connection, which decrements the count when it is dropped.
struct Live(Arc<Server>);

impl Drop for Live {
    fn drop(&mut self) {
        self.0.live.fetch_sub(1, SeqCst);
    }
}

impl Server {
    /// Creates a server of these directories.
    #[must_use]
    pub fn new(tls: TlsServer, shares: Shares, log: Box<dyn Log>) -> Arc<Self> {
        let (copies, live) = (Mutex::default(), AtomicUsize::new(0));
        Arc::new(Self { tls, shares, settings: TcpSettings::default(), log, copies, live })
    }

    fn copies(&self) -> MutexGuard<'_, Copies> {
        lock(&self.copies)
    }

    /// Serves the clients of a listener forever.
    pub fn run(self: &Arc<Self>, listener: &TcpListener) {
        loop {
            let Ok((stream, peer)) = listener.accept() else {
                // The process is out of descriptors or memory, which other connections will free.
                thread::sleep(ACCEPT_PAUSE);
                continue;
            };
            if self.live.fetch_add(1, SeqCst) >= CONNECTIONS_MAX {
                self.live.fetch_sub(1, SeqCst);
                self.log.failed(&peer.to_string(), "too many connections");
                continue;
            }
            let live = Live(Arc::clone(self));
            let thread = thread::Builder::new().name("client".into());
            let _ = thread.spawn(move || live.0.serve(stream, &peer.to_string()));
        }
    }

    fn serve(&self, stream: TcpStream, peer: &str) {
        match tcp::accept(stream, Some(&self.tls), &self.settings) {
            Ok(Accepted::Control(control)) => self.copy(*control, peer),
            Ok(Accepted::Data { token, channel, stream }) => {
                let line = Box::new(TcpLine(stream, self.settings.clone()));
                // A connection with an unknown token or a used number is closed.
                if let Some(copy) = self.copies().get_mut(&token)
                    && copy.numbers.remove(&channel)
                {
                    let _ = copy.to.send((channel, line));
                }
            }
            Err(error) => self.log.failed(peer, &error.to_string()),
        }
    }

    fn copy(&self, control: StreamControl, peer: &str) {
        let mut token = Token::default();
        if getrandom(&mut token.0[..], GetRandomFlags::empty()) != Ok(token.0.len()) {
            return self.log.failed(peer, "the system gives no random bytes");
        }
        let key = control.peer().map(|key| key.to_string()).unwrap_or_default();
        let peer = format!("{peer} {key}");
        let (to, lines) = channel();
        let numbers = (0..CHANNELS_EACH_MAX).collect();
        self.copies().insert(token, Copy { to, numbers });
        let control = Arc::new(control);
        let finished = accept(Accepting {
            control: Arc::clone(&control) as _,
            keys: &|session, cipher| control.block_secrets(session, cipher),
            token,
            lines,
            resolve: &self.shares,
            progress: Arc::default(),
            keeps_special_bits: false,
        });
        self.copies().remove(&token);
        match finished {
            Ok(finished) => self.log.copied(&peer, &finished),
            Err(error) => self.log.failed(&peer, &error.to_string()),
        }
    }
}
