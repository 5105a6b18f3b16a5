//! Why a log cannot be used.

use std::io;

/// Why a log cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// Another server uses the directory.
    #[error("{0}: another server uses it")]
    Locked(String),
    /// The file does not begin as a log does.
    #[error("{0}: not a log of tuples")]
    Foreign(String),
    /// Another version of Weft has written the file.
    #[error(
        "{name}: a log of version {version}, which this version of Weft does not read: a later one \
         has written it"
    )]
    Version {
        /// The file.
        name: String,
        /// Its version.
        version: u32,
    },
    /// A record is damaged that was on disk when the server went on.
    #[error("{name}: the record at byte {offset} is damaged, and not the last one")]
    Damaged {
        /// The file.
        name: String,
        /// Where the record begins.
        offset: u64,
    },
    /// A record was written as it is, and says what cannot be.
    #[error("{name}: the record at byte {offset} does not follow from those before")]
    Impossible {
        /// The file.
        name: String,
        /// Where the record begins.
        offset: u64,
    },
    /// The kernel refuses to read or write.
    #[error("{name}: cannot {what}")]
    Io {
        /// The file.
        name: String,
        /// The action that it refuses.
        what: &'static str,
        /// The kernel's reason.
        #[source]
        source: io::Error,
    },
    /// An earlier error has ended the log.
    #[error("{0}: the log has failed")]
    Failed(String),
}

impl LogError {
    pub(super) fn io(name: &str, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { name: name.to_owned(), what, source }
    }
}
