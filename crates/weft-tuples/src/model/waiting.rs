//! Operations that wait.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use super::operation::{Operation, Wait};

/// The number of an operation that waits. Later operations have larger numbers.
pub type Ticket = u64;

/// All operations that wait, and their deadlines.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    operations: HashMap<Ticket, (Operation, Wait)>,
    deadlines: BTreeSet<(Duration, Ticket)>,
    last: Ticket,
}

impl Waiting {
    pub(super) fn len(&self) -> usize {
        self.operations.len()
    }

    pub(super) fn add(&mut self, operation: Operation, wait: Wait) -> Ticket {
        self.last += 1;
        if let Wait::Until(deadline) = wait {
            self.deadlines.insert((deadline, self.last));
        }
        self.operations.insert(self.last, (operation, wait));
        self.last
    }

    /// Takes out an operation that is to be attempted. Its deadline stays.
    pub(super) fn lift(&mut self, ticket: Ticket) -> Option<(Operation, Wait)> {
        self.operations.remove(&ticket)
    }

    /// Puts back what [`Self::lift`] has taken out.
    pub(super) fn restore(&mut self, ticket: Ticket, lifted: (Operation, Wait)) {
        self.operations.insert(ticket, lifted);
    }

    pub(super) fn operation(&self, ticket: Ticket) -> Option<&Operation> {
        self.operations.get(&ticket).map(|(operation, _)| operation)
    }

    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Operation> {
        let (operation, wait) = self.operations.remove(&ticket)?;
        if let Wait::Until(deadline) = wait {
            self.deadlines.remove(&(deadline, ticket));
        }
        Some(operation)
    }

    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Returns an operation whose deadline has passed.
    pub(super) fn late(&self, clock: Duration) -> Option<Ticket> {
        self.deadlines.first().filter(|(deadline, _)| *deadline <= clock).map(|(_, ticket)| *ticket)
    }
}
