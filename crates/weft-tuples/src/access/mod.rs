//! Who may use a server: a token that its clients know, and the users of its host.
//!
//! # Layers
//!
//! ```text
//! guard
//! token users
//! ```

mod guard;
mod token;
mod users;

pub use guard::Guard;
pub use token::{Token, TokenError};
pub use users::Users;
