//! TCP ports of RDMA ports, held for foreign peers until the program itself wants them.
//!
//! A foreign peer connects to TCP port P to reach RDMA port P, perhaps as soon as the program
//! listens. But the program may want TCP port P, too, and two sockets cannot listen on one port. If
//! we see the program's `bind` and `listen` calls ([`announce`]), a listener opens TCP port P at
//! once, and gives it up when a call of the program would fail otherwise ([`release`]). If not, a
//! listener leaves the port alone for a while, see `super::port`.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_sys::{Forkable, Lock};

/// A listener that may hold a TCP port that the program wants.
pub(super) trait PortHolder: Send + Sync {
    /// Gives up TCP port `port` if it is held for foreign peers. Returns whether it was.
    fn release_tcp(&self, port: u16) -> bool;
}

static ANNOUNCED: AtomicBool = AtomicBool::new(false);
/// The parent's listeners do not belong to a forked child.
static HOLDERS: Forkable<Lock<Vec<Weak<dyn PortHolder>>>> = Forkable::new(|| Lock::new(Vec::new()));

/// Promises that [`release`] will be called before the program gets an error because a TCP port is
/// in use.
pub fn announce() {
    ANNOUNCED.store(true, Ordering::Release);
}

/// Stops listening on this TCP port for foreign peers. Returns whether a listener of this process
/// did.
#[must_use]
pub fn release(port: u16) -> bool {
    let holders: Vec<_> = HOLDERS.get().lock().iter().filter_map(Weak::upgrade).collect();
    // Ask all of them: wildcards of two families may hold the same port.
    holders.iter().filter(|holder| holder.release_tcp(port)).count() > 0
}

pub(super) fn is_announced() -> bool {
    ANNOUNCED.load(Ordering::Acquire)
}

/// Registers a listener that holds TCP ports.
pub(super) fn register(listener: Weak<dyn PortHolder>) {
    let mut holders = HOLDERS.get().lock();
    holders.retain(|holder| holder.strong_count() > 0);
    holders.push(listener);
}
