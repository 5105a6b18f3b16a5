//! The parts of operations and outcomes.

use std::rc::Rc;

use super::bytes::{Malformed, Reader, Writer};
use crate::limits::{FIELDS_MAX, LIST_LEN_MAX};
use crate::model::{
    Count, Criteria, Description, ElementEnd, Fields, Item, Name, Order, Rank, Refusal, Selection,
    Stamp, Sync, Tuple,
};

const REFUSALS: [Refusal; 16] = [
    Refusal::Limit,
    Refusal::Exists,
    Refusal::Count,
    Refusal::Order,
    Refusal::Stamp,
    Refusal::Full,
    Refusal::Memory,
    Refusal::Answer,
    Refusal::Busy,
    Refusal::Deleted,
    Refusal::Stale,
    Refusal::Window,
    Refusal::Log,
    Refusal::Elsewhere,
    Refusal::Token,
    Refusal::Rights,
];

impl Writer {
    pub(crate) fn end(&mut self, end: ElementEnd) {
        self.u8(u8::from(end == ElementEnd::Back));
    }

    pub(super) fn count(&mut self, count: Count) {
        self.u8(u8::from(matches!(count, Count::Exactly(_))));
        self.u32(count.most());
    }

    pub(crate) fn criteria(&mut self, criteria: Criteria) {
        self.u8(match criteria.order {
            Order::Arrival => 0,
            Order::Key => 1,
            Order::Time => 2,
        });
        let (kind, bound) = match criteria.sync {
            Sync::Unbounded => (0, 0),
            Sync::Bound(bound) => (1, bound),
            Sync::Unread(bound) => (2, bound),
            Sync::Exactly(bound) => (3, bound),
        };
        self.u8(kind);
        self.u32(bound);
    }

    pub(crate) fn stamp(&mut self, stamp: Stamp) {
        self.u64(stamp.ms);
        self.u64(stamp.count);
    }

    pub(crate) fn rank(&mut self, rank: &Rank) {
        self.text(&rank.key);
        self.stamp(rank.stamp);
        self.u64(rank.position.cast_unsigned());
    }

    pub(crate) fn fields(&mut self, fields: &Fields) {
        self.list(fields, |it, field| it.text(field));
    }

    pub(super) fn tuple(&mut self, tuple: &Tuple) {
        self.text(&tuple.key);
        self.u8(u8::from(tuple.stamp.is_some()));
        if let Some(stamp) = tuple.stamp {
            self.stamp(stamp);
        }
        self.fields(&tuple.fields);
    }

    pub(super) fn item(&mut self, item: &Item) {
        self.rank(&item.rank);
        self.fields(&item.fields);
    }

    pub(crate) fn items(&mut self, items: &[Item]) {
        self.list(items, Self::item);
    }

    pub(super) fn selection(&mut self, selection: &Selection) {
        match selection {
            Selection::Places(from, to) => {
                self.u8(0);
                self.u64(from.cast_unsigned());
                self.u64(to.cast_unsigned());
            }
            Selection::Key(key) => {
                self.u8(1);
                self.text(key);
            }
            Selection::Stamps(from, to) => {
                self.u8(2);
                self.stamp(*from);
                self.stamp(*to);
            }
        }
    }

    pub(super) fn description(&mut self, description: &Description) {
        self.text(&description.name);
        self.criteria(description.criteria);
        self.u64(description.len as u64);
        self.stamp(description.last);
        self.u64(description.waiting as u64);
    }

    pub(super) fn refusal(&mut self, refusal: Refusal) {
        // 0 is no refusal.
        let place = REFUSALS.iter().position(|it| *it == refusal).unwrap_or_default();
        self.u8(place as u8 + 1);
    }
}

impl Reader<'_> {
    pub(crate) fn name(&mut self) -> Result<Name, Malformed> {
        self.text().map(Rc::from)
    }

    pub(crate) fn end_of_element(&mut self) -> Result<ElementEnd, Malformed> {
        Ok(if self.flag()? { ElementEnd::Back } else { ElementEnd::Front })
    }

    pub(super) fn count(&mut self) -> Result<Count, Malformed> {
        let is_exact = self.flag()?;
        let count = self.u32()?;
        Ok(if is_exact { Count::Exactly(count) } else { Count::AtMost(count) })
    }

    pub(crate) fn criteria(&mut self) -> Result<Criteria, Malformed> {
        let order = match self.u8()? {
            0 => Order::Arrival,
            1 => Order::Key,
            2 => Order::Time,
            _ => return Err(Malformed),
        };
        let sync = match (self.u8()?, self.u32()?) {
            (0, 0) => Sync::Unbounded,
            (1, bound) => Sync::Bound(bound),
            (2, bound) => Sync::Unread(bound),
            (3, bound) => Sync::Exactly(bound),
            _ => return Err(Malformed),
        };
        Ok(Criteria { order, sync })
    }

    pub(crate) fn stamp(&mut self) -> Result<Stamp, Malformed> {
        Ok(Stamp { ms: self.u64()?, count: self.u64()? })
    }

    pub(crate) fn rank(&mut self) -> Result<Rank, Malformed> {
        let (key, stamp) = (self.text()?.to_vec(), self.stamp()?);
        Ok(Rank { key, stamp, position: self.u64()?.cast_signed() })
    }

    fn fields(&mut self) -> Result<Fields, Malformed> {
        self.list(FIELDS_MAX, |it| it.text().map(<[u8]>::to_vec)).map(Fields::from_vec)
    }

    pub(super) fn tuple(&mut self) -> Result<Tuple, Malformed> {
        let key = self.text()?.to_vec();
        let stamp = if self.flag()? { Some(self.stamp()?) } else { None };
        Ok(Tuple { key, stamp, fields: self.fields()? })
    }

    pub(crate) fn item(&mut self) -> Result<Item, Malformed> {
        Ok(Item { rank: self.rank()?, fields: self.fields()? })
    }

    pub(crate) fn items(&mut self) -> Result<Vec<Item>, Malformed> {
        self.list(LIST_LEN_MAX, Self::item)
    }

    pub(super) fn selection(&mut self) -> Result<Selection, Malformed> {
        Ok(match self.u8()? {
            0 => Selection::Places(self.u64()?.cast_signed(), self.u64()?.cast_signed()),
            1 => Selection::Key(self.text()?.to_vec()),
            2 => Selection::Stamps(self.stamp()?, self.stamp()?),
            _ => return Err(Malformed),
        })
    }

    pub(super) fn description(&mut self) -> Result<Description, Malformed> {
        Ok(Description {
            name: self.name()?,
            criteria: self.criteria()?,
            len: usize::try_from(self.u64()?).map_err(|_| Malformed)?,
            last: self.stamp()?,
            waiting: usize::try_from(self.u64()?).map_err(|_| Malformed)?,
        })
    }

    /// Reads a refusal. `None` if nothing is refused.
    pub(super) fn refusal(&mut self) -> Result<Option<Refusal>, Malformed> {
        match self.u8()? {
            0 => Ok(None),
            code => REFUSALS.get(usize::from(code) - 1).copied().map(Some).ok_or(Malformed),
        }
    }
}
