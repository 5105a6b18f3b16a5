//! Commands of the Redis protocol, as operations on a space.

mod general;
mod lists;
mod problem;
mod streams;
mod words;

use std::rc::Rc;

use super::parse::Words;
use super::reply::Replies;
use crate::model::{
    Called, Description, Name, Now, Operation, Order, Outcome, Space, Ticket, Wait,
};
pub(super) use problem::Problem;
pub(super) use streams::StreamNames;

/// The result of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The reply is written.
    Replied,
    /// The reply comes with the outcome of an operation.
    Waits(Ticket, Pending),
    /// The reply is written, and the connection ends.
    Quit,
}

/// How the outcome of an operation that waits is written.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pending {
    /// The name of the element and the tuple.
    Pop(Vec<Name>),
    /// The tuple.
    Move,
    /// The names of the streams with their entries.
    Read(StreamNames),
}

/// A command, and where it runs.
pub(super) struct Call<'a> {
    pub(super) now: Now,
    pub(super) space: &'a mut Space,
    pub(super) replies: &'a mut Replies,
    /// The name of the command in small letters.
    name: String,
}

impl<'a> Call<'a> {
    pub(super) fn new(now: Now, space: &'a mut Space, replies: &'a mut Replies) -> Self {
        Self { now, space, replies, name: String::new() }
    }

    /// Runs a command.
    pub(super) fn run(mut self, words: &Words) -> Result<Step, Problem> {
        let (name, arguments) = words.split_first().ok_or(Problem::Syntax)?;
        self.name = String::from_utf8_lossy(&name[..name.len().min(64)]).to_ascii_lowercase();
        let name = std::mem::take(&mut self.name);
        let step = match self.lists(&name, arguments) {
            Some(step) => step,
            None => match self.streams(&name, arguments) {
                Some(step) => step,
                None => self.general(&name, arguments),
            },
        };
        step.map_err(|problem| match problem {
            Problem::Arguments(_) => Problem::Arguments(name),
            other => other,
        })
    }

    /// Runs an operation that does not wait.
    fn now(&mut self, operation: Operation) -> Result<Outcome, Problem> {
        match self.space.call(self.now, operation, Wait::No) {
            Called::Done(Outcome::Refused(refusal)) => Err(Problem::Refused(refusal)),
            Called::Done(outcome) => Ok(outcome),
            // An operation that may not wait does not.
            Called::Waits(_) => Ok(Outcome::Nothing),
        }
    }

    /// Runs an operation that may wait.
    fn wait(
        &mut self,
        operation: Operation,
        wait: Wait,
        pending: Pending,
    ) -> Result<Step, Problem> {
        match self.space.call(self.now, operation, wait) {
            Called::Waits(ticket) => Ok(Step::Waits(ticket, pending)),
            Called::Done(outcome) => {
                reply(self.replies, &pending, outcome)?;
                Ok(Step::Replied)
            }
        }
    }

    fn describe(&mut self, name: &Name) -> Result<Option<Description>, Problem> {
        match self.now(Operation::Describe { element: Rc::clone(name) })? {
            Outcome::Described(description) => Ok(description),
            _ => Ok(None),
        }
    }

    /// Returns the description of an element, which must be a list.
    fn list(&mut self, name: &Name) -> Result<Option<Description>, Problem> {
        let found = self.describe(name)?;
        let is_wrong = found.as_ref().is_some_and(|it| it.criteria.order == Order::Time);
        if is_wrong { Err(Problem::Kind) } else { Ok(found) }
    }

    /// Returns the description of an element, which must be a stream.
    fn stream(&mut self, name: &Name) -> Result<Option<Description>, Problem> {
        let found = self.describe(name)?;
        let is_wrong = found.as_ref().is_some_and(|it| it.criteria.order != Order::Time);
        if is_wrong { Err(Problem::Kind) } else { Ok(found) }
    }
}

/// Writes the outcome of an operation that may have waited.
pub(super) fn reply(
    replies: &mut Replies,
    pending: &Pending,
    outcome: Outcome,
) -> Result<(), Problem> {
    match (pending, outcome) {
        (_, Outcome::Refused(refusal)) => return Err(Problem::Refused(refusal)),
        (Pending::Pop(names), Outcome::Taken(at, items)) => {
            replies.array(2);
            replies.bulk(names.get(at).map_or(&[], |name| name));
            items.iter().for_each(|item| replies.member(&item.fields));
        }
        (Pending::Move, Outcome::Transferred(item)) => replies.member(&item.fields),
        (Pending::Read(names), Outcome::Observed(found)) => names.reply(replies, &found),
        _ => replies.null_array(),
    }
    Ok(())
}

fn arguments() -> Problem {
    // `run` puts in the name of the command.
    Problem::Arguments(String::new())
}
