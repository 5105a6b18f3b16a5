//! What all endpoints and buffers of a fabric share.

use crate::carrier::Domain;
use crate::options::Options;
use crate::watcher::Watcher;

#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) options: Options,
    pub(crate) domain: Domain,
    pub(crate) watcher: Watcher,
}
