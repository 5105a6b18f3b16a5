//! The server's side: which elements have slots, and what is in them.

use std::collections::HashMap;
use std::rc::Rc;

use weft_fabric::{Error, Fabric, Rights, SharedBuffer};

use super::slot::{SLOT_LEN, Version, offset};
use crate::limits::{NAME_LEN_MAX, TAILS_MAX};
use crate::model::{Name, Space};
use crate::wire::TailPlace;

/// The slots of all elements whose tails clients read.
#[derive(Debug)]
pub(crate) struct Tails {
    memory: SharedBuffer,
    slots: Vec<Slot>,
    of: HashMap<Name, usize>,
    /// The number of the last use of any slot.
    usage: u64,
}

#[derive(Debug, Default)]
struct Slot {
    /// The element. `None` if it is of none.
    name: Option<Name>,
    usage: u64,
    /// The number of the next version.
    next: u64,
}

impl Tails {
    /// Memory for tails, which peers may read.
    ///
    /// # Errors
    ///
    /// If there is no memory for it.
    pub(crate) fn new(fabric: &Fabric) -> Result<Self, Error> {
        let memory = fabric.alloc(TAILS_MAX * SLOT_LEN)?.share(Rights::READ, ..)?;
        Ok(Self { memory, slots: Vec::new(), of: HashMap::new(), usage: 0 })
    }

    /// Where a client reads the tail of an element. `None` if all places are taken.
    pub(crate) fn place_of(&mut self, name: &Name, space: &mut Space) -> Option<TailPlace> {
        let at = match self.of.get(name) {
            Some(at) => *at,
            None if name.len() > NAME_LEN_MAX => return None,
            None => self.assign(name, space)?,
        };
        let (offset, usage) = ((at * SLOT_LEN) as u64, self.slots[at].usage);
        Some(TailPlace { key: self.memory.key(), offset, usage })
    }

    fn assign(&mut self, name: &Name, space: &mut Space) -> Option<usize> {
        let at = if self.slots.len() < TAILS_MAX {
            self.slots.push(Slot::default());
            self.slots.len() - 1
        } else {
            // One without an element, or whose element has nothing to read.
            let is_free =
                |slot: &Slot| slot.name.as_ref().is_none_or(|name| space.look(name).is_none());
            let at = self.slots.iter().position(is_free)?;
            if let Some(earlier) = self.slots[at].name.clone() {
                self.end(&earlier, space);
            }
            at
        };
        self.usage += 1;
        (self.slots[at].name, self.slots[at].usage) = (Some(Rc::clone(name)), self.usage);
        self.of.insert(Rc::clone(name), at);
        space.watch(name);
        // In both halves, so that a reader sees nothing of an earlier use.
        self.write(at, space);
        self.write(at, space);
        Some(at)
    }

    /// Writes the tails that have changed. The changes must be ones that clients may see.
    pub(crate) fn publish(&mut self, space: &mut Space) {
        while let Some((name, is_deleted)) = space.next_changed() {
            match self.of.get(&name) {
                Some(_) if is_deleted => self.end(&name, space),
                Some(at) => self.write(*at, space),
                None => {}
            }
        }
    }

    /// Ends the use of a slot: its readers learn it when they read again.
    fn end(&mut self, name: &Name, space: &mut Space) {
        let Some(at) = self.of.remove(name) else { return };
        space.unwatch(name);
        self.usage += 1;
        (self.slots[at].name, self.slots[at].usage) = (None, self.usage);
        self.write(at, space);
    }

    fn write(&mut self, at: usize, space: &Space) {
        let Slot { name, usage, next } = &mut self.slots[at];
        let number = *next;
        *next += 1;
        let (len, last) = match name {
            Some(name) => (space.len(name), space.tuples(name).next_back()),
            None => (0, None),
        };
        let bytes = Version::encode(number, *usage, len as u64, last);
        // A version lies inside its half, and a slot inside the memory.
        let _ = self.memory.write(at * SLOT_LEN + offset(number), &bytes);
    }
}
