//! Clients that retry: an operation that a client repeats after a lost connection takes effect
//! once.
//!
//! A client numbers its operations. The answers of those that change the space are kept until the
//! client confirms them; an operation with the number of a kept answer gets that answer.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use super::effect::{ClientId, Effect, Effects, Impossible};
use super::operation::{Name, Now, Operation, Outcome, Refusal, Wait};
use super::space::{Called, Space};
use super::tuple::{Item, stored_len};
use super::waiting::Ticket;
use crate::limits::{
    ANSWER_LEN_MAX, ANSWERS_MAX, CLIENT_AWAY_TIME_MAX, CLIENTS_MAX, KEPT_LEN_MAX, OVERHEAD_LEN,
};

/// A space with the clients that may retry.
#[derive(Debug, Default)]
pub struct Service {
    space: Space,
    clients: HashMap<ClientId, Client>,
    /// The operations of clients that wait.
    tickets: HashMap<Ticket, Waiting>,
    /// Outcomes of operations that have waited.
    done: VecDeque<(Ticket, Outcome)>,
    /// The bytes of all answers that are kept.
    kept_bytes: usize,
}

#[derive(Debug, Default)]
struct Client {
    answers: BTreeMap<u64, Answer>,
    /// All answers up to this number are confirmed.
    confirmed: u64,
    bytes: usize,
    /// Kept answers of operations that changed nothing, which are not in the log. They are logged
    /// with the client's next change, so that none of them is done again after it. In their order.
    unlogged: VecDeque<u64>,
    /// Since when the client has no connection. `None` while it has one.
    away_since: Option<Duration>,
}

#[derive(Debug)]
enum Answer {
    Waits(Ticket),
    Is(Outcome),
    /// Of an observe that has marked nothing as read. It is never in the log.
    Seen(Outcome),
}

/// An operation of a client that waits.
#[derive(Debug)]
struct Waiting {
    client: ClientId,
    number: u64,
    /// The elements of an observe.
    observed: Vec<Name>,
}

/// An operation of a client.
#[derive(Debug)]
pub struct Request {
    /// Its number, from 1 on. A client repeats an operation with the same number only.
    pub number: u64,
    /// The client has the answers of all operations up to this number.
    pub confirmed: u64,
    /// The operation.
    pub operation: Operation,
    /// How long to wait.
    pub wait: Wait,
}

impl Service {
    /// Serves a space.
    #[must_use]
    pub fn new(space: Space) -> Self {
        Self { space, ..Self::default() }
    }

    /// The space, for operations that nobody repeats, cancelling, and the time.
    pub fn space(&mut self) -> &mut Space {
        &mut self.space
    }

    /// Notes that a client has a connection. An earlier one of the same client has no effect any
    /// more.
    ///
    /// # Errors
    ///
    /// [`Refusal::Stale`] if the client was there before, as `returns` says, and is not known any
    /// more: operations that it has not seen answered may have taken effect. [`Refusal::Busy`] if
    /// there are too many clients.
    pub fn enter(&mut self, now: Now, id: ClientId, returns: bool) -> Result<(), Refusal> {
        if self.clients.contains_key(&id) {
            self.leave(now, id);
        } else if returns {
            return Err(Refusal::Stale);
        } else if self.clients.len() >= CLIENTS_MAX && !self.forget_one(now) {
            return Err(Refusal::Busy);
        }
        let confirmed = 0;
        let effects = &mut self.space.effects;
        let client = self.clients.entry(id).or_insert_with(|| {
            effects.add(|| Effect::Entered { client: id, confirmed });
            Client::default()
        });
        client.away_since = None;
        Ok(())
    }

    /// Notes that clients are to come from now on: those that are known have been away until now.
    pub fn arrive(&mut self, now: Now) {
        let clients = self.clients.values_mut();
        clients.filter_map(|it| it.away_since.as_mut()).for_each(|since| *since = now.clock);
    }

    /// Notes that a client has lost its connection. Its operations that wait are cancelled, so that
    /// nothing is taken for a client that may not come back.
    pub fn leave(&mut self, now: Now, id: ClientId) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        client.away_since = Some(now.clock);
        let waits = |(number, answer): (&u64, &Answer)| match answer {
            Answer::Waits(ticket) => Some((*number, *ticket)),
            Answer::Is(_) | Answer::Seen(_) => None,
        };
        let waiting: Vec<(u64, Ticket)> = client.answers.iter().filter_map(waits).collect();
        // The last one first, so that the end of one does not serve another one.
        for (number, ticket) in waiting.into_iter().rev() {
            // One that was served meanwhile keeps its place for the outcome, which `poll` fills.
            if self.space.cancel(now, ticket) {
                self.tickets.remove(&ticket);
                client.answers.remove(&number);
            }
        }
    }

    /// Forgets a client for good, which has everything that it wants.
    pub fn part(&mut self, now: Now, id: ClientId) {
        self.leave(now, id);
        self.forget(id);
    }

    fn forget(&mut self, id: ClientId) {
        if let Some(client) = self.clients.remove(&id) {
            self.kept_bytes -= client.bytes;
            // Another client of this name must not get an answer that has not been polled yet.
            for answer in client.answers.values() {
                if let Answer::Waits(ticket) = answer {
                    self.tickets.remove(ticket);
                }
            }
            self.space.effects.add(|| Effect::Forgotten { client: id });
        }
    }

    /// Begins an operation of a client, or returns its answer again.
    pub fn call(&mut self, now: Now, id: ClientId, request: Request) -> Called {
        self.keep_answers();
        let Request { number, confirmed, operation, wait } = request;
        let refused = |refusal| Called::Done(Outcome::Refused(refusal));
        let Some(client) = self.clients.get_mut(&id) else { return refused(Refusal::Stale) };
        self.kept_bytes -= client.confirm(confirmed.min(number.saturating_sub(1)));
        if number <= client.confirmed {
            return refused(Refusal::Stale);
        }
        match client.answers.get(&number) {
            Some(Answer::Is(outcome) | Answer::Seen(outcome)) => {
                return Called::Done(outcome.clone());
            }
            Some(Answer::Waits(ticket)) => return Called::Waits(*ticket),
            None => {}
        }
        let observed = operation.observed();
        let is_kept = operation.is_kept() || self.space.is_any_unread(&observed);
        let is_full = client.answers.len() >= ANSWERS_MAX || client.bytes >= ANSWER_LEN_MAX;
        if is_full && (is_kept || wait != Wait::No) {
            return refused(Refusal::Window);
        }
        if self.kept_bytes >= KEPT_LEN_MAX && is_kept {
            return refused(Refusal::Memory);
        }
        let called = self.space.call(now, operation, wait);
        match &called {
            Called::Waits(ticket) => {
                client.answers.insert(number, Answer::Waits(*ticket));
                self.tickets.insert(*ticket, Waiting { client: id, number, observed });
            }
            Called::Done(outcome) if is_kept => {
                self.kept_bytes += client.keep(number, Answer::Is(outcome.clone()));
                client.log(&mut self.space.effects, id, number, outcome);
            }
            Called::Done(_) => {}
        }
        called
    }

    /// Cancels an operation of a client. Returns whether it was waiting.
    pub fn cancel(&mut self, now: Now, id: ClientId, number: u64) -> bool {
        let answer = self.clients.get(&id).and_then(|client| client.answers.get(&number));
        let Some(Answer::Waits(ticket)) = answer else { return false };
        self.space.cancel(now, *ticket)
    }

    /// Returns the outcome of an operation that has waited.
    pub fn poll(&mut self) -> Option<(Ticket, Outcome)> {
        self.keep_answers();
        self.done.pop_front()
    }

    /// Keeps the answers of operations that have waited.
    fn keep_answers(&mut self) {
        while let Some((ticket, outcome)) = self.space.poll() {
            if let Some(Waiting { client: id, number, observed }) = self.tickets.remove(&ticket)
                && let Some(client) = self.clients.get_mut(&id)
            {
                let is_seen = matches!(outcome, Outcome::Observed(_));
                if is_seen && !self.space.is_any_unread(&observed) {
                    self.kept_bytes += client.keep(number, Answer::Seen(outcome.clone()));
                } else {
                    self.kept_bytes += client.keep(number, Answer::Is(outcome.clone()));
                    client.log(&mut self.space.effects, id, number, &outcome);
                }
            }
            self.done.push_back((ticket, outcome));
        }
    }

    /// Records effects from now on.
    pub fn record(&mut self) {
        self.space.record();
    }

    /// Returns about how many bytes [`Self::take_effects`] returns; 0 for no effects.
    #[must_use]
    pub fn effects_len(&self) -> usize {
        self.space.effects.bytes()
    }

    /// Returns the effects of all operations that were done since the last call. They belong
    /// together: an operation takes effect with its answer.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        self.keep_answers();
        self.space.effects.take()
    }

    /// Applies an effect.
    ///
    /// # Errors
    ///
    /// If the state does not allow it. Then the state is of no use any more.
    pub fn apply(&mut self, effect: Effect) -> Result<(), Impossible> {
        match effect {
            Effect::Entered { client: id, confirmed } => {
                let away_since = Some(Duration::ZERO);
                let client = Client { confirmed, away_since, ..Client::default() };
                if self.clients.insert(id, client).is_some() {
                    return Err(Impossible);
                }
            }
            Effect::Answered { client: id, confirmed, number, outcome } => {
                let client = self.clients.get_mut(&id).ok_or(Impossible)?;
                self.kept_bytes -= client.confirm(confirmed);
                if client.answers.contains_key(&number) || !outcome.is_logged() {
                    return Err(Impossible);
                }
                // A client may have confirmed what waited: nobody asks for that answer.
                if number > client.confirmed {
                    self.kept_bytes += client.keep(number, Answer::Is(outcome));
                }
            }
            Effect::Forgotten { client: id } => {
                if !self.clients.contains_key(&id) {
                    return Err(Impossible);
                }
                self.forget(id);
            }
            effect => self.space.apply(effect)?,
        }
        Ok(())
    }

    /// Hands out effects that make this state from an empty one, until one is not accepted.
    ///
    /// # Errors
    ///
    /// The one of `each`.
    pub fn snapshot<E>(&self, mut each: impl FnMut(Effect) -> Result<(), E>) -> Result<(), E> {
        self.space.snapshot(&mut each)?;
        let mut all: Vec<_> = self.clients.iter().collect();
        all.sort_unstable_by_key(|(id, _)| **id);
        for (id, Client { answers, confirmed, unlogged, .. }) in all {
            let (client, confirmed) = (*id, *confirmed);
            each(Effect::Entered { client, confirmed })?;
            for (number, answer) in answers {
                if let Answer::Is(outcome) = answer
                    && outcome.is_logged()
                    && !unlogged.contains(number)
                {
                    let (number, outcome) = (*number, outcome.clone());
                    each(Effect::Answered { client, confirmed, number, outcome })?;
                }
            }
        }
        Ok(())
    }

    /// Forgets the client that has been away longest, if that is long enough.
    fn forget_one(&mut self, now: Now) -> bool {
        let away = self.clients.iter().filter_map(|(id, it)| Some((it.away_since?, *id)));
        let Some((since, id)) = away.min() else { return false };
        let is_long = now.clock.saturating_sub(since) >= CLIENT_AWAY_TIME_MAX;
        if is_long {
            self.forget(id);
        }
        is_long
    }
}

impl Client {
    /// Keeps an answer. Returns its bytes.
    fn keep(&mut self, number: u64, answer: Answer) -> usize {
        let bytes = kept_len(&answer);
        self.bytes += bytes;
        self.answers.insert(number, answer);
        bytes
    }

    /// Adds the answer of an operation to the effects if the operation has changed something, after
    /// the answers of those that have not and that the client has not confirmed.
    fn log(&mut self, effects: &mut Effects, client: ClientId, number: u64, outcome: &Outcome) {
        if !effects.are_recorded() || !outcome.is_logged() {
            return;
        }
        if !outcome.is_change() {
            let at = self.unlogged.partition_point(|it| *it < number);
            self.unlogged.insert(at, number);
            return;
        }
        let confirmed = self.confirmed;
        let mut add = |number, outcome: &Outcome| {
            let outcome = outcome.clone();
            effects.add(|| Effect::Answered { client, confirmed, number, outcome });
        };
        for earlier in self.unlogged.drain(..) {
            if let Some(Answer::Is(outcome)) = self.answers.get(&earlier) {
                add(earlier, outcome);
            }
        }
        add(number, outcome);
    }

    /// Drops answers that have arrived. Returns their bytes.
    fn confirm(&mut self, confirmed: u64) -> usize {
        let before = self.bytes;
        while let Some(entry) = self.answers.first_entry() {
            if *entry.key() > confirmed {
                break;
            }
            // The answer of an operation that waits cannot have arrived.
            if matches!(entry.get(), Answer::Waits(_)) {
                break;
            }
            self.bytes -= kept_len(entry.get());
            entry.remove();
        }
        self.confirmed = self.confirmed.max(confirmed);
        while self.unlogged.pop_front_if(|number| *number <= confirmed).is_some() {}
        before - self.bytes
    }
}

impl Operation {
    /// Whether its answer is kept: it changes the space, so that it must not be done again. An
    /// observe does so only if it marks tuples as read.
    fn is_kept(&self) -> bool {
        match self {
            Self::Create { .. }
            | Self::Put { .. }
            | Self::Take { .. }
            | Self::Transfer { .. }
            | Self::Delete { .. } => true,
            Self::Observe { .. } | Self::Read { .. } | Self::Describe { .. } | Self::List => false,
        }
    }
}

impl Operation {
    /// The elements that it observes.
    fn observed(&self) -> Vec<Name> {
        match self {
            Self::Observe { elements, .. } => {
                elements.iter().map(|(name, _)| Name::clone(name)).collect()
            }
            _ => Vec::new(),
        }
    }
}

fn kept_len(answer: &Answer) -> usize {
    let len = |items: &[Item]| -> usize {
        items.iter().map(|it| stored_len(&it.rank.key, &it.fields)).sum()
    };
    let items = match answer {
        Answer::Waits(_) => 0,
        Answer::Is(Outcome::Observed(found)) | Answer::Seen(Outcome::Observed(found)) => {
            found.iter().map(|(_, items)| len(items)).sum()
        }
        Answer::Is(outcome) | Answer::Seen(outcome) => len(outcome.removed()),
    };
    OVERHEAD_LEN + items
}
