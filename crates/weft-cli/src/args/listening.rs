//! Where servers listen.

use std::net::SocketAddr;

use clap::Args;

/// Where a server listens whose usual port is `PORT`.
#[derive(Debug, Args)]
pub(crate) struct ListeningArgs<const PORT: u16> {
    /// Address to listen at; clients of this host only by default
    #[arg(
        short,
        long,
        value_name = "ADDRESS:PORT",
        default_value_t = SocketAddr::from(([127, 0, 0, 1], PORT))
    )]
    pub(crate) listen: SocketAddr,
}
