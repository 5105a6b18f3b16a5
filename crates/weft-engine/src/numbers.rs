//! Queue pair numbers. A number must lead a stranger to the right process: its upper 16 bits are a
//! TCP port on which this process listens, its lower 8 bits say which of the port's queue pairs.

use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

use weft_sys::{Forkable, Lock};

use crate::limits::{OBJECTS_MAX, QPS_PER_PORT};
use crate::qp::Qp;
use crate::reactor::Reactor;
use crate::rendezvous::Listener;
use crate::tcp;
use crate::{Errno, Result};

#[derive(Debug, Clone, Default)]
enum Slot {
    #[default]
    Free,
    Reserved,
    Bound(Weak<Qp>),
}

#[derive(Debug)]
struct Port {
    number: u16,
    slots: Vec<Slot>,
    used: u32,
    /// Numbers are given out in turn, so that a number of the past is not soon reused.
    next: usize,
}

static PORTS: Forkable<Lock<Vec<Port>>> = Forkable::new(|| Lock::new(Vec::new()));

/// Reserves a number, opening another port when those that are open are full.
///
/// # Errors
/// `ENOMEM` when there are too many queue pairs; what `socket(2)` and its kin report.
pub(crate) fn allocate() -> Result<u32> {
    let mut ports = PORTS.get().lock();
    if ports.iter().all(|port| port.used == QPS_PER_PORT) {
        if ports.len() >= (OBJECTS_MAX / QPS_PER_PORT) as usize {
            return Err(Errno::NOMEM);
        }
        let (socket, number) = tcp::listen_everywhere(0)?;
        let listener = Arc::new(Listener::new(socket));
        Reactor::get().watch(listener.socket().as_fd(), listener.clone())?;
        let slots = vec![Slot::Free; QPS_PER_PORT as usize];
        ports.push(Port { number, slots, used: 0, next: 0 });
    }
    let port = ports.iter_mut().find(|port| port.used < QPS_PER_PORT).ok_or(Errno::NOMEM)?;
    let count = port.slots.len();
    let index = (0..count)
        .map(|step| (port.next + step) % count)
        .find(|&index| matches!(port.slots[index], Slot::Free))
        .ok_or(Errno::NOMEM)?;
    port.slots[index] = Slot::Reserved;
    port.used += 1;
    port.next = (index + 1) % count;
    Ok(u32::from(port.number) << 8 | u32::try_from(index).map_err(|_| Errno::NOMEM)?)
}

/// The number now stands for this queue pair.
pub(crate) fn bind(qp: &Arc<Qp>) {
    with_slot(qp.number(), |slot, _| *slot = Slot::Bound(Arc::downgrade(qp)));
}

/// The number is free again.
pub(crate) fn release(number: u32) {
    with_slot(number, |slot, used| {
        if !matches!(slot, Slot::Free) {
            *slot = Slot::Free;
            *used -= 1;
        }
    });
}

/// The queue pair of this process with this number.
pub(crate) fn find(number: u32) -> Option<Arc<Qp>> {
    with_slot(number, |slot, _| match slot {
        Slot::Bound(qp) => qp.upgrade(),
        _ => None,
    })
    .flatten()
}

/// All queue pairs of this process.
pub(crate) fn all() -> Vec<Arc<Qp>> {
    let ports = PORTS.get().lock();
    let slots = ports.iter().flat_map(|port| &port.slots);
    slots
        .filter_map(|slot| match slot {
            Slot::Bound(qp) => qp.upgrade(),
            _ => None,
        })
        .collect()
}

/// The TCP port that a queue pair number leads to.
pub(crate) fn port_of(number: u32) -> u16 {
    u16::try_from(number >> 8 & 0xffff).unwrap_or(0)
}

fn with_slot<T>(number: u32, action: impl FnOnce(&mut Slot, &mut u32) -> T) -> Option<T> {
    let mut ports = PORTS.get().lock();
    let port = ports.iter_mut().find(|port| port.number == port_of(number))?;
    Some(action(port.slots.get_mut((number & 0xff) as usize)?, &mut port.used))
}
