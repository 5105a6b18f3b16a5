//! Who the ends are to each other, and how nobody else reads or changes what they move.
//!
//! The control channel is TLS 1.3 ([`Tls`]). Each end has an Ed25519 key ([`Identity`]) and shows
//! it as a raw public key (RFC 7250): there are no certificates. A client knows its server by a key
//! that it was given, or by the file of known servers ([`known`]); a server knows its clients by
//! the file of authorised ones.
//!
//! Blocks are sealed one by one, whatever carries them ([`seal`]), under keys that TLS exports.

pub mod identity;
pub mod known;
mod replay;
pub mod seal;
pub mod secrets;
pub mod tls;

use std::io;

pub use identity::{Identity, PublicKey};
pub use known::{AuthorisedClients, KnownServers, Verdict};
pub use replay::ReplayWindow;
pub use seal::{Opener, SEAL_LEN, Sealer, Ticket};
pub use secrets::{Cipher, Direction, Secret};
pub use tls::{Tls, TlsClient, TlsServer};

/// Why security failed.
#[derive(Debug, thiserror::Error)]
pub enum SecureError {
    /// The kernel says so.
    #[error("{0}")]
    System(#[from] io::Error),
    /// TLS says so.
    #[error("TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// The peer's key is not one that is accepted.
    #[error("the peer's key is not accepted: {0}")]
    NotAccepted(PublicKey),
    /// A file of keys is not what it should be.
    #[error("{file}, line {line}: {problem}")]
    BadFile {
        /// The file's name.
        file: String,
        /// The line, from 1 on.
        line: usize,
        /// What is wrong.
        problem: &'static str,
    },
    /// Others than its owner can read a key file, or change it.
    #[error("{0} must be its owner's alone (mode 0600)")]
    Exposed(String),
    /// A text is no key.
    #[error("not a key")]
    BadKey,
    /// The connection ended without the peer's saying so.
    #[error("the connection was cut")]
    Cut,
    /// The handshake took too long.
    #[error("the TLS handshake timed out")]
    TimedOut,
    /// A block is shorter than a seal.
    #[error("a sealed block of {0} bytes")]
    TooShort(usize),
    /// There is no room for a seal behind the payload.
    #[error("no room for the seal")]
    NoRoom,
    /// A block has been changed, or is not of this session and direction.
    #[error("a block is not authentic")]
    NotAuthentic,
    /// A block has come before, or is older than those that are remembered.
    #[error("a block was replayed")]
    Replayed,
    /// The keys of this session, or of one behind it, have been given out: a second sealer would
    /// use its nonces again.
    #[error("the keys of session {0} have been given out")]
    ExportedBefore(u32),
    /// No nonce is left for these keys.
    #[error("all nonces are used")]
    Exhausted,
    /// The cryptographic library failed.
    #[error("the cryptographic library failed: {0}")]
    Library(&'static str),
}

#[cfg(test)]
mod tests;
