//! Who may use a server: a token that its clients know, the users of its host, and TLS.
//!
//! # Layers
//!
//! ```text
//! guard
//! tls token users
//! file
//! ```

mod file;
mod guard;
#[cfg(test)]
pub(crate) mod tests;
mod tls;
mod token;
mod users;

pub use file::FileError;
pub use guard::Guard;
pub use tls::{TlsError, TlsServer, Trust};
pub use token::{Token, TokenError};
pub use users::Users;
