//! The elements of a space, and what operations do with them.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use super::criteria::{Count, Criteria, ElementEnd, Order, Sync};
use super::effect::{Effect, Effects};
use super::element::Element;
use super::followed::Followed;
use super::operation::{Description, Name, Now, Operation, Outcome, Refusal, Wait};
use super::tuple::{Item, Rank, Stamp, Tuple, stored_len};
use super::waiting::{Ticket, Waiting};
use super::watched::Watched;
use crate::limits::{
    COUNT_MAX, ELEMENTS_MAX, FIELDS_MAX, KEY_LEN_MAX, MEMORY_MAX, NAME_LEN_MAX, NAMES_MAX,
    OVERHEAD_LEN, PUT_TUPLES_MAX, TUPLE_LEN_MAX, WAITING_MAX,
};

/// The immediate result of a call.
#[derive(Debug, PartialEq, Eq)]
pub enum Called {
    /// The operation has ended.
    Done(Outcome),
    /// The operation waits. [`Space::poll`] will return its outcome.
    Waits(Ticket),
}

/// A tuple space. Operations take effect one after the other, each at one instant: when it is
/// called, or when it has waited and is served.
///
/// Takes that wait for an element are served in the order of their calls, and so are puts: none
/// overtakes another one, even if it could be served now. Observes see each tuple before it can be
/// taken.
#[derive(Debug)]
pub struct Space {
    pub(super) elements: HashMap<Name, Element>,
    waiting: Waiting,
    done: VecDeque<(Ticket, Outcome)>,
    /// Elements in which an operation that waits may have become possible.
    touched: VecDeque<Name>,
    /// The same for observes, which are served first. Empty while none waits.
    shown: VecDeque<Name>,
    /// How many observes wait.
    observing: usize,
    /// The position of the next tuple at the back of any element.
    pub(super) serial: i64,
    pub(super) bytes: usize,
    /// Bytes of puts that wait.
    waiting_bytes: usize,
    pub(super) memory: usize,
    pub(super) effects: Effects,
    pub(super) watched: Watched,
    pub(super) followed: Followed,
    /// What waits is not served, and does not come before operations that are called.
    is_held: bool,
}

impl Default for Space {
    fn default() -> Self {
        Self::new(MEMORY_MAX)
    }
}

impl Space {
    /// An empty space that stores at most `memory` bytes.
    #[must_use]
    pub fn new(memory: usize) -> Self {
        Self {
            elements: HashMap::new(),
            waiting: Waiting::default(),
            done: VecDeque::new(),
            touched: VecDeque::new(),
            shown: VecDeque::new(),
            observing: 0,
            serial: 0,
            bytes: 0,
            waiting_bytes: 0,
            memory,
            effects: Effects::default(),
            watched: Watched::default(),
            followed: Followed::default(),
            is_held: false,
        }
    }

    /// Begins an operation.
    pub fn call(&mut self, now: Now, mut operation: Operation, wait: Wait) -> Called {
        if let Err(refusal) = check(&operation) {
            return Called::Done(Outcome::Refused(refusal));
        }
        let called = match self.attempt(now, &mut operation, None) {
            Ok(Some(outcome)) => Called::Done(outcome),
            Err(refusal) => Called::Done(Outcome::Refused(refusal)),
            Ok(None) => self.enqueue(now, operation, wait),
        };
        self.settle(now);
        called
    }

    /// From now on operations are done as if nothing waited, up to [`Self::release`]: what waits is
    /// served then.
    pub fn hold(&mut self) {
        self.is_held = true;
    }

    /// Ends [`Self::hold`].
    pub fn release(&mut self, now: Now) {
        self.is_held = false;
        self.settle(now);
    }

    /// Begins to note when an element changes, whether or not there is one. Returns the present
    /// time for [`Self::has_changed`]. Each call wants one of [`Self::unfollow`].
    ///
    /// # Errors
    ///
    /// [`Refusal::Busy`] if too many are followed.
    pub fn follow(&mut self, name: &Name) -> Result<u64, Refusal> {
        self.followed.insert(name)
    }

    /// Ends [`Self::follow`].
    pub fn unfollow(&mut self, name: &Name) {
        self.followed.remove(name);
    }

    /// Whether an element that is followed has changed since.
    #[must_use]
    pub fn has_changed(&self, name: &Name, since: u64) -> bool {
        self.followed.has_changed(name, since)
    }

    /// Has an element count as changed, as commands of Redis do that have removed nothing.
    pub fn note_change(&mut self, name: &Name) {
        self.followed.note(name);
    }

    /// Ends an operation that waits. Returns whether it has waited; then [`Self::poll`] returns
    /// [`Outcome::Cancelled`].
    pub fn cancel(&mut self, now: Now, ticket: Ticket) -> bool {
        let was_waiting = self.end(ticket, Outcome::Cancelled);
        self.settle(now);
        was_waiting
    }

    /// Ends the operations whose deadlines have passed.
    pub fn expire(&mut self, now: Now) {
        while let Some(ticket) = self.waiting.late(now.clock) {
            self.end(ticket, Outcome::Nothing);
            // The next one in the queue may be served, before its own deadline is looked at.
            self.settle(now);
        }
    }

    /// Returns when [`Self::expire`] has to be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        self.waiting.next_deadline()
    }

    /// Returns the outcome of an operation that has waited.
    pub fn poll(&mut self) -> Option<(Ticket, Outcome)> {
        self.done.pop_front()
    }

    /// Returns how many operations wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Returns the number of bytes of elements and tuples, which count against the limit of memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Does an operation if it can be done now. `ticket` is that of one that waits, which is left
    /// as it is. One that does not wait may lose its tuples when it is done.
    fn attempt(
        &mut self,
        now: Now,
        operation: &mut Operation,
        ticket: Option<Ticket>,
    ) -> Result<Option<Outcome>, Refusal> {
        match operation {
            Operation::Create { element, criteria } => {
                self.create(now, element, *criteria).map(Some)
            }
            Operation::Put { element, criteria, end, tuples, is_append } => {
                self.put(now, (element, *criteria), *end, (tuples, *is_append), ticket)
            }
            Operation::Take { elements, end, count } => {
                for (at, name) in elements.iter().enumerate() {
                    if let Some(items) = self.take(name, *end, *count, ticket)? {
                        return Ok(Some(Outcome::Taken(at, items)));
                    }
                }
                Ok(None)
            }
            Operation::Observe { elements, count } => self.observe(elements, *count),
            Operation::Transfer { from, to } => self.transfer(from, to, ticket),
            Operation::Read { element, selection, count } => {
                let items = match self.elements.get(element) {
                    Some(element) if element.exists() => element.read(selection, *count)?,
                    _ => Vec::new(),
                };
                Ok(Some(Outcome::Read(items)))
            }
            Operation::Describe { element } => Ok(Some(Outcome::Described(self.describe(element)))),
            Operation::List => {
                let mut all: Vec<_> =
                    self.elements.keys().filter_map(|name| self.describe(name)).collect();
                all.sort_unstable_by(|one, other| one.name.cmp(&other.name));
                Ok(Some(Outcome::Listed(all)))
            }
            Operation::Delete { element } => Ok(Some(Outcome::Deleted(self.delete(element)))),
        }
    }

    fn describe(&self, name: &Name) -> Option<Description> {
        let element = self.elements.get(name).filter(|element| element.exists())?;
        Some(Description {
            name: Rc::clone(name),
            criteria: element.criteria,
            len: element.len(),
            last: element.last,
            waiting: element.waiting(),
        })
    }

    fn create(&mut self, now: Now, name: &Name, criteria: Criteria) -> Result<Outcome, Refusal> {
        if let Some(element) = self.elements.get_mut(name).filter(|element| element.exists()) {
            if element.criteria != criteria {
                return Err(Refusal::Exists);
            }
            let is_new = !std::mem::replace(&mut element.is_kept, true);
            let last = element.last;
            if is_new {
                self.effects.add(|| Effect::Kept { element: Rc::clone(name), criteria, last });
            }
            return Ok(Outcome::Created(is_new));
        }
        let element = self.entry(name)?;
        element.criteria = criteria;
        element.is_kept = true;
        let last = element.last;
        self.effects.add(|| Effect::Kept { element: Rc::clone(name), criteria, last });
        self.refuse_impossible(now, name);
        Ok(Outcome::Created(true))
    }

    /// Refuses operations that waited for an element before it was made, and that its criteria
    /// never allow.
    fn refuse_impossible(&mut self, now: Now, name: &Name) {
        let Some(element) = self.elements.get(name) else { return };
        let sync = element.criteria.sync;
        let all: Vec<Ticket> = element.takers.union(&element.observers).copied().collect();
        for ticket in all {
            let is_possible = match self.waiting.operation(ticket) {
                Some(Operation::Take { count, .. }) => sync.allows_take(*count),
                Some(Operation::Observe { count, .. }) => sync.allows_observe(*count),
                Some(Operation::Transfer { .. }) => sync.allows_take(Count::Exactly(1)),
                _ => true,
            };
            if !is_possible {
                // It may get a tuple of another element, if the one before it has just ended.
                self.serve(now, ticket);
            }
        }
    }

    fn put(
        &mut self,
        now: Now,
        (name, criteria): (&Name, Criteria),
        end: ElementEnd,
        (tuples, is_append): (&mut [Tuple], bool),
        ticket: Option<Ticket>,
    ) -> Result<Option<Outcome>, Refusal> {
        let new = Element::new(criteria);
        let element = match self.elements.get(name) {
            Some(element) if element.exists() => element,
            _ => &new,
        };
        element.check_order(tuples, end)?;
        if !element.criteria.sync.allows_put(tuples.len()) {
            return Err(Refusal::Count);
        }
        if element.putters.first().is_some_and(|first| Some(*first) != ticket)
            || !element.has_room(tuples.len())
        {
            return Ok(None);
        }
        let stamps = element.stamps(tuples, now.ms, is_append)?;
        let bytes: usize = tuples.iter().map(|it| stored_len(&it.key, &it.fields)).sum();
        if self.bytes.saturating_add(bytes) > self.memory {
            return Err(Refusal::Memory);
        }
        self.entry(name)?;
        let outcome = if ticket.is_none() {
            let take = |tuple: &mut Tuple| std::mem::take(tuple);
            self.insert((name, criteria), end, tuples.iter_mut().map(take), &stamps)
        } else {
            self.insert((name, criteria), end, tuples.iter().cloned(), &stamps)
        };
        Ok(Some(outcome))
    }

    /// Puts tuples into an element that has an entry, whatever its criteria say.
    fn insert(
        &mut self,
        (name, criteria): (&Name, Criteria),
        end: ElementEnd,
        tuples: impl ExactSizeIterator<Item = Tuple>,
        stamps: &[Stamp],
    ) -> Outcome {
        let element = self.elements.entry(Rc::clone(name)).or_default();
        if !element.exists() {
            element.criteria = criteria;
            element.is_kept = criteria != Criteria::default();
            if element.is_kept {
                let last = element.last;
                self.effects.add(|| Effect::Kept { element: Rc::clone(name), criteria, last });
            }
        }
        let mut items = Vec::new();
        let mut last = Rank::default();
        let count = tuples.len();
        for (at, tuple) in tuples.enumerate() {
            // There are far fewer tuples than positions.
            let position = element.position(end, self.serial + at as i64);
            let stamp = stamps.get(at).copied().unwrap_or_default();
            self.bytes += stored_len(&tuple.key, &tuple.fields);
            last = Rank { key: tuple.key, stamp, position };
            if self.effects.are_recorded() {
                items.push(Item { rank: last.clone(), fields: tuple.fields.clone() });
            }
            element.insert(last.clone(), tuple.fields);
        }
        let len = element.len();
        self.serial += count as i64;
        let serial = self.serial;
        self.effects.add(|| Effect::Inserted { element: Rc::clone(name), items, serial });
        self.followed.note(name);
        self.touch(name);
        Outcome::Put(last, len)
    }

    fn take(
        &mut self,
        name: &Name,
        end: ElementEnd,
        count: Count,
        ticket: Option<Ticket>,
    ) -> Result<Option<Vec<Item>>, Refusal> {
        let Some(element) = self.elements.get_mut(name) else { return Ok(None) };
        if element.exists() && !element.criteria.sync.allows_take(count) {
            return Err(Refusal::Count);
        }
        let is_late = element.takers.first().is_some_and(|first| Some(*first) != ticket);
        if is_late && !self.is_held {
            return Ok(None);
        }
        let Some(wanted) = element.takeable(end, count)? else { return Ok(None) };
        let items = element.remove(end, wanted);
        // An answer bounds how many these are.
        let count = items.len() as u32;
        self.effects.add(|| Effect::Removed { element: Rc::clone(name), end, count });
        self.followed.note(name);
        self.bytes -= items.iter().map(|it| stored_len(&it.rank.key, &it.fields)).sum::<usize>();
        self.touch(name);
        Ok(Some(items))
    }

    /// Whether it matters in one of these elements which tuples are read.
    pub(super) fn is_any_unread(&self, names: &[Name]) -> bool {
        let element = |name: &Name| self.elements.get(name);
        names.iter().filter_map(element).any(Element::counts_unread)
    }

    fn observe(
        &mut self,
        elements: &[(Name, Option<Rank>)],
        count: Count,
    ) -> Result<Option<Outcome>, Refusal> {
        let mut found = Vec::new();
        for (at, (name, after)) in elements.iter().enumerate() {
            let Some(element) = self.elements.get(name) else { continue };
            if element.exists() && !element.criteria.sync.allows_observe(count) {
                return Err(Refusal::Count);
            }
            found.extend(element.observe(after.as_ref(), count)?.map(|items| (at, items)));
        }
        // Nothing can be refused any more.
        for (at, items) in &found {
            let name = &elements[*at].0;
            if let Some(element) = self.elements.get_mut(name) {
                let new = element.note_read(items.iter().map(|item| &item.rank));
                if element.counts_unread() && !new.is_empty() {
                    self.effects.add(|| Effect::Observed {
                        element: Rc::clone(name),
                        ranks: new.into_iter().cloned().collect(),
                    });
                }
            }
            self.touch(name);
        }
        Ok((!found.is_empty()).then_some(Outcome::Observed(found)))
    }

    fn transfer(
        &mut self,
        (from, from_end): &(Name, ElementEnd),
        (to, to_end): &(Name, ElementEnd),
        ticket: Option<Ticket>,
    ) -> Result<Option<Outcome>, Refusal> {
        let one = Count::Exactly(1);
        let Some(source) = self.elements.get(from) else { return Ok(None) };
        if source.exists() && !source.criteria.sync.allows_take(one) {
            return Err(Refusal::Count);
        }
        let is_first =
            self.is_held || source.takers.first().is_none_or(|first| Some(*first) == ticket);
        if !is_first || source.takeable(*from_end, one)?.is_none() {
            return Ok(None);
        }
        if source.criteria.order != Order::Arrival {
            return Err(Refusal::Order);
        }
        if from == to {
            // The tuple leaves a place for itself, but it becomes unread.
            if matches!(source.criteria.sync, Sync::Unread(_)) && !source.has_room(1) {
                return Err(Refusal::Full);
            }
        } else {
            self.check_accepts(to)?;
        }
        // Nothing may fail once the tuple is taken.
        self.entry(to)?;
        let taken = self.take(from, *from_end, one, ticket)?;
        let Some(item) = taken.and_then(|mut items| items.pop()) else { return Ok(None) };
        let tuple = Tuple { fields: item.fields.clone(), ..Tuple::default() };
        self.insert((to, Criteria::default()), *to_end, [tuple].into_iter(), &[]);
        Ok(Some(Outcome::Transferred(item)))
    }

    /// Whether a tuple in the order of arrival can be put into an element now.
    fn check_accepts(&self, name: &Name) -> Result<(), Refusal> {
        let Some(element) = self.elements.get(name) else { return Ok(()) };
        if element.exists() && element.criteria.order != Order::Arrival {
            return Err(Refusal::Order);
        }
        let has_place = (self.is_held || element.putters.is_empty()) && element.has_room(1);
        if has_place { Ok(()) } else { Err(Refusal::Full) }
    }

    fn delete(&mut self, name: &Name) -> bool {
        let Some(element) = self.elements.get_mut(name) else { return false };
        let existed = element.exists();
        if existed {
            self.effects.add(|| Effect::Deleted { element: Rc::clone(name) });
            self.followed.note(name);
        }
        self.watched.note(name, existed);
        let old = std::mem::take(element);
        self.bytes -= old.bytes();
        element.takers.clone_from(&old.takers);
        element.observers.clone_from(&old.observers);
        element.putters.clone_from(&old.putters);
        for ticket in old.putters {
            self.end(ticket, Outcome::Refused(Refusal::Deleted));
        }
        self.touch(name);
        existed
    }

    /// Returns an element, which is made if there is none.
    fn entry(&mut self, name: &Name) -> Result<&mut Element, Refusal> {
        if !self.elements.contains_key(name) {
            let bytes = OVERHEAD_LEN + name.len();
            if self.elements.len() >= ELEMENTS_MAX {
                return Err(Refusal::Busy);
            }
            if self.bytes.saturating_add(bytes) > self.memory {
                return Err(Refusal::Memory);
            }
            self.bytes += bytes;
        }
        Ok(self.elements.entry(Rc::clone(name)).or_default())
    }

    pub(super) fn touch(&mut self, name: &Name) {
        self.watched.note(name, false);
        if self.touched.back() != Some(name) {
            self.touched.push_back(Rc::clone(name));
        }
        if self.observing != 0 && self.shown.back() != Some(name) {
            self.shown.push_back(Rc::clone(name));
        }
    }

    fn enqueue(&mut self, now: Now, operation: Operation, wait: Wait) -> Called {
        let is_put = matches!(operation, Operation::Put { .. });
        let is_over = matches!(wait, Wait::Until(deadline) if deadline <= now.clock);
        if is_put && wait == Wait::No {
            return Called::Done(Outcome::Refused(Refusal::Full));
        }
        if wait == Wait::No || is_over {
            return Called::Done(Outcome::Nothing);
        }
        if self.waiting.len() >= WAITING_MAX {
            return Called::Done(Outcome::Refused(Refusal::Busy));
        }
        let bytes = waiting_len(&operation);
        if self.bytes.saturating_add(self.waiting_bytes).saturating_add(bytes) > self.memory {
            return Called::Done(Outcome::Refused(Refusal::Memory));
        }
        let names = names_of(&operation);
        if let Some(refusal) = names.iter().find_map(|name| self.entry(name).err()) {
            names.iter().for_each(|name| self.touch(name));
            return Called::Done(Outcome::Refused(refusal));
        }
        let queue_of: fn(&mut Element) -> &mut BTreeSet<Ticket> = queue(&operation);
        self.observing += usize::from(matches!(operation, Operation::Observe { .. }));
        let ticket = self.waiting.add(operation, wait);
        self.waiting_bytes += bytes;
        for name in names {
            if let Some(element) = self.elements.get_mut(&name) {
                queue_of(element).insert(ticket);
            }
        }
        Called::Waits(ticket)
    }

    /// Ends an operation that waits.
    fn end(&mut self, ticket: Ticket, outcome: Outcome) -> bool {
        let Some(operation) = self.waiting.remove(ticket) else { return false };
        self.waiting_bytes -= waiting_len(&operation);
        self.observing -= usize::from(matches!(operation, Operation::Observe { .. }));
        let queue_of = queue(&operation);
        for name in names_of(&operation) {
            if let Some(element) = self.elements.get_mut(&name) {
                queue_of(element).remove(&ticket);
            }
            // Another operation is the first one now.
            self.touch(&name);
        }
        self.done.push_back((ticket, outcome));
        true
    }

    /// Serves what waits and has become possible, until nothing more is.
    pub(super) fn settle(&mut self, now: Now) {
        if self.is_held {
            return;
        }
        while let Some(name) = self.touched.pop_front() {
            self.serve_observers(now);
            // Nothing waits for most elements.
            if self.elements.get(&name).is_none_or(|it| it.exists() && !it.is_awaited()) {
                continue;
            }
            while self.serve_first(now, &name, |it| &it.takers)
                || self.serve_first(now, &name, |it| &it.putters)
            {
                // A transfer may have moved a tuple to an element for which the next take waits.
                self.serve_observers(now);
            }
            self.drop_if_unused(&name);
        }
    }

    /// Serves the observes that have become possible, whatever element they wait for: they see each
    /// tuple before it can be taken.
    fn serve_observers(&mut self, now: Now) {
        while let Some(name) = self.shown.pop_front() {
            let Some(element) = self.elements.get(&name) else { continue };
            if element.observers.is_empty() || element.len() == 0 {
                continue;
            }
            let observers: Vec<Ticket> = element.observers.iter().copied().collect();
            for ticket in observers {
                self.serve(now, ticket);
            }
        }
    }

    /// Serves the first operation of a queue if that is possible now.
    fn serve_first(
        &mut self,
        now: Now,
        name: &Name,
        queue: impl Fn(&Element) -> &BTreeSet<Ticket>,
    ) -> bool {
        let first = self.elements.get(name).and_then(|element| queue(element).first().copied());
        first.is_some_and(|ticket| self.serve(now, ticket))
    }

    fn serve(&mut self, now: Now, ticket: Ticket) -> bool {
        let Some(mut lifted) = self.waiting.lift(ticket) else { return false };
        let attempted = self.attempt(now, &mut lifted.0, Some(ticket));
        self.waiting.restore(ticket, lifted);
        match attempted {
            Ok(None) => false,
            Ok(Some(outcome)) => self.end(ticket, outcome),
            Err(refusal) => self.end(ticket, Outcome::Refused(refusal)),
        }
    }

    pub(super) fn drop_if_unused(&mut self, name: &Name) {
        let is_unused = |element: &Element| !element.exists() && !element.is_awaited();
        if self.elements.get(name).is_some_and(is_unused) {
            self.elements.remove(name);
            self.bytes -= OVERHEAD_LEN + name.len();
        }
    }
}

/// The elements for which an operation waits.
fn names_of(operation: &Operation) -> Vec<Name> {
    match operation {
        Operation::Put { element, .. } => vec![Rc::clone(element)],
        Operation::Take { elements, .. } => elements.clone(),
        Operation::Observe { elements, .. } => {
            elements.iter().map(|(name, _)| Rc::clone(name)).collect()
        }
        Operation::Transfer { from, .. } => vec![Rc::clone(&from.0)],
        _ => Vec::new(),
    }
}

/// The bytes of an operation that waits.
fn waiting_len(operation: &Operation) -> usize {
    let Operation::Put { tuples, .. } = operation else { return 0 };
    tuples.iter().map(|it| stored_len(&it.key, &it.fields)).sum()
}

/// The queue in which an operation waits.
fn queue(operation: &Operation) -> fn(&mut Element) -> &mut BTreeSet<Ticket> {
    match operation {
        Operation::Put { .. } => |element| &mut element.putters,
        Operation::Observe { .. } => |element| &mut element.observers,
        _ => |element| &mut element.takers,
    }
}

fn check(operation: &Operation) -> Result<(), Refusal> {
    let is_name_right = |name: &Name| name.len() <= NAME_LEN_MAX;
    let is_count_right = |count: &Count| count.most() != 0 && count.fewest() <= COUNT_MAX;
    let are_names_right = |len: usize| (1..=NAMES_MAX).contains(&len);
    let is_tuple_right = |tuple: &Tuple| {
        tuple.key.len() <= KEY_LEN_MAX
            && tuple.fields.len() <= FIELDS_MAX
            && tuple.len() <= TUPLE_LEN_MAX
            && tuple.stamp != Some(Stamp::default())
    };
    let is_right = match operation {
        Operation::Create { element, criteria } => {
            let is_bound_right = match criteria.sync {
                Sync::Unbounded => true,
                Sync::Bound(bound) | Sync::Unread(bound) => bound != 0,
                Sync::Exactly(bound) => (1..=COUNT_MAX).contains(&bound),
            };
            is_name_right(element) && is_bound_right
        }
        Operation::Put { element, tuples, .. } => {
            is_name_right(element)
                && (1..=PUT_TUPLES_MAX).contains(&tuples.len())
                && tuples.iter().all(is_tuple_right)
        }
        Operation::Take { elements, count, .. } => {
            are_names_right(elements.len())
                && elements.iter().all(is_name_right)
                && is_count_right(count)
        }
        Operation::Observe { elements, count } => {
            are_names_right(elements.len())
                && elements.iter().all(|(name, _)| is_name_right(name))
                && is_count_right(count)
        }
        Operation::Transfer { from, to } => is_name_right(&from.0) && is_name_right(&to.0),
        Operation::Read { element, .. }
        | Operation::Describe { element }
        | Operation::Delete { element } => is_name_right(element),
        Operation::List => true,
    };
    if is_right { Ok(()) } else { Err(Refusal::Limit) }
}
