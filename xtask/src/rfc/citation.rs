//! Citations of RFCs in the code, and the sections that the code can cite.

/// A section as citations name it: `rfc5044#section-4.1`.
pub(super) type Id = String;

/// A section that the code must implement, or list as an exception.
pub(super) struct Section {
    pub(super) id: Id,
    pub(super) title: String,
}

/// One citation in the code.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Citation {
    pub(super) section: Id,
    /// The quoted sentence, with single spaces.
    pub(super) text: String,
    pub(super) is_test: bool,
    pub(super) file: String,
    pub(super) line: usize,
}
