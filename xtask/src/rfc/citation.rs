//! What the code cites, and what of an RFC there is to cite.

/// `rfc5044#section-4.1`, as in a citation.
pub(super) type Id = String;

/// A section to account for.
pub(super) struct Section {
    pub(super) id: Id,
    pub(super) title: String,
}

/// One citation in the code.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Citation {
    pub(super) section: Id,
    /// The sentence, its white space made even.
    pub(super) text: String,
    pub(super) is_test: bool,
    pub(super) file: String,
    pub(super) line: usize,
}
