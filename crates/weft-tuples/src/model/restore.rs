//! A space from its effects, and effects from a space.

use std::rc::Rc;

use super::effect::{Effect, Impossible};
use super::element::Element;
use super::operation::Name;
use super::space::Space;
use super::tuple::{Item, stored_len};
use crate::limits::{EFFECT_LEN_MAX, OVERHEAD_LEN, POSITION_MAX};

impl Space {
    /// Records effects from now on.
    pub(super) fn record(&mut self) {
        self.effects.start();
    }

    /// Applies an effect on elements. The effects of other kinds have none here.
    pub(super) fn apply(&mut self, effect: Effect) -> Result<(), Impossible> {
        match effect {
            Effect::Kept { element, criteria, last } => {
                let element = self.place(&element);
                let is_other = element.len() != 0 && element.criteria != criteria;
                if is_other || last < element.last {
                    return Err(Impossible);
                }
                element.criteria = criteria;
                element.is_kept = true;
                element.last = last;
            }
            Effect::Inserted { element, items, serial } => {
                self.advance(serial)?;
                self.reinsert(&element, items)?;
            }
            Effect::Removed { element, end, count } => {
                let count = count as usize;
                let found = self.elements.get_mut(&element).filter(|it| it.len() >= count);
                let items = found.ok_or(Impossible)?.remove(end, count);
                self.bytes -= items.iter().map(len_of).sum::<usize>();
                self.drop_if_unused(&element);
            }
            Effect::Dropped { element, ranks } => {
                let found = self.elements.get_mut(&element).ok_or(Impossible)?;
                for rank in &ranks {
                    let fields = found.drop_tuple(rank).ok_or(Impossible)?;
                    self.bytes -= stored_len(&rank.key, &fields);
                }
                self.drop_if_unused(&element);
            }
            Effect::Observed { element, ranks } => {
                let found = self.elements.get_mut(&element).ok_or(Impossible)?;
                if found.note_read(ranks.iter()).len() != ranks.len() {
                    return Err(Impossible);
                }
            }
            Effect::Deleted { element } => {
                let found = self.elements.get_mut(&element).ok_or(Impossible)?;
                self.bytes -= std::mem::take(found).bytes();
                self.drop_if_unused(&element);
            }
            Effect::Serial(serial) => self.advance(serial)?,
            Effect::Entered { .. } | Effect::Answered { .. } | Effect::Forgotten { .. } => {}
        }
        Ok(())
    }

    fn advance(&mut self, serial: i64) -> Result<(), Impossible> {
        let is_right = (self.serial..=POSITION_MAX).contains(&serial);
        self.serial = self.serial.max(serial);
        if is_right { Ok(()) } else { Err(Impossible) }
    }

    fn reinsert(&mut self, name: &Name, items: Vec<Item>) -> Result<(), Impossible> {
        let positions = -POSITION_MAX..self.serial;
        if items.is_empty() || !items.iter().all(|it| positions.contains(&it.rank.position)) {
            return Err(Impossible);
        }
        self.bytes += items.iter().map(len_of).sum::<usize>();
        let element = self.place(name);
        items.into_iter().try_for_each(|Item { rank, fields }| {
            let is_new = !element.contains(&rank);
            element.insert(rank, fields);
            if is_new { Ok(()) } else { Err(Impossible) }
        })
    }

    /// The element with a name, whatever the limits say: it has been there before.
    fn place(&mut self, name: &Name) -> &mut Element {
        self.elements.entry(Rc::clone(name)).or_insert_with(|| {
            self.bytes += OVERHEAD_LEN + name.len();
            Element::default()
        })
    }

    /// Hands out effects that make this space from an empty one.
    pub(super) fn snapshot<E>(
        &self,
        each: &mut impl FnMut(Effect) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut all: Vec<_> = self.elements.iter().filter(|(_, it)| it.exists()).collect();
        all.sort_unstable_by(|one, other| one.0.cmp(other.0));
        for (name, element) in all {
            snapshot_of(name, element, self.serial, each)?;
        }
        each(Effect::Serial(self.serial))
    }
}

fn snapshot_of<E>(
    name: &Name,
    element: &Element,
    serial: i64,
    each: &mut impl FnMut(Effect) -> Result<(), E>,
) -> Result<(), E> {
    if element.is_kept {
        let Element { criteria, last, .. } = *element;
        each(Effect::Kept { element: Rc::clone(name), criteria, last })?;
    }
    let (mut items, mut ranks, mut bytes) = (Vec::new(), Vec::new(), 0);
    let mut hand_out = |items: Vec<Item>, ranks: Vec<_>| {
        if !items.is_empty() {
            each(Effect::Inserted { element: Rc::clone(name), items, serial })?;
        }
        if !ranks.is_empty() {
            each(Effect::Observed { element: Rc::clone(name), ranks })?;
        }
        Ok(())
    };
    for (item, is_read) in element.items() {
        bytes += len_of(&item);
        if is_read && element.counts_unread() {
            ranks.push(item.rank.clone());
        }
        items.push(item);
        if bytes >= EFFECT_LEN_MAX {
            hand_out(std::mem::take(&mut items), std::mem::take(&mut ranks))?;
            bytes = 0;
        }
    }
    hand_out(items, ranks)
}

fn len_of(item: &Item) -> usize {
    stored_len(&item.rank.key, &item.fields)
}
