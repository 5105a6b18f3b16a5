//! A descriptor that the reactor watches for its owner.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::Result;
use crate::reactor::{Reactor, Source, Token};

/// Watched until dropped, and closed then. The owner is kept alive by the reactor meanwhile, so it
/// must drop or release this on every way out.
#[derive(Debug)]
pub(crate) struct Watched<F: AsFd = OwnedFd> {
    /// `None` only once the descriptor has been released.
    fd: Option<F>,
    token: Token,
}

impl<F: AsFd> Watched<F> {
    /// Watches `fd`, which is non-blocking.
    ///
    /// # Errors
    /// What [`Reactor::watch`] reports; the descriptor is closed then.
    pub(crate) fn new(fd: F, owner: Arc<dyn Source>) -> Result<Self> {
        let token = Reactor::get().watch(fd.as_fd(), owner)?;
        Ok(Self { fd: Some(fd), token })
    }

    /// The descriptor, watched no longer.
    pub(crate) fn release(mut self) -> F {
        let fd = self.fd.take().expect("released once, for it takes the value");
        Reactor::get().unwatch(fd.as_fd(), self.token);
        fd
    }
}

impl<F: AsFd> AsFd for Watched<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("there until the value is consumed").as_fd()
    }
}

impl<F: AsFd> Drop for Watched<F> {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            Reactor::get().unwatch(fd.as_fd(), self.token);
        }
    }
}
