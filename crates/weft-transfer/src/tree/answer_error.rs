//! Answers of a sink that a source does not accept.

/// An answer of the sink that does not match the offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnswerError {
    /// The answer covers an entry that was not offered.
    #[error("the answer from entry {first} on covers entries that were not offered")]
    NoOffer {
        /// The first number of the answer.
        first: u64,
    },
    /// The sink describes a version of a file that was not offered, or an impossible one.
    #[error("an impossible version of file {0}")]
    Version(u64),
    /// The sink has pieces that such a file cannot have.
    #[error("the answer has impossible pieces of file {0}")]
    Pieces(u64),
}
