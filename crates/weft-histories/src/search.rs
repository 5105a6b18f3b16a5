//! The search for an order of all calls that explains what all clients saw.
//!
//! It is that of Wing and Gong, with the memory of Lowe: from a state of the model it tries each
//! call that may have come next, and never enters a state twice. A call that waits comes at one
//! step and is served at another one. What can be served is served before anything else comes.

use std::collections::HashSet;
use std::fmt::Write as _;

use weft_tuples::model::Refusal;

use crate::history::{Call, ClientHistory, Operation, Outcome, Span};
use crate::limits::STATES_MAX;
use crate::spec::{CallId, Spec};

/// What a search has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is such an order.
    Consistent,
    /// There is none. The text shows how far the search has come.
    Inconsistent(String),
    /// The search has given up.
    Undecided,
}

/// Looks for an order of all calls that explains what all clients saw. `crashes` are the times
/// within which servers have crashed.
#[must_use]
pub fn check(clients: &[ClientHistory], crashes: &[Span]) -> Verdict {
    Search::new(clients, crashes).run()
}

/// One step of the order.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A call comes, or comes again.
    Come(CallId),
    /// A call that waits is served.
    Serve(CallId),
    /// The time of a call is over.
    Expire(CallId),
    /// A call that changes nothing has an answer that is lost with the connection: it comes again,
    /// and is done again.
    Skip(CallId),
    /// The server notices that a client has lost its connection.
    Lose(usize),
}

/// How far the calls have come.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    spec: Spec,
    /// The first call of each client that has not come at all.
    next: Vec<CallId>,
    /// Calls that waited when the connection was lost, in their order. They come again.
    withdrawn: Vec<CallId>,
    /// Calls that changed nothing, and whose answers will be lost with the connection. They come
    /// again then.
    skipped: Vec<CallId>,
    /// How many losses of each client the server has noticed.
    losses: Vec<usize>,
}

impl State {
    fn note_come(&mut self, client: usize, call: CallId) {
        match self.withdrawn.iter().position(|it| *it == call) {
            Some(at) => drop(self.withdrawn.remove(at)),
            None => self.next[client] += 1,
        }
    }
}

struct Search<'a> {
    clients: &'a [ClientHistory],
    crashes: &'a [Span],
    /// All calls, with their clients.
    calls: Vec<(usize, &'a Call)>,
    /// The end of each client's calls.
    ends: Vec<CallId>,
    /// The earliest end of this call and those that follow it of the same client.
    earliest_ends: Vec<u64>,
}

impl<'a> Search<'a> {
    fn new(clients: &'a [ClientHistory], crashes: &'a [Span]) -> Self {
        let mut calls = Vec::new();
        let mut ends = Vec::new();
        for (client, history) in clients.iter().enumerate() {
            calls.extend(history.calls.iter().map(|call| (client, call)));
            ends.push(calls.len() as CallId);
        }
        let mut earliest_ends = vec![u64::MAX; calls.len()];
        for (at, (client, call)) in calls.iter().enumerate().rev() {
            let is_last = ends[*client] as usize == at + 1;
            let later = if is_last { u64::MAX } else { earliest_ends[at + 1] };
            earliest_ends[at] = call.span.end.unwrap_or(u64::MAX).min(later);
        }
        Self { clients, crashes, calls, ends, earliest_ends }
    }

    fn run(&self) -> Verdict {
        let clients = self.clients.len();
        let next = (0..clients).map(|at| if at == 0 { 0 } else { self.ends[at - 1] }).collect();
        let (withdrawn, skipped, losses) = (Vec::new(), Vec::new(), vec![0; clients]);
        let start = State { spec: Spec::default(), next, withdrawn, skipped, losses };
        let mut seen = HashSet::from([start.clone()]);
        let mut path: Vec<(Option<Step>, Vec<Step>, State)> =
            vec![(None, self.steps(&start), start)];
        let mut farthest = (0, String::new());
        while let Some((_, steps, state)) = path.last_mut() {
            if self.horizon(state).1 == u64::MAX {
                return Verdict::Consistent;
            }
            let Some(step) = steps.pop() else {
                if path.len() > farthest.0 {
                    farthest = (path.len(), self.account(&path));
                }
                path.pop();
                continue;
            };
            let Some(after) = self.after(state, step) else { continue };
            if !seen.insert(after.clone()) {
                continue;
            }
            if seen.len() > STATES_MAX {
                return Verdict::Undecided;
            }
            path.push((Some(step), self.steps(&after), after));
        }
        Verdict::Inconsistent(farthest.1)
    }

    fn operation(&self, call: CallId) -> &'a Operation {
        &self.calls[call as usize].1.operation
    }

    fn call(&self, call: CallId) -> &'a Call {
        self.calls[call as usize].1
    }

    fn outcome(&self, spec: &Spec, call: CallId, earlier: &[CallId]) -> Option<Outcome> {
        let earlier = earlier.iter().map(|it| self.operation(*it));
        let all = spec.waiting.iter().map(|it| self.operation(*it));
        spec.outcome(self.operation(call), earlier, all)
    }

    /// Until when each step must have been before what ends then: of everything, and of calls.
    fn horizon(&self, state: &State) -> (u64, u64) {
        let end = |call: CallId| self.call(call).span.end.unwrap_or(u64::MAX);
        let open = state.spec.waiting.iter().chain(&state.withdrawn).chain(&state.skipped);
        let open = open.map(|call| end(*call));
        let to_come = state.next.iter().zip(&self.ends).filter(|(next, end)| next < end);
        let to_come = to_come.map(|(next, _)| self.earliest_ends[*next as usize]);
        let calls = open.chain(to_come).min().unwrap_or(u64::MAX);
        let losses = self.clients.iter().zip(&state.losses);
        let losses = losses.filter_map(|(client, lost)| client.losses.get(*lost)?.end);
        (losses.min().unwrap_or(u64::MAX).min(calls), calls)
    }

    /// The steps that may follow, the likeliest last.
    fn steps(&self, state: &State) -> Vec<Step> {
        let served = self.served(state);
        if !served.is_empty() {
            return served;
        }
        let horizon = self.horizon(state).0;
        let mut steps: Vec<(u64, Step)> = Vec::new();
        for (client, history) in self.clients.iter().enumerate() {
            if let Some(loss) = history.losses.get(state.losses[client])
                && loss.start < horizon
            {
                steps.push((loss.end.unwrap_or(u64::MAX), Step::Lose(client)));
            }
            let Some(call) = self.next_of(state, client) else { continue };
            if self.call(call).span.start >= horizon {
                continue;
            }
            if self.is_without_effect(state, call) {
                return vec![Step::Come(call)];
            }
            let end = self.call(call).span.end.unwrap_or(u64::MAX);
            if self.may_come_twice(state, call) {
                steps.push((end, Step::Skip(call)));
            }
            steps.push((end, Step::Come(call)));
        }
        for call in &state.spec.waiting {
            let Call { wait, span, outcome, .. } = self.call(*call);
            let may_be_over = matches!(outcome, None | Some(Outcome::Nothing));
            if wait.is_some() && (may_be_over || self.may_be_lost(state, *call)) {
                steps.push((span.end.unwrap_or(u64::MAX), Step::Expire(*call)));
            }
        }
        steps.sort_by_key(|(end, _)| std::cmp::Reverse(*end));
        steps.into_iter().map(|(_, step)| step).collect()
    }

    /// What waits and can be served. Observes see each tuple before it can be taken.
    fn served(&self, state: &State) -> Vec<Step> {
        let waiting = &state.spec.waiting;
        let can_be =
            |at: &usize| self.outcome(&state.spec, waiting[*at], &waiting[..*at]).is_some();
        let is_observe =
            |at: &usize| matches!(self.operation(waiting[*at]), Operation::Observe(..));
        let all = || (0..waiting.len()).filter(can_be);
        match all().find(is_observe) {
            Some(at) => vec![Step::Serve(waiting[at])],
            None => all().map(|at| Step::Serve(waiting[at])).collect(),
        }
    }

    /// The call of a client that comes next, unless the client is gone.
    fn next_of(&self, state: &State, client: usize) -> Option<CallId> {
        let again = state.withdrawn.iter().find(|call| self.calls[**call as usize].0 == client);
        let next = state.next[client];
        again.copied().or_else(|| (next < self.ends[client]).then_some(next))
    }

    /// Whether a call has its answer if it comes now, and changes nothing. Then it may as well come
    /// now as later.
    fn is_without_effect(&self, state: &State, call: CallId) -> bool {
        let Call { operation, wait, outcome: Some(seen), .. } = self.call(call) else {
            return false;
        };
        let outcome = self.outcome(&state.spec, call, &state.spec.waiting);
        let outcome = outcome.or_else(|| at_once(operation, *wait));
        outcome.is_some_and(|outcome| outcome == *seen && operation.leaves_all(&outcome))
    }

    /// Whether the answer of a call that changes nothing may be lost with the connection, so that
    /// the server does the call again. It knows the answers of calls that could change something,
    /// unless it has crashed.
    fn may_be_lost(&self, state: &State, id: CallId) -> bool {
        let (client, Call { operation, span, .. }) = self.calls[id as usize];
        let loss = self.clients[client].losses.get(state.losses[client]);
        loss.is_some_and(|loss| {
            loss.end.is_some()
                && loss.end < span.end
                && (!operation.is_kept() || self.crashes.iter().any(|it| it.overlaps(*loss)))
        })
    }

    fn may_come_twice(&self, state: &State, id: CallId) -> bool {
        let Call { operation, wait, .. } = self.call(id);
        let outcome = self.outcome(&state.spec, id, &state.spec.waiting);
        let outcome = outcome.or_else(|| at_once(operation, *wait));
        self.may_be_lost(state, id) && outcome.is_some_and(|outcome| operation.leaves_all(&outcome))
    }

    /// The state after a step. `None` if a client saw something else.
    fn after(&self, state: &State, step: Step) -> Option<State> {
        let mut after = state.clone();
        match step {
            Step::Come(id) => {
                let (client, call) = self.calls[id as usize];
                after.note_come(client, id);
                let outcome = self.outcome(&state.spec, id, &state.spec.waiting);
                match outcome.or_else(|| at_once(&call.operation, call.wait)) {
                    Some(outcome) => self.take_effect(&mut after, id, &outcome)?,
                    None => after.spec.waiting.push(id),
                }
            }
            Step::Serve(id) => {
                let at = state.spec.waiting.iter().position(|it| *it == id)?;
                let outcome = self.outcome(&state.spec, id, &state.spec.waiting[..at])?;
                after.spec.waiting.remove(at);
                let Call { operation, outcome: seen, .. } = self.call(id);
                let is_seen = seen.as_ref().is_none_or(|seen| *seen == outcome);
                if !is_seen && operation.leaves_all(&outcome) && self.may_be_lost(state, id) {
                    after.skipped.push(id);
                } else {
                    self.take_effect(&mut after, id, &outcome)?;
                }
            }
            Step::Skip(id) => {
                after.note_come(self.calls[id as usize].0, id);
                after.skipped.push(id);
            }
            Step::Expire(id) => {
                after.spec.waiting.retain(|it| *it != id);
                if self.call(id).outcome.as_ref().is_some_and(|seen| *seen != Outcome::Nothing) {
                    after.skipped.push(id);
                }
            }
            Step::Lose(client) => self.lose(&mut after, client)?,
        }
        Some(after)
    }

    fn take_effect(&self, after: &mut State, id: CallId, outcome: &Outcome) -> Option<()> {
        let Call { operation, outcome: seen, .. } = self.call(id);
        if seen.as_ref().is_some_and(|seen| seen != outcome) {
            return None;
        }
        if !operation.leaves_all(outcome) && self.forgets_answers(after, id) {
            return None;
        }
        after.spec.apply(operation, outcome);
        // Puts that wait for an element are refused when it is deleted.
        if let Operation::Delete(element) = operation {
            let is_refused = |call: &mut CallId| match self.operation(*call) {
                Operation::Put(it, ..) => it == element,
                _ => false,
            };
            let refused: Vec<CallId> = after.spec.waiting.extract_if(.., is_refused).collect();
            for call in refused {
                match &self.call(call).outcome {
                    None | Some(Outcome::Refused(Refusal::Deleted)) => {}
                    Some(_) if self.may_be_lost(after, call) => after.skipped.push(call),
                    Some(_) => return None,
                }
            }
        }
        Some(())
    }

    /// Whether a client's change must have kept a server from doing earlier calls again.
    fn forgets_answers(&self, state: &State, change: CallId) -> bool {
        let client = self.calls[change as usize].0;
        state.skipped.iter().any(|skipped| {
            let (of, call) = self.calls[*skipped as usize];
            of == client && call.operation.is_kept()
        })
    }

    fn lose(&self, after: &mut State, client: usize) -> Option<()> {
        let history = &self.clients[client];
        after.losses[client] += 1;
        let is_of = |call: &CallId| self.calls[*call as usize].0 == client;
        let is_gone = history.is_gone && after.losses[client] == history.losses.len();
        let mut withdrawn: Vec<CallId> = Vec::new();
        withdrawn.extend(after.spec.waiting.extract_if(.., |call| is_of(call)));
        withdrawn.extend(after.skipped.extract_if(.., |call| is_of(call)));
        if !is_gone {
            after.withdrawn.extend(withdrawn);
            after.withdrawn.sort_unstable();
            return Some(());
        }
        // Nothing of it comes any more.
        let lost = withdrawn.into_iter().chain(after.withdrawn.extract_if(.., |call| is_of(call)));
        let mut lost = lost.chain(after.next[client]..self.ends[client]);
        if lost.any(|call| self.call(call).outcome.is_some()) {
            return None;
        }
        after.next[client] = self.ends[client];
        Some(())
    }

    /// Shows the last steps, and what cannot follow.
    fn account(&self, path: &[(Option<Step>, Vec<Step>, State)]) -> String {
        let mut text = String::new();
        let show = |id: CallId| format!("client {} {}", self.calls[id as usize].0, self.call(id));
        for step in path.iter().rev().take(40).rev().filter_map(|(step, ..)| *step) {
            // A text takes whatever is written.
            let _ = match step {
                Step::Come(id) => writeln!(text, "comes   {}", show(id)),
                Step::Serve(id) => writeln!(text, "served  {}", show(id)),
                Step::Skip(id) => writeln!(text, "twice   {}", show(id)),
                Step::Expire(id) => writeln!(text, "over    {}", show(id)),
                Step::Lose(client) => writeln!(text, "lost    client {client}"),
            };
        }
        if let Some((.., state)) = path.last() {
            let to_come = (0..self.clients.len()).filter_map(|it| self.next_of(state, it));
            let _ = writeln!(text, "{:?}", state.spec);
            for id in state.spec.waiting.iter().copied() {
                let _ = writeln!(text, "waits   {}", show(id));
            }
            for id in to_come {
                let _ = writeln!(text, "to come {}", show(id));
            }
        }
        text
    }
}

/// The outcome of an operation that cannot be served and may not wait.
fn at_once(operation: &Operation, wait: Option<std::time::Duration>) -> Option<Outcome> {
    let is_put = matches!(operation, Operation::Put(..));
    let outcome = if is_put { Outcome::Refused(Refusal::Full) } else { Outcome::Nothing };
    wait.is_some_and(|wait| wait.is_zero()).then_some(outcome)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weft_tuples::model::{Count, ElementEnd, Sync};

    use super::*;
    use crate::history::Span;

    const ONE: Count = Count::AtMost(1);

    fn call(operation: Operation, start: u64, end: u64, outcome: Outcome) -> Call {
        let span = Span { start, end: Some(end) };
        Call { operation, wait: Some(Duration::from_millis(9)), span, outcome: Some(outcome) }
    }

    fn put(value: u32, start: u64, end: u64, len: usize) -> Call {
        call(Operation::Put(0, ElementEnd::Back, vec![value]), start, end, Outcome::Put(len))
    }

    fn take(start: u64, end: u64, value: u32) -> Call {
        let operation = Operation::Take(vec![0], ElementEnd::Front, ONE);
        call(operation, start, end, Outcome::Taken(0, vec![value]))
    }

    fn count(start: u64, end: u64, found: Option<(usize, usize)>) -> Call {
        call(Operation::Count(0), start, end, Outcome::Counted(found))
    }

    fn client(calls: Vec<Call>) -> ClientHistory {
        ClientHistory { calls, ..ClientHistory::default() }
    }

    fn is_consistent(clients: &[ClientHistory]) -> bool {
        check(clients, &[]) == Verdict::Consistent
    }

    #[test]
    fn put_is_there_when_it_is_answered() {
        let found = Some((1, 0));
        assert!(is_consistent(&[client(vec![put(1, 0, 1, 1)]), client(vec![count(2, 3, found)])]));
        assert!(!is_consistent(&[client(vec![put(1, 0, 1, 1)]), client(vec![count(2, 3, None)])]));
        // They may be at the same time.
        assert!(is_consistent(&[client(vec![put(1, 0, 2, 1)]), client(vec![count(1, 3, None)])]));
    }

    #[test]
    fn tuple_is_taken_once() {
        let takes = |second| {
            is_consistent(&[
                client(vec![put(1, 0, 1, 1), put(2, 2, 3, 1)]),
                client(vec![take(0, 4, 1)]),
                client(vec![take(1, 5, second)]),
            ])
        };
        assert!(takes(2));
        assert!(!takes(1));
    }

    /// The second take must have come later, because a count between them saw one that waits.
    #[test]
    fn takes_that_wait_are_served_in_their_order() {
        let both = |first, second, counted| {
            let make = Operation::Create(0, Sync::Unbounded);
            let values = Operation::Put(0, ElementEnd::Back, vec![1, 2]);
            is_consistent(&[
                client(vec![call(make, 0, 1, Outcome::Created(true))]),
                client(vec![take(2, 10, first)]),
                client(vec![count(3, 4, counted)]),
                client(vec![take(5, 11, second)]),
                client(vec![call(values, 8, 9, Outcome::Put(2))]),
            ])
        };
        assert!(both(1, 2, Some((0, 1))));
        assert!(!both(2, 1, Some((0, 1))));
        assert!(both(2, 1, Some((0, 0))));
    }

    #[test]
    fn calls_of_a_client_come_in_their_order() {
        let calls = |first, second| {
            let takes = client(vec![take(0, 8, first), take(1, 9, second)]);
            is_consistent(&[takes, client(vec![put(1, 2, 3, 1), put(2, 4, 5, 1)])])
        };
        assert!(calls(1, 2));
        assert!(!calls(2, 1));
    }

    /// A call that waited goes to the end of the queue when its connection is lost.
    #[test]
    fn lost_connection_loses_the_place_in_the_queue() {
        let served = |losses: Vec<Span>| {
            let make = Operation::Create(0, Sync::Unbounded);
            is_consistent(&[
                client(vec![call(make, 0, 1, Outcome::Created(true))]),
                ClientHistory { losses, ..client(vec![take(2, 20, 2)]) },
                client(vec![count(3, 4, Some((0, 1)))]),
                client(vec![take(5, 18, 1)]),
                client(vec![put(1, 16, 17, 1), put(2, 18, 19, 1)]),
            ])
        };
        assert!(!served(Vec::new()));
        assert!(served(vec![Span { start: 1, end: Some(15) }]));
    }

    #[test]
    fn repeated_read_may_see_what_its_client_did_later() {
        let losses = |losses| {
            let calls = vec![count(0, 9, Some((1, 0))), put(1, 1, 10, 1)];
            is_consistent(&[ClientHistory { losses, ..client(calls) }])
        };
        assert!(!losses(Vec::new()));
        assert!(losses(vec![Span { start: 0, end: Some(5) }]));
    }

    /// The server has logged with the put that the take got nothing.
    #[test]
    fn repeated_take_gets_nothing_of_what_its_client_put_later() {
        let at = |start, end| Span { start, end: Some(end) };
        let got = |crashes: &[Span]| {
            let mut takes = take(0, 20, 1);
            takes.wait = Some(Duration::ZERO);
            let losses = vec![at(0, 10)];
            let own = ClientHistory { losses, ..client(vec![takes, put(1, 1, 21, 1)]) };
            let other = client(vec![count(3, 4, Some((1, 0)))]);
            check(&[own, other], crashes) == Verdict::Consistent
        };
        assert!(!got(&[]));
        assert!(!got(&[at(7, 8)]));
    }

    /// The first take got nothing, because the second one came before the loss. Only a server that
    /// has crashed does not know that.
    #[test]
    fn call_that_changed_nothing_is_done_again_after_a_crash_only() {
        let at = |start, end| Span { start, end: Some(end) };
        let got = |crashes: &[Span]| {
            let mut first = take(0, 20, 1);
            first.wait = Some(Duration::ZERO);
            let losses = vec![at(0, 10)];
            let own = ClientHistory { losses, ..client(vec![first, take(1, 21, 2)]) };
            let make = Operation::Create(0, Sync::Unbounded);
            let other = client(vec![
                call(make, 0, 1, Outcome::Created(true)),
                count(2, 3, Some((0, 1))),
                put(1, 11, 12, 1),
                put(2, 13, 14, 1),
            ]);
            check(&[own, other], crashes) == Verdict::Consistent
        };
        assert!(got(&[at(7, 8)]));
        assert!(!got(&[]));
        assert!(!got(&[at(11, 12)]));
    }

    #[test]
    fn call_without_an_answer_took_effect_or_not() {
        let gone = |found| {
            let mut calls = vec![put(1, 0, 1, 1)];
            (calls[0].span.end, calls[0].outcome) = (None, None);
            let losses = vec![Span { start: 0, end: None }];
            let gone = ClientHistory { calls, losses, is_gone: true };
            is_consistent(&[gone, client(vec![count(5, 6, found)])])
        };
        assert!(gone(None));
        assert!(gone(Some((1, 0))));
        assert!(!gone(Some((2, 0))));
    }

    #[test]
    fn observes_see_a_tuple_before_it_is_taken() {
        let observed = |value| {
            let observe = Operation::Observe(vec![0], ONE);
            let make = Operation::Create(0, Sync::Unbounded);
            let seen = Outcome::Observed(vec![(0, vec![value])]);
            let puts = vec![count(4, 5, Some((0, 2))), put(1, 6, 7, 1), put(2, 8, 9, 1)];
            is_consistent(&[
                client(vec![call(make, 0, 1, Outcome::Created(true))]),
                client(vec![take(2, 10, 1)]),
                client(vec![call(observe, 3, 11, seen)]),
                client(puts),
            ])
        };
        assert!(observed(1));
        assert!(!observed(2));
    }
}
