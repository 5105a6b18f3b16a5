//! Queue pair numbers. A number leads peers to the right process: its upper 16 bits are a TCP port
//! on which this process listens, its lower 8 bits select one of the port's queue pairs. A queue
//! pair for datagrams uses the UDP port of the same number. The lower 8 bits are assigned in random
//! order, so that a stranger cannot guess the next number from a known one.

use std::sync::{Arc, Weak};

use weft_sys::Lock;

use crate::limits::{OBJECTS_MAX, PORT_ATTEMPTS_MAX, QPS_PER_PORT};
use crate::{Errno, Result, random};

#[derive(Debug)]
enum Slot<T> {
    Free,
    Reserved,
    Bound(Weak<T>),
}

#[derive(Debug)]
struct Port<T, D> {
    number: u16,
    slots: Vec<Slot<T>>,
    used: u32,
    /// The UDP port of the same number, opened when a queue pair first needs it.
    datagrams: Option<Arc<D>>,
    /// The random order in which numbers are assigned, cyclically, so that a freed number is not
    /// soon reused.
    order: [u8; QPS_PER_PORT as usize],
    /// The next index into `order`.
    next: usize,
}

impl<T, D> Port<T, D> {
    fn new(number: u16) -> Result<Self> {
        let slots = (0..QPS_PER_PORT).map(|_| Slot::Free).collect();
        let order = random::order()?;
        Ok(Self { number, slots, used: 0, datagrams: None, order, next: 0 })
    }

    /// The UDP port of this number; `open` opens it the first time.
    fn datagrams(&mut self, open: impl Fn(u16) -> Result<Arc<D>>) -> Result<Arc<D>> {
        if let Some(port) = &self.datagrams {
            return Ok(Arc::clone(port));
        }
        Ok(Arc::clone(self.datagrams.insert(open(self.number)?)))
    }

    /// Reserves a free number of the port. The caller has checked that there is one.
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

/// The queue pair numbers of this process. `T` is the object of a number, `D` a UDP port.
#[derive(Debug)]
pub(crate) struct Numbers<T, D> {
    ports: Lock<Vec<Port<T, D>>>,
    /// Opens a listening TCP socket and returns its port.
    listen: fn() -> Result<u16>,
}

impl<T, D> Numbers<T, D> {
    pub(crate) fn new(listen: fn() -> Result<u16>) -> Self {
        Self { ports: Lock::new(Vec::new()), listen }
    }

    /// Reserves a number; opens another port if all open ones are full.
    ///
    /// # Errors
    /// `ENOMEM` if there are too many queue pairs; the errors of `socket(2)` and similar calls.
    pub(crate) fn allocate(&self) -> Result<u32> {
        self.reserve(|_| Ok(())).map(|(number, ())| number)
    }

    /// Reserves a number whose UDP port this process also has.
    ///
    /// # Errors
    /// As for [`Numbers::allocate`].
    pub(crate) fn allocate_for_datagrams(
        &self,
        open: impl Fn(u16) -> Result<Arc<D>>,
    ) -> Result<(u32, Arc<D>)> {
        self.reserve(|port| port.datagrams(&open))
    }

    /// Reserves a number of a port for which `ask` succeeds.
    fn reserve<R>(&self, mut ask: impl FnMut(&mut Port<T, D>) -> Result<R>) -> Result<(u32, R)> {
        let mut ports = self.ports.lock();
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
            let mut port = Port::new((self.listen)()?)?;
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

    /// Assigns an object to a reserved number.
    pub(crate) fn bind(&self, number: u32, bound: &Arc<T>) {
        self.with_slot(number, |slot, _| *slot = Slot::Bound(Arc::downgrade(bound)));
    }

    /// Frees the number.
    pub(crate) fn release(&self, number: u32) {
        self.with_slot(number, |slot, used| {
            if !matches!(slot, Slot::Free) {
                *slot = Slot::Free;
                *used -= 1;
            }
        });
    }

    /// The object of a number.
    pub(crate) fn find(&self, number: u32) -> Option<Arc<T>> {
        self.with_slot(number, |slot, _| slot.bound()).flatten()
    }

    /// All objects that have a number.
    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        let ports = self.ports.lock();
        ports.iter().flat_map(|port| &port.slots).filter_map(Slot::bound).collect()
    }

    fn with_slot<R>(
        &self,
        number: u32,
        action: impl FnOnce(&mut Slot<T>, &mut u32) -> R,
    ) -> Option<R> {
        let mut ports = self.ports.lock();
        let port = ports.iter_mut().find(|port| port.number == port_of(number))?;
        Some(action(port.slots.get_mut((number & 0xff) as usize)?, &mut port.used))
    }
}

impl<T> Slot<T> {
    fn bound(&self) -> Option<Arc<T>> {
        match self {
            Self::Bound(bound) => bound.upgrade(),
            Self::Free | Self::Reserved => None,
        }
    }
}

/// The TCP or UDP port in a queue pair number.
pub(crate) fn port_of(number: u32) -> u16 {
    u16::try_from(number >> 8 & 0xffff).unwrap_or(0)
}
