//! Who may use a server: a token that its clients know, the users of its host, and TLS.
//!
//! # Layers
//!
//! ```text
//! guard
//! rights tls token users
//! file
//! ```

mod file;
mod guard;
mod rights;
#[cfg(test)]
pub(crate) mod tests;
mod tls;
mod token;
mod users;

pub use file::FileError;
#[cfg(test)]
pub(crate) use guard::DEFAULT;
pub use guard::{Account, Guard, User};
pub use rights::{Need, Rights};
pub use tls::{TlsError, TlsServer, Trust};
pub use token::{Token, TokenError};
pub use users::Users;
