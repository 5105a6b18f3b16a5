//! Queue pair numbers. A number must lead a stranger to the right process: its upper 16 bits are a
//! TCP port on which this process listens, its lower 8 bits say which of the port's queue pairs. A
//! queue pair for datagrams has the UDP port of the same number. The lower 8 bits are given out in
//! a random order, so that who knows one number, or the port, does not know the next.

use std::sync::{Arc, Weak};

use weft_sys::{Forkable, Lock};

use crate::limits::{OBJECTS_MAX, QPS_PER_PORT};
use crate::qp::Qp;
use crate::{Errno, Result, acceptor, random, tcp, ud};

/// Fresh ports to try until one is free for UDP, too.
const PORT_ATTEMPTS_MAX: u32 = 8;

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
    /// The UDP port, once a queue pair has needed it.
    datagrams: Option<Arc<ud::Port>>,
    /// In which order the numbers are given out: in turn, so that a number of the past is not soon
    /// reused.
    order: [u8; QPS_PER_PORT as usize],
    /// In the order.
    next: usize,
}

static PORTS: Forkable<Lock<Vec<Port>>> = Forkable::new(|| Lock::new(Vec::new()));

impl Port {
    fn open() -> Result<Self> {
        let (socket, number) = tcp::listen_everywhere(0)?;
        acceptor::serve(socket)?;
        let slots = vec![Slot::Free; QPS_PER_PORT as usize];
        let order = random::order()?;
        Ok(Self { number, slots, used: 0, datagrams: None, order, next: 0 })
    }

    /// The UDP port of this number.
    fn datagrams(&mut self) -> Result<Arc<ud::Port>> {
        if let Some(port) = &self.datagrams {
            return Ok(Arc::clone(port));
        }
        Ok(Arc::clone(self.datagrams.insert(ud::Port::open(self.number)?)))
    }

    /// Reserves one of the port's numbers, of which there is a free one.
    fn reserve(&mut self) -> Result<u32> {
        let count = self.order.len();
        let (turn, index) = (0..count)
            .map(|step| (self.next + step) % count)
            .map(|turn| (turn, self.order[turn]))
            .find(|&(_, index)| matches!(self.slots[usize::from(index)], Slot::Free))
            .ok_or(Errno::NOMEM)?;
        self.slots[usize::from(index)] = Slot::Reserved;
        self.used += 1;
        self.next = (turn + 1) % count;
        Ok(u32::from(self.number) << 8 | u32::from(index))
    }
}

/// Reserves a number, opening another port when those that are open are full.
///
/// # Errors
/// `ENOMEM` when there are too many queue pairs; what `socket(2)` and its kin report.
pub(crate) fn allocate() -> Result<u32> {
    reserve(|_| Ok(())).map(|(number, ())| number)
}

/// Reserves a number whose UDP port is ours, too.
///
/// # Errors
/// As for [`allocate`].
pub(crate) fn allocate_for_datagrams() -> Result<(u32, Arc<ud::Port>)> {
    reserve(Port::datagrams)
}

/// Reserves a number of a port that gives what is asked of it.
fn reserve<T>(mut ask: impl FnMut(&mut Port) -> Result<T>) -> Result<(u32, T)> {
    let mut ports = PORTS.get().lock();
    for port in ports.iter_mut().filter(|port| port.used < QPS_PER_PORT) {
        // Another program may have the UDP port of this number.
        if let Ok(given) = ask(port) {
            return Ok((port.reserve()?, given));
        }
    }
    let mut failure = Errno::NOMEM;
    for _ in 0..PORT_ATTEMPTS_MAX {
        if ports.len() >= (OBJECTS_MAX / QPS_PER_PORT) as usize {
            return Err(Errno::NOMEM);
        }
        let mut port = Port::open()?;
        let given = ask(&mut port);
        let reserved = given.and_then(|given| Ok((port.reserve()?, given)));
        ports.push(port);
        match reserved {
            Err(error) => failure = error,
            Ok(reserved) => return Ok(reserved),
        }
    }
    Err(failure)
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

/// The port, of TCP or UDP, that a queue pair number leads to.
pub(crate) fn port_of(number: u32) -> u16 {
    u16::try_from(number >> 8 & 0xffff).unwrap_or(0)
}

fn with_slot<T>(number: u32, action: impl FnOnce(&mut Slot, &mut u32) -> T) -> Option<T> {
    let mut ports = PORTS.get().lock();
    let port = ports.iter_mut().find(|port| port.number == port_of(number))?;
    Some(action(port.slots.get_mut((number & 0xff) as usize)?, &mut port.used))
}
