//! The log of a tuple space that outlives its server.
//!
//! [`Log`] is one file: a snapshot, and behind it a record for each turn of the event loop, with
//! the effects of all operations of that turn. `docs/tuples-log.md` describes its bytes.
//! [`Journal`] has the same format, for records of any content.
//!
//! # Layers
//!
//! ```text
//! append journal
//! recover
//! directory error record
//! effects files
//! ```

mod append;
mod directory;
mod effects;
mod error;
mod files;
mod journal;
mod record;
mod recover;
#[cfg(test)]
mod tests;

pub use append::Log;
pub use directory::Directory;
pub use effects::{Unfit, encode, replay};
pub use error::LogError;
pub use files::{Files, LogFile};
pub use journal::Journal;
pub use recover::Cut;
