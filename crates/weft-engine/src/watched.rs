//! Registrations with the reactor that end when they are dropped: of a descriptor, and of memory
//! that is polled.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::Result;
use crate::reactor::{Handle, Polled, Source, Token};

/// A descriptor that the reactor watches. Dropping this ends the watch and closes the descriptor.
/// The reactor keeps the owner alive, so the owner must drop or release this on every way out.
#[derive(Debug)]
pub(crate) struct Watched<F: AsFd = OwnedFd> {
    reactor: Handle,
    /// `None` only once the descriptor has been released.
    fd: Option<F>,
    token: Token,
}

impl<F: AsFd> Watched<F> {
    /// Watches `fd`, which must be non-blocking.
    ///
    /// # Errors
    /// The errors of [`watch`](crate::reactor::Reactor::watch); the descriptor is closed then.
    pub(crate) fn new(reactor: Handle, fd: F, owner: Arc<dyn Source>) -> Result<Self> {
        let token = reactor.get().watch(fd.as_fd(), owner)?;
        Ok(Self { reactor, fd: Some(fd), token })
    }

    /// Ends the watch and returns the descriptor.
    pub(crate) fn release(mut self) -> F {
        let fd = self.fd.take().expect("released once, for it takes the value");
        self.reactor.get().unwatch(fd.as_fd(), self.token);
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
            self.reactor.get().unwatch(fd.as_fd(), self.token);
        }
    }
}

/// Something in memory that each pass of the reactor polls until this is dropped.
#[derive(Debug)]
pub(crate) struct PolledGuard<P: Polled + 'static> {
    reactor: Handle,
    polled: Arc<P>,
}

impl<P: Polled + 'static> PolledGuard<P> {
    /// Registers it; any thread may poll it from now on.
    pub(crate) fn new(reactor: Handle, polled: P) -> Self {
        let polled = Arc::new(polled);
        reactor.get().add_ring(Arc::clone(&polled) as _);
        Self { reactor, polled }
    }
}

impl<P: Polled + 'static> Deref for PolledGuard<P> {
    type Target = P;

    fn deref(&self) -> &P {
        &self.polled
    }
}

impl<P: Polled + 'static> Drop for PolledGuard<P> {
    fn drop(&mut self) {
        let polled: Arc<dyn Polled> = Arc::clone(&self.polled) as _;
        self.reactor.get().remove_ring(&polled);
    }
}
