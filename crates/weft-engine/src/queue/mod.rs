//! The queues of posted work requests.

pub(crate) mod recv;
pub(crate) mod send;
