//! Protection domains.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::context::Context;
use crate::{Errno, Result};

/// A protection domain: memory, queue pairs and windows work together only within one domain.
#[derive(Debug)]
pub struct Pd {
    context: Arc<Context>,
    users: AtomicUsize,
}

impl Pd {
    /// `ibv_alloc_pd`.
    #[must_use]
    pub fn new(context: &Arc<Context>) -> Arc<Self> {
        Arc::new(Self { context: Arc::clone(context), users: AtomicUsize::new(0) })
    }

    /// The context of this domain.
    #[must_use]
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Checks that the domain may be deallocated.
    ///
    /// # Errors
    /// `EBUSY` while a region, window, queue pair or shared receive queue uses it.
    pub fn check_unused(&self) -> Result<()> {
        if self.users.load(Ordering::Acquire) == 0 { Ok(()) } else { Err(Errno::BUSY) }
    }

    pub(crate) fn user(self: &Arc<Self>) -> PdUser {
        self.users.fetch_add(1, Ordering::AcqRel);
        PdUser(Arc::clone(self))
    }
}

/// An object's reference to its protection domain, which keeps that from being deallocated.
#[derive(Debug)]
pub(crate) struct PdUser(Arc<Pd>);

impl PdUser {
    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.0
    }
}

impl Drop for PdUser {
    fn drop(&mut self) {
        self.0.users.fetch_sub(1, Ordering::AcqRel);
    }
}
