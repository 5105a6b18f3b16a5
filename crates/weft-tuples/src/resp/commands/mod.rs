//! Commands of the Redis protocol, as operations on a space.

mod edits;
mod general;
mod lists;
mod problem;
mod rights;
mod session;
mod streams;
mod subcommands;
mod table;
mod transactions;
mod trim;
mod words;

use super::parse::Words;
use super::reply::Replies;
use super::roster::Session;
use crate::model::{
    Called, Look, Name, Now, Operation, Order, Outcome, Refusal, Space, Ticket, Wait,
};
pub(super) use problem::{Problem, READ_ONLY};
pub(super) use session::is_of_session;
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
    /// The name of the element and an array of tuples.
    PopSeveral(Vec<Name>),
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
    pub(super) session: &'a mut Session,
    /// Whether operations may wait. They do not within a transaction.
    pub(super) may_wait: bool,
}

impl Call<'_> {
    /// Runs a command. An error is written as its reply.
    pub(super) fn run(mut self, words: &Words) -> Step {
        let Some((name, arguments)) = words.split_first() else { return Step::Replied };
        let Some(command) = table::find(name) else {
            self.session.transaction.break_off();
            self.replies.error(&Problem::unknown(words).text(""));
            return Step::Replied;
        };
        self.session.last_command = command.name;
        let done = if !command.takes(words.len()) {
            Err(self.rejected(command.name, Problem::Arguments))
        } else if !self.session.is_admitted && !command.is_free() {
            Err(self.rejected(command.name, session::NO_AUTH))
        } else if let Some(problem) = self.forbidden(command, words) {
            Err(problem)
        } else if self.session.transaction.has_begun() && !command.is_of_transactions() {
            self.keep(command.name, words)
        } else {
            (command.run)(&mut self, arguments)
        };
        done.unwrap_or_else(|problem| {
            self.replies.error(&problem.text(command.name));
            Step::Replied
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
        let wait = if self.may_wait { wait } else { Wait::No };
        match self.space.call(self.now, operation, wait) {
            Called::Waits(ticket) => Ok(Step::Waits(ticket, pending)),
            Called::Done(Outcome::Nothing) if !self.may_wait && pending == Pending::Move => {
                self.replies.null();
                Ok(Step::Replied)
            }
            Called::Done(outcome) => {
                reply(self.replies, &pending, outcome)?;
                Ok(Step::Replied)
            }
        }
    }

    /// Looks at an element, which must be a list.
    fn list(&self, name: &Name) -> Result<Option<Look>, Problem> {
        match self.space.look(name) {
            Some(look) if look.order == Order::Time => Err(problem::KIND),
            look => Ok(look),
        }
    }

    /// Looks at an element, which must be a stream.
    fn stream(&self, name: &Name) -> Result<Option<Look>, Problem> {
        match self.space.look(name) {
            Some(look) if look.order != Order::Time => Err(problem::KIND),
            look => Ok(look),
        }
    }
}

/// The names of all commands.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    table::COMMANDS.iter().map(|command| command.name)
}

/// Writes the outcome of an operation that may have waited.
pub(super) fn reply(
    replies: &mut Replies,
    pending: &Pending,
    outcome: Outcome,
) -> Result<(), Problem> {
    match (pending, outcome) {
        // The element has become one of another kind while the command waited.
        (Pending::Move, Outcome::Refused(Refusal::Order)) => return Err(problem::KIND),
        (_, Outcome::Refused(refusal)) => return Err(Problem::Refused(refusal)),
        (Pending::Pop(names), Outcome::Taken(at, items)) => {
            replies.array(2);
            replies.bulk(names.get(at).map_or(&[], |name| name));
            items.iter().for_each(|item| replies.member(&item.fields));
        }
        (Pending::PopSeveral(names), Outcome::Taken(at, items)) => {
            replies.array(2);
            replies.bulk(names.get(at).map_or(&[], |name| name));
            replies.members(&items);
        }
        (Pending::Move, Outcome::Transferred(item)) => replies.member(&item.fields),
        (Pending::Read(names), Outcome::Observed(found)) => names.reply(replies, &found),
        _ => replies.null_array(),
    }
    Ok(())
}
