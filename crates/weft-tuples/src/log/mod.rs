//! The log of a tuple space that outlives its server.
//!
//! The log is one file: a snapshot, and behind it a record for each turn of the event loop, with
//! the effects of all operations of that turn. `docs/tuples-log.md` describes its bytes.
//!
//! # Layers
//!
//! ```text
//! append
//! recover
//! directory error record
//! effects files
//! ```

mod append;
mod directory;
mod effects;
mod error;
mod files;
mod record;
mod recover;
#[cfg(test)]
mod tests;

pub use append::Log;
pub use directory::Directory;
pub use effects::{Unfit, encode, replay};
pub use error::LogError;
pub use files::{Files, LogFile};
pub use recover::Cut;
