//! Authenticates the ends to each other, and encrypts what they exchange.
//!
//! The control channel is TLS 1.3 ([`Tls`]). Each end has an Ed25519 key ([`Identity`]) and sends
//! it as a raw public key (RFC 7250), without certificates. A client checks its server's key
//! against a given one or against the file of known servers ([`known`]); a server checks its
//! clients' keys against the file of authorised ones.
//!
//! Each block is sealed by itself, on any transport ([`seal`]), with keys that TLS exports, or
//! beside a pipe with keys whose secret goes through the pipe ([`pipe`]), or between two servers
//! with keys of a grant ([`grant`]).

pub mod grant;
pub mod identity;
pub mod known;
pub mod pipe;
mod replay;
pub mod seal;
pub mod secrets;
pub mod tls;

use std::io;

pub use grant::GrantKeys;
pub use identity::{Identity, PublicKey};
pub use known::{AuthorisedClients, KnownServers, Verdict};
pub use pipe::PipeKeys;
pub use replay::ReplayWindow;
pub use seal::{Opener, SEAL_LEN, Sealer, Ticket};
pub use secrets::{Cipher, Direction, Secret};
pub use tls::{Tls, TlsClient, TlsServer};

/// Errors of authentication and encryption.
#[derive(Debug, thiserror::Error)]
pub enum SecureError {
    /// A system call failed.
    #[error(transparent)]
    System(#[from] io::Error),
    /// TLS reported an error.
    #[error("TLS: {0}")]
    Tls(rustls::Error),
    /// The peer's key is not accepted.
    #[error("the peer's key is not accepted: {0}")]
    NotAccepted(PublicKey),
    /// The peer does not accept this end's key.
    #[error("the other end does not accept this end's key")]
    Refused,
    /// A file of keys is invalid.
    #[error("{file}, line {line}: {problem}")]
    BadFile {
        /// The file's name.
        file: String,
        /// The line, from 1 on.
        line: usize,
        /// The problem.
        problem: &'static str,
    },
    /// Users other than the owner can read or change a key file.
    #[error("other users can access {0}: set its mode to 0600")]
    Exposed(String),
    /// A text is not a valid key.
    #[error("invalid key")]
    BadKey,
    /// The connection ended without a TLS `close_notify`.
    #[error("the connection ended without a TLS close_notify")]
    Cut,
    /// The handshake took too long.
    #[error("the TLS handshake timed out")]
    TimedOut,
    /// The peer of a data channel is not the server that a grant names.
    #[error("the other end is not the server that the client has named")]
    NotGranted,
    /// A block is shorter than a seal's tag.
    #[error("a sealed block of {0} bytes is too short")]
    TooShort(usize),
    /// The buffer has no room for a seal after the payload.
    #[error("the block has no room for the seal")]
    NoRoom,
    /// A block was changed, or belongs to another session or direction.
    #[error("a block is not authentic")]
    NotAuthentic,
    /// A block was opened before, or is older than the replay window.
    #[error("a block was replayed")]
    Replayed,
    /// The keys of this session or of a later one have been exported: a second sealer would repeat
    /// nonces.
    #[error("the keys of session {0} have been exported already")]
    ExportedBefore(u32),
    /// All nonces of these keys are used.
    #[error("all nonces of the key are used")]
    Exhausted,
    /// The cryptographic library failed.
    #[error("the cryptographic library failed: {0}")]
    Library(&'static str),
}

impl From<rustls::Error> for SecureError {
    fn from(error: rustls::Error) -> Self {
        use rustls::{AlertDescription, CertificateError, Error};
        match &error {
            // A verifier that does not accept a key sends the second one, other versions the first.
            Error::AlertReceived(
                AlertDescription::AccessDenied | AlertDescription::CertificateUnknown,
            ) => Self::Refused,
            Error::InvalidCertificate(CertificateError::Other(other)) => {
                match other.0.downcast_ref() {
                    Some(tls::KeyRefused(key)) => Self::NotAccepted(*key),
                    None => Self::Tls(error),
                }
            }
            _ => Self::Tls(error),
        }
    }
}

#[cfg(test)]
mod tests;
