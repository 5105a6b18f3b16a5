//! Wakers of those who wait for the same thing.

use std::ptr;
use std::task::{RawWakerVTable, Waker};

use smallvec::SmallVec;

/// Wakers to call together.
#[derive(Debug, Default)]
pub(crate) struct Wakers(SmallVec<[Known; 1]>);

/// A waker, and which one it was made from. A waker and its clone need not be seen to be the same
/// ([`Waker::will_wake`]): the compiler may copy the table of their functions.
#[derive(Debug)]
struct Known {
    waker: Waker,
    of: (usize, usize),
}

fn identity(waker: &Waker) -> (usize, usize) {
    (waker.data().addr(), ptr::from_ref::<RawWakerVTable>(waker.vtable()).addr())
}

impl Known {
    fn is(&self, waker: &Waker) -> bool {
        self.of == identity(waker) || self.waker.will_wake(waker)
    }
}

impl Wakers {
    /// Has the waker called, once however often it is added.
    pub(crate) fn add(&mut self, waker: &Waker) {
        if !self.0.iter().any(|known| known.is(waker)) {
            self.0.push(Known { waker: waker.clone(), of: identity(waker) });
        }
    }

    /// Takes a waker back. It has to be the very one that was added: a clone may not be found.
    pub(crate) fn remove(&mut self, waker: &Waker) {
        self.0.retain(|known| !known.is(waker));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes all of them.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Waker> {
        self.0.drain(..).map(|known| known.waker)
    }
}
