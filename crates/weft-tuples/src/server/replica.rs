//! One of several servers that keep the same state.

use std::fmt::Debug;

use crate::log::LogError;
use crate::model::Service;

/// Whether clients may use a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// They may: it is the leader.
    Leads,
    /// They may not. This is the address of the leader, if it is known.
    Follows(Option<String>),
}

/// The other servers, as the event loop sees them. It takes the place of a log.
pub trait Replica: Debug {
    /// Brings a service to what the servers have agreed on, and says whether this one is the
    /// leader. [`Standing::Follows`] is returned at least once after the service is no longer the
    /// one that clients have used.
    ///
    /// # Errors
    ///
    /// If the server cannot go on.
    fn follow(&mut self, service: &mut Service) -> Result<Standing, LogError>;

    /// Has the servers agree on the effects of all operations since the last call. If there are
    /// none, makes sure that no other server leads, if `is_answering`. Returns false if that
    /// fails: nobody may learn of what was done, the effects may come about or not, and the service
    /// is no longer the one that clients have used.
    ///
    /// # Errors
    ///
    /// If the server cannot go on.
    fn commit(&mut self, service: &mut Service, is_answering: bool) -> Result<bool, LogError>;
}
