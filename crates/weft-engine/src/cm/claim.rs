//! TCP ports of RDMA ports, held for foreign peers until the program wants them itself.
//!
//! A foreign peer looks for RDMA port P at TCP port P, perhaps at the moment when the program
//! begins to listen. But the program may want TCP port P, too, and two sockets cannot listen on
//! one port. Where the program's `bind` and `listen` pass by us ([`announce`]), TCP port P is open
//! from the start, and given to the program when a call of its own would fail otherwise
//! ([`release`]). Elsewhere a listener leaves the port alone for a while, see `super::port`.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_sys::{Forkable, Lock};

/// A listener that may hold a TCP port which the program wants.
pub(super) trait PortHolder: Send + Sync {
    /// Leaves TCP port `port` to the program, if it is held for foreign peers. Returns whether it
    /// was.
    fn release_tcp(&self, port: u16) -> bool;
}

static ANNOUNCED: AtomicBool = AtomicBool::new(false);
/// A child has none: its parent's listeners are not its own.
static HOLDERS: Forkable<Lock<Vec<Weak<dyn PortHolder>>>> = Forkable::new(|| Lock::new(Vec::new()));

/// From now on [`release`] is called before the program gets an error because a TCP port is in use.
pub fn announce() {
    ANNOUNCED.store(true, Ordering::Release);
}

/// Stops listening on this TCP port for foreign peers. Returns whether any listener of this process
/// did.
#[must_use]
pub fn release(port: u16) -> bool {
    let holders: Vec<_> = HOLDERS.get().lock().iter().filter_map(Weak::upgrade).collect();
    // Every one: wildcards of two families may hold the same port.
    holders.iter().filter(|holder| holder.release_tcp(port)).count() > 0
}

pub(super) fn is_announced() -> bool {
    ANNOUNCED.load(Ordering::Acquire)
}

/// A listener that can be asked for its TCP port.
pub(super) fn register(listener: Weak<dyn PortHolder>) {
    let mut holders = HOLDERS.get().lock();
    holders.retain(|holder| holder.strong_count() > 0);
    holders.push(listener);
}
