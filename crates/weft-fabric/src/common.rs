//! What all endpoints and buffers of a fabric share.

use std::sync::Arc;

use weft_engine::Errno;

use crate::carrier::Domain;
use crate::options::Options;
use crate::watcher::{Watched, Watcher};

#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) options: Options,
    pub(crate) domain: Domain,
    watcher: Watcher,
}

impl Common {
    pub(crate) fn new(options: Options, domain: Domain) -> Self {
        Self { options, domain, watcher: Watcher::new() }
    }

    /// Watches a descriptor until its owner is dropped.
    ///
    /// # Errors
    /// If there are no more descriptors, threads or watches.
    pub(crate) fn watch<T: Watched + 'static>(&self, watched: &Arc<T>) -> Result<(), Errno> {
        match &self.domain {
            Domain::Simulated(domain) => {
                domain.watch(watched);
                Ok(())
            }
            _ => self.watcher.watch(watched),
        }
    }
}
