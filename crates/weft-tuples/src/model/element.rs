//! One element: its tuples, and the operations that wait for it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Included, Unbounded};

use super::criteria::{Count, Criteria, ElementEnd, Order, Sync};
use super::operation::{Refusal, Selection};
use super::tuple::{Fields, Item, Rank, Stamp, Tuple, stored_len};
use super::waiting::Ticket;
use crate::limits::ANSWER_LEN_MAX;

#[derive(Debug, Default)]
pub(super) struct Element {
    pub(super) criteria: Criteria,
    /// It exists without tuples, too.
    pub(super) is_kept: bool,
    tuples: BTreeMap<Rank, Stored>,
    unread: usize,
    /// The largest time stamp so far.
    pub(super) last: Stamp,
    /// Tickets grow, so that the first one is the one that has waited longest.
    pub(super) takers: BTreeSet<Ticket>,
    pub(super) putters: BTreeSet<Ticket>,
    pub(super) observers: BTreeSet<Ticket>,
}

#[derive(Debug)]
struct Stored {
    fields: Fields,
    is_read: bool,
}

impl Element {
    pub(super) fn new(criteria: Criteria) -> Self {
        Self { criteria, ..Self::default() }
    }

    pub(super) fn exists(&self) -> bool {
        self.is_kept || !self.tuples.is_empty()
    }

    pub(super) fn is_awaited(&self) -> bool {
        self.waiting() != 0
    }

    pub(super) fn waiting(&self) -> usize {
        self.takers.len() + self.putters.len() + self.observers.len()
    }

    pub(super) fn len(&self) -> usize {
        self.tuples.len()
    }

    /// The bytes of all tuples, with what is counted besides.
    pub(super) fn bytes(&self) -> usize {
        self.tuples.iter().map(|(rank, stored)| stored_len(&rank.key, &stored.fields)).sum()
    }

    /// Whether this many more tuples have a place now.
    pub(super) fn has_room(&self, tuples: usize) -> bool {
        let (used, bound) = match self.criteria.sync {
            Sync::Unbounded => return true,
            Sync::Bound(bound) | Sync::Exactly(bound) => (self.tuples.len(), bound),
            Sync::Unread(bound) => (self.unread, bound),
        };
        used + tuples <= bound as usize
    }

    /// Whether the order allows these tuples at this end.
    pub(super) fn check_order(&self, tuples: &[Tuple], end: ElementEnd) -> Result<(), Refusal> {
        let order = self.criteria.order;
        let is_allowed = |tuple: &Tuple| {
            (order == Order::Key || tuple.key.is_empty())
                && (order == Order::Time || tuple.stamp.is_none())
        };
        let is_end_allowed = order == Order::Arrival || end == ElementEnd::Back;
        let is_right = is_end_allowed && tuples.iter().all(is_allowed);
        if is_right { Ok(()) } else { Err(Refusal::Order) }
    }

    /// Returns the time stamps of tuples that are put at `ms`.
    pub(super) fn stamps(
        &self,
        tuples: &[Tuple],
        ms: u64,
        is_append: bool,
    ) -> Result<Vec<Stamp>, Refusal> {
        if self.criteria.order != Order::Time {
            return Ok(Vec::new());
        }
        let mut last = self.last;
        let stamp = |tuple: &Tuple| {
            let next = last.next();
            let own = next.map(|next| next.max(Stamp { ms, count: 0 }));
            let stamp = tuple.stamp.or(own).ok_or(Refusal::Stamp)?;
            if is_append && stamp <= last {
                return Err(Refusal::Stamp);
            }
            last = last.max(stamp);
            Ok(stamp)
        };
        tuples.iter().map(stamp).collect()
    }

    /// Returns the position of the next tuple at an end. `serial` is that of the next tuple at the
    /// back of any element.
    pub(super) fn position(&self, end: ElementEnd, serial: i64) -> i64 {
        match (end, self.tuples.first_key_value()) {
            (ElementEnd::Front, Some((first, _))) => first.position - 1,
            (ElementEnd::Front | ElementEnd::Back, _) => serial,
        }
    }

    pub(super) fn insert(&mut self, rank: Rank, fields: Fields) {
        self.last = self.last.max(rank.stamp);
        self.unread += 1;
        self.tuples.insert(rank, Stored { fields, is_read: false });
    }

    /// How many tuples a take gets now. `None` if it has to wait.
    pub(super) fn takeable(&self, end: ElementEnd, count: Count) -> Result<Option<usize>, Refusal> {
        let there = self.tuples.len();
        let (wanted, fewest) = match self.criteria.sync {
            Sync::Exactly(bound) if there == bound as usize => (there, there),
            Sync::Exactly(_) => return Ok(None),
            _ => (there.min(count.most() as usize), count.fewest() as usize),
        };
        if there == 0 || there < fewest {
            return Ok(None);
        }
        if wanted == 1 {
            return Ok(Some(1));
        }
        let mut bytes = 0;
        let mut fits = |(rank, stored): (&Rank, &Stored)| {
            bytes += stored_len(&rank.key, &stored.fields);
            bytes <= ANSWER_LEN_MAX
        };
        let fitting = match end {
            ElementEnd::Front => self.tuples.iter().take(wanted).take_while(|it| fits(*it)).count(),
            ElementEnd::Back => {
                self.tuples.iter().rev().take(wanted).take_while(|it| fits(*it)).count()
            }
        };
        if fitting < fewest { Err(Refusal::Answer) } else { Ok(Some(fitting)) }
    }

    /// Removes tuples from an end.
    pub(super) fn remove(&mut self, end: ElementEnd, count: usize) -> Vec<Item> {
        let mut items = Vec::with_capacity(count);
        while items.len() < count {
            let removed = match end {
                ElementEnd::Front => self.tuples.pop_first(),
                ElementEnd::Back => self.tuples.pop_last(),
            };
            let Some((rank, Stored { fields, is_read })) = removed else { break };
            self.unread -= usize::from(!is_read);
            items.push(Item { rank, fields });
        }
        items
    }

    /// Removes the tuple with a rank. Returns its fields.
    pub(super) fn drop_tuple(&mut self, rank: &Rank) -> Option<Fields> {
        let Stored { fields, is_read } = self.tuples.remove(rank)?;
        self.unread -= usize::from(!is_read);
        Some(fields)
    }

    /// The tuples in their order.
    pub(super) fn tuples(&self) -> impl DoubleEndedIterator<Item = (&Rank, &Fields)> {
        self.tuples.iter().map(|(rank, stored)| (rank, &stored.fields))
    }

    /// Returns the last tuples from one time stamp to another, the last one first. They must be in
    /// this order.
    pub(super) fn read_back(
        &self,
        from: Stamp,
        to: Stamp,
        most: usize,
    ) -> Result<Vec<Item>, Refusal> {
        let rank = |stamp, position| Rank { key: Vec::new(), stamp, position };
        let range = (Included(rank(from, i64::MIN)), Included(rank(to, i64::MAX)));
        collect(self.tuples.range(range).rev().take(most))
    }

    pub(super) fn fields(&self, rank: &Rank) -> Option<&Fields> {
        self.tuples.get(rank).map(|stored| &stored.fields)
    }

    pub(super) fn fields_mut(&mut self, rank: &Rank) -> Option<&mut Fields> {
        self.tuples.get_mut(rank).map(|stored| &mut stored.fields)
    }

    pub(super) fn is_read(&self, rank: &Rank) -> bool {
        self.tuples.get(rank).is_some_and(|stored| stored.is_read)
    }

    /// Moves tuples just before a rank by one position to the front, so that the position before it
    /// is free. Returns their new ranks, and whether each is read.
    pub(super) fn make_place(&mut self, rank: &Rank) -> Vec<(Rank, bool)> {
        let mut wanted = rank.position - 1;
        let mut moved = Vec::new();
        while let Some((before, _)) = self.tuples.range(..rank).next_back()
            && before.position == wanted
        {
            let before = before.clone();
            let Some(stored) = self.tuples.remove(&before) else { break };
            wanted -= 1;
            moved.push((Rank { position: wanted, ..before }, stored));
        }
        let place = |(rank, stored): (Rank, Stored)| {
            let is_read = stored.is_read;
            self.tuples.insert(rank.clone(), stored);
            (rank, is_read)
        };
        moved.into_iter().rev().map(place).collect()
    }

    /// Returns the first tuples behind a rank. `None` if an observe has to wait.
    pub(super) fn observe(
        &self,
        after: Option<&Rank>,
        count: Count,
    ) -> Result<Option<Vec<Item>>, Refusal> {
        if let Sync::Exactly(bound) = self.criteria.sync
            && self.tuples.len() != bound as usize
        {
            return Ok(None);
        }
        let from = after.map_or(Unbounded, Excluded);
        let range = || self.tuples.range((from, Unbounded)).take(count.most() as usize);
        let fewest = count.fewest() as usize;
        if range().take(fewest).count() < fewest {
            return Ok(None);
        }
        let mut items = Vec::new();
        let mut bytes = 0;
        for (rank, stored) in range() {
            bytes += stored_len(&rank.key, &stored.fields);
            if bytes > ANSWER_LEN_MAX {
                break;
            }
            items.push(Item { rank: rank.clone(), fields: stored.fields.clone() });
        }
        if items.len() < fewest {
            return Err(Refusal::Answer);
        }
        Ok(Some(items))
    }

    /// Notes that tuples are read. Returns the ranks of those that were not read before.
    pub(super) fn note_read<'a>(&mut self, ranks: impl Iterator<Item = &'a Rank>) -> Vec<&'a Rank> {
        let mut new = Vec::new();
        for rank in ranks {
            let Some(stored) = self.tuples.get_mut(rank) else { continue };
            if !std::mem::replace(&mut stored.is_read, true) {
                self.unread -= 1;
                new.push(rank);
            }
        }
        new
    }

    /// Whether it matters which tuples are read.
    pub(super) fn counts_unread(&self) -> bool {
        matches!(self.criteria.sync, Sync::Unread(_))
    }

    pub(super) fn contains(&self, rank: &Rank) -> bool {
        self.tuples.contains_key(rank)
    }

    /// All tuples, each with whether it is read.
    pub(super) fn items(&self) -> impl Iterator<Item = (Item, bool)> {
        self.tuples.iter().map(|(rank, stored)| {
            (Item { rank: rank.clone(), fields: stored.fields.clone() }, stored.is_read)
        })
    }

    /// Returns tuples without noting that they are read.
    pub(super) fn read(&self, selection: &Selection, count: u32) -> Result<Vec<Item>, Refusal> {
        let most = count as usize;
        match selection {
            Selection::Places(from, to) => {
                let places = places(*from, *to, self.tuples.len());
                let len = places.len().min(most);
                collect(self.tuples.iter().skip(places.start).take(len))
            }
            Selection::Key(_) if self.criteria.order != Order::Key => Err(Refusal::Order),
            Selection::Stamps(..) if self.criteria.order != Order::Time => Err(Refusal::Order),
            Selection::Key(key) => {
                let first = Rank { key: key.clone(), stamp: Stamp::default(), position: i64::MIN };
                let from = self.tuples.range((Included(first), Unbounded));
                collect(from.take_while(|(rank, _)| rank.key == *key).take(most))
            }
            Selection::Stamps(from, to) => {
                let first = Rank { key: Vec::new(), stamp: *from, position: i64::MIN };
                let from = self.tuples.range((Included(first), Unbounded));
                collect(from.take_while(|(rank, _)| rank.stamp <= *to).take(most))
            }
        }
    }
}

fn collect<'a>(tuples: impl Iterator<Item = (&'a Rank, &'a Stored)>) -> Result<Vec<Item>, Refusal> {
    let mut bytes = 0;
    tuples
        .map(|(rank, stored)| {
            bytes += stored_len(&rank.key, &stored.fields);
            if bytes > ANSWER_LEN_MAX {
                return Err(Refusal::Answer);
            }
            Ok(Item { rank: rank.clone(), fields: stored.fields.clone() })
        })
        .collect()
}

/// The places from one to another among `len` tuples, where negative ones count from the end.
fn places(from: i64, to: i64, len: usize) -> std::ops::Range<usize> {
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    let from_start = |place: i64| if place < 0 { place.saturating_add(len) } else { place };
    let start = from_start(from).clamp(0, len);
    let end = from_start(to).saturating_add(1).clamp(start, len);
    // Both are from 0 to `len`, which was a `usize`.
    start as usize..end as usize
}
