//! The rules by which initiators may use a target: accounts and secrets of CHAP, the
//! Challenge-Handshake Authentication Protocol (RFC 1994; RFC 7143, section 12.1.3), names and
//! networks.

mod access;
mod algorithm;
mod chap;
mod names;
mod network;
mod secret;

pub use access::Access;
pub use algorithm::Algorithm;
pub use chap::{Chap, ChapError};
pub use network::{Network, NetworkError};
pub use secret::{Account, Secret, SecretError};
