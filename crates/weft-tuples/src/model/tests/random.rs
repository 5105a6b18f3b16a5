//! Random operations. Each outcome is compared with that of the plain model, in the order in which
//! operations take effect, and nothing may wait that could be served.
//!
//! `WEFT_SIM_SEED=n` runs one seed, `WEFT_SIM_SEEDS=n` runs `n` seeds from a random one on.

use std::time::Duration;

use fastrand::Rng;
use weft_testing::seeds;

use super::list::Lists;
use super::*;
use crate::model::{Rank, Refusal, Selection, Space, Stamp, Ticket, Wait};

/// Number of seeds of an ordinary run.
const SEEDS: u64 = 500;
const STEPS: usize = 150;
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

struct World {
    rng: Rng,
    space: Space,
    lists: Lists,
    now: Now,
    values: u32,
    /// Ranks that an observer may have seen.
    ranks: Vec<Rank>,
    log: Vec<String>,
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            space: Space::default(),
            lists: Lists::default(),
            now: at(0),
            values: 0,
            ranks: vec![Rank::default()],
            log: Vec::new(),
        }
    }

    fn name(&mut self) -> Name {
        let at = self.rng.usize(..NAMES.len());
        name(NAMES[at])
    }

    fn names(&mut self) -> Vec<Name> {
        let count = if self.rng.bool() { 1 } else { self.rng.usize(1..=3) };
        (0..count).map(|_| self.name()).collect()
    }

    fn end(&mut self) -> ElementEnd {
        if self.rng.u8(..4) == 0 { ElementEnd::Back } else { ElementEnd::Front }
    }

    fn count(&mut self) -> Count {
        let count = self.rng.u32(1..=3);
        if self.rng.bool() { Count::AtMost(count) } else { Count::Exactly(count) }
    }

    fn criteria(&mut self) -> Criteria {
        let bound = self.rng.u32(1..=3);
        let sync = match self.rng.u8(..5) {
            0 => Sync::Unbounded,
            1 => Sync::Unread(bound),
            2 => Sync::Exactly(bound),
            _ => Sync::Bound(bound),
        };
        let order = match self.rng.u8(..5) {
            0 => Order::Key,
            1 => Order::Time,
            _ => Order::Arrival,
        };
        Criteria { order, sync }
    }

    fn stamp(&mut self) -> Stamp {
        Stamp { ms: self.now.ms - 5 + self.rng.u64(..10), count: self.rng.u64(..2) }
    }

    fn tuple(&mut self) -> Tuple {
        self.values += 1;
        let key = if self.rng.u8(..6) == 0 { vec![b'x' + self.rng.u8(..2)] } else { Vec::new() };
        let stamp = (self.rng.u8(..6) == 0).then(|| self.stamp());
        Tuple { key, stamp, ..Tuple::of(self.values.to_string()) }
    }

    fn operation(&mut self) -> Operation {
        match self.rng.u8(..40) {
            0..4 => Operation::Create { element: self.name(), criteria: self.criteria() },
            4 => Operation::Delete { element: self.name() },
            5..8 => Operation::Read {
                element: self.name(),
                selection: match self.rng.u8(..3) {
                    0 => Selection::Key(vec![b'x']),
                    1 => Selection::Stamps(self.stamp(), self.stamp()),
                    _ => Selection::Places(self.rng.i64(-4..4), self.rng.i64(-4..4)),
                },
                count: self.rng.u32(..4),
            },
            8..14 => {
                let names = self.names();
                let mut after = |name| {
                    let at = self.rng.usize(..2 * self.ranks.len());
                    (name, self.ranks.get(at).cloned())
                };
                let elements = names.into_iter().map(&mut after).collect();
                Operation::Observe { elements, count: self.count() }
            }
            14..18 => Operation::Transfer {
                from: (self.name(), self.end()),
                to: (self.name(), self.end()),
            },
            18..28 => {
                Operation::Take { elements: self.names(), end: self.end(), count: self.count() }
            }
            _ => {
                let count = if self.rng.bool() { 1 } else { self.rng.usize(1..=3) };
                Operation::Put {
                    element: self.name(),
                    criteria: Criteria::default(),
                    end: if self.rng.u8(..4) == 0 { ElementEnd::Front } else { ElementEnd::Back },
                    tuples: (0..count).map(|_| self.tuple()).collect(),
                    is_append: self.rng.u8(..4) == 0,
                }
            }
        }
    }

    fn wait(&mut self) -> Wait {
        match self.rng.u8(..4) {
            0 => Wait::No,
            1 => Wait::Until(self.now.clock + Duration::from_millis(self.rng.u64(..30))),
            _ => Wait::Forever,
        }
    }

    /// Checks an outcome against the lists, and does there what the operation did.
    fn took_effect(
        &mut self,
        operation: &Operation,
        ticket: Option<Ticket>,
        outcome: &Outcome,
    ) -> Result<(), String> {
        let expected = self.lists.outcome(self.now, operation, ticket);
        if expected.as_ref() != Some(outcome) {
            return Err(format!("{operation:?}: {outcome:?} in place of {expected:?}"));
        }
        if let Outcome::Put(rank, _) = outcome {
            self.ranks.push(rank.clone());
        }
        self.lists.waiting.retain(|(waiting, ..)| Some(*waiting) != ticket);
        self.lists.apply(self.now, operation, outcome);
        Ok(())
    }

    fn call(&mut self) -> Result<(), String> {
        let (operation, wait) = (self.operation(), self.wait());
        self.log.push(format!("{:?} {operation:?} {wait:?}", self.now.clock));
        match self.space.call(self.now, operation.clone(), wait) {
            Called::Waits(ticket) => {
                if let Some(outcome) = self.lists.outcome(self.now, &operation, None) {
                    return Err(format!("{operation:?} waits in place of {outcome:?}"));
                }
                self.lists.waiting.push((ticket, operation, wait));
            }
            Called::Done(outcome) => {
                let expected = self.lists.outcome(self.now, &operation, None);
                let is_put = matches!(operation, Operation::Put { .. });
                let ended = match wait {
                    Wait::No if is_put => Outcome::Refused(Refusal::Full),
                    Wait::Forever => Outcome::Cancelled,
                    Wait::No | Wait::Until(_) => Outcome::Nothing,
                };
                if expected.is_some() || outcome != ended {
                    self.took_effect(&operation, None, &outcome)?;
                }
            }
        }
        self.poll(None)
    }

    /// Changes an element in the middle.
    fn edit(&mut self) -> Result<(), String> {
        let name = self.name();
        let ranks = self.lists.ranks(&name);
        if ranks.is_empty() {
            return Ok(());
        }
        let at = self.rng.usize(..ranks.len());
        self.values += 1;
        let fields = Tuple::of(self.values.to_string()).fields;
        let kind = self.rng.u8(..4);
        self.log.push(format!("edit {kind} of {name:?} at {at}"));
        match kind {
            0 => {
                let removed = [ranks[at].clone(), ranks[0].clone()];
                let count = if at == 0 { 1 } else { 2 };
                self.lists.remove(&name, &removed);
                if self.space.remove(self.now, &name, &removed) != count {
                    return Err("another number of tuples is removed".into());
                }
            }
            1 => {
                let end = self.end();
                let (first, last) = ranks.split_at(at);
                let trimmed = if end == ElementEnd::Front { first } else { last };
                self.lists.remove(&name, trimmed);
                if self.space.trim(self.now, &name, end, trimmed.len()) != trimmed.len() {
                    return Err("another number of tuples is trimmed".into());
                }
            }
            2 => {
                self.lists.replace(&name, &ranks[at], &fields);
                if self.space.replace(&name, &ranks[at], fields) != Ok(true) {
                    return Err("no tuple is replaced".into());
                }
            }
            _ => {
                let has_place = self.lists.insert_before(&name, &ranks[at], &fields);
                let inserted = self.space.insert_before(self.now, &name, &ranks[at], fields);
                let expected = has_place.then_some(Some(ranks.len() + 1));
                if inserted.ok() != expected {
                    return Err(format!("{inserted:?} in place of {expected:?}"));
                }
            }
        }
        self.poll(None)?;
        let found: Vec<Rank> = self.space.tuples(&name).map(|(rank, _)| rank.clone()).collect();
        if found == self.lists.ranks(&name) { Ok(()) } else { Err(format!("{found:?}")) }
    }

    fn cancel(&mut self) -> Result<(), String> {
        let waiting = self.lists.waiting.len();
        if waiting == 0 {
            return Ok(());
        }
        let ticket = self.lists.waiting[self.rng.usize(..waiting)].0;
        self.log.push(format!("cancel {ticket}"));
        if !self.space.cancel(self.now, ticket) {
            return Err(format!("{ticket} does not wait"));
        }
        self.poll(Some(ticket))
    }

    fn pass_time(&mut self) -> Result<(), String> {
        self.now = at(self.now.clock.as_millis() as u64 + self.rng.u64(1..10));
        self.log.push(format!("{:?}", self.now.clock));
        self.space.expire(self.now);
        self.poll(None)
    }

    fn poll(&mut self, cancelled: Option<Ticket>) -> Result<(), String> {
        while let Some((ticket, outcome)) = self.space.poll() {
            let place = self.lists.waiting.iter().position(|(it, ..)| *it == ticket);
            let Some(place) = place else { return Err(format!("{ticket} does not wait")) };
            let (_, operation, wait) = self.lists.waiting[place].clone();
            let is_late = matches!(wait, Wait::Until(deadline) if deadline <= self.now.clock);
            match outcome {
                Outcome::Cancelled if cancelled == Some(ticket) => {
                    self.lists.waiting.remove(place);
                }
                Outcome::Nothing if is_late => {
                    self.lists.waiting.remove(place);
                }
                _ => self.took_effect(&operation, Some(ticket), &outcome)?,
            }
        }
        if self.space.next_deadline() != self.lists.next_deadline() {
            return Err("another deadline".into());
        }
        self.lists.neglected(self.now).map_or(Ok(()), Err)
    }

    /// Empties the space. Nothing may be left.
    fn end_all(&mut self) -> Result<(), String> {
        for text in NAMES {
            let delete = Operation::Delete { element: name(text) };
            self.space.call(self.now, delete, Wait::No);
        }
        while self.space.poll().is_some() {}
        for (ticket, ..) in std::mem::take(&mut self.lists.waiting) {
            self.space.cancel(self.now, ticket);
        }
        for text in NAMES {
            let delete = Operation::Delete { element: name(text) };
            self.space.call(self.now, delete, Wait::No);
        }
        let left = (self.space.bytes(), self.space.waiting(), self.space.next_deadline());
        if left == (0, 0, None) { Ok(()) } else { Err(format!("left over: {left:?}")) }
    }

    fn run(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            match self.rng.u8(..10) {
                0 => self.pass_time()?,
                1 => self.cancel()?,
                2 => self.edit()?,
                _ => self.call()?,
            }
        }
        self.end_all()
    }
}

#[test]
fn random_operations_do_what_they_do_on_lists() {
    seeds::run(SEEDS, |seed| {
        let mut world = World::new(seed);
        world.run().err().map(|wrong| format!("{}\n{wrong}", world.log.join("\n")))
    });
}
