//! The numbers of the connections of a session.

/// A connection among those of its session. Numbers are not used again; the first one is 0.
pub(super) type MemberId = u32;
