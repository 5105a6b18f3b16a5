//! Looks into elements, and changes in the middle of one, as the Redis protocol has them. None
//! waits. What waits for the element is served when a change has made it possible.

use std::rc::Rc;

use super::criteria::{ElementEnd, Order};
use super::effect::Effect;
use super::operation::{Name, Now, Refusal};
use super::space::Space;
use super::tuple::{Fields, Item, Rank, Stamp, stored_len};
use crate::limits::{FIELDS_MAX, TUPLE_LEN_MAX};

/// A look at an element.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// Its order.
    pub order: Order,
    /// Its tuples.
    pub len: usize,
    /// The largest time stamp that it has had.
    pub last: Stamp,
}

impl Space {
    /// The tuples of an element in their order; none if there is no such element.
    pub fn tuples(&self, name: &Name) -> impl DoubleEndedIterator<Item = (&Rank, &Fields)> {
        self.elements.get(name).into_iter().flat_map(|element| element.tuples())
    }

    /// The order, the number of tuples and the largest time stamp of an element, if there is one.
    #[must_use]
    pub fn look(&self, name: &[u8]) -> Option<Look> {
        let element = self.elements.get(name).filter(|element| element.exists())?;
        let (order, len, last) = (element.criteria.order, element.len(), element.last);
        Some(Look { order, len, last })
    }

    /// The number of tuples in an element.
    #[must_use]
    pub fn len(&self, name: &Name) -> usize {
        self.elements.get(name).map_or(0, |element| element.len())
    }

    /// Returns the last tuples with time stamps from one to another, the last one first.
    ///
    /// # Errors
    ///
    /// If the answer would be too long.
    pub fn read_back(
        &self,
        name: &Name,
        from: Stamp,
        to: Stamp,
        count: u32,
    ) -> Result<Vec<Item>, Refusal> {
        let Some(element) = self.elements.get(name).filter(|_| from <= to) else {
            return Ok(Vec::new());
        };
        element.read_back(from, to, count as usize)
    }

    /// Has [`Self::next_changed`] tell when an element changes, whether or not there is one.
    pub fn watch(&mut self, name: &Name) {
        self.watched.insert(name);
    }

    /// Ends [`Self::watch`].
    pub fn unwatch(&mut self, name: &Name) {
        self.watched.remove(name);
    }

    /// Returns an element that is watched and that may have changed since it was returned, and
    /// whether it was deleted meanwhile.
    pub fn next_changed(&mut self) -> Option<(Name, bool)> {
        self.watched.next()
    }

    /// Removes the tuples with these ranks. Returns how many there were.
    pub fn remove(&mut self, now: Now, name: &Name, ranks: &[Rank]) -> usize {
        let Some(element) = self.elements.get_mut(name) else { return 0 };
        let mut bytes = 0;
        let mut is_removed = |rank: &&Rank| match element.drop_tuple(rank) {
            Some(fields) => {
                bytes += stored_len(&rank.key, &fields);
                true
            }
            None => false,
        };
        let removed: Vec<Rank> = ranks.iter().filter(&mut is_removed).cloned().collect();
        let count = removed.len();
        self.bytes -= bytes;
        if count != 0 {
            self.effects.add(|| Effect::Dropped { element: Rc::clone(name), ranks: removed });
            self.followed.note(name);
            self.touch(name);
            self.settle(now);
        }
        count
    }

    /// Removes the first or the last tuples, at most `count`. Returns how many there were.
    pub fn trim(&mut self, now: Now, name: &Name, end: ElementEnd, count: usize) -> usize {
        let Some(element) = self.elements.get_mut(name) else { return 0 };
        let items = element.remove(end, count.min(element.len()));
        let removed = items.len();
        self.bytes -= items.iter().map(|it| stored_len(&it.rank.key, &it.fields)).sum::<usize>();
        // The effect counts in 32 bits.
        let mut left = removed;
        while left != 0 {
            let count = u32::try_from(left).unwrap_or(u32::MAX);
            left -= count as usize;
            self.effects.add(|| Effect::Removed { element: Rc::clone(name), end, count });
        }
        if removed != 0 {
            self.followed.note(name);
            self.touch(name);
            self.settle(now);
        }
        removed
    }

    /// Gives the tuple with a rank other contents. Whether it is read does not change.
    ///
    /// # Errors
    ///
    /// If the tuple would be too long, or there is no memory for it. Nothing changes then.
    pub fn replace(&mut self, name: &Name, rank: &Rank, fields: Fields) -> Result<bool, Refusal> {
        check(&fields)?;
        let Some(element) = self.elements.get_mut(name) else { return Ok(false) };
        let Some(old) = element.fields_mut(rank) else { return Ok(false) };
        let bytes = self.bytes - stored_len(&rank.key, old) + stored_len(&rank.key, &fields);
        if bytes > self.memory && bytes > self.bytes {
            return Err(Refusal::Memory);
        }
        self.bytes = bytes;
        old.clone_from(&fields);
        let item = Item { rank: rank.clone(), fields };
        let is_read = element.counts_unread() && element.is_read(rank);
        let serial = self.serial;
        let dropped = || Effect::Dropped { element: Rc::clone(name), ranks: vec![rank.clone()] };
        let inserted = || Effect::Inserted { element: Rc::clone(name), items: vec![item], serial };
        self.watched.note(name, false);
        self.followed.note(name);
        self.effects.add(dropped);
        self.effects.add(inserted);
        if is_read {
            let ranks = vec![rank.clone()];
            self.effects.add(|| Effect::Observed { element: Rc::clone(name), ranks });
        }
        Ok(true)
    }

    /// Puts a tuple just before the one with a rank, in an element in the order of arrival. Tuples
    /// before it get smaller positions if there is no place between. Returns the number of tuples,
    /// or `None` if there is no such rank.
    ///
    /// # Errors
    ///
    /// If the tuple is too long, the element is full or has another order, or there is no memory.
    /// Nothing changes then.
    pub fn insert_before(
        &mut self,
        now: Now,
        name: &Name,
        rank: &Rank,
        fields: Fields,
    ) -> Result<Option<usize>, Refusal> {
        check(&fields)?;
        let Some(element) = self.elements.get_mut(name) else { return Ok(None) };
        if !element.contains(rank) {
            return Ok(None);
        }
        if element.criteria.order != Order::Arrival {
            return Err(Refusal::Order);
        }
        if !element.putters.is_empty() || !element.has_room(1) {
            return Err(Refusal::Full);
        }
        let bytes = stored_len(&[], &fields);
        if self.bytes.saturating_add(bytes) > self.memory {
            return Err(Refusal::Memory);
        }
        self.bytes += bytes;
        let moved = element.make_place(rank);
        let place = Rank { position: rank.position - 1, ..Rank::default() };
        element.insert(place.clone(), fields.clone());
        let len = element.len();
        self.add_moved(name, moved, Item { rank: place, fields });
        self.touch(name);
        self.settle(now);
        Ok(Some(len))
    }

    /// Notes that tuples have moved one position towards the front, and that there is a new one.
    fn add_moved(&mut self, name: &Name, moved: Vec<(Rank, bool)>, new: Item) {
        if !self.effects.are_recorded() {
            return;
        }
        let Some(element) = self.elements.get(name) else { return };
        let (mut items, mut observed, mut before) = (Vec::new(), Vec::new(), Vec::new());
        for (rank, is_read) in moved {
            let mut earlier = rank.clone();
            earlier.position += 1;
            before.push(earlier);
            if is_read && element.counts_unread() {
                observed.push(rank.clone());
            }
            let fields = element.fields(&rank).cloned().unwrap_or_default();
            items.push(Item { rank, fields });
        }
        items.push(new);
        let (serial, element) = (self.serial, || Rc::clone(name));
        if !before.is_empty() {
            self.effects.add(|| Effect::Dropped { element: element(), ranks: before });
        }
        self.effects.add(|| Effect::Inserted { element: element(), items, serial });
        self.followed.note(name);
        if !observed.is_empty() {
            self.effects.add(|| Effect::Observed { element: element(), ranks: observed });
        }
    }
}

fn check(fields: &Fields) -> Result<(), Refusal> {
    let len: usize = fields.iter().map(Vec::len).sum();
    let is_right = fields.len() <= FIELDS_MAX && len <= TUPLE_LEN_MAX;
    if is_right { Ok(()) } else { Err(Refusal::Limit) }
}
