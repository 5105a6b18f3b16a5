//! The places where the two ends of a connection run.

use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::Result;

use crate::endpoint::Port;
use crate::namespace::{Namespace, NamespacePair, namespaces_denied};
use crate::program::{Finished, Program};

/// The places of a server and a client, and the server's address.
#[derive(Debug)]
pub struct Stage {
    /// The namespaces, or `None` for the host itself.
    pub pair: Option<NamespacePair>,
    /// A namespace in which both ends run.
    alone: Option<Namespace>,
}

impl Stage {
    /// Both ends on this host, over loopback. Needs no rights.
    pub fn loopback() -> Self {
        Self { pair: None, alone: None }
    }

    /// The ends in two network namespaces joined by a veth pair.
    ///
    /// # Errors
    ///
    /// If the namespaces cannot be made.
    pub fn namespaces() -> Result<Self> {
        Ok(Self::of(NamespacePair::new()?))
    }

    /// The ends in the two namespaces of a pair.
    pub fn of(pair: NamespacePair) -> Self {
        Self { pair: Some(pair), alone: None }
    }

    /// Both ends over loopback, in a new namespace if this process may make one. No earlier
    /// connections take ports there.
    ///
    /// # Errors
    ///
    /// If the namespace cannot be made.
    pub fn alone() -> Result<Self> {
        let is_possible = namespaces_denied().is_none();
        Ok(Self { pair: None, alone: is_possible.then(Namespace::alone).transpose()? })
    }

    /// Both ends in namespaces if this process may make them, else on loopback.
    ///
    /// # Errors
    ///
    /// As [`Stage::namespaces`].
    pub fn best() -> Result<Self> {
        if namespaces_denied().is_some() { Ok(Self::loopback()) } else { Self::namespaces() }
    }

    /// Describes the path between the ends and its congestion control in one line.
    pub fn describe(&self) -> String {
        match &self.pair {
            Some(pair) => format!(
                "two network namespaces joined by a veth pair, congestion control {}",
                pair.congestion_control
            ),
            None => {
                let control = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control");
                let control = control.unwrap_or_default();
                format!("loopback of this host, congestion control {}", control.trim())
            }
        }
    }

    /// Address of the server, as a client gives it.
    pub fn server_address(&self) -> IpAddr {
        self.pair.as_ref().map_or_else(|| [127, 0, 0, 1].into(), |pair| pair.left.ipv4.into())
    }

    /// The server's place.
    pub fn server_side(&self) -> Option<&Namespace> {
        self.pair.as_ref().map(|pair| &pair.left).or(self.alone.as_ref())
    }

    /// The client's place.
    pub fn client_side(&self) -> Option<&Namespace> {
        self.pair.as_ref().map(|pair| &pair.right).or(self.alone.as_ref())
    }

    /// `program` in the server's place.
    #[must_use]
    pub fn server(&self, program: Program) -> Program {
        program.within(self.server_side())
    }

    /// `program` in the client's place.
    #[must_use]
    pub fn client(&self, program: Program) -> Program {
        program.within(self.client_side())
    }

    /// Starts `server`, waits until it listens on `port`, runs `client`, and returns the results of
    /// both, which must end with status 0.
    ///
    /// # Errors
    ///
    /// If either cannot start, ends with a status other than 0, or takes longer than `timeout`.
    pub fn converse(
        &self,
        server: &Program,
        port: Port,
        client: &Program,
        timeout: Duration,
    ) -> Result<(Finished, Finished)> {
        let mut server = self.server(server.clone()).start()?.listening(port)?;
        let client = self.client(client.clone()).run(timeout).and_then(Finished::success);
        // The server's state and output may explain the client's failure.
        let client = client.map_err(|error| error.context(server.account()))?;
        Ok((server.wait(timeout)?.success()?, client))
    }
}
